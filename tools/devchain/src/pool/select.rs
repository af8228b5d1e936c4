//! Selects the txs of the next block: highest tip first, nonces of one sender in order, equal tips by arrival.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::sender::Pooled;
use super::{Pool, SignedTx};
use crate::limits;

impl Pool {
    /// If a sender's next tx does not pay the base fee or does not fit, all its txs wait.
    pub(crate) fn select(&self, base_fee: u64, gas_limit: u64) -> Vec<Arc<SignedTx>> {
        let mut heads: BinaryHeap<Candidate<'_, _>> = self
            .ready_senders()
            .filter_map(|sender| Candidate::next(sender.executable(), base_fee))
            .collect();
        let mut selected = Vec::new();
        let (mut gas_left, mut bytes_left) = (gas_limit, limits::BLOCK_BYTES_MAX);
        while selected.len() < limits::BLOCK_TXS_MAX
            && let Some(Candidate { tx, rest, .. }) = heads.pop()
        {
            // Counted by gas limit, not by use: known before execution, and a little pessimistic.
            let Some(gas_after) = gas_left.checked_sub(tx.gas_limit()) else {
                continue;
            };
            let Some(bytes_after) = bytes_left.checked_sub(tx.size) else {
                continue;
            };
            (gas_left, bytes_left) = (gas_after, bytes_after);
            selected.push(tx.clone());
            heads.extend(Candidate::next(rest, base_fee));
        }
        selected
    }
}

/// The next tx of one sender, ordered by what it pays the miner.
struct Candidate<'a, I> {
    rank: (u128, Reverse<u64>),
    tx: &'a Arc<SignedTx>,
    rest: I,
}

impl<'a, I: Iterator<Item = &'a Pooled>> Candidate<'a, I> {
    fn next(mut rest: I, base_fee: u64) -> Option<Self> {
        let pooled = rest.next()?;
        let above_base = pooled.tx.fee_cap().checked_sub(base_fee.into())?;
        let tip = pooled.tx.tip_cap().min(above_base);
        Some(Self {
            rank: (tip, Reverse(pooled.arrival)),
            tx: &pooled.tx,
            rest,
        })
    }
}

impl<I> Ord for Candidate<'_, I> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank.cmp(&other.rank)
    }
}

impl<I> PartialOrd for Candidate<'_, I> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<I> PartialEq for Candidate<'_, I> {
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank
    }
}

impl<I> Eq for Candidate<'_, I> {}
