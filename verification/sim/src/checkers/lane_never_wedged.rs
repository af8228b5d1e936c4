//! No lane is ever wedged: in a healed world, where accounts have money and the chain makes blocks, something of a lane with
//! work is mined within a bound, whatever its clients, endpoints and readers did before.
//!
//! A lane has work while an open tx has no nonce, or one that the chain has not consumed. A nonce that a tx loses counts as
//! mined. A full block says nothing: other lanes may have taken all of its room.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{LaneKey, Nonce, SubState, TxId};
use engine::ports::LaneBatch;
use tokio::time::Instant;

use super::aftermath::Aftermath;
use super::consumed_nonces::ConsumedNonces;
use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::event::WorldEvent;

pub struct LaneNeverWedged {
    bound: Duration,
    lanes: Vec<LaneKey>,
    /// How many transactions fit into a block.
    block_room: usize,
    aftermath: Aftermath,
    open: StoreModel<BTreeMap<LaneKey, BTreeMap<TxId, Option<Nonce>>>>,
    consumed: ConsumedNonces,
    /// Since when each lane has work of which nothing was mined; `None` once that was reported.
    since: BTreeMap<LaneKey, Option<Instant>>,
}

impl LaneNeverWedged {
    pub(super) const PROMISE: &'static str = "no lane is wedged";

    /// Of these lanes something must be mined within `bound`, in blocks of so many transactions.
    #[must_use]
    pub fn with_bound(lanes: Vec<LaneKey>, bound: Duration, block_room: usize) -> Self {
        Self {
            bound,
            lanes,
            block_room,
            aftermath: Aftermath::default(),
            open: StoreModel::default(),
            consumed: ConsumedNonces::default(),
            since: BTreeMap::new(),
        }
    }

    fn follow_rows(&mut self, lane: LaneKey, batch: &LaneBatch) {
        let open = self.open.entry(lane).or_default();
        for tx in batch.writes.inserts.iter().chain(&batch.writes.updates) {
            // A tx that is held for a decision waits by a rule.
            let is_held = tx.sub_state == Some(SubState::ForeignNonce);
            let before = match tx.is_open() && !is_held {
                true => open.insert(tx.id, tx.nonce),
                false => open.remove(&tx.id),
            };
            // A tx that loses its nonce to a foreign transaction goes on: each such nonce is waited for.
            if before
                .flatten()
                .is_some_and(|nonce| tx.nonce != Some(nonce))
            {
                self.since.remove(&lane);
            }
        }
    }

    fn has_work(&self, lane: LaneKey) -> bool {
        let next = self.consumed.next_of(lane);
        let open = self.open.get(&lane).into_iter().flat_map(BTreeMap::values);
        let mut unmined = open.filter(|nonce| nonce.is_none_or(|nonce| nonce >= next));
        unmined.next().is_some() && !self.aftermath.is_damaged(&lane)
    }

    fn check_deadlines(&mut self) -> Result<(), String> {
        let now = Instant::now();
        for lane in self.lanes.clone() {
            if !self.has_work(lane) {
                self.since.remove(&lane);
                continue;
            }
            let since = self.since.entry(lane).or_insert(Some(now));
            if since.is_some_and(|since| now.duration_since(since) > self.bound) {
                *since = None;
                let bound = self.bound.as_secs();
                return Err(format!(
                    "{lane} has work, and nothing is mined for {bound} s"
                ));
            }
        }
        Ok(())
    }
}

impl Checker for LaneNeverWedged {
    fn name(&self) -> &'static str {
        Self::PROMISE
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.open.follow(event);
        self.aftermath.follow(event);
        if let Some((lane, batch)) = applied(event) {
            self.follow_rows(lane, batch);
        }
        self.consumed.follow(event);
        if let WorldEvent::Forked { .. } = event {
            self.since.clear();
        }
        let WorldEvent::Mined { txs, .. } = event else {
            return Ok(());
        };
        let has_progress = |lane: &LaneKey| txs.iter().any(|tx| tx.envelope.signer == lane.signer);
        let is_full = txs.len() >= self.block_room;
        self.since.retain(|lane, _| !is_full && !has_progress(lane));
        // With every block: a chain that makes none owes nothing.
        match self.aftermath.is_healed() {
            true => self.check_deadlines(),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{applied, block, blocks_pass, chain_tx, forked, lane, tx};
    use super::*;

    const BOUND: Duration = Duration::from_secs(60);
    const ROOM: usize = 2;

    fn healed() -> LaneNeverWedged {
        let mut checker = LaneNeverWedged::with_bound(vec![lane(1)], BOUND, ROOM);
        assert_eq!(checker.after(&WorldEvent::Phase("heal")), Ok(()));
        checker
    }

    #[tokio::test(start_paused = true)]
    async fn lane_without_progress_is_reported_once() {
        let mut checker = healed();
        let open = applied(lane(1), |w| w.inserts = vec![tx(1, Some(0)), tx(2, None)]);
        assert_eq!(checker.after(&open), Ok(()));
        assert_eq!(blocks_pass(&mut checker, 1, 7).await, Ok(()));
        let mined = block(8, vec![chain_tx(lane(1), 0, b"")]);
        assert_eq!(checker.after(&mined), Ok(()), "progress");
        assert_eq!(blocks_pass(&mut checker, 9, 6).await, Ok(()));
        assert!(blocks_pass(&mut checker, 15, 1).await.is_err());
        assert_eq!(blocks_pass(&mut checker, 16, 9).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn mined_and_ended_txs_are_no_work_until_a_fork() {
        let mut checker = healed();
        let open = applied(lane(1), |w| w.inserts = vec![tx(1, Some(0))]);
        assert_eq!(checker.after(&open), Ok(()));
        let mined = block(1, vec![chain_tx(lane(1), 0, b"")]);
        assert_eq!(checker.after(&mined), Ok(()));
        assert_eq!(blocks_pass(&mut checker, 2, 9).await, Ok(()));
        assert_eq!(checker.after(&forked(1)), Ok(()));
        assert!(blocks_pass(&mut checker, 11, 8).await.is_err());
        let other = applied(lane(2), |w| w.inserts = vec![tx(2, Some(0))]);
        assert_eq!(checker.after(&other), Ok(()));
        let mut other_lane = healed();
        assert_eq!(other_lane.after(&other), Ok(()));
        assert_eq!(blocks_pass(&mut other_lane, 1, 9).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn full_block_says_nothing_of_the_lanes_that_found_no_room() {
        let mut checker = healed();
        let open = applied(lane(1), |w| w.inserts = vec![tx(1, Some(0))]);
        assert_eq!(checker.after(&open), Ok(()));
        assert_eq!(blocks_pass(&mut checker, 1, 6).await, Ok(()));
        let others = (0..2).map(|nonce| chain_tx(lane(2), nonce, b"")).collect();
        assert_eq!(checker.after(&block(7, others)), Ok(()));
        assert_eq!(blocks_pass(&mut checker, 8, 6).await, Ok(()));
        assert!(blocks_pass(&mut checker, 14, 2).await.is_err());
    }
}
