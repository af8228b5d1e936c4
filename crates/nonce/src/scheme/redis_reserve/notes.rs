//! What this process knows of each lane's generation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::{LaneKey, MonotonicTime, Nonce};
use tokio::sync::OwnedMutexGuard;
use uuid::Uuid;

use super::super::kept::Grant;
use super::scripts::ReservationTerms;

/// All lanes.
#[derive(Default)]
pub(super) struct Notes {
    lanes: Mutex<BTreeMap<LaneKey, Note>>,
}

/// One lane.
#[derive(Default)]
pub(super) struct Note {
    /// The generation, and for which server it is.
    pub(super) grant: Option<(Grant, Arc<str>)>,
    /// A generation whose state in Redis is lost.
    pub(super) broken: Option<Uuid>,
    /// The database has free ones that Redis should hand out first.
    pub(super) has_free: bool,
    /// Something was set aside, or may have been, and Redis did not get it.
    pub(super) has_unpushed: bool,
    /// What the database was last told of the chain.
    pub(super) at_least: Nonce,
    /// Loans that were not written down when they were last looked for.
    pub(super) unwritten: BTreeSet<ReservationTerms>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Notes {
    pub(super) fn with<T>(&self, lane: LaneKey, f: impl FnOnce(&mut Note) -> T) -> T {
        f(self.lanes().entry(lane).or_default())
    }

    /// The generation, if it is trusted, is this server's and allows such a loan.
    pub(super) fn grant(
        &self,
        lane: LaneKey,
        server: &str,
        loan: std::time::Duration,
        now: MonotonicTime,
    ) -> Option<Grant> {
        let lanes = self.lanes();
        let (grant, of) = lanes.get(&lane)?.grant.as_ref()?;
        let is_good = &**of == server && !grant.is_ageing(now) && grant.loan >= loan;
        is_good.then_some(*grant)
    }

    /// What this generation has in Redis is lost.
    pub(super) fn is_broken(&self, lane: LaneKey, token: Uuid) {
        self.with(lane, |note| {
            note.broken = Some(token);
            note.grant = None;
        });
    }

    /// This generation is given back.
    pub(super) fn is_over(&self, lane: LaneKey, token: Uuid) {
        self.with(lane, |note| {
            note.grant.take_if(|(grant, _)| grant.token == token);
        });
    }

    /// One call of a lane asks the database at a time.
    pub(super) async fn turn(&self, lane: LaneKey) -> OwnedMutexGuard<()> {
        let turn = self.with(lane, |note| Arc::clone(&note.turn));
        turn.lock_owned().await
    }

    /// The same, or nothing if somebody is at it.
    pub(super) fn try_turn(&self, lane: LaneKey) -> Option<OwnedMutexGuard<()>> {
        let turn = self.with(lane, |note| Arc::clone(&note.turn));
        turn.try_lock_owned().ok()
    }

    /// All generations that are known here.
    pub(super) fn grants(&self) -> Vec<(LaneKey, Grant, Arc<str>)> {
        let lanes = self.lanes();
        let all = lanes.iter().filter_map(|(lane, note)| {
            let (grant, server) = note.grant.as_ref()?;
            Some((*lane, *grant, Arc::clone(server)))
        });
        all.collect()
    }

    fn lanes(&self) -> MutexGuard<'_, BTreeMap<LaneKey, Note>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
