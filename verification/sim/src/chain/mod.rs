//! A chain with its endpoints, in memory.
//!
//! [`MemoryChain`] answers at once, through its first endpoint. [`RemoteChain`] is the chain as one node of the
//! cluster reaches it: several endpoints over a network, some of which lag behind, give stale answers or are down.

mod control;
mod endpoint;
mod endpoint_view;
mod envelope;
mod false_fees;
mod ledger;
mod pool;
mod remote;
mod sending;
mod signer;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use domain::admission::HeadLimits;
use domain::attempt::OutgoingEnvelope;
use domain::lane::{
    AccountBalance, Agreement, ChainQuery, ConsumedNonce, EndpointNonces, NonceConsumer,
};
use domain::{Address, B256, ChainId, FeeQuote, Header, Inclusion, LaneKey, Nonce, SendOutcome};
use engine::ports::{
    BlockTag, CallError, CallRequest, Chain, ChainError, HashFilter, Quorum, SendTrust,
};
use tokio::sync::Notify;

use crate::event::WorldEvent;
use crate::trace::Trace;
use crate::world::Feature;

pub use control::{ForeignRoute, ReorgPlacement};
pub use endpoint::{DATA_MAX, DISPUTED, INIT_CODE_MAX, Method, REJECTED, SOMETIMES_REJECTED};
pub use envelope::{decode, encode, hash};
pub use false_fees::FeeReport;
pub use ledger::{BLOCK_GAS, REVERTS};
pub use pool::ChainTx;
pub use remote::{RemoteChain, Staleness};
pub use signer::{MemorySigner, UNSIGNABLE};

use endpoint_view::{EndpointView, matching_receipts};
use ledger::Ledger;

/// The in-memory twin of the Chain port. Clones are the same chain.
///
/// Every account has a large balance by default; call data with the prefix [`REVERTS`] reverts.
#[derive(Clone)]
pub struct MemoryChain {
    id: ChainId,
    ledger: Arc<Mutex<Ledger>>,
    /// Notified with every new head.
    announced: Arc<Notify>,
    trace: Option<Trace>,
}

impl MemoryChain {
    /// A chain with its genesis block and one endpoint, on which blocks are mined by [`MemoryChain::mine`] only.
    #[must_use]
    pub fn new(id: ChainId) -> Self {
        Self {
            id,
            ledger: Arc::new(Mutex::new(Ledger::new(id))),
            announced: Arc::default(),
            trace: None,
        }
    }

    /// Mines a block with all pending transactions after every send.
    #[must_use]
    pub fn auto_mining(self) -> Self {
        self.lock().auto_mine = true;
        self
    }

    /// Records every send, block and reorg in a trace.
    #[must_use]
    pub fn traced(self, trace: Trace) -> Self {
        Self {
            trace: Some(trace),
            ..self
        }
    }

    /// Transactions arrive at an endpoint.
    fn receive(&self, endpoint: usize, outgoing: &[OutgoingEnvelope]) -> Vec<SendOutcome> {
        let mut ledger = self.lock();
        let outcomes = outgoing
            .iter()
            .map(|bytes| self.receive_one(&mut ledger, endpoint, bytes))
            .collect();
        let auto_mine = ledger.auto_mine;
        drop(ledger);
        self.record_foreign();
        if auto_mine {
            self.mine();
        }
        outcomes
    }

    fn receive_one(
        &self,
        ledger: &mut Ledger,
        endpoint: usize,
        outgoing: &OutgoingEnvelope,
    ) -> SendOutcome {
        let decoded = ChainTx::decode(&outgoing.raw);
        let Some(tx) = decoded.filter(|tx| tx.hash == outgoing.hash) else {
            return SendOutcome::Rejected("not a transaction".to_owned());
        };
        let (lane, place) = (self.lane(tx.envelope.signer), tx.place());
        let mut outcome = ledger.receive(endpoint, Arc::new(tx));
        if let SendOutcome::ReplacementUnderpriced(text) = outcome {
            let held = ledger.endpoints[endpoint].pool.get(place);
            let is_ours = held.is_some_and(|held| outgoing.others.contains(&held.hash));
            outcome = if is_ours {
                SendOutcome::ReplacementUnderpriced(text)
            } else {
                SendOutcome::ForeignPending(text)
            };
        }
        self.record(|| WorldEvent::Sent {
            lane,
            endpoint,
            nonce: outgoing.nonce,
            hash: outgoing.hash,
            outcome: outcome.clone(),
        });
        outcome
    }

    /// Announces the present head, with the blocks that were reorged out and those that were added.
    fn announce(&self, ledger: &mut Ledger, dropped: Vec<Header>, added: &[Header]) {
        ledger.announce();
        if !dropped.is_empty() {
            self.record(|| WorldEvent::Forked {
                chain_id: self.id,
                dropped,
            });
        }
        for header in added {
            let txs = ledger.blocks[&header.hash].txs.clone();
            self.record(|| WorldEvent::Mined {
                chain_id: self.id,
                header: *header,
                txs,
            });
        }
        self.announced.notify_waiters();
    }

    fn lane(&self, signer: Address) -> LaneKey {
        LaneKey {
            chain_id: self.id,
            signer,
        }
    }

    fn record(&self, event: impl FnOnce() -> WorldEvent) {
        if let Some(trace) = &self.trace {
            trace.record(event());
        }
    }

    /// Records that a fault of the chain has happened.
    pub(crate) fn fire(&self, feature: Feature) {
        if let Some(trace) = &self.trace {
            trace.fire(feature);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Chain for MemoryChain {
    fn id(&self) -> ChainId {
        self.id
    }

    fn endpoints(&self) -> Vec<(String, bool)> {
        vec![("memory".to_owned(), true)]
    }

    async fn header(&self, block: BlockTag) -> Result<Option<Header>, ChainError> {
        Ok(EndpointView::FIRST.header(&self.lock(), block))
    }

    async fn headers(&self, from: u64, count: u64) -> Result<Vec<Header>, ChainError> {
        Ok(EndpointView::FIRST.headers(&self.lock(), from, count))
    }

    async fn block_receipts(
        &self,
        block: B256,
        is_ours: HashFilter<'_>,
    ) -> Result<Option<Vec<Inclusion>>, ChainError> {
        let receipts = EndpointView::FIRST.block_receipts(&self.lock(), block);
        Ok(receipts.map(|receipts| matching_receipts(receipts, is_ours)))
    }

    async fn knows_transaction(&self, hash: B256, _witnesses: Quorum) -> Result<bool, ChainError> {
        Ok(EndpointView::FIRST.knows_transaction(&self.lock(), hash))
    }

    async fn receipts(
        &self,
        hashes: &[B256],
        _witnesses: Quorum,
    ) -> Result<Vec<Inclusion>, ChainError> {
        Ok(EndpointView::FIRST.receipts(&self.lock(), hashes))
    }

    async fn revert_reason(&self, inclusion: &Inclusion) -> Result<Option<String>, ChainError> {
        let delay = self.lock().reason_delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        Ok((!inclusion.succeeded).then(|| "reverted by its call data".to_owned()))
    }

    async fn account_nonces(
        &self,
        account: Address,
        query: ChainQuery,
        _witnesses: Quorum,
    ) -> Result<EndpointNonces, ChainError> {
        let only = EndpointView::FIRST.account_nonces(&self.lock(), account, query);
        Ok(EndpointNonces::new(only, None, Agreement::Quorum))
    }

    async fn account_balance(
        &self,
        account: Address,
        not_below: u64,
        _quorum: Quorum,
    ) -> Result<AccountBalance, ChainError> {
        let found = EndpointView::FIRST.account_balance(&self.lock(), account, not_below);
        found.ok_or_else(|| ChainError::Unusable(format!("there is no block {not_below}")))
    }

    async fn find_consumer(
        &self,
        account: Address,
        nonce: Nonce,
        up_to: Header,
    ) -> Result<NonceConsumer, ChainError> {
        let consumer = EndpointView::FIRST.find_consumer(&self.lock(), account, nonce, up_to);
        consumer.ok_or_else(|| ChainError::Unusable(format!("there is no block {}", up_to.number)))
    }

    async fn find_consumers(
        &self,
        account: Address,
        nonces: Range<u64>,
        up_to: Header,
    ) -> Result<Vec<ConsumedNonce>, ChainError> {
        let found = EndpointView::FIRST.find_consumers(&self.lock(), account, nonces, up_to);
        found.ok_or_else(|| ChainError::Unusable(format!("there is no block {}", up_to.number)))
    }

    async fn fee_quote(&self, _followed: &Header) -> Result<FeeQuote, ChainError> {
        Ok(self.lock().quote())
    }

    async fn head_limits(&self) -> Result<HeadLimits, ChainError> {
        Ok(EndpointView::FIRST.head_limits(&self.lock()))
    }

    async fn estimate_gas(&self, call: &CallRequest) -> Result<u64, CallError> {
        EndpointView::FIRST.estimate_gas(&self.lock(), call)
    }

    async fn send(
        &self,
        _account: Address,
        outgoing: &[OutgoingEnvelope],
        _trust: SendTrust<'_>,
    ) -> Vec<SendOutcome> {
        self.receive(0, outgoing)
    }
}
