//! A chain with a node in front, in memory.
//!
//! [`MemoryChain`] answers at once and knows its newest block. [`RemoteChain`] puts a network and a
//! lagging node in front of it.

mod envelope;
mod ledger;
mod pool;
mod remote;
mod signer;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use alloy_primitives::U256;
use async_trait::async_trait;
use domain::attempt::Outgoing;
use domain::lane::{ChainNonces, ChainQuery};
use domain::{Address, B256, ChainId, FeeQuote, Header, Inclusion, SendOutcome};
use engine::ports::{BlockTag, Call, CallFailed, Chain, ChainError};

use crate::event::WorldEvent;
use crate::trace::Trace;

pub use envelope::{decode, encode, hash};
pub use ledger::REVERTS;
pub use pool::ChainTx;
pub use remote::{RemoteChain, Staleness};
pub use signer::{MemorySigner, UNSIGNABLE};

use ledger::Ledger;
use remote::Sight;

/// The in-memory twin of the Chain port. Clones are the same chain.
///
/// Every account is rich until told otherwise; call data that begins with [`REVERTS`] reverts.
#[derive(Clone)]
pub struct MemoryChain {
    id: ChainId,
    ledger: Arc<Mutex<Ledger>>,
    trace: Option<Trace>,
}

/// What becomes of a transaction whose block a fork takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// In a block of the new branch.
    Mined,
    /// Back in the pool.
    Pooled,
    /// Forgotten by every node.
    Dropped,
}

impl MemoryChain {
    /// A chain with its genesis block, on which blocks come by [`MemoryChain::mine`] only.
    #[must_use]
    pub fn new(id: ChainId) -> Self {
        Self {
            id,
            ledger: Arc::new(Mutex::new(Ledger::new(id))),
            trace: None,
        }
    }

    /// Mines a block with all that is there, after every send.
    #[must_use]
    pub fn auto_mining(self) -> Self {
        self.lock().auto_mine = true;
        self
    }

    /// Tells every send, block and fork to a trace.
    #[must_use]
    pub fn traced(self, trace: Trace) -> Self {
        Self {
            trace: Some(trace),
            ..self
        }
    }

    /// How many transactions fit into a block, and how many of one account into the pool.
    pub fn set_room(&self, block: usize, slots: u64) {
        let mut ledger = self.lock();
        ledger.block_room = block;
        ledger.pool.slots = slots;
    }

    /// What the chain asks for from now on, in wei per gas.
    pub fn set_fees(&self, base_fee: u128, tip: u128) {
        let mut ledger = self.lock();
        ledger.base_fee = base_fee;
        ledger.tip = tip;
    }

    /// Sets what an account owns.
    pub fn fund(&self, account: Address, balance: U256) {
        self.lock().fund(account, balance);
    }

    /// Mines a block with all that is there.
    pub fn mine(&self) -> Header {
        self.mine_if(|_| true)
    }

    /// Mines a block with what is there and `wanted`. (What follows an unwanted one waits too.)
    pub fn mine_if(&self, wanted: impl FnMut(&ChainTx) -> bool) -> Header {
        let mut ledger = self.lock();
        let header = ledger.mine(wanted);
        ledger.announce();
        self.tell_blocks(&ledger, Vec::new(), &[header]);
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
                        ledger.pool.put_back(tx);
                    }
                    Fate::Pooled => ledger.pool.put_back(tx),
                    Fate::Dropped => {}
                }
            }
        }
        let added: Vec<Header> = (0..=dropped.len())
            .map(|_| ledger.mine(|tx| mined_again.contains(&tx.hash)))
            .collect();
        ledger.announce();
        self.tell_blocks(&ledger, dropped.clone(), &added);
        dropped
    }

    /// Every node forgets a transaction that waits; whether there was one.
    pub fn drop_tx(&self, hash: B256) -> bool {
        let was_there = self.lock().pool.drop_tx(hash);
        if was_there {
            self.tell(|| WorldEvent::Dropped {
                chain_id: self.id,
                hash,
            });
        }
        was_there
    }

    /// What waits, by account, in nonce order.
    #[must_use]
    pub fn pool(&self) -> Vec<Arc<ChainTx>> {
        self.lock().pool.iter().cloned().collect()
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

    fn receive(&self, outgoing: &[Outgoing]) -> Vec<SendOutcome> {
        let mut ledger = self.lock();
        let outcomes = outgoing
            .iter()
            .map(|bytes| self.receive_one(&mut ledger, bytes))
            .collect();
        let auto_mine = ledger.auto_mine;
        drop(ledger);
        if auto_mine {
            self.mine();
        }
        outcomes
    }

    fn receive_one(&self, ledger: &mut Ledger, outgoing: &Outgoing) -> SendOutcome {
        let decoded = ChainTx::decode(&outgoing.raw);
        let Some(tx) = decoded.filter(|tx| tx.hash == outgoing.hash) else {
            return SendOutcome::Rejected("not a transaction of this chain".to_owned());
        };
        let lane = domain::LaneKey {
            chain_id: self.id,
            signer: tx.envelope.signer,
        };
        let outcome = ledger.receive(tx);
        self.tell(|| WorldEvent::Sent {
            lane,
            nonce: outgoing.nonce,
            hash: outgoing.hash,
            outcome: outcome.clone(),
        });
        outcome
    }

    fn tell_blocks(&self, ledger: &Ledger, dropped: Vec<Header>, added: &[Header]) {
        if !dropped.is_empty() {
            self.tell(|| WorldEvent::Forked {
                chain_id: self.id,
                dropped,
            });
        }
        for header in added {
            let txs = ledger.blocks[&header.hash].txs.clone();
            self.tell(|| WorldEvent::Mined {
                chain_id: self.id,
                header: *header,
                txs,
            });
        }
    }

    fn tell(&self, event: impl FnOnce() -> WorldEvent) {
        if let Some(trace) = &self.trace {
            trace.tell(event());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sight(&self) -> Sight {
        Sight { behind: 0 }
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
        Ok(self.sight().header(&self.lock(), block))
    }

    async fn headers(&self, from: u64, count: u64) -> Result<Vec<Header>, ChainError> {
        Ok(self.sight().headers(&self.lock(), from, count))
    }

    async fn block_receipts(&self, block: B256) -> Result<Option<Vec<Inclusion>>, ChainError> {
        Ok(self.sight().block_receipts(&self.lock(), block))
    }

    async fn receipts(&self, hashes: &[B256]) -> Result<Vec<Inclusion>, ChainError> {
        Ok(self.sight().receipts(&self.lock(), hashes))
    }

    async fn revert_reason(&self, inclusion: &Inclusion) -> Result<Option<String>, ChainError> {
        Ok((!inclusion.succeeded).then(|| "reverted by its call data".to_owned()))
    }

    async fn nonces(&self, account: Address, query: ChainQuery) -> Result<ChainNonces, ChainError> {
        Ok(self.sight().nonces(&self.lock(), account, query))
    }

    async fn fee_quote(&self) -> Result<FeeQuote, ChainError> {
        let ledger = self.lock();
        Ok(FeeQuote {
            base_fee: Some(ledger.base_fee),
            tip: ledger.tip,
        })
    }

    async fn estimate_gas(&self, call: &Call) -> Result<u64, CallFailed> {
        self.sight().estimate_gas(&self.lock(), call)
    }

    async fn send(&self, outgoing: &[Outgoing]) -> Vec<SendOutcome> {
        self.receive(outgoing)
    }
}
