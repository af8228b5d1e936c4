//! What this process keeps of each lane.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use domain::{LaneKey, Moment, Nonce, Time};
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
    used_at: Moment,
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
    pub(super) expires_at: Time,
}

impl Memory {
    /// The smallest, while the lease is trusted. Nothing, too, when the database must be asked first: for a longer
    /// loan, for a smaller one that is free there, or because the chain went past something here.
    pub(super) fn hand_out(&self, lane: LaneKey, borrow: Borrow, now: Moment) -> Option<HandOut> {
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

    /// Takes what the database gave. What was kept below `at_least` is free for all there.
    pub(super) fn add(
        &self,
        lane: LaneKey,
        grant: Grant,
        at_least: Nonce,
        nonces: Vec<(Nonce, i64)>,
    ) {
        let mut lanes = self.lanes();
        let kept = lanes.entry(lane).or_default();
        if kept
            .grant
            .is_some_and(|present| present.token != grant.token)
        {
            return;
        }
        kept.grant = Some(grant);
        kept.used_at = kept.used_at.max(grant.asked_at);
        // The smallest of those that went past is there, should the chain lose what it had of it.
        let first = kept.free.keys().next().copied();
        let passed = [kept.free_elsewhere, first].into_iter().flatten();
        kept.free_elsewhere = passed.filter(|nonce| *nonce < at_least).min();
        kept.free = kept.free.split_off(&at_least);
        kept.at_least = at_least;
        kept.free.extend(nonces);
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

    /// Forgets a lane's segment, and says what was not handed out.
    pub(super) fn clear(&self, lane: LaneKey) -> Option<(Uuid, Vec<Nonce>)> {
        let mut lanes = self.lanes();
        let kept = lanes.get_mut(&lane)?;
        let grant = kept.grant.take()?;
        let unused = std::mem::take(&mut kept.free).into_keys().collect();
        Some((grant.token, unused))
    }

    pub(super) fn token(&self, lane: LaneKey) -> Option<Uuid> {
        self.lanes().get(&lane)?.grant.map(|grant| grant.token)
    }

    /// Under what a nonce would be kept that is given back now.
    pub(super) fn keep(&self, lane: LaneKey, now: Moment) -> Option<(Uuid, i64)> {
        let mut lanes = self.lanes();
        let kept = lanes.get_mut(&lane)?;
        let grant = kept.grant.filter(|grant| grant.is_trusted(now))?;
        if kept.free.len() >= KEPT_MAX {
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

    /// All segments, and when each was last asked for.
    pub(super) fn grants(&self) -> Vec<(LaneKey, Grant, Moment)> {
        let lanes = self.lanes();
        let all = lanes.iter();
        all.filter_map(|(lane, kept)| Some((*lane, kept.grant?, kept.used_at)))
            .collect()
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
                    Written::Done { is_kept: true, .. },
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
                (What::Lent { .. }, Written::Refused(why)) => {
                    metrics::counter!("lanekeeper_nonce_late_loans_total").increment(1);
                    tracing::warn!(lane = %entry.lane, nonce = %entry.nonce, %why, "a loan was written down too late");
                }
                (
                    What::Lent { .. }
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
