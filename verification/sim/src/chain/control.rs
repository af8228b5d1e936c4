//! How a test or a world controls the chain: blocks, reorgs, prices, mempools, and foreign transactions.

use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::U256;
use domain::{
    Address, AttemptKind, B256, Bytes, Fees, Header, Nonce, SendOutcome, TxId, UnsignedEnvelope,
};
use uuid::Uuid;

use super::endpoint::{Endpoint, Method};
use super::false_fees::FeeReport;
use super::ledger::Ledger;
use super::{ChainTx, MemoryChain, envelope};
use crate::event::WorldEvent;

/// What happens to a transaction whose block is reorged out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReorgPlacement {
    /// It is mined in the new branch.
    Mined,
    /// It is pending again.
    Pooled,
    /// Every endpoint drops it.
    Dropped,
}

/// How a foreign transaction reaches the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignRoute {
    /// Through the mempool of this endpoint, at the first nonce that is free there.
    Pool(usize),
    /// Privately, at the account's next nonce, whether or not a transaction is pending there.
    Private,
}

/// The gas limit of a foreign transaction.
const FOREIGN_GAS: u64 = 100_000;

impl MemoryChain {
    /// The chain with `count` endpoints, at least one.
    #[must_use]
    pub fn with_endpoints(self, count: usize) -> Self {
        self.lock()
            .endpoints
            .resize_with(count.max(1), Endpoint::default);
        self
    }

    /// How many blocks below its head an endpoint calls safe, and finalized.
    pub fn set_tags(&self, safe_depth: u64, final_depth: u64) {
        let mut ledger = self.lock();
        ledger.safe_depth = safe_depth;
        ledger.final_depth = final_depth;
    }

    /// How many transactions fit into a block, and how many of one account into a mempool.
    pub fn set_capacity(&self, block: usize, slots: u64) {
        let mut ledger = self.lock();
        ledger.block_room = block;
        for endpoint in &mut ledger.endpoints {
            endpoint.pool.slots = slots;
        }
    }

    /// Whether endpoints report their mempool depth when they are full.
    pub fn set_reports_depth(&self, reports: bool) {
        for endpoint in &mut self.lock().endpoints {
            endpoint.pool.reports_depth = reports;
        }
    }

    /// The present base fee.
    #[must_use]
    pub fn base_fee(&self) -> u128 {
        self.lock().base_fee
    }

    /// The price from now on, in wei per gas.
    pub fn set_fees(&self, base_fee: u128, tip: u128) {
        let mut ledger = self.lock();
        ledger.base_fee = base_fee;
        ledger.tip = tip;
        drop(ledger);
        self.record_setting(|| format!("base fee is {base_fee}, tip {tip} wei per gas"));
    }

    /// Sets the balance of an account.
    pub fn fund(&self, account: Address, balance: U256) {
        self.lock().fund(account, balance);
        self.record_setting(|| format!("{account} has {balance} wei"));
    }

    /// Sets by how many heads an endpoint is behind.
    pub fn set_lag(&self, endpoint: usize, heads: u64) {
        self.lock().endpoints[endpoint].lag = heads;
        self.record_setting(|| format!("endpoint {endpoint} is {heads} heads behind"));
    }

    /// Makes an endpoint unreachable, or reachable again.
    pub fn set_down(&self, endpoint: usize, is_down: bool) {
        self.lock().endpoints[endpoint].is_down = is_down;
        self.record_setting(|| format!("endpoint {endpoint} is down: {is_down}"));
    }

    /// Makes an endpoint hang on sends, or answer them again.
    pub fn set_hangs_on_sends(&self, endpoint: usize, hangs: bool) {
        self.lock().endpoints[endpoint].hangs_on_sends = hangs;
        self.record_setting(|| format!("endpoint {endpoint} hangs on sends: {hangs}"));
    }

    /// Makes an endpoint never answer calls of one kind, or answer all again.
    pub fn set_hung_method(&self, endpoint: usize, method: Option<Method>) {
        self.lock().endpoints[endpoint].hung_method = method;
        self.record_setting(|| format!("endpoint {endpoint} hangs on {method:?}"));
    }

    /// What an endpoint reports as fees from now on.
    pub fn set_fee_report(&self, endpoint: usize, report: FeeReport) {
        self.lock().endpoints[endpoint].fee_report = report;
        self.record_setting(|| format!("endpoint {endpoint} reports fees: {report:?}"));
    }

    /// How long an endpoint needs to show why a transaction reverted.
    pub fn set_reason_delay(&self, delay: Duration) {
        self.lock().reason_delay = delay;
    }

    /// Whether all endpoints reject [`super::SOMETIMES_REJECTED`] call data from now on.
    pub fn set_strict(&self, is_strict: bool) {
        for endpoint in &mut self.lock().endpoints {
            endpoint.is_strict = is_strict;
        }
        self.record_setting(|| format!("endpoints are strict: {is_strict}"));
    }

    /// The endpoint whose mempool the next blocks are built from first.
    pub fn set_producer(&self, endpoint: usize) {
        let mut ledger = self.lock();
        assert!(endpoint < ledger.endpoints.len(), "no endpoint {endpoint}");
        ledger.producer = endpoint;
    }

    /// Endpoints gossip their pending transactions; `arrives` decides whether one message arrives.
    pub fn gossip(&self, arrives: impl FnMut() -> bool) {
        self.lock().gossip(arrives);
        self.record_foreign();
    }

    /// Mines a block with all pending transactions that can be mined.
    pub fn mine(&self) -> Header {
        self.mine_if(|_| true)
    }

    /// Mines a block with those of them that are `wanted`. (Later nonces of an unwanted one wait as well.)
    pub fn mine_if(&self, wanted: impl FnMut(&ChainTx) -> bool) -> Header {
        let mut ledger = self.lock();
        let header = ledger.mine(wanted);
        self.announce(&mut ledger, Vec::new(), &[header]);
        drop(ledger);
        self.record_foreign();
        header
    }

    /// A reorg: the newest `depth` blocks are replaced by one more than that. Returns the headers that were
    /// reorged out, newest first (fewer at the genesis block).
    pub fn reorg(
        &self,
        depth: u64,
        mut placement: impl FnMut(&ChainTx) -> ReorgPlacement,
    ) -> Vec<Header> {
        let mut ledger = self.lock();
        let mut dropped = Vec::new();
        let mut mined_again = Vec::new();
        for _ in 0..depth {
            let Some((header, txs)) = ledger.remove_head() else {
                break;
            };
            dropped.push(header);
            for tx in txs {
                match placement(&tx) {
                    ReorgPlacement::Mined => {
                        mined_again.push(tx.hash);
                        put_back(&mut ledger, &tx);
                    }
                    ReorgPlacement::Pooled => put_back(&mut ledger, &tx),
                    ReorgPlacement::Dropped => {}
                }
            }
        }
        let added: Vec<Header> = (0..=dropped.len())
            .map(|_| ledger.mine(|tx| mined_again.contains(&tx.hash)))
            .collect();
        self.announce(&mut ledger, dropped.clone(), &added);
        drop(ledger);
        self.record_foreign();
        dropped
    }

    /// Every endpoint drops a pending transaction; returns whether there was one.
    pub fn drop_tx(&self, hash: B256) -> bool {
        let mut was_there = false;
        for endpoint in &mut self.lock().endpoints {
            was_there |= endpoint.pool.drop_tx(hash);
        }
        if was_there {
            self.record(|| WorldEvent::Dropped {
                chain_id: self.id,
                hash,
            });
            self.record_foreign();
        }
        was_there
    }

    /// An endpoint loses its whole mempool.
    pub fn lose_pool(&self, endpoint: usize) {
        self.lock().endpoints[endpoint].pool.lose_all();
        self.record_setting(|| format!("endpoint {endpoint} lost its pool"));
        self.record_foreign();
    }

    /// Another owner of the key sends a transaction, identified by its call data. `None` when the endpoint
    /// refuses it.
    pub fn submit_foreign_tx(
        &self,
        account: Address,
        data: &str,
        per_gas: u128,
        way: ForeignRoute,
    ) -> Option<Arc<ChainTx>> {
        let mut ledger = self.lock();
        let next = ledger.account(ledger.head(), account).nonce;
        let nonce = match way {
            ForeignRoute::Pool(at) => ledger.endpoints[at].pool.pending(account, next),
            ForeignRoute::Private => next,
        };
        let tx = Arc::new(self.foreign(account, nonce, data, per_gas));
        match way {
            ForeignRoute::Pool(at) => {
                if ledger.receive(at, Arc::clone(&tx)) != SendOutcome::Accepted {
                    return None;
                }
            }
            ForeignRoute::Private => {
                ledger.private.insert(tx.place(), Arc::clone(&tx));
            }
        }
        ledger.foreign.insert(tx.hash, false);
        drop(ledger);
        self.record_foreign();
        Some(tx)
    }

    /// The transaction that another owner of the key makes at a nonce, identified by its call data.
    #[must_use]
    pub fn foreign_tx(
        &self,
        account: Address,
        nonce: Nonce,
        data: &str,
        per_gas: u128,
    ) -> Arc<ChainTx> {
        Arc::new(self.foreign(account, nonce, data, per_gas))
    }

    /// Another owner of the key sends a transaction to an endpoint, which may refuse it.
    pub fn send_foreign(&self, tx: &Arc<ChainTx>, endpoint: usize) {
        let mut ledger = self.lock();
        if ledger.receive(endpoint, Arc::clone(tx)) == SendOutcome::Accepted {
            ledger.foreign.entry(tx.hash).or_insert(false);
        }
        drop(ledger);
        self.record_foreign();
    }

    /// The account's nonce on the canonical chain.
    #[must_use]
    pub fn account_nonce(&self, account: Address) -> Nonce {
        let ledger = self.lock();
        ledger.account(ledger.head(), account).nonce
    }

    fn foreign(&self, account: Address, nonce: Nonce, data: &str, per_gas: u128) -> ChainTx {
        let raw = envelope::encode(&UnsignedEnvelope {
            tx_id: TxId(Uuid::nil()),
            kind: AttemptKind::Original,
            chain_id: self.id,
            signer: account,
            nonce,
            to: Some(Address::repeat_byte(0xff)),
            value: U256::ZERO,
            data: Bytes::copy_from_slice(data.as_bytes()),
            gas: FOREIGN_GAS,
            fees: Fees::Eip1559 {
                max_fee: per_gas,
                max_priority_fee: per_gas,
            },
        });
        ChainTx::decode(&raw).expect("just encoded")
    }

    /// Every endpoint drops foreign transactions that are too cheap for the chain.
    pub fn drop_cheap_foreign(&self) {
        let base_fee = self.lock().base_fee;
        for tx in self.foreign_pending() {
            if tx.offer().0 < base_fee {
                self.drop_tx(tx.hash);
            }
        }
    }

    /// The pending transactions, by account, in nonce order.
    #[must_use]
    pub fn pool(&self) -> Vec<Arc<ChainTx>> {
        self.lock().waiting()
    }

    /// The pending foreign transactions.
    #[must_use]
    pub fn foreign_pending(&self) -> Vec<Arc<ChainTx>> {
        let ledger = self.lock();
        let mut waiting = ledger.waiting();
        waiting.retain(|tx| ledger.foreign.contains_key(&tx.hash));
        waiting
    }

    /// All transactions of the canonical chain, in order.
    #[must_use]
    pub fn mined(&self) -> Vec<Arc<ChainTx>> {
        let ledger = self.lock();
        let blocks = ledger.canonical.iter().map(|hash| &ledger.blocks[hash]);
        blocks.flat_map(|block| block.txs.iter().cloned()).collect()
    }

    /// The newest header.
    #[must_use]
    pub fn head(&self) -> Header {
        let ledger = self.lock();
        ledger.blocks[&ledger.head()].header
    }

    fn record_setting(&self, what: impl FnOnce() -> String) {
        self.record(|| WorldEvent::ChainSet {
            chain_id: self.id,
            what: what(),
        });
    }

    /// Records which foreign transactions became pending, and which are not pending any more.
    pub(super) fn record_foreign(&self) {
        let mut ledger = self.lock();
        if ledger.foreign.is_empty() {
            return;
        }
        let waiting = ledger.waiting();
        let mut events = Vec::new();
        for (hash, waited) in &mut ledger.foreign {
            let found = waiting.iter().find(|tx| tx.hash == *hash);
            let before = std::mem::replace(waited, found.is_some());
            match (before, found) {
                (false, Some(tx)) => events.push(WorldEvent::Foreign {
                    lane: self.lane(tx.envelope.signer),
                    nonce: tx.envelope.nonce,
                    hash: *hash,
                }),
                (true, None) => events.push(WorldEvent::ForeignGone {
                    chain_id: self.id,
                    hash: *hash,
                }),
                (true, Some(_)) | (false, None) => {}
            }
        }
        drop(ledger);
        events.into_iter().for_each(|event| self.record(|| event));
    }
}

/// Makes it pending at all endpoints again.
fn put_back(ledger: &mut Ledger, tx: &Arc<ChainTx>) {
    for endpoint in &mut ledger.endpoints {
        endpoint.pool.put_back(Arc::clone(tx));
    }
}
