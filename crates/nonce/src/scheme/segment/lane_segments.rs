//! The segments in this process's memory, by lane.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use domain::{LaneKey, Mark, MonotonicTime, Nonce};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use uuid::Uuid;

use super::super::ReserveRequest;
use super::super::write_behind::{BlockLease, WriteObserver, warn_late_reservation};
use crate::postgres::{EntryKind, Handout, LedgerEntry, WriteOutcome};

/// Free nonces per lane in memory; nonces that are recycled beyond it go to the ledger, for all processes.
const RETAINED_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct LaneSegments {
    lanes: Mutex<BTreeMap<LaneKey, LaneSegment>>,
}

#[derive(Default)]
struct LaneSegment {
    lease: Option<BlockLease>,
    /// Free nonces, each with the id of its allocation block.
    free: BTreeMap<Nonce, i64>,
    /// The smallest known nonce that is recyclable in the ledger and belongs to no block.
    free_in_ledger: Option<Nonce>,
    /// The chain's nonce at the last refill.
    at_least: Nonce,
    last_used_at: MonotonicTime,
    /// How many nonces were recycled into this segment. Negated, it is their allocation id: below zero, where the
    /// database counts upwards.
    recycled_count: i64,
    refill_lock: Arc<tokio::sync::Mutex<()>>,
}

impl LaneSegments {
    /// Issues the smallest free nonce while the lease is trusted. `None` also when the ledger must be consulted first:
    /// for a longer reservation, for a smaller recyclable nonce, or because the chain consumed nonces of the segment.
    pub(super) fn issue(
        &self,
        lane: LaneKey,
        request: ReserveRequest,
        now: MonotonicTime,
    ) -> Option<(Nonce, Handout)> {
        let mut lanes = self.lanes.lock();
        let segment = lanes.get_mut(&lane)?;
        let lease = segment.lease?;
        segment.last_used_at = now;
        if !lease.is_trusted(now) || request.timeout > lease.reservation_max {
            return None;
        }
        if request.at_least > segment.at_least && segment.has_below(request.at_least) {
            return None; // the ledger must know, for the sweep
        }
        let (nonce, allocation_id) = segment.free.range(request.at_least..).next()?;
        let (nonce, allocation_id) = (*nonce, *allocation_id);
        let is_smaller_in_ledger = |free: &Nonce| *free >= request.at_least && *free < nonce;
        if segment
            .free_in_ledger
            .as_ref()
            .is_some_and(is_smaller_in_ledger)
        {
            return None;
        }
        segment.free.remove(&nonce);
        let handout = Handout {
            token: lease.token,
            allocation_id,
            expires_at: lease.reservation_deadline(now, request.timeout),
        };
        Some((nonce, handout))
    }

    /// Starts a refill: determines the token and removes the nonces that the chain has passed, which are about to
    /// become recyclable for all.
    pub(super) fn begin_refill(
        self: &Arc<Self>,
        lane: LaneKey,
        at_least: Nonce,
        fresh: impl FnOnce() -> Uuid,
    ) -> RefillRequest {
        let mut lanes = self.lanes.lock();
        let segment = lanes.entry(lane).or_default();
        let (token, is_new, skipped) = match segment.lease {
            None => (fresh(), true, BTreeMap::new()),
            Some(lease) => {
                let above = segment.free.split_off(&at_least);
                let skipped = std::mem::replace(&mut segment.free, above);
                (lease.token, false, skipped)
            }
        };
        RefillRequest {
            segments: Arc::clone(self),
            lane,
            token,
            is_new,
            at_least,
            skipped,
            is_completed: false,
        }
    }

    /// The token is void, or its nonces are unknown: nothing is issued under it any more.
    pub(super) fn abandon(&self, lane: LaneKey, token: Uuid) {
        let mut lanes = self.lanes.lock();
        let Some(segment) = lanes.get_mut(&lane) else {
            return;
        };
        if segment.lease.is_some_and(|lease| lease.token == token) {
            segment.lease = None;
            segment.free.clear();
        }
    }

    /// Removes a lane's segment and returns its unissued nonces with their allocation ids.
    pub(super) fn take_unused(&self, lane: LaneKey) -> Option<(Uuid, Vec<(Nonce, i64)>)> {
        let mut lanes = self.lanes.lock();
        let segment = lanes.get_mut(&lane)?;
        let lease = segment.lease.take()?;
        let unused = std::mem::take(&mut segment.free).into_iter().collect();
        Some((lease.token, unused))
    }

    /// The block that takes a nonce if it is recycled now. Nonces below the chain's are left to the sweep.
    pub(super) fn recycle_target(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        now: MonotonicTime,
    ) -> Option<(Uuid, i64)> {
        let mut lanes = self.lanes.lock();
        let segment = lanes.get_mut(&lane)?;
        let lease = segment.lease.filter(|lease| lease.is_trusted(now))?;
        if segment.free.len() >= RETAINED_MAX || nonce < segment.at_least {
            return None;
        }
        segment.recycled_count -= 1;
        Some((lease.token, segment.recycled_count))
    }

    /// Whether the segment has a free nonce, issuable or not.
    pub(super) fn has_free(&self, lane: LaneKey, at_least: Nonce) -> bool {
        let lanes = self.lanes.lock();
        let segment = lanes.get(&lane).filter(|segment| segment.lease.is_some());
        segment.is_some_and(|segment| segment.free.range(at_least..).next().is_some())
    }

    /// The chain's nonce at the last refill.
    pub(super) fn chain_nonce(&self, lane: LaneKey) -> Nonce {
        self.lanes
            .lock()
            .get(&lane)
            .map_or(Nonce(0), |segment| segment.at_least)
    }

    /// The ledger has this nonce recyclable for all.
    pub(super) fn note_recyclable(&self, lane: LaneKey, nonce: Nonce) {
        if let Some(segment) = self.lanes.lock().get_mut(&lane) {
            segment.note_recyclable(nonce);
        }
    }

    pub(super) fn lanes_with_segment(&self) -> Vec<LaneKey> {
        let lanes = self.lanes.lock();
        let all = lanes.iter().filter(|(_, segment)| segment.lease.is_some());
        all.map(|(lane, _)| *lane).collect()
    }

    /// A lane's lease, and when the segment was last used.
    pub(super) fn lease_of(&self, lane: LaneKey) -> Option<(BlockLease, MonotonicTime)> {
        let lanes = self.lanes.lock();
        let segment = lanes.get(&lane)?;
        Some((segment.lease?, segment.last_used_at))
    }

    /// Serialises the refills of a lane.
    pub(super) async fn lock_refill(&self, lane: LaneKey) -> OwnedMutexGuard<()> {
        let refill_lock = Arc::clone(&self.lanes.lock().entry(lane).or_default().refill_lock);
        refill_lock.lock_owned().await
    }
}

/// A refill in progress. If it is dropped without an answer, the token's nonces are unknown: nothing is issued under
/// it any more, and the database takes its nonces back after the lease.
pub(super) struct RefillRequest {
    segments: Arc<LaneSegments>,
    lane: LaneKey,
    pub(super) token: Uuid,
    /// The token is created by this request.
    pub(super) is_new: bool,
    at_least: Nonce,
    skipped: BTreeMap<Nonce, i64>,
    is_completed: bool,
}

impl RefillRequest {
    /// Unissued nonces that the chain has passed.
    pub(super) fn skipped(&self) -> Vec<Nonce> {
        self.skipped.keys().copied().collect()
    }

    /// Adds the nonces that the database returned. A token that was abandoned in the meantime gets nothing: its lease
    /// is not renewed any more.
    pub(super) fn complete(mut self, lease: BlockLease, nonces: Vec<(Nonce, i64)>) {
        self.is_completed = true;
        let mut lanes = self.segments.lanes.lock();
        let segment = lanes.entry(self.lane).or_default();
        let is_current = match segment.lease {
            Some(present) => present.token == self.token,
            None => self.is_new,
        };
        if !is_current {
            return;
        }
        segment.lease = Some(lease);
        segment.last_used_at = segment.last_used_at.max(lease.requested_at);
        // The smallest skipped nonce is recyclable in the ledger, should the chain's nonce decrease again.
        let first = self.skipped.keys().next().copied();
        let skipped = [segment.free_in_ledger, first].into_iter().flatten();
        segment.free_in_ledger = skipped.filter(|nonce| *nonce < self.at_least).min();
        segment.at_least = self.at_least;
        segment.free.extend(nonces);
    }

    /// The database certainly did nothing: the skipped nonces return to the segment.
    pub(super) fn revert(mut self) {
        self.is_completed = true;
        let mut lanes = self.segments.lanes.lock();
        let segment = lanes.entry(self.lane).or_default();
        if segment.lease.is_some_and(|lease| lease.token == self.token) {
            segment.free.append(&mut self.skipped);
        }
    }
}

impl Drop for RefillRequest {
    fn drop(&mut self) {
        if !self.is_completed {
            self.segments.abandon(self.lane, self.token);
        }
    }
}

impl LaneSegment {
    fn has_below(&self, nonce: Nonce) -> bool {
        self.free.keys().next().is_some_and(|first| *first < nonce)
    }

    fn note_recyclable(&mut self, nonce: Nonce) {
        let smallest = self.free_in_ledger.map_or(nonce, |free| free.min(nonce));
        self.free_in_ledger = Some(smallest);
    }
}

#[async_trait]
impl WriteObserver for LaneSegments {
    /// A recycled nonce is in memory before its holder gets the answer.
    async fn on_written(&self, lines: &[(LedgerEntry, WriteOutcome)]) {
        let mut lanes = self.lanes.lock();
        for (entry, written) in lines {
            let Some(segment) = lanes.get_mut(&entry.key.lane) else {
                continue;
            };
            match (&entry.kind, written) {
                (
                    EntryKind::Marked {
                        recycle_target: Some((token, allocation_id)),
                        ..
                    },
                    WriteOutcome::Done {
                        is_in_block: true, ..
                    },
                ) => {
                    // Otherwise it is recycled after the lease.
                    if segment.lease.is_some_and(|lease| lease.token == *token) {
                        segment.free.insert(entry.key.nonce, *allocation_id);
                    }
                }
                (EntryKind::Marked { mark, .. }, WriteOutcome::Done { .. }) => {
                    if let Mark::Recyclable { .. } = mark {
                        segment.note_recyclable(entry.key.nonce);
                    }
                }
                (EntryKind::Reserved(_), WriteOutcome::Refused(why)) => {
                    warn_late_reservation(entry, why);
                }
                (EntryKind::Reserved(_) | EntryKind::Marked { .. }, _) => {}
            }
        }
    }

    /// It is unknown whether the block has them, so nothing more is issued under their tokens.
    fn on_outcome_unknown(&self, lines: &[LedgerEntry]) {
        for entry in lines {
            if let EntryKind::Marked {
                recycle_target: Some((token, _)),
                ..
            } = &entry.kind
            {
                self.abandon(entry.key.lane, *token);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use domain::{Address, ChainId, Holder, Timestamp};

    use super::*;

    const LANE: LaneKey = LaneKey {
        chain_id: ChainId(1),
        signer: Address::ZERO,
    };
    const FIRST: Uuid = Uuid::from_u128(1);
    const SECOND: Uuid = Uuid::from_u128(2);

    fn lease(token: Uuid) -> BlockLease {
        BlockLease {
            token,
            requested_at: MonotonicTime(0),
            answered_at: MonotonicTime(0),
            now: Timestamp(0),
            duration: Duration::from_secs(30),
            reservation_max: Duration::from_secs(60),
        }
    }

    fn begin_refill(segments: &Arc<LaneSegments>, at_least: u64, token: Uuid) -> RefillRequest {
        segments.begin_refill(LANE, Nonce(at_least), || token)
    }

    fn refill(segments: &Arc<LaneSegments>, token: Uuid, nonces: std::ops::Range<u64>) {
        let nonces = nonces.map(|nonce| (Nonce(nonce), 1)).collect();
        begin_refill(segments, 0, token).complete(lease(token), nonces);
    }

    fn issue(segments: &LaneSegments, at_least: u64) -> Option<(u64, Uuid)> {
        let request = ReserveRequest {
            holder: Holder(Uuid::nil()),
            at_least: Nonce(at_least),
            timeout: Duration::from_secs(60),
        };
        let (nonce, handout) = segments.issue(LANE, request, MonotonicTime(0))?;
        Some((nonce.0, handout.token))
    }

    #[test]
    fn refill_of_an_abandoned_token_is_discarded() {
        let segments = Arc::new(LaneSegments::default());
        refill(&segments, FIRST, 0..2);
        let late = begin_refill(&segments, 0, SECOND);
        assert_eq!((late.token, late.is_new), (FIRST, false));
        segments.abandon(LANE, FIRST);
        late.complete(lease(FIRST), vec![(Nonce(2), 2)]);
        assert_eq!(
            issue(&segments, 0),
            None,
            "an abandoned lease is not renewed"
        );
        refill(&segments, SECOND, 5..7);
        assert_eq!(issue(&segments, 0), Some((5, SECOND)));
    }

    #[test]
    fn dropped_refill_abandons_the_token() {
        let segments = Arc::new(LaneSegments::default());
        refill(&segments, FIRST, 0..2);
        drop(begin_refill(&segments, 0, SECOND));
        assert_eq!(issue(&segments, 0), None);
    }

    #[test]
    fn nonces_below_the_chain_nonce_are_skipped_once() {
        let segments = Arc::new(LaneSegments::default());
        refill(&segments, FIRST, 0..5);
        assert_eq!(issue(&segments, 0), Some((0, FIRST)));
        let refused = begin_refill(&segments, 3, SECOND);
        assert_eq!(refused.skipped(), [Nonce(1), Nonce(2)]);
        assert_eq!(
            issue(&segments, 0),
            Some((3, FIRST)),
            "the skipped ones are removed"
        );
        refused.revert();
        let refill = begin_refill(&segments, 3, SECOND);
        assert_eq!(refill.skipped(), [Nonce(1), Nonce(2)], "they were restored");
        refill.complete(lease(FIRST), Vec::new());
        assert!(begin_refill(&segments, 3, SECOND).skipped().is_empty());
    }
}
