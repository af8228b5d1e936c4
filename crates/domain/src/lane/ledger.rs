//! The lane's nonces that no tx holds: the cursor, the gaps below it, and what is known as consumed.
//!
//! Invariants: the cursor never falls. Every gap, suspected gap and contested nonce lies below it. A nonce that can
//! be allocated (a gap) is never contested; one that is freed in a turn can be allocated only after that turn's
//! commit, so that no commit gives one nonce to two rows.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use super::AccountNonces;
use crate::{Nonce, Timestamp};

/// An unheld nonce becomes a gap when answers this far apart show that the chain waits for it.
const GAP_CONFIRMED_AFTER: Duration = Duration::from_secs(3);
/// The most nonces that are watched because a foreign transaction is pending there.
const CONTESTED_MAX: usize = 1_024;
/// The most runs of consumed nonces that are kept. Without the oldest a hole may be suspected that is none, which the
/// store's unique index refuses; a bound that is too high would hide a hole for ever.
const CONSUMED_RUNS_MAX: usize = 64;

/// The nonces of a lane that no tx holds.
#[derive(Clone, Debug)]
pub(super) struct NonceLedger {
    /// The next nonce that was never allocated.
    cursor: Nonce,
    /// Every nonce below this is consumed at finality depth, by whatever transaction: a finished tx at or above it proves
    /// that. A reorg that takes such a tx takes that proof with it.
    consumed_below: Nonce,
    /// Runs of nonces that finished txs consumed, ascending. They hold them until their own result is reopened: a reorg
    /// may be known for one before it is known for those above it.
    consumed: Vec<Range<u64>>,
    /// Unheld nonces that the chain waits for, and since when.
    gaps: BTreeMap<Nonce, Timestamp>,
    /// Nonces freed in this turn: gaps once it is committed.
    fresh_gaps: BTreeSet<Nonce>,
    /// Nonces that the chain seems to wait for, and since when. An endpoint may be behind, so they are gaps only
    /// when a later answer shows the same.
    suspected_gaps: BTreeMap<Nonce, Timestamp>,
    /// Unheld nonces at which a node reports something pending: a foreign transaction, never to be outbid. A gap
    /// when it vanishes.
    contested: BTreeSet<Nonce>,
}

impl NonceLedger {
    pub(super) fn new(cursor: Nonce, consumed_below: Nonce) -> Self {
        let mut ledger = Self {
            cursor,
            consumed_below: Nonce(0),
            consumed: Vec::new(),
            gaps: BTreeMap::new(),
            fresh_gaps: BTreeSet::new(),
            suspected_gaps: BTreeMap::new(),
            contested: BTreeSet::new(),
        };
        if let Some(highest) = consumed_below.0.checked_sub(1) {
            ledger.mark_consumed(Nonce(highest));
        }
        ledger
    }

    pub(super) fn cursor(&self) -> Nonce {
        self.cursor
    }

    /// Every nonce below this is consumed at finality depth.
    pub(super) fn consumed_below(&self) -> Nonce {
        self.consumed_below
    }

    /// The gaps, with those of this turn.
    pub(super) fn gaps(&self) -> impl Iterator<Item = Nonce> {
        self.gaps.keys().chain(&self.fresh_gaps).copied()
    }

    #[cfg(test)]
    pub(super) fn contested(&self) -> impl Iterator<Item = Nonce> {
        self.contested.iter().copied()
    }

    pub(super) fn smallest_gap(&self) -> Option<(Nonce, Timestamp)> {
        self.gaps.first_key_value().map(|(gap, at)| (*gap, *at))
    }

    pub(super) fn smallest_gap_from(&self, from: Nonce) -> Option<Nonce> {
        self.gaps.range(from..).next().map(|(gap, _)| *gap)
    }

    pub(super) fn has_contested_from(&self, from: Nonce) -> bool {
        self.contested.range(from..).next().is_some()
    }

    pub(super) fn has_suspected_gaps(&self) -> bool {
        !self.suspected_gaps.is_empty()
    }

    /// Whether a nonce below the cursor is known as unheld and not consumed.
    pub(super) fn is_unheld(&self, nonce: Nonce) -> bool {
        self.is_gap(nonce)
            || self.suspected_gaps.contains_key(&nonce)
            || self.contested.contains(&nonce)
    }

    fn is_gap(&self, nonce: Nonce) -> bool {
        self.gaps.contains_key(&nonce) || self.fresh_gaps.contains(&nonce)
    }

    /// Removes the smallest gap, for a tx that gets its nonce.
    pub(super) fn take_smallest_gap(&mut self) -> Option<Nonce> {
        self.gaps.pop_first().map(|(gap, _)| gap)
    }

    pub(super) fn advance_cursor(&mut self) {
        self.cursor = self.cursor.next();
    }

    /// Removes one gap, for a filler.
    pub(super) fn take_gap(&mut self, gap: Nonce) {
        self.gaps.remove(&gap);
    }

    /// A tx gives up its nonce, which no transaction of ours can consume any more.
    pub(super) fn free(&mut self, nonce: Nonce) {
        self.fresh_gaps.insert(nonce);
    }

    /// The turn is durable: what it freed can be allocated.
    pub(super) fn on_commit(&mut self, now: Timestamp) {
        for nonce in std::mem::take(&mut self.fresh_gaps) {
            self.gaps.insert(nonce, now);
        }
    }

    /// A tx that holds this nonce is finished.
    pub(super) fn mark_consumed(&mut self, nonce: Nonce) {
        self.consumed_below = self.consumed_below.max(nonce.next());
        let at = self.consumed.partition_point(|run| run.end < nonce.0);
        match self.consumed.get_mut(at) {
            Some(run) if run.contains(&nonce.0) => {}
            Some(run) if run.end == nonce.0 => run.end = nonce.next().0,
            Some(_) | None => self.consumed.insert(at, nonce.0..nonce.next().0),
        }
        self.trim_consumed();
    }

    /// Whether a finished tx holds this nonce, as far as that is known.
    fn is_consumed(&self, nonce: Nonce) -> bool {
        let at = self.consumed.partition_point(|run| run.end <= nonce.0);
        self.consumed
            .get(at)
            .is_some_and(|run| run.contains(&nonce.0))
    }

    fn trim_consumed(&mut self) {
        let most = self.consumed.len().saturating_sub(CONSUMED_RUNS_MAX);
        self.consumed.drain(..most);
    }

    /// A reorg took a final result: its nonce is open again, and with it everything that only it proved. Its tx holds it,
    /// whatever the chain's answers since the reorg made of it.
    pub(super) fn mark_reopened(&mut self, nonce: Nonce) {
        self.gaps.remove(&nonce);
        self.fresh_gaps.remove(&nonce);
        self.suspected_gaps.remove(&nonce);
        self.contested.remove(&nonce);
        let at = self.consumed.partition_point(|run| run.end <= nonce.0);
        if let Some(run) = self.consumed.get(at).filter(|run| run.contains(&nonce.0)) {
            let parts = [run.start..nonce.0, nonce.next().0..run.end];
            let rest = parts.into_iter().filter(|part| !part.is_empty());
            self.consumed.splice(at..=at, rest);
            self.trim_consumed();
        }
        let below = self.consumed.iter().rfind(|run| run.end <= nonce.0);
        let proven = Nonce(below.map_or(0, |run| run.end));
        self.consumed_below = match nonce < self.consumed_below {
            true => proven,
            false => self.consumed_below,
        };
    }

    /// Raises the cursor to the chain's nonce. What lies between and is not mined may be a foreign transaction
    /// that is pending, and may vanish again.
    pub(super) fn raise_cursor(&mut self, to: Nonce, latest: Nonce) {
        let skipped = self.cursor.max(latest).0..to.0;
        self.contested
            .extend(skipped.map(Nonce).take(CONTESTED_MAX));
        self.cursor = to;
    }

    /// Adds the unheld nonces that the comparison of the store with the chain found.
    pub(super) fn add_found(&mut self, found: BTreeSet<Nonce>, pending: Nonce, now: Timestamp) {
        let (contested, free): (BTreeSet<Nonce>, BTreeSet<Nonce>) =
            found.into_iter().partition(|gap| *gap < pending);
        self.contested.extend(contested);
        self.gaps.extend(free.into_iter().map(|gap| (gap, now)));
    }

    /// Gaps below this nonce are consumed or pending: they are not allocated.
    pub(super) fn contest_gaps_below(&mut self, used_below: Nonce) {
        let free = self.gaps.split_off(&used_below);
        let used = std::mem::replace(&mut self.gaps, free);
        self.contested.extend(used.into_keys());
    }

    /// Applies an answer of the chain: drops gaps that are consumed, contests those at which something is pending,
    /// and turns `holes` and contested nonces into gaps when the chain waits for them. One answer proves nothing,
    /// since an endpoint may be behind: only a later complete one that shows the same makes a gap.
    /// `frees_contested_at_once`: a complete answer is proof enough for contested nonces.
    pub(super) fn apply_chain_nonces(
        &mut self,
        nonces: AccountNonces,
        holes: BTreeSet<Nonce>,
        (is_complete, frees_contested_at_once): (bool, bool),
        now: Timestamp,
    ) {
        let mut candidates = holes;
        candidates.extend(self.contested.range(nonces.pending..));
        self.suspected_gaps
            .retain(|nonce, _| candidates.contains(nonce));
        for nonce in candidates {
            if nonce < nonces.pending {
                self.suspected_gaps.remove(&nonce);
                self.contested.insert(nonce);
                continue;
            }
            let since = *self.suspected_gaps.entry(nonce).or_insert(now);
            let is_freed = frees_contested_at_once && self.contested.contains(&nonce);
            if is_complete && (is_freed || now.since(since) >= GAP_CONFIRMED_AFTER) {
                self.suspected_gaps.remove(&nonce);
                self.contested.remove(&nonce);
                self.gaps.insert(nonce, now);
            }
        }
    }

    /// Drops what is consumed, and contests the gaps at which something is pending.
    pub(super) fn drop_used(&mut self, nonces: AccountNonces) {
        self.gaps.retain(|gap, _| *gap >= nonces.latest);
        self.contested.retain(|nonce| *nonce >= nonces.latest);
        self.contest_gaps_below(nonces.pending);
    }

    /// The nonces in `latest..until` that neither `held` (ascending) nor a gap accounts for; what is finished lies
    /// below. Empty when there are more than `max`: such an answer is not credible.
    pub(super) fn holes(
        &self,
        latest: Nonce,
        until: Nonce,
        held: impl Iterator<Item = Nonce>,
        max: u64,
    ) -> BTreeSet<Nonce> {
        let mut holes = BTreeSet::new();
        let mut held = held.peekable();
        let mut nonce = latest.max(self.consumed_below());
        while nonce < until.min(self.cursor) {
            while held.next_if(|held| *held < nonce).is_some() {}
            let is_held = held.peek() == Some(&nonce) || self.is_consumed(nonce);
            if !is_held && !self.is_gap(nonce) {
                holes.insert(nonce);
            }
            if holes.len() as u64 > max {
                return BTreeSet::new();
            }
            nonce = nonce.next();
        }
        holes
    }

    /// Recorded times never lie ahead of a wall clock that was set back.
    pub(super) fn clamp_times(&mut self, now: Timestamp) {
        let times = self
            .gaps
            .values_mut()
            .chain(self.suspected_gaps.values_mut());
        times.for_each(|since| *since = (*since).min(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nonces(latest: u64, pending: u64) -> AccountNonces {
        AccountNonces {
            latest: Nonce(latest),
            pending: Nonce(pending),
        }
    }

    fn gaps(ledger: &NonceLedger) -> Vec<u64> {
        ledger.gaps().map(|nonce| nonce.0).collect()
    }

    #[test]
    fn freed_nonce_is_allocated_only_after_its_commit() {
        let mut ledger = NonceLedger::new(Nonce(5), Nonce(0));
        ledger.free(Nonce(3));
        assert_eq!(ledger.take_smallest_gap(), None);
        ledger.on_commit(Timestamp(1));
        assert_eq!(ledger.take_smallest_gap(), Some(Nonce(3)));
    }

    #[test]
    fn reopened_nonce_withdraws_what_only_it_proved() {
        let mut ledger = NonceLedger::new(Nonce(20), Nonce(5));
        for nonce in [5, 6, 7, 10, 11, 12, 9] {
            ledger.mark_consumed(Nonce(nonce));
        }
        assert_eq!(ledger.consumed_below(), Nonce(13));
        for (reopened, below) in [(12, 12), (11, 11), (10, 10), (4, 0)] {
            ledger.mark_reopened(Nonce(reopened));
            assert_eq!(ledger.consumed_below(), Nonce(below), "after {reopened}");
        }
    }

    #[test]
    fn nonce_of_a_finished_tx_is_no_hole_until_its_own_result_is_reopened() {
        let mut ledger = NonceLedger::new(Nonce(9), Nonce(0));
        for nonce in [5, 6, 7] {
            ledger.mark_consumed(Nonce(nonce));
        }
        let holes = |ledger: &NonceLedger| {
            let held = [Nonce(8)].into_iter();
            let holes = ledger.holes(Nonce(5), Nonce(9), held, 9);
            holes.into_iter().map(|nonce| nonce.0).collect::<Vec<_>>()
        };
        ledger.mark_reopened(Nonce(5));
        assert_eq!(ledger.consumed_below(), Nonce(0), "no proof any more");
        assert_eq!(holes(&ledger), [5], "its slot holds it");
        ledger.mark_reopened(Nonce(7));
        assert_eq!(holes(&ledger), [5, 7]);
        ledger.mark_consumed(Nonce(5));
        assert_eq!(holes(&ledger), [7]);
    }

    #[test]
    fn reopened_nonce_is_no_gap() {
        let mut ledger = NonceLedger::new(Nonce(3), Nonce(0));
        ledger.free(Nonce(1));
        ledger.on_commit(Timestamp(1));
        ledger.free(Nonce(2));
        assert_eq!(gaps(&ledger), [1, 2]);
        ledger.mark_reopened(Nonce(2));
        ledger.mark_reopened(Nonce(1));
        assert_eq!(gaps(&ledger), []);
    }

    #[test]
    fn runs_of_consumed_nonces_are_bounded() {
        let mut ledger = NonceLedger::new(Nonce(1_000), Nonce(0));
        for nonce in (0..1_000).step_by(2) {
            ledger.mark_consumed(Nonce(nonce));
        }
        assert_eq!(ledger.consumed.len(), CONSUMED_RUNS_MAX);
        assert_eq!(ledger.consumed_below(), Nonce(999));
    }

    #[test]
    fn hole_becomes_a_gap_only_when_a_later_complete_answer_agrees() {
        let mut ledger = NonceLedger::new(Nonce(3), Nonce(0));
        let holes = || BTreeSet::from([Nonce(1)]);
        let at = |seconds: u64| Timestamp(seconds.saturating_mul(1_000));
        ledger.apply_chain_nonces(nonces(1, 1), holes(), (true, false), at(0));
        assert_eq!(gaps(&ledger), []);
        ledger.apply_chain_nonces(nonces(1, 1), holes(), (false, false), at(9));
        assert_eq!(gaps(&ledger), [], "not every endpoint answered");
        ledger.apply_chain_nonces(nonces(1, 1), holes(), (true, false), at(10));
        assert_eq!(gaps(&ledger), [1]);
        ledger.drop_used(nonces(1, 2));
        assert_eq!(gaps(&ledger), [], "something is pending there again");
        assert!(ledger.has_contested_from(Nonce(1)));
    }

    #[test]
    fn holes_are_neither_held_nor_gaps_nor_too_many() {
        let mut ledger = NonceLedger::new(Nonce(6), Nonce(1));
        ledger.free(Nonce(4));
        let held = || [Nonce(0), Nonce(2)].into_iter();
        let found = ledger.holes(Nonce(0), Nonce(9), held(), 3);
        assert_eq!(found, BTreeSet::from([Nonce(1), Nonce(3), Nonce(5)]));
        assert!(ledger.holes(Nonce(0), Nonce(9), held(), 2).is_empty());
    }
}
