//! Forks: blocks are reorged out and replaced.

use alloy_primitives::{Bytes, hex};
use serde_json::{Value, json};

use super::{EvmNode, Kind, Mining, lock};

/// A state to which a node can revert once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    id: Value,
    height: u64,
}

impl Snapshot {
    /// The height of its newest block.
    pub fn height(&self) -> u64 {
        self.height
    }
}

impl EvmNode {
    /// Saves the current blocks and pool.
    pub fn snapshot(&self) -> Snapshot {
        let snapshot = Snapshot {
            height: self.height(),
            id: self.rpc.call("evm_snapshot", json!([])),
        };
        lock(&self.snapshots).push(snapshot.clone());
        snapshot
    }

    /// Reverts. This snapshot and all later ones are invalid afterwards.
    pub fn revert(&self, to: &Snapshot) {
        let is_done = self.rpc.call("evm_revert", json!([to.id]));
        assert_eq!(is_done, json!(true), "{to:?} is not known any more");
        let mut snapshots = lock(&self.snapshots);
        let known = snapshots.iter().position(|snapshot| snapshot == to);
        snapshots.truncate(known.unwrap_or_default());
    }

    /// Replaces the newest `depth` blocks by empty ones. Their transactions do not return to the pool.
    ///
    /// Only anvil can revert to any height; the others need a [`Self::snapshot`] at exactly that height.
    pub fn reorg(&self, depth: u64) {
        self.reorg_with(depth, &[]);
    }

    /// With transactions in the new blocks, each with the index of its block (0 is the lowest).
    pub fn reorg_with(&self, depth: u64, transactions: &[(Bytes, u64)]) {
        assert!(
            transactions.iter().all(|(_, block)| *block < depth),
            "there are only {depth} new blocks"
        );
        match self.kind {
            Kind::Anvil => {
                let raw = |(raw, block): &(Bytes, u64)| json!([hex::encode_prefixed(raw), block]);
                let transactions: Vec<Value> = transactions.iter().map(raw).collect();
                self.rpc.call("anvil_reorg", json!([depth, transactions]));
            }
            Kind::Hardhat | Kind::Ganache => self.rebuild(depth, transactions),
        }
    }

    fn rebuild(&self, depth: u64, transactions: &[(Bytes, u64)]) {
        let height = self.height();
        let ancestor = height
            .checked_sub(depth)
            .expect("the chain has that many blocks");
        let found = lock(&self.snapshots)
            .iter()
            .rfind(|snapshot| snapshot.height == ancestor)
            .cloned();
        let snapshot = found.unwrap_or_else(|| panic!("no snapshot was taken at {ancestor}"));
        let mining = self.mining();
        self.set_mining(Mining::Manual);
        self.revert(&snapshot);
        // Otherwise an empty block that replaces an empty block could be identical to it.
        self.rpc.call("evm_increaseTime", json!([1]));
        for block in 0..depth {
            for (raw, _) in transactions
                .iter()
                .filter(|(_, in_block)| *in_block == block)
            {
                let sent = self.send_raw(raw);
                sent.unwrap_or_else(|error| panic!("a transaction of the fork: {error}"));
            }
            self.mine(1);
        }
        self.set_mining(mining);
    }
}
