//! A chain with one account: a node's pool, blocks with parent links, receipts, forks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use alloy_primitives::{Address, B256, keccak256};

use crate::headers::HeaderChain;
use crate::lane::{AccountNonces, ConsumedNonce, MinedTransaction, NonceConsumer, Receipt};
use crate::{ChainView, EffectDigest, FeeQuote, Header, Inclusion, Nonce, Payload, TxId, U256};

/// What a no-op may use on this chain, half as much again as estimated: more than on Ethereum.
pub(super) const NO_OP_GAS: u64 = 60_000;

/// How many headers the follower keeps.
const KEEP: usize = 20;
/// The deepest fork.
pub(super) const FORK_MAX: u64 = 5;

#[derive(Clone, Debug)]
pub(super) struct Chain {
    /// The account's nonce before our first block.
    pub(super) start: Nonce,
    /// The canonical blocks, from genesis.
    blocks: Vec<Block>,
    pub(super) pool: BTreeMap<Nonce, B256>,
    /// The tx whose bytes left us, by nonce: there must be one per nonce.
    pub(super) seen: BTreeMap<Nonce, TxId>,
    /// Foreign transactions.
    foreign: BTreeMap<B256, Nonce>,
    /// The payloads of transactions that nodes can show.
    pub(super) payloads: BTreeMap<B256, Payload>,
    pub(super) final_up_to: Option<u64>,
    pub(super) deep_forks: u64,
    pub(super) base_fee: u128,
    follower: HeaderChain,
    made: u64,
}

#[derive(Clone, Debug)]
struct Block {
    header: Header,
    txs: Vec<(Nonce, B256)>,
}

impl Chain {
    pub(super) fn new(start: Nonce) -> Self {
        let mut chain = Self {
            start,
            blocks: Vec::new(),
            pool: BTreeMap::new(),
            seen: BTreeMap::new(),
            foreign: BTreeMap::new(),
            payloads: BTreeMap::new(),
            final_up_to: None,
            deep_forks: 0,
            base_fee: 7,
            follower: HeaderChain::new(KEEP),
            made: 0,
        };
        chain.mine(0);
        chain
    }

    /// The next nonce that a block can take.
    pub(super) fn nonce(&self) -> Nonce {
        let mined: u64 = self.blocks.iter().map(|block| block.txs.len() as u64).sum();
        Nonce(self.start.0 + mined)
    }

    pub(super) fn nonces(&self) -> AccountNonces {
        let latest = self.nonce();
        let mut pending = latest;
        while self.pool.contains_key(&pending) {
            pending = pending.next();
        }
        AccountNonces { latest, pending }
    }

    pub(super) fn height(&self) -> u64 {
        self.blocks.last().expect("genesis stays").header.number
    }

    /// One block on the tip with up to `most` of the pool; the receipts in it.
    pub(super) fn mine(&mut self, most: usize) -> Vec<Receipt> {
        self.made += 1;
        let parent = self.blocks.last().map(|block| block.header);
        let header = Header {
            number: parent.map_or(0, |parent| parent.number + 1),
            hash: keccak256(self.made.to_be_bytes()),
            parent_hash: parent.map_or(B256::ZERO, |parent| parent.hash),
            timestamp: self.made,
        };
        let mut txs = Vec::new();
        let mut next = self.nonce();
        while txs.len() < most
            && let Some(hash) = self.pool.remove(&next)
        {
            txs.push((next, hash));
            next = next.next();
        }
        self.blocks.push(Block { header, txs });
        self.follow();
        let hashes: Vec<B256> = self
            .blocks
            .last()
            .expect("just made")
            .txs
            .iter()
            .map(|(_, hash)| *hash)
            .collect();
        self.receipts(&hashes, 0)
    }

    /// Takes the newest blocks back. Their txs fall into the pool again where `lost` has no bit.
    pub(super) fn unwind(&mut self, depth: u64, mut lost: u8) {
        for _ in 0..depth.min(self.height()) {
            for (nonce, hash) in self.blocks.pop().expect("above genesis").txs {
                if lost & 1 == 0 {
                    self.pool.insert(nonce, hash);
                }
                lost = lost.rotate_right(1);
            }
        }
    }

    fn follow(&mut self) {
        let mut branch = Vec::new();
        for block in self.blocks.iter().rev() {
            branch.insert(0, block.header);
            if self.follower.adopt(&branch).is_ok() {
                return;
            }
        }
        panic!("the view reaches deeper than any fork");
    }

    pub(super) fn view(&self) -> Arc<ChainView> {
        let fee = FeeQuote {
            base_fee: Some(self.base_fee),
            tip: 1,
            block_gas_limit: None,
            no_op_gas: Some(40_000),
            has_data_floor: false,
            recent_max: None,
        };
        Arc::new(ChainView {
            headers: self.follower.clone(),
            fee,
            final_up_to: self.final_up_to,
            deep_forks: self.deep_forks,
        })
    }

    /// A node takes bytes, or has them already. A later attempt replaces an earlier one.
    pub(super) fn add_to_pool(&mut self, nonce: Nonce, hash: B256) {
        if nonce >= self.nonce() {
            self.pool.insert(nonce, hash);
        }
    }

    /// A foreign transaction uses the account, so many nonces above the next one; whether there was room.
    pub(super) fn use_elsewhere(&mut self, ahead: u64) -> bool {
        let nonce = Nonce(self.nonce().0 + ahead);
        if self.pool.contains_key(&nonce) {
            return false;
        }
        self.made += 1;
        let hash = keccak256(format!("foreign {}", self.made));
        self.foreign.insert(hash, nonce);
        self.pool.insert(nonce, hash);
        true
    }

    /// Nodes can show all foreign transactions so far.
    pub(super) fn show_foreign(&mut self) {
        for hash in self.foreign.keys() {
            let payload = Payload::transfer(Address::ZERO, U256::MAX);
            self.payloads.insert(*hash, payload);
        }
    }

    /// Whether a foreign transaction is pending at a nonce.
    pub(super) fn is_foreign_pending(&self, nonce: Nonce) -> bool {
        let held = self.pool.get(&nonce);
        held.is_some_and(|hash| self.foreign.contains_key(hash))
    }

    /// Whether a foreign transaction ever used a nonce.
    pub(super) fn was_used_elsewhere(&self, nonce: Nonce) -> bool {
        self.foreign.values().any(|used| *used == nonce)
    }

    /// Who consumed a nonce, in blocks up to a height.
    pub(super) fn consumer(&self, nonce: Nonce, up_to: u64) -> NonceConsumer {
        let blocks = self.blocks.iter().filter(|b| b.header.number <= up_to);
        let mut txs = blocks.flat_map(|block| &block.txs);
        let found = txs.find(|(used, _)| *used == nonce);
        found.map_or(NonceConsumer::NotConsumed, |(_, hash)| {
            NonceConsumer::Transaction {
                hash: *hash,
                effect_digest: EffectDigest::of(None, U256::MAX, &[]),
            }
        })
    }

    /// What consumed these nonces, in blocks up to a height.
    pub(super) fn consumed(&self, nonces: Range<u64>, up_to: u64) -> Vec<ConsumedNonce> {
        let blocks = self.blocks.iter().filter(|b| b.header.number <= up_to);
        let txs = blocks.flat_map(|block| &block.txs);
        txs.filter(|(nonce, _)| nonces.contains(&nonce.0))
            .map(|(nonce, hash)| ConsumedNonce {
                nonce: *nonce,
                transaction: self.payloads.get(hash).map(|payload| MinedTransaction {
                    hash: *hash,
                    payload: payload.clone(),
                }),
            })
            .collect()
    }

    /// The receipts of these hashes; with proof when their block is older than the view.
    pub(super) fn receipts(&self, hashes: &[B256], required: u64) -> Vec<Receipt> {
        let base = self.follower.base().expect("never empty").number;
        let mut found = Vec::new();
        for (index, block) in self.blocks.iter().enumerate() {
            for (_, hash) in block.txs.iter().filter(|(_, hash)| hashes.contains(hash)) {
                let proof = self.blocks.iter().skip(index).map(|block| block.header);
                let proof = proof.take(usize::try_from(required).expect("small") + 1);
                let is_old = block.header.number < base;
                found.push(Receipt {
                    inclusion: inclusion(*hash, &block.header),
                    above: if is_old { proof.collect() } else { Vec::new() },
                });
            }
        }
        found
    }

    /// The canonical headers at these heights.
    pub(super) fn headers(&self, heights: &[u64]) -> Vec<Header> {
        let headers = self.blocks.iter().map(|block| block.header);
        headers
            .filter(|header| heights.contains(&header.number))
            .collect()
    }

    /// Whether this very inclusion is on the canonical chain.
    pub(super) fn has(&self, inclusion: &Inclusion) -> bool {
        self.blocks.iter().any(|block| {
            block.header.hash == inclusion.block_hash
                && block.txs.iter().any(|(_, hash)| *hash == inclusion.tx_hash)
        })
    }

    /// How often a hash is in the canonical chain.
    pub(super) fn count(&self, hash: B256) -> usize {
        let txs = self.blocks.iter().flat_map(|block| &block.txs);
        txs.filter(|(_, mined)| *mined == hash).count()
    }
}

/// One in eight reverts.
fn inclusion(tx_hash: B256, header: &Header) -> Inclusion {
    Inclusion {
        tx_hash,
        block_number: header.number,
        block_hash: header.hash,
        succeeded: !tx_hash[0].is_multiple_of(8),
        gas_used: 21_000,
        effective_gas_price: 8,
        contract_address: None,
        revert_reason: None,
    }
}
