//! The endpoints of the chain: each has its own mempool, may lag behind, may be down, and may reject
//! transactions that others accept.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::{B256, U256};
use domain::SendOutcome;
use engine::ports::CallError;

use super::false_fees::FeeReport;
use super::ledger::{BLOCK_GAS, Ledger, cost, intrinsic_gas};
use super::pool::{ChainTx, Place, Pool};

/// Call data with this prefix is rejected by every endpoint, always.
pub const REJECTED: [u8; 4] = [0xde, 0xad, 0xf0, 0x0d];
/// Call data with this prefix is rejected by the first endpoint, if there are several; the others accept
/// it.
pub const DISPUTED: [u8; 4] = [0xd1, 0x5b, 0x07, 0xed];
/// Call data with this prefix is rejected by every endpoint that is strict at present, and accepted by
/// all others.
pub const SOMETIMES_REJECTED: [u8; 4] = [0x3a, 0x7e, 0x12, 0x1e];

/// The most call data that an endpoint accepts, and the most init code: small, so that it costs little to exceed them.
pub const DATA_MAX: usize = 4_096;
pub const INIT_CODE_MAX: usize = 2_048;

/// A kind of call to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Headers, by any tag.
    Headers,
    /// Receipts, by block and by hash, and transactions.
    Receipts,
    /// The nonces of an account.
    Nonces,
    /// The balance of an account.
    Balance,
    /// Blocks and states of the past, in search of a nonce's consumer.
    Consumer,
    /// Tips and gas prices.
    Fees,
    /// Estimates of gas.
    Estimates,
    /// Sends.
    Sends,
}

impl Method {
    /// All that read.
    pub const READS: [Self; 7] = [
        Self::Headers,
        Self::Receipts,
        Self::Nonces,
        Self::Balance,
        Self::Consumer,
        Self::Fees,
        Self::Estimates,
    ];
}

#[derive(Debug, Default)]
pub(super) struct Endpoint {
    pub(super) pool: Pool,
    /// By how many heads it is behind.
    pub(super) lag: u64,
    /// It is unreachable.
    pub(super) is_down: bool,
    /// It answers queries and never a send.
    pub(super) hangs_on_sends: bool,
    /// It never answers calls of this kind.
    pub(super) hung_method: Option<Method>,
    /// It reports these fees.
    pub(super) fee_report: FeeReport,
    /// It rejects [`SOMETIMES_REJECTED`] call data.
    pub(super) is_strict: bool,
    /// It reports this balance of every account.
    pub(super) false_balance: Option<U256>,
    /// It reports blocks with this gas limit.
    pub(super) false_gas_limit: Option<u64>,
    /// It answers every estimate so.
    pub(super) false_estimate: Option<Result<u64, CallError>>,
}

impl Endpoint {
    /// Whether it rejects this transaction permanently. `disputes` is true for the first endpoint, if there
    /// are others.
    fn rejects(&self, tx: &ChainTx, disputes: bool) -> bool {
        let data = &tx.envelope.data;
        data.starts_with(&REJECTED)
            || (disputes && data.starts_with(&DISPUTED))
            || (self.is_strict && data.starts_with(&SOMETIMES_REJECTED))
    }
}

/// Why no block can ever contain a transaction.
fn rejected_for_good(tx: &ChainTx) -> Option<&'static str> {
    let envelope = &tx.envelope;
    if envelope.data.len() > DATA_MAX {
        return Some("oversized data");
    }
    if envelope.to.is_none() && envelope.data.len() > INIT_CODE_MAX {
        return Some("max initcode size exceeded");
    }
    (envelope.gas > BLOCK_GAS).then_some("exceeds block gas limit")
}

impl Ledger {
    /// The answer of an endpoint to a transaction, by the newest head that it knows.
    pub(super) fn receive(&mut self, at: usize, tx: Arc<ChainTx>) -> SendOutcome {
        let envelope = &tx.envelope;
        if envelope.chain_id != self.id {
            return SendOutcome::Refused("invalid chain id".to_owned());
        }
        let (max_fee, tip) = tx.offer();
        if tip > max_fee {
            return SendOutcome::Rejected("max priority fee above max fee".to_owned());
        }
        if self.endpoints[at].rejects(&tx, at == 0 && self.endpoints.len() > 1) {
            return SendOutcome::Rejected("transaction type not supported".to_owned());
        }
        if let Some(why) = rejected_for_good(&tx) {
            return SendOutcome::Rejected(why.to_owned());
        }
        let account = self.account(self.head_of(at, 0), envelope.signer);
        if envelope.nonce < account.nonce {
            return SendOutcome::NonceTooLow;
        }
        if max_fee == 0 {
            return SendOutcome::Underpriced("transaction underpriced".to_owned());
        }
        if envelope.gas < intrinsic_gas(&tx) {
            return SendOutcome::GasTooLow("intrinsic gas too low".to_owned());
        }
        if account.balance < cost(&tx, envelope.gas, max_fee) {
            return SendOutcome::Underfunded("insufficient funds".to_owned());
        }
        self.endpoints[at].pool.add(tx, account.nonce)
    }

    /// The head that an endpoint knows, if its answer is `behind` heads old on top of its lag.
    pub(super) fn head_of(&self, at: usize, behind: u64) -> B256 {
        let behind = self.endpoints[at].lag.saturating_add(behind);
        let behind = usize::try_from(behind).unwrap_or(usize::MAX);
        let place = (self.heads.len() - 1).saturating_sub(behind);
        self.heads[place]
    }

    /// Endpoints gossip their pending transactions; `arrives` decides whether one message arrives.
    pub(super) fn gossip(&mut self, mut arrives: impl FnMut() -> bool) {
        for from in 0..self.endpoints.len() {
            let recorded: Vec<Arc<ChainTx>> = self.endpoints[from].pool.iter().cloned().collect();
            for to in (0..self.endpoints.len()).filter(|to| *to != from) {
                for tx in &recorded {
                    let is_news = !self.endpoints[to].pool.contains(tx);
                    if is_news && arrives() {
                        // Whether an endpoint accepts a gossiped transaction is not reported.
                        drop(self.receive(to, Arc::clone(tx)));
                    }
                }
            }
        }
    }

    /// The candidates for the next block at each place: first private transactions, then those of the producer's
    /// mempool, then those of other mempools.
    pub(super) fn block_candidates(&self) -> BTreeMap<Place, Vec<Arc<ChainTx>>> {
        let mut choices: BTreeMap<Place, Vec<Arc<ChainTx>>> = BTreeMap::new();
        let (before, from) = self.endpoints.split_at(self.producer);
        let pools = from
            .iter()
            .chain(before)
            .flat_map(|endpoint| endpoint.pool.iter());
        for tx in self.private.values().chain(pools) {
            let choice = choices.entry(tx.place()).or_default();
            if !choice.iter().any(|held| held.hash == tx.hash) {
                choice.push(Arc::clone(tx));
            }
        }
        choices
    }

    /// All pending transactions, by account, in nonce order.
    pub(super) fn waiting(&self) -> Vec<Arc<ChainTx>> {
        self.block_candidates().into_values().flatten().collect()
    }

    /// Every endpoint drops transactions that, as far as it knows the chain, can never be mined any more.
    pub(super) fn prune(&mut self) {
        for at in 0..self.endpoints.len() {
            let head = self.head_of(at, 0);
            let Self {
                endpoints, blocks, ..
            } = self;
            let block = &blocks[&head];
            endpoints[at]
                .pool
                .prune(|address| block.account(address).nonce);
        }
        let head = self.head();
        let Self {
            private, blocks, ..
        } = self;
        let block = &blocks[&head];
        private.retain(|(address, nonce), _| *nonce >= block.account(*address).nonce);
    }
}
