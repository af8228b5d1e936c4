//! One EVM chain, through its endpoints. Answers may be stale, lost or wrong; callers must expect that.

use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use domain::admission::HeadLimits;
use domain::attempt::OutgoingEnvelope;
use domain::lane::{AccountBalance, ChainQuery, ConsumedNonce, EndpointNonces, NonceConsumer};
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
    /// The most gas that it may need, where that is known.
    pub gas_max: Option<u64>,
}

/// Why a call was not estimated.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CallError {
    /// The execution reverts; the reason, decoded where possible.
    #[error("the call reverts: {0}")]
    Reverted(String),
    /// The account does not have its value, without which it cannot be executed.
    #[error("the account cannot pay: {0}")]
    Underfunded(String),
    /// The node refused the call for another reason that lies in the call.
    #[error("the node refused the call: {0}")]
    Refused(String),
    /// No answer.
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// How much longer bytes may be sent: the remaining trust in the lease, zero when it is over. Renewals extend it, so it
/// is read again before every request.
pub type SendTrust<'a> = &'a (dyn Fn() -> Duration + Send + Sync);

/// The time that an endpoint needs for a send at most, if it is slow and not hanging.
pub const SEND_SHARE_MIN: Duration = Duration::from_secs(1);
/// The longest time that an endpoint gets for a send while another one waits for its turn.
const SEND_SHARE_MAX: Duration = Duration::from_secs(3);
/// One part in so many of the remaining trust is not used for a send: outcomes that come after its end are lost.
const TRUST_MARGIN_SHARE: u32 = 10;

/// How long a send may wait for an endpoint when so much trust is left and so many endpoints may have their turn after
/// it: an equal share, but enough for a slow endpoint.
#[must_use]
pub fn send_share(left: Duration, endpoints_after: usize) -> Duration {
    let usable = left.saturating_sub(left / TRUST_MARGIN_SHARE);
    let others = u32::try_from(endpoints_after).unwrap_or(u32::MAX);
    let share = match others {
        0 => usable,
        _ => (usable / others.saturating_add(1)).clamp(SEND_SHARE_MIN, SEND_SHARE_MAX),
    };
    share.min(usable)
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

    /// The account's balance and nonce, both of the newest block of one endpoint. An endpoint whose newest block is
    /// lower than this does not count. With [`Quorum::Two`] the higher balance of two endpoints, where two answer.
    async fn account_balance(
        &self,
        account: Address,
        not_below: u64,
        quorum: Quorum,
    ) -> Result<AccountBalance, ChainError>;

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

    /// The transactions that consumed these nonces of the account, in blocks up to this one: from the first nonce upwards as
    /// many as are found together, and none when the first is not consumed. Two endpoints (or the only one) must show them.
    async fn find_consumers(
        &self,
        account: Address,
        nonces: Range<u64>,
        up_to: Header,
    ) -> Result<Vec<ConsumedNonce>, ChainError>;

    /// The fees that get a transaction into a block soon after this one, which is followed.
    async fn fee_quote(&self, followed: &Header) -> Result<FeeQuote, ChainError>;

    /// What the newest blocks of two endpoints allow, where two answer.
    async fn head_limits(&self) -> Result<HeadLimits, ChainError>;

    /// Gas that a call needs, without margin, where possible also if the account cannot pay for it. An answer that refuses the
    /// call (an error of the call, or more gas than it may need) is that of two endpoints, where two answer.
    async fn estimate_gas(&self, call: &CallRequest) -> Result<u64, CallError>;

    /// Returns when an endpoint announces a new head. Only a wakeup: the head is polled.
    async fn wait_for_head(&self) {
        std::future::pending().await
    }

    /// Sends envelopes of one account to the endpoints, in order, and returns the outcome of each before the trust is
    /// over. An endpoint that does not answer delays the next one only for its share of that time.
    async fn send(
        &self,
        account: Address,
        outgoing: &[OutgoingEnvelope],
        trust: SendTrust<'_>,
    ) -> Vec<SendOutcome>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_share_the_trust_and_a_slow_one_gets_enough() {
        let ms = Duration::from_millis;
        assert_eq!(send_share(ms(6_000), 0), ms(5_400), "with a margin");
        assert_eq!(send_share(ms(6_000), 1), ms(2_700));
        assert_eq!(send_share(ms(60_000), 1), SEND_SHARE_MAX);
        assert_eq!(send_share(ms(3_000), 2), SEND_SHARE_MIN);
        assert_eq!(send_share(ms(500), 2), ms(450), "never more than is left");
        assert_eq!(send_share(Duration::ZERO, 3), Duration::ZERO);
    }
}
