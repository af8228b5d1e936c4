//! A lane's cell in its shard: being opened, in memory, waiting for the outcome of a commit, or halted.

use std::sync::Arc;
use std::time::Duration;

use domain::lane::EndpointNonces;
use domain::{Input, Lane, LaneKey, LaneRules, LeaseGrant, MonotonicTime};

use super::unknown_commit::{UNKNOWN_COMMIT_PATIENCE, UnknownBatch, outcome_pending};
use super::{Inspection, OpenError, OpenedLane, PendingCreate, Shard, ShardOutcome};
use crate::node::Refusal;
use crate::ownership::LastKnownLane;

/// How often requests for a halted lane have it opened again.
const HALT_RECHECK_PERIOD: Duration = Duration::from_secs(1);

pub(crate) enum LaneCell {
    /// Being acquired and read by another task; requests wait here.
    Opening { waiting: Vec<PendingCreate> },
    Ready {
        lane: Box<Lane>,
        epoch: u64,
        idle_since: Option<MonotonicTime>,
    },
    /// The outcome of a commit is unknown until a regrant. Requests wait here.
    UnknownCommit {
        batch: UnknownBatch,
        waiting: Vec<PendingCreate>,
        since: MonotonicTime,
    },
    /// Takes no work until an operator decides.
    Halted {
        reason: String,
        since: MonotonicTime,
    },
}

impl Shard {
    /// Holds a request for a lane that is not in memory, and has the lane opened.
    pub(super) fn hold_create(&mut self, key: LaneKey, create: PendingCreate) {
        let bound = self.core.config.inbox;
        let now = self.core.ports.clock.monotonic();
        match self.lanes.get_mut(&key) {
            Some(LaneCell::UnknownCommit { since, .. })
                if now.since(*since) >= UNKNOWN_COMMIT_PATIENCE =>
            {
                refuse_creates([create], &outcome_pending());
            }
            Some(LaneCell::Opening { waiting } | LaneCell::UnknownCommit { waiting, .. }) => {
                if waiting.len() < bound {
                    waiting.push(create);
                } else {
                    refuse_creates([create], &Refusal::Busy);
                }
            }
            Some(LaneCell::Ready { .. }) => {
                unreachable!("a lane in memory takes its requests itself")
            }
            Some(LaneCell::Halted { since, .. }) if now.since(*since) >= HALT_RECHECK_PERIOD => {
                // An operator may have resumed it through another node.
                self.open_lane(key, vec![create]);
            }
            Some(LaneCell::Halted { reason, .. }) => {
                refuse_creates([create], &Refusal::Halted(reason.clone()));
            }
            None if self.is_draining => answer_released(create),
            None => self.open_lane(key, vec![create]),
        }
    }

    /// Has a lane opened that is not in memory. Returns whether it is in memory already.
    pub(super) fn wake_lane(&mut self, key: LaneKey) -> bool {
        let now = self.core.ports.clock.monotonic();
        match self.lanes.get(&key) {
            Some(LaneCell::Ready { .. }) => true,
            Some(LaneCell::Opening { .. } | LaneCell::UnknownCommit { .. }) => false,
            // An operator may have resumed it through another node.
            Some(LaneCell::Halted { since, .. }) if now.since(*since) < HALT_RECHECK_PERIOD => {
                false
            }
            Some(LaneCell::Halted { .. }) | None => {
                if !self.is_draining {
                    self.open_lane(key, Vec::new());
                }
                false
            }
        }
    }

    /// Has a lane acquired and read by another task.
    pub(crate) fn open_lane(&mut self, key: LaneKey, waiting: Vec<PendingCreate>) {
        self.lanes.insert(key, LaneCell::Opening { waiting });
        let failures = self.failures.get(&key).copied().unwrap_or(0);
        let Some(mut tries) = failures.checked_sub(1) else {
            self.core.request_open(key);
            return;
        };
        // After failures in a row it waits first, so that a store in trouble is not overloaded.
        let core = Arc::clone(&self.core);
        self.core.tasks.spawn("open later", async move {
            core.back_off(&mut tries).await;
            core.request_open(key);
        });
    }

    /// Puts a lane into memory that was granted and read. Returns the requests that waited for it.
    pub(super) fn install_opened_lane(&mut self, opened: OpenedLane) -> Vec<PendingCreate> {
        let OpenedLane {
            lane: key,
            image,
            previous_keeper,
            is_reconciled,
            ..
        } = opened;
        let waiting = match self.lanes.remove(&key) {
            Some(LaneCell::Opening { waiting }) => waiting,
            // A newer opening has replaced this one: its grant is void.
            Some(other) => {
                self.lanes.insert(key, other);
                return Vec::new();
            }
            None => Vec::new(),
        };
        let chain_state = self.core.chain(key.chain_id);
        let rules = LaneRules {
            reservations: self.core.reservations(key),
            ..chain_state.rules.lane
        };
        let mut lane = Lane::load(image, rules, previous_keeper);
        if !is_reconciled {
            // It was compared with the chain just now, but the endpoint may have been behind.
            lane = lane.with_suspect_history();
        }
        chain_state.watched.add(key, lane.hashes());
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        self.lanes.insert(
            key,
            LaneCell::Ready {
                lane: Box::new(lane),
                epoch,
                idle_since: None,
            },
        );
        waiting
    }

    pub(super) fn on_open_failed(&mut self, key: LaneKey, why: OpenError) {
        let Some(LaneCell::Opening { waiting }) = self.lanes.get_mut(&key) else {
            return;
        };
        let waiting = std::mem::take(waiting);
        self.lanes.remove(&key);
        match why {
            OpenError::NotKeeper(node) => {
                for create in waiting {
                    let outcome = ShardOutcome::NotKeeper {
                        keeper: node.clone(),
                        maybe_stored: create.maybe_stored,
                    };
                    create.answer(outcome);
                }
            }
            OpenError::Store(why) => refuse_creates(waiting, &Refusal::StoreUnavailable(why)),
            OpenError::Busy => self.reopen_with_backoff(key, waiting),
            OpenError::Halted(reason) => {
                refuse_creates(waiting, &Refusal::Halted(reason.clone()));
                let since = self.core.ports.clock.monotonic();
                self.lanes.insert(key, LaneCell::Halted { reason, since });
            }
        }
    }

    /// An operator has accepted what a halted lane has lost: it is opened again.
    pub(super) fn resume_lane(&mut self, key: LaneKey) {
        let is_halted = match self.lanes.get(&key) {
            Some(LaneCell::Halted { .. }) => true,
            Some(LaneCell::Ready { lane, .. }) => lane.is_halted(),
            Some(LaneCell::Opening { .. } | LaneCell::UnknownCommit { .. }) | None => false,
        };
        if is_halted {
            self.lanes.remove(&key);
            self.forget_lane(key);
        }
        if !self.lanes.contains_key(&key) && !self.is_draining {
            self.open_lane(key, Vec::new());
        }
    }

    /// Drops a lane whose lease was lost. Returns `false` when the lane was opened anew in the meantime.
    pub(super) fn drop_lost_lane(&mut self, key: LaneKey, lease_grant: LeaseGrant) -> bool {
        if let Some(LaneCell::Ready { lane, .. }) = self.lanes.get(&key)
            && lane.lease_grant() == lease_grant
        {
            self.drop_lane_memory(lane);
            self.lanes.remove(&key);
            return true;
        }
        false
    }

    /// Drops a lane that was not released. What it knew is kept apart: it proves a loss where the store has lost
    /// commits.
    pub(crate) fn drop_lane_memory(&self, lane: &Lane) {
        let last_known = LastKnownLane::of(lane);
        self.core.timeline.remember_lane(lane.key(), last_known);
        self.forget_lane(lane.key());
    }

    /// Removes a lane that left memory from the leases and the watched hashes.
    pub(crate) fn forget_lane(&self, key: LaneKey) {
        self.core.leases.forget(key);
        self.core.chain(key.chain_id).watched.remove_lane(key);
    }

    /// Drops a lane's draft and opens it again, waiting longer after each failure in a row.
    pub(crate) fn reopen_with_backoff(&mut self, key: LaneKey, waiting: Vec<PendingCreate>) {
        self.forget_lane(key);
        *self.failures.entry(key).or_default() += 1;
        self.open_lane(key, waiting);
    }

    pub(super) fn inspect_lane(&self, key: LaneKey) -> Inspection {
        let waiting_for = |why: &str| Inspection {
            waiting_for: Some(why.into()),
            ..Inspection::default()
        };
        match self.lanes.get(&key) {
            Some(LaneCell::Ready { lane, .. }) => Inspection {
                chain_nonces: lane.chain_nonces(),
                gaps: lane.gaps(),
                waiting_for: lane.waiting_for(),
                unmined: lane.in_flight().filter(|tx| tx.inclusion.is_none()).count(),
            },
            Some(LaneCell::Opening { .. }) => waiting_for("the lane is being opened"),
            Some(LaneCell::UnknownCommit { .. }) => {
                waiting_for("the outcome of a commit is unknown; the store is being queried")
            }
            // The store knows why it is halted, and whether it still is.
            Some(LaneCell::Halted { .. }) | None => Inspection::default(),
        }
    }

    /// The inputs of a lane that was just put into memory.
    pub(super) fn first_inputs(&self, key: LaneKey, nonces: Option<EndpointNonces>) -> Vec<Input> {
        let fresh = self.core.ports.clock.tx_id();
        let view = self.core.chain(key.chain_id).view.get();
        let head = view.map(Input::Head).into_iter();
        let nonces = nonces.map(|nonces| Input::AccountNonces {
            nonces,
            counts_pool: true,
        });
        head.chain(nonces).chain([Input::Tick { fresh }]).collect()
    }
}

/// Refuses requests. Where one may be stored all the same, its refusal is `OutcomeUnknown`.
pub(crate) fn refuse_creates(creates: impl IntoIterator<Item = PendingCreate>, why: &Refusal) {
    for create in creates {
        let why = match create.maybe_stored {
            true => Refusal::OutcomeUnknown,
            false => why.clone(),
        };
        create.answer(ShardOutcome::Refused(why));
    }
}

/// Has a request rerouted: this node has released the lane.
pub(super) fn answer_released(create: PendingCreate) {
    if create.maybe_stored {
        refuse_creates([create], &Refusal::OutcomeUnknown);
    } else {
        create.answer(ShardOutcome::Released);
    }
}
