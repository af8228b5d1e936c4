//! What this process keeps of each lane.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use domain::{LaneKey, MonotonicTime, Nonce, Timestamp};
use tokio::sync::OwnedMutexGuard;
use uuid::Uuid;

use super::super::Borrow;
use super::super::kept::{Aftermath, Grant};
use crate::postgres::{Entry, What, Written};

/// How many nonces of a lane are kept; what is given back beyond is free for all.
const KEPT_MAX: usize = 10_000;

/// All lanes.
#[derive(Default)]
pub(super) struct Memory {
    lanes: Mutex<BTreeMap<LaneKey, Kept>>,
}

#[derive(Default)]
struct Kept {
    grant: Option<Grant>,
    /// Free ones, each with its stint.
    free: BTreeMap<Nonce, i64>,
    /// The database has one that is free for all, and none smaller that we know of.
    free_elsewhere: Option<Nonce>,
    /// What the chain was last said to have.
    at_least: Nonce,
    used_at: MonotonicTime,
    /// How often something was given back here: what tells one keeping from another, below zero, where the
    /// database counts upwards.
    given_back: i64,
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// A nonce that is out of memory, and nobody else's.
pub(super) struct HandOut {
    pub(super) nonce: Nonce,
    pub(super) token: Uuid,
    pub(super) stint: i64,
    pub(super) expires_at: Timestamp,
}

impl Memory {
    /// The smallest, while the lease is trusted. Nothing, too, when the database must be asked first: for a longer
    /// loan, for a smaller one that is free there, or because the chain went past something here.
    pub(super) fn hand_out(
        &self,
        lane: LaneKey,
        borrow: Borrow,
        now: MonotonicTime,
    ) -> Option<HandOut> {
        let mut lanes = self.lanes();
        let kept = lanes.get_mut(&lane)?;
        let grant = kept.grant?;
        kept.used_at = now;
        if !grant.is_trusted(now) || borrow.timeout > grant.loan {
            return None;
        }
        if borrow.at_least > kept.at_least && kept.has_below(borrow.at_least) {
            return None; // the books must know, for the sweep
        }
        let (nonce, stint) = kept.free.range(borrow.at_least..).next()?;
        let (nonce, stint) = (*nonce, *stint);
        let is_smaller_elsewhere = |free: &Nonce| *free >= borrow.at_least && *free < nonce;
        if kept
            .free_elsewhere
            .as_ref()
            .is_some_and(is_smaller_elsewhere)
        {
            return None;
        }
        kept.free.remove(&nonce);
        Some(HandOut {
            nonce,
            token: grant.token,
            stint,
            expires_at: grant.deadline(now, borrow.timeout),
        })
    }

    /// Begins to ask the database for more: under which token, and what the chain went past. That is out of memory
    /// from here on, so that nobody is handed what is free for all soon.
    pub(super) fn ask(
        self: &Arc<Self>,
        lane: LaneKey,
        at_least: Nonce,
        fresh: impl FnOnce() -> Uuid,
    ) -> Asking {
        let mut lanes = self.lanes();
        let kept = lanes.entry(lane).or_default();
        let (token, is_new, passed) = match kept.grant {
            None => (fresh(), true, BTreeMap::new()),
            Some(grant) => {
                let above = kept.free.split_off(&at_least);
                let passed = std::mem::replace(&mut kept.free, above);
                (grant.token, false, passed)
            }
        };
        Asking {
            memory: Arc::clone(self),
            lane,
            token,
            is_new,
            at_least,
            passed,
            is_answered: false,
        }
    }

    /// The token is void, or it is not known what it has: nothing is handed out under it any more.
    pub(super) fn abandon(&self, lane: LaneKey, token: Uuid) {
        let mut lanes = self.lanes();
        let Some(kept) = lanes.get_mut(&lane) else {
            return;
        };
        if kept.grant.is_some_and(|grant| grant.token == token) {
            kept.grant = None;
            kept.free.clear();
        }
    }

    /// Forgets a lane's segment, and says what was not handed out, each with its stint.
    pub(super) fn clear(&self, lane: LaneKey) -> Option<(Uuid, Vec<(Nonce, i64)>)> {
        let mut lanes = self.lanes();
        let kept = lanes.get_mut(&lane)?;
        let grant = kept.grant.take()?;
        let unused = std::mem::take(&mut kept.free).into_iter().collect();
        Some((grant.token, unused))
    }

    /// Under what a nonce would be kept that is given back now. What the chain went past is for the sweep.
    pub(super) fn keep(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        now: MonotonicTime,
    ) -> Option<(Uuid, i64)> {
        let mut lanes = self.lanes();
        let kept = lanes.get_mut(&lane)?;
        let grant = kept.grant.filter(|grant| grant.is_trusted(now))?;
        if kept.free.len() >= KEPT_MAX || nonce < kept.at_least {
            return None;
        }
        kept.given_back -= 1;
        Some((grant.token, kept.given_back))
    }

    /// Whether there is one to hand out, were it allowed.
    pub(super) fn has_any(&self, lane: LaneKey, at_least: Nonce) -> bool {
        let lanes = self.lanes();
        let kept = lanes.get(&lane).filter(|kept| kept.grant.is_some());
        kept.is_some_and(|kept| kept.free.range(at_least..).next().is_some())
    }

    /// What the chain was last said to have of a lane.
    pub(super) fn floor(&self, lane: LaneKey) -> Nonce {
        self.lanes()
            .get(&lane)
            .map_or(Nonce(0), |kept| kept.at_least)
    }

    /// The database has this one free for all.
    pub(super) fn note_free(&self, lane: LaneKey, nonce: Nonce) {
        if let Some(kept) = self.lanes().get_mut(&lane) {
            let smallest = kept.free_elsewhere.map_or(nonce, |free| free.min(nonce));
            kept.free_elsewhere = Some(smallest);
        }
    }

    /// All lanes with a segment.
    pub(super) fn with_segment(&self) -> Vec<LaneKey> {
        let lanes = self.lanes();
        let all = lanes.iter().filter(|(_, kept)| kept.grant.is_some());
        all.map(|(lane, _)| *lane).collect()
    }

    /// A lane's segment, and when it was last asked for.
    pub(super) fn grant(&self, lane: LaneKey) -> Option<(Grant, MonotonicTime)> {
        let lanes = self.lanes();
        let kept = lanes.get(&lane)?;
        Some((kept.grant?, kept.used_at))
    }

    /// One call of a lane asks the database at a time.
    pub(super) async fn turn(&self, lane: LaneKey) -> OwnedMutexGuard<()> {
        let turn = Arc::clone(&self.lanes().entry(lane).or_default().turn);
        turn.lock_owned().await
    }

    fn lanes(&self) -> MutexGuard<'_, BTreeMap<LaneKey, Kept>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The database is being asked for more of a lane. Should this be dropped without an answer, it is not known what
/// the token has: nothing is handed out under it any more, and all comes back when its lease is over.
pub(super) struct Asking {
    memory: Arc<Memory>,
    lane: LaneKey,
    pub(super) token: Uuid,
    /// The token begins with this.
    pub(super) is_new: bool,
    at_least: Nonce,
    passed: BTreeMap<Nonce, i64>,
    is_answered: bool,
}

impl Asking {
    /// What the chain went past.
    pub(super) fn passed(&self) -> Vec<Nonce> {
        self.passed.keys().copied().collect()
    }

    /// Takes what the database gave, and frees what was passed. A token that was given up meanwhile gets nothing:
    /// nobody would hand it out, and its lease is not renewed any more.
    pub(super) fn given(mut self, grant: Grant, nonces: Vec<(Nonce, i64)>) {
        self.is_answered = true;
        let mut lanes = self.memory.lanes();
        let kept = lanes.entry(self.lane).or_default();
        let is_current = match kept.grant {
            Some(present) => present.token == self.token,
            None => self.is_new,
        };
        if !is_current {
            return;
        }
        kept.grant = Some(grant);
        kept.used_at = kept.used_at.max(grant.asked_at);
        // The smallest of those that went past is there, should the chain lose what it had of it.
        let first = self.passed.keys().next().copied();
        let passed = [kept.free_elsewhere, first].into_iter().flatten();
        kept.free_elsewhere = passed.filter(|nonce| *nonce < self.at_least).min();
        kept.at_least = self.at_least;
        kept.free.extend(nonces);
    }

    /// The database certainly did nothing: what was passed is kept as before.
    pub(super) fn refused(mut self) {
        self.is_answered = true;
        let mut lanes = self.memory.lanes();
        let kept = lanes.entry(self.lane).or_default();
        if kept.grant.is_some_and(|grant| grant.token == self.token) {
            kept.free.append(&mut self.passed);
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if !self.is_answered {
            self.memory.abandon(self.lane, self.token);
        }
    }
}

impl Kept {
    fn has_below(&self, nonce: Nonce) -> bool {
        self.free.keys().next().is_some_and(|first| *first < nonce)
    }
}

#[async_trait]
impl Aftermath for Memory {
    /// What was given back and is kept is in memory before anybody else hears of it.
    async fn written(&self, lines: &[(Entry, Written)]) {
        let mut lanes = self.lanes();
        for (entry, written) in lines {
            let Some(kept) = lanes.get_mut(&entry.lane) else {
                continue;
            };
            match (&entry.what, written) {
                (
                    What::Recyclable {
                        keep: Some((token, stint)),
                        ..
                    },
                    Written::Done {
                        is_live_for: true, ..
                    },
                ) => {
                    // Otherwise it comes back when the lease is over.
                    if kept.grant.is_some_and(|grant| grant.token == *token) {
                        kept.free.insert(entry.nonce, *stint);
                    }
                }
                (What::Recyclable { .. }, Written::Done { .. }) => {
                    let nonce = entry.nonce;
                    let smallest = kept.free_elsewhere.map_or(nonce, |free| free.min(nonce));
                    kept.free_elsewhere = Some(smallest);
                }
                (What::LaneReservations { .. }, Written::Refused(why)) => {
                    metrics::counter!("lanekeeper_nonce_late_loans_total").increment(1);
                    tracing::warn!(lane = %entry.lane, nonce = %entry.nonce, %why, "a loan was written down too late");
                }
                (
                    What::LaneReservations { .. }
                    | What::Submitted(_)
                    | What::Used(_)
                    | What::Recyclable { .. },
                    _,
                ) => {}
            }
        }
    }

    /// Whether they are kept is not known, so nothing more is handed out under their tokens.
    fn lost(&self, lines: &[Entry]) {
        for entry in lines {
            if let What::Recyclable {
                keep: Some((token, _)),
                ..
            } = &entry.what
            {
                self.abandon(entry.lane, *token);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use domain::{Address, ChainId, Holder};

    use super::*;

    const LANE: LaneKey = LaneKey {
        chain_id: ChainId(1),
        signer: Address::ZERO,
    };
    const FIRST: Uuid = Uuid::from_u128(1);
    const SECOND: Uuid = Uuid::from_u128(2);

    fn grant(token: Uuid) -> Grant {
        Grant {
            token,
            asked_at: MonotonicTime(0),
            heard_at: MonotonicTime(0),
            now: Timestamp(0),
            lasts: Duration::from_secs(30),
            loan: Duration::from_secs(60),
        }
    }

    fn ask(memory: &Arc<Memory>, at_least: u64, token: Uuid) -> Asking {
        memory.ask(LANE, Nonce(at_least), || token)
    }

    fn give(memory: &Arc<Memory>, token: Uuid, nonces: std::ops::Range<u64>) {
        let nonces = nonces.map(|nonce| (Nonce(nonce), 1)).collect();
        ask(memory, 0, token).given(grant(token), nonces);
    }

    fn hand_out(memory: &Memory, at_least: u64) -> Option<(u64, Uuid)> {
        let borrow = Borrow {
            holder: Holder(Uuid::nil()),
            at_least: Nonce(at_least),
            timeout: Duration::from_secs(60),
        };
        let out = memory.hand_out(LANE, borrow, MonotonicTime(0))?;
        Some((out.nonce.0, out.token))
    }

    #[test]
    fn an_answer_for_a_token_that_was_given_up_is_not_taken() {
        let memory = Arc::new(Memory::default());
        give(&memory, FIRST, 0..2);
        let late = ask(&memory, 0, SECOND);
        assert_eq!((late.token, late.is_new), (FIRST, false));
        memory.abandon(LANE, FIRST);
        late.given(grant(FIRST), vec![(Nonce(2), 2)]);
        assert_eq!(hand_out(&memory, 0), None, "its lease is not renewed");
        give(&memory, SECOND, 5..7);
        assert_eq!(hand_out(&memory, 0), Some((5, SECOND)));
    }

    #[test]
    fn an_answer_that_nobody_waits_for_ends_the_token() {
        let memory = Arc::new(Memory::default());
        give(&memory, FIRST, 0..2);
        drop(ask(&memory, 0, SECOND));
        assert_eq!(hand_out(&memory, 0), None);
    }

    #[test]
    fn what_the_chain_went_past_is_passed_once_and_only_if_it_is_not_handed_out() {
        let memory = Arc::new(Memory::default());
        give(&memory, FIRST, 0..5);
        assert_eq!(hand_out(&memory, 0), Some((0, FIRST)));
        let refused = ask(&memory, 3, SECOND);
        assert_eq!(refused.passed(), [Nonce(1), Nonce(2)]);
        assert_eq!(hand_out(&memory, 0), Some((3, FIRST)), "those are gone");
        refused.refused();
        let asking = ask(&memory, 3, SECOND);
        assert_eq!(asking.passed(), [Nonce(1), Nonce(2)], "they were kept");
        asking.given(grant(FIRST), Vec::new());
        assert!(ask(&memory, 3, SECOND).passed().is_empty());
    }
}
