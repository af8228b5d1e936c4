//! Signing: local keys sign inside a turn, remote ones between turns.

use async_trait::async_trait;
use domain::{Address, Attempt, ChainId, Timestamp, UnsignedEnvelope};
use thiserror::Error;

/// Why an envelope was not signed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SignError {
    /// It will never be signed.
    #[error("the signer refused: {0}")]
    Refused(String),
    /// It may be signed later.
    #[error("the signer is unavailable: {0}")]
    Unavailable(String),
}

/// The keys that this node can sign with.
#[async_trait]
pub trait Signer: Send + Sync + 'static {
    /// The accounts, and for each the chains it is restricted to (empty: all configured chains).
    fn accounts(&self) -> Vec<(Address, Vec<ChainId>)>;

    /// Whether signing for this account takes microseconds, so that it may happen inside a turn.
    fn is_local(&self, account: Address) -> bool;

    /// Signs envelopes, answering in the order given. Each attempt carries `at` as its time.
    async fn sign(
        &self,
        envelopes: Vec<UnsignedEnvelope>,
        at: Timestamp,
    ) -> Vec<Result<Attempt, SignError>>;
}
