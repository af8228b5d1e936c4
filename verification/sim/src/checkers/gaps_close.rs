//! Every gap closes: in a healed world no lane waits longer than a bound for a nonce without a transaction.
//!
//! A gap is the next nonce of an account, below the cursor, that no open tx holds, while an open tx of the same lane
//! waits behind it. (A nonce that is missing further up may be pending, and blocks nothing yet.)

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::{LaneKey, Nonce, TxId};
use engine::ports::LaneBatch;
use tokio::time::Instant;

use super::aftermath::Aftermath;
use super::consumed_nonces::ConsumedNonces;
use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::event::WorldEvent;

pub struct GapsClose {
    bound: Duration,
    aftermath: Aftermath,
    store_model: StoreModel<BTreeMap<LaneKey, LaneState>>,
    consumed: ConsumedNonces,
    /// Since when the present gaps exist; those that were reported are not reported again.
    since: BTreeMap<(LaneKey, Nonce), Option<Instant>>,
}

#[derive(Clone, Default)]
struct LaneState {
    open: BTreeMap<TxId, Nonce>,
}

impl GapsClose {
    pub(super) const PROMISE: &'static str = "every gap closes";

    /// Gaps must be closed within `bound`.
    #[must_use]
    pub fn with_bound(bound: Duration) -> Self {
        Self {
            bound,
            aftermath: Aftermath::default(),
            store_model: StoreModel::default(),
            consumed: ConsumedNonces::default(),
            since: BTreeMap::new(),
        }
    }

    fn written(&mut self, lane: LaneKey, batch: &LaneBatch) {
        let lane_state = self.store_model.entry(lane).or_default();
        for tx in batch.writes.inserts.iter().chain(&batch.writes.updates) {
            match tx.nonce.filter(|_| tx.is_open()) {
                Some(nonce) => lane_state.open.insert(tx.id, nonce),
                None => lane_state.open.remove(&tx.id),
            };
        }
    }

    /// The present gaps.
    fn gaps(&self) -> BTreeSet<(LaneKey, Nonce)> {
        let used: BTreeSet<(LaneKey, Nonce)> = self.consumed.iter().collect();
        let mut gaps = BTreeSet::new();
        for (lane, lane_state) in self.store_model.iter() {
            let held: BTreeSet<Nonce> = lane_state.open.values().copied().collect();
            let Some(last) = held.last().filter(|_| !self.aftermath.is_damaged(lane)) else {
                continue;
            };
            let mut below = (0..last.0).map(|nonce| (*lane, Nonce(nonce)));
            let next = below.find(|place| !used.contains(place));
            gaps.extend(next.filter(|(_, nonce)| !held.contains(nonce)));
        }
        gaps
    }

    fn check_deadlines(&mut self) -> Result<(), String> {
        let (now, gaps) = (Instant::now(), self.gaps());
        self.since.retain(|gap, _| gaps.contains(gap));
        for gap in gaps {
            let since = self.since.entry(gap).or_insert(Some(now));
            if since.is_some_and(|since| now.duration_since(since) > self.bound) {
                *since = None;
                let (lane, nonce) = gap;
                return Err(format!(
                    "{lane} has waited for nonce {nonce} for {} s, which has no transaction",
                    self.bound.as_secs()
                ));
            }
        }
        Ok(())
    }
}

impl Checker for GapsClose {
    fn name(&self) -> &'static str {
        Self::PROMISE
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.store_model.follow(event);
        self.aftermath.follow(event);
        if let Some((lane, batch)) = applied(event) {
            self.written(lane, batch);
        }
        self.consumed.follow(event);
        // With every block: that is often enough, and finding gaps is expensive.
        if matches!(event, WorldEvent::Mined { .. }) && self.aftermath.is_healed() {
            return self.check_deadlines();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{applied, block, blocks_pass, chain_tx, forked, lane, tx};
    use super::*;

    const BOUND: Duration = Duration::from_secs(60);

    fn healed() -> GapsClose {
        let mut checker = GapsClose::with_bound(BOUND);
        assert_eq!(checker.after(&WorldEvent::Phase("heal")), Ok(()));
        checker
    }

    #[tokio::test(start_paused = true)]
    async fn gap_is_reported_once_after_the_bound() {
        let mut checker = healed();
        let behind = applied(lane(1), |w| w.inserts = vec![tx(1, Some(1))]);
        assert_eq!(checker.after(&behind), Ok(()));
        assert_eq!(blocks_pass(&mut checker, 1, 7).await, Ok(()));
        assert!(blocks_pass(&mut checker, 8, 1).await.is_err());
        assert_eq!(blocks_pass(&mut checker, 9, 9).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn held_used_or_last_nonces_are_not_gaps() {
        let mut checker = healed();
        let both = applied(lane(1), |w| {
            w.inserts = vec![tx(1, Some(0)), tx(2, Some(1))]
        });
        assert_eq!(checker.after(&both), Ok(()));
        assert_eq!(blocks_pass(&mut checker, 1, 9).await, Ok(()));
        let used = block(20, vec![chain_tx(lane(1), 0, b"")]);
        assert_eq!(checker.after(&used), Ok(()));
        let let_go = applied(lane(1), |w| w.updates = vec![tx(1, None)]);
        assert_eq!(checker.after(&let_go), Ok(()));
        assert_eq!(blocks_pass(&mut checker, 21, 9).await, Ok(()));
        assert_eq!(checker.after(&forked(20)), Ok(()));
        assert!(blocks_pass(&mut checker, 31, 8).await.is_err());
        let mut lone_gap = healed();
        let gone = applied(lane(1), |w| w.inserts = vec![tx(3, None)]);
        assert_eq!(lone_gap.after(&gone), Ok(()));
        assert_eq!(blocks_pass(&mut lone_gap, 1, 9).await, Ok(()));
    }
}
