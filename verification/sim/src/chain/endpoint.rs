//! The nodes of the chain that can be asked: each has a pool of its own, may lag behind, may be down,
//! and may think of some bytes what others do not.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::B256;
use domain::SendOutcome;

use super::ledger::{Ledger, cost, intrinsic_gas};
use super::pool::{ChainTx, Place, Pool};

/// Call data that begins like this is refused by every node, for ever.
pub const REJECTED: [u8; 4] = [0xde, 0xad, 0xf0, 0x0d];
/// Call data that begins like this is refused for good by the first node, where there are several; the
/// others take it.
pub const DISPUTED: [u8; 4] = [0xd1, 0x5b, 0x07, 0xed];
/// Call data that begins like this is refused for good by every node that is strict at present, and
/// taken by all that are not.
pub const WAVERING: [u8; 4] = [0x3a, 0x7e, 0x12, 0x1e];

#[derive(Debug, Default)]
pub(super) struct Endpoint {
    pub(super) pool: Pool,
    /// So many heads behind the newest one.
    pub(super) lag: u64,
    /// Nobody reaches it.
    pub(super) is_down: bool,
    /// It refuses [`WAVERING`] call data.
    pub(super) is_strict: bool,
}

impl Endpoint {
    /// Whether it says of these bytes that no node will ever take them. `disputes` is the first node's,
    /// where there are others.
    fn rejects(&self, tx: &ChainTx, disputes: bool) -> bool {
        let data = &tx.envelope.data;
        data.starts_with(&REJECTED)
            || (disputes && data.starts_with(&DISPUTED))
            || (self.is_strict && data.starts_with(&WAVERING))
    }
}

impl Ledger {
    /// What a node says of these bytes. It judges by the newest head that it knows.
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
        let account = self.account(self.head_of(at, 0), envelope.signer);
        if envelope.nonce < account.nonce {
            return SendOutcome::NonceTooLow;
        }
        if max_fee == 0 {
            return SendOutcome::Underpriced("transaction underpriced".to_owned());
        }
        if envelope.gas < intrinsic_gas(&tx) {
            return SendOutcome::Refused("intrinsic gas too low".to_owned());
        }
        if account.balance < cost(&tx, envelope.gas, max_fee) {
            return SendOutcome::Underfunded("insufficient funds".to_owned());
        }
        self.endpoints[at].pool.add(tx, account.nonce)
    }

    /// The head that a node knows, when its answer is `behind` heads old on top of its lag.
    pub(super) fn head_of(&self, at: usize, behind: u64) -> B256 {
        let behind = self.endpoints[at].lag.saturating_add(behind);
        let behind = usize::try_from(behind).unwrap_or(usize::MAX);
        let place = (self.heads.len() - 1).saturating_sub(behind);
        self.heads[place]
    }

    /// Nodes tell each other what waits with them; `is_heard` says whether one telling arrives.
    pub(super) fn gossip(&mut self, mut is_heard: impl FnMut() -> bool) {
        for from in 0..self.endpoints.len() {
            let told: Vec<Arc<ChainTx>> = self.endpoints[from].pool.iter().cloned().collect();
            for to in (0..self.endpoints.len()).filter(|to| *to != from) {
                for tx in &told {
                    let is_news = !self.endpoints[to].pool.contains(tx);
                    if is_news && is_heard() {
                        // What a node thinks of another one's transaction is nobody's business.
                        drop(self.receive(to, Arc::clone(tx)));
                    }
                }
            }
        }
    }

    /// What the producer of the next block can choose from at each place: first what came to it alone,
    /// then what waits with it, then what waits with others.
    pub(super) fn choices(&self) -> BTreeMap<Place, Vec<Arc<ChainTx>>> {
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

    /// Everything that waits anywhere, by account, in nonce order.
    pub(super) fn waiting(&self) -> Vec<Arc<ChainTx>> {
        self.choices().into_values().flatten().collect()
    }

    /// Every node forgets what, as far as it knows the chain, can never be mined any more.
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
