//! One EVM chain, through its endpoints. Answers may be stale, lost or wrong; callers must expect that.

use async_trait::async_trait;
use domain::attempt::OutgoingEnvelope;
use domain::lane::{ChainQuery, EndpointNonces, NonceConsumer};
use domain::{
    Address, B256, Bytes, ChainId, FeeQuote, Header, Inclusion, Nonce, SendOutcome, U256,
};
use thiserror::Error;

/// Why a call of the chain failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChainError {
    /// No endpoint answered.
    #[error("no endpoint of the chain answered: {0}")]
    Unreachable(String),
    /// An endpoint's answer cannot be used.
    #[error("an endpoint gave an unusable answer: {0}")]
    Unusable(String),
}

/// Names a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockTag {
    /// The newest.
    Latest,
    /// The newest block that the chain itself calls safe.
    Safe,
    /// The newest block that the chain itself calls final.
    Finalized,
    /// By height, on the node's canonical chain.
    Number(u64),
    /// By hash, canonical or not.
    Hash(B256),
}

/// How many endpoints must answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quorum {
    /// Any one.
    One,
    /// A second one too, where there is one.
    Two,
}

/// A call to simulate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRequest {
    /// The sender.
    pub from: Address,
    /// Recipient; `None` deploys.
    pub to: Option<Address>,
    /// Wei to move.
    pub value: U256,
    /// Call data or init code.
    pub data: Bytes,
}

/// Why a call was not estimated.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CallError {
    /// The execution reverts; the reason, decoded where possible.
    #[error("the call reverts: {0}")]
    Reverted(String),
    /// The account cannot pay for it.
    #[error("the account cannot pay: {0}")]
    Underfunded(String),
    /// The node refused the call for another reason that lies in the call.
    #[error("the node refused the call: {0}")]
    Refused(String),
    /// No answer.
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// Whether a hash is one of the watched ones.
pub type HashFilter<'a> = &'a (dyn Fn(B256) -> bool + Send + Sync);

/// One chain.
#[async_trait]
pub trait Chain: Send + Sync + 'static {
    /// Its chain id.
    fn id(&self) -> ChainId;

    /// The names of the endpoints and whether each answers at present, for operators.
    fn endpoints(&self) -> Vec<(String, bool)>;

    /// A header; `None` when the endpoint has no such block.
    async fn header(&self, block: BlockTag) -> Result<Option<Header>, ChainError>;

    /// The headers of a range of heights, oldest first; shorter when the endpoint has fewer.
    async fn headers(&self, from: u64, count: u64) -> Result<Vec<Header>, ChainError>;

    /// The receipts of a block, by its hash, that pass the filter; `None` when the endpoint does not have the
    /// block.
    async fn block_receipts(
        &self,
        block: B256,
        is_ours: HashFilter<'_>,
    ) -> Result<Option<Vec<Inclusion>>, ChainError>;

    /// Receipts by transaction hash; those that no endpoint has are left out. With [`Quorum::Two`] an
    /// absence counts only when two endpoints (or the only one) have confirmed it.
    async fn receipts(&self, hashes: &[B256], quorum: Quorum)
    -> Result<Vec<Inclusion>, ChainError>;

    /// Why a mined transaction reverted, where an endpoint can say so.
    async fn revert_reason(&self, inclusion: &Inclusion) -> Result<Option<String>, ChainError>;

    /// The account's nonces. With [`ChainQuery::Latest`] both are the mined one.
    async fn account_nonces(
        &self,
        account: Address,
        query: ChainQuery,
        quorum: Quorum,
    ) -> Result<EndpointNonces, ChainError>;

    /// Whether a transaction is in a mempool or in a block: at the first endpoint, or, with
    /// [`Quorum::Two`], at any endpoint that is not known to be behind.
    async fn knows_transaction(&self, hash: B256, quorum: Quorum) -> Result<bool, ChainError>;

    /// The transaction that consumed a nonce of the account, in blocks up to this one; only endpoints that have
    /// that block on their chain count.
    async fn find_consumer(
        &self,
        account: Address,
        nonce: Nonce,
        up_to: Header,
    ) -> Result<NonceConsumer, ChainError>;

    /// The fees that get a transaction in soon.
    async fn fee_quote(&self) -> Result<FeeQuote, ChainError>;

    /// Gas that a call needs, without margin.
    async fn estimate_gas(&self, call: &CallRequest) -> Result<u64, CallError>;

    /// Returns when an endpoint announces a new head. Only a wakeup: the head is polled.
    async fn wait_for_head(&self) {
        std::future::pending().await
    }

    /// Sends envelopes to the endpoints, in order, and returns the outcome of each.
    async fn send(&self, outgoing: &[OutgoingEnvelope]) -> Vec<SendOutcome>;
}
