//! What a test or a world does to the chain: blocks, forks, prices, pools, and other users of an account.

use std::sync::Arc;

use alloy_primitives::U256;
use domain::{
    Address, AttemptKind, B256, Bytes, Fees, Header, Nonce, SendOutcome, TxId, UnsignedEnvelope,
};
use uuid::Uuid;

use super::endpoint::Endpoint;
use super::ledger::Ledger;
use super::{ChainTx, MemoryChain, envelope};
use crate::event::WorldEvent;

/// What becomes of a transaction whose block a fork takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// In a block of the new branch.
    Mined,
    /// Back in the pools.
    Pooled,
    /// Forgotten by every node.
    Dropped,
}

/// How somebody else uses an account of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignWay {
    /// Through this node's pool, at the first nonce that is free there.
    Pool(usize),
    /// Past all pools, at the account's next nonce, whatever waits there.
    Private,
}

/// The gas limit of somebody else's transaction.
const FOREIGN_GAS: u64 = 100_000;

impl MemoryChain {
    /// With so many nodes that can be asked, at least one.
    #[must_use]
    pub fn with_endpoints(self, count: usize) -> Self {
        self.lock()
            .endpoints
            .resize_with(count.max(1), Endpoint::default);
        self
    }

    /// How many blocks below its head a node calls safe, and final.
    pub fn set_tags(&self, safe_depth: u64, final_depth: u64) {
        let mut ledger = self.lock();
        ledger.safe_depth = safe_depth;
        ledger.final_depth = final_depth;
    }

    /// How many transactions fit into a block, and how many of one account into a pool.
    pub fn set_room(&self, block: usize, slots: u64) {
        let mut ledger = self.lock();
        ledger.block_room = block;
        for endpoint in &mut ledger.endpoints {
            endpoint.pool.slots = slots;
        }
    }

    /// Whether nodes say how much they hold when they have no room.
    pub fn tell_room(&self, tells: bool) {
        for endpoint in &mut self.lock().endpoints {
            endpoint.pool.tells_slots = tells;
        }
    }

    /// What the chain asks for from now on, in wei per gas.
    pub fn set_fees(&self, base_fee: u128, tip: u128) {
        let mut ledger = self.lock();
        ledger.base_fee = base_fee;
        ledger.tip = tip;
        drop(ledger);
        self.tell_set(|| format!("asks for {base_fee} and a tip of {tip} wei per gas"));
    }

    /// Sets what an account owns.
    pub fn fund(&self, account: Address, balance: U256) {
        self.lock().fund(account, balance);
        self.tell_set(|| format!("{account} has {balance} wei"));
    }

    /// So many heads behind is this node from now on.
    pub fn set_lag(&self, endpoint: usize, heads: u64) {
        self.lock().endpoints[endpoint].lag = heads;
        self.tell_set(|| format!("endpoint {endpoint} is {heads} heads behind"));
    }

    /// Nobody reaches this node any more, or everybody does again.
    pub fn set_down(&self, endpoint: usize, is_down: bool) {
        self.lock().endpoints[endpoint].is_down = is_down;
        self.tell_set(|| format!("endpoint {endpoint} is down: {is_down}"));
    }

    /// Whether all nodes refuse [`super::WAVERING`] call data from now on.
    pub fn set_strict(&self, is_strict: bool) {
        for endpoint in &mut self.lock().endpoints {
            endpoint.is_strict = is_strict;
        }
        self.tell_set(|| format!("endpoints are strict: {is_strict}"));
    }

    /// Whose pool the next blocks are made from first.
    pub fn set_producer(&self, endpoint: usize) {
        let mut ledger = self.lock();
        assert!(endpoint < ledger.endpoints.len(), "no node {endpoint}");
        ledger.producer = endpoint;
    }

    /// Nodes tell each other what waits with them; `is_heard` says whether one telling arrives.
    pub fn gossip(&self, is_heard: impl FnMut() -> bool) {
        self.lock().gossip(is_heard);
        self.tell_foreign();
    }

    /// Mines a block with all that is there.
    pub fn mine(&self) -> Header {
        self.mine_if(|_| true)
    }

    /// Mines a block with what is there and `wanted`. (What follows an unwanted one waits too.)
    pub fn mine_if(&self, wanted: impl FnMut(&ChainTx) -> bool) -> Header {
        let mut ledger = self.lock();
        let header = ledger.mine(wanted);
        self.announce(&mut ledger, Vec::new(), &[header]);
        drop(ledger);
        self.tell_foreign();
        header
    }

    /// A fork: the newest `depth` blocks are replaced by one more than that. Answers with the
    /// headers that fell out, newest first (fewer at the genesis block).
    pub fn reorg(&self, depth: u64, mut fate: impl FnMut(&ChainTx) -> Fate) -> Vec<Header> {
        let mut ledger = self.lock();
        let mut dropped = Vec::new();
        let mut mined_again = Vec::new();
        for _ in 0..depth {
            let Some((header, txs)) = ledger.unwind() else {
                break;
            };
            dropped.push(header);
            for tx in txs {
                match fate(&tx) {
                    Fate::Mined => {
                        mined_again.push(tx.hash);
                        put_back(&mut ledger, &tx);
                    }
                    Fate::Pooled => put_back(&mut ledger, &tx),
                    Fate::Dropped => {}
                }
            }
        }
        let added: Vec<Header> = (0..=dropped.len())
            .map(|_| ledger.mine(|tx| mined_again.contains(&tx.hash)))
            .collect();
        self.announce(&mut ledger, dropped.clone(), &added);
        drop(ledger);
        self.tell_foreign();
        dropped
    }

    /// Every node forgets a transaction that waits; whether there was one.
    pub fn drop_tx(&self, hash: B256) -> bool {
        let mut was_there = false;
        for endpoint in &mut self.lock().endpoints {
            was_there |= endpoint.pool.drop_tx(hash);
        }
        if was_there {
            self.tell(|| WorldEvent::Dropped {
                chain_id: self.id,
                hash,
            });
            self.tell_foreign();
        }
        was_there
    }

    /// A node forgets everything that waits with it.
    pub fn lose_pool(&self, endpoint: usize) {
        self.lock().endpoints[endpoint].pool.lose_all();
        self.tell_set(|| format!("endpoint {endpoint} lost its pool"));
        self.tell_foreign();
    }

    /// Somebody else who has the key sends a transaction, told apart by its call data. `None` when the
    /// node does not take it.
    pub fn use_account(
        &self,
        account: Address,
        data: &str,
        per_gas: u128,
        way: ForeignWay,
    ) -> Option<Arc<ChainTx>> {
        let mut ledger = self.lock();
        let next = ledger.account(ledger.head(), account).nonce;
        let nonce = match way {
            ForeignWay::Pool(at) => ledger.endpoints[at].pool.pending(account, next),
            ForeignWay::Private => next,
        };
        let tx = Arc::new(self.foreign(account, nonce, data, per_gas));
        match way {
            ForeignWay::Pool(at) => {
                if ledger.receive(at, Arc::clone(&tx)) != SendOutcome::Accepted {
                    return None;
                }
            }
            ForeignWay::Private => {
                ledger.private.insert(tx.place(), Arc::clone(&tx));
            }
        }
        ledger.foreign.insert(tx.hash, false);
        drop(ledger);
        self.tell_foreign();
        Some(tx)
    }

    /// What somebody who has the key would send at a nonce of his, told apart by its call data.
    #[must_use]
    pub fn made_elsewhere(
        &self,
        account: Address,
        nonce: Nonce,
        data: &str,
        per_gas: u128,
    ) -> Arc<ChainTx> {
        Arc::new(self.foreign(account, nonce, data, per_gas))
    }

    /// Somebody who has the key gives a transaction to a node, which may take it or not.
    pub fn send_elsewhere(&self, tx: &Arc<ChainTx>, endpoint: usize) {
        let mut ledger = self.lock();
        if ledger.receive(endpoint, Arc::clone(tx)) == SendOutcome::Accepted {
            ledger.foreign.entry(tx.hash).or_insert(false);
        }
        drop(ledger);
        self.tell_foreign();
    }

    /// The account's nonce on the present chain.
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

    /// Every node forgets what somebody else sent and the chain is too dear for.
    pub fn drop_cheap_foreign(&self) {
        let base_fee = self.lock().base_fee;
        for tx in self.foreign_pending() {
            if tx.offer().0 < base_fee {
                self.drop_tx(tx.hash);
            }
        }
    }

    /// What waits, by account, in nonce order.
    #[must_use]
    pub fn pool(&self) -> Vec<Arc<ChainTx>> {
        self.lock().waiting()
    }

    /// Somebody else's transactions that wait.
    #[must_use]
    pub fn foreign_pending(&self) -> Vec<Arc<ChainTx>> {
        let ledger = self.lock();
        let mut waiting = ledger.waiting();
        waiting.retain(|tx| ledger.foreign.contains_key(&tx.hash));
        waiting
    }

    /// Everything that is mined on the present chain, in order.
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

    fn tell_set(&self, what: impl FnOnce() -> String) {
        self.tell(|| WorldEvent::ChainSet {
            chain_id: self.id,
            what: what(),
        });
    }

    /// Tells which of somebody else's transactions began to wait, and which wait nowhere any more.
    pub(super) fn tell_foreign(&self) {
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
        events.into_iter().for_each(|event| self.tell(|| event));
    }
}

/// All nodes have it again.
fn put_back(ledger: &mut Ledger, tx: &Arc<ChainTx>) {
    for endpoint in &mut ledger.endpoints {
        endpoint.pool.put_back(Arc::clone(tx));
    }
}
