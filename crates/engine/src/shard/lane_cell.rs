//! A lane's cell in its shard: being opened, in memory, waiting for the outcome of a commit, or halted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::lane::EndpointNonces;
use domain::{Input, Lane, LaneKey, LaneRules, LeaseGrant, MonotonicTime, RequestId, Tx, TxId};
use metrics::counter;

use super::unknown_commit::{UNKNOWN_COMMIT_PATIENCE, UnknownBatch, outcome_pending};
use super::{
    Inspection, LossSuspicion, Message, OpenError, OpenedLane, PendingCreate, Shard, ShardOutcome,
};
use crate::node::Refusal;
use crate::ownership::LastKnownLane;
use crate::ports::StoreError;

/// How often requests for a halted lane have it opened again.
const HALT_RECHECK_PERIOD: Duration = Duration::from_secs(1);

pub(crate) enum LaneCell {
    /// Being opened by another task, which looks waiting requests up, acquires the lane and reads it.
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
            None => self.look_up_waiting(key, vec![create]),
        }
    }

    /// Has the requests that wait for a lane looked up before it is opened: a late repeat does not take an idle lane
    /// over.
    fn look_up_waiting(&mut self, key: LaneKey, waiting: Vec<PendingCreate>) {
        let ids = waiting.iter().map(|create| &create.request.request_id);
        let requests: Vec<(LaneKey, RequestId)> = ids.map(|id| (key, id.clone())).collect();
        self.lanes.insert(key, LaneCell::Opening { waiting });
        counter!("lanekeeper_store_reads_total").increment(1);
        let core = Arc::clone(&self.core);
        self.core.tasks.spawn("look up requests", async move {
            let found = core.ports.store.find_requests(&requests).await;
            let ids = requests.into_iter().map(|(_, id)| id);
            let known = |found: Vec<Option<Tx>>| {
                let found = found.into_iter().map(|tx| tx.map(|tx| tx.id));
                ids.zip(found).collect()
            };
            let found = found.map(known);
            let message = Message::RequestsLookedUp { lane: key, found };
            core.send_to_shard(key, message).await;
        });
    }

    /// Answers the repeats among the requests that wait for a lane, and has it opened for the others. Those that came
    /// since are looked up in turn, unless the lane is opened anyway.
    pub(super) fn on_requests_looked_up(
        &mut self,
        key: LaneKey,
        found: Result<BTreeMap<RequestId, Option<TxId>>, StoreError>,
    ) {
        let Some(LaneCell::Opening { waiting }) = self.lanes.get_mut(&key) else {
            return;
        };
        let creates = std::mem::take(waiting);
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                self.lanes.remove(&key);
                refuse_creates(creates, &lookup_refusal(&error));
                return;
            }
        };
        let mut has_new = false;
        for create in creates {
            match found.get(&create.request.request_id) {
                Some(Some(tx)) => create.answer(ShardOutcome::Existing(*tx)),
                looked_up @ (Some(None) | None) => {
                    has_new |= looked_up.is_some();
                    waiting.push(create);
                }
            }
        }
        let waiting = std::mem::take(waiting);
        match waiting.is_empty() {
            true => drop(self.lanes.remove(&key)),
            false if has_new => self.open_lane(key, waiting),
            false => self.look_up_waiting(key, waiting),
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
            loss,
            is_reload,
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
        if loss != LossSuspicion::None {
            lane = lane.with_possible_loss(loss == LossSuspicion::Accepted);
        }
        if is_reload {
            lane = lane.with_known_deliveries();
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

    /// Drops a lane that its keeper has halted. Returns `false` when the lane is not in memory under that grant.
    pub(super) fn drop_halted_lane(
        &mut self,
        key: LaneKey,
        lease_grant: LeaseGrant,
        reason: String,
    ) -> bool {
        // A lane that waits for the outcome of a commit is opened again, and the store returns that it is halted.
        let is_ready = |cell: &LaneCell| match cell {
            LaneCell::Ready { lane, .. } => lane.lease_grant() == lease_grant,
            LaneCell::Opening { .. } | LaneCell::UnknownCommit { .. } | LaneCell::Halted { .. } => {
                false
            }
        };
        let is_ready = self.lanes.get(&key).is_some_and(is_ready);
        if is_ready {
            self.forget_lane(key);
            let since = self.core.ports.clock.monotonic();
            self.lanes.insert(key, LaneCell::Halted { reason, since });
        }
        is_ready
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
        self.core.history.remember_lane(lane.key(), last_known);
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

/// The refusal of a request that could not be looked up: it may be a repeat of one that has an effect.
pub(crate) fn lookup_refusal(error: &StoreError) -> Refusal {
    tracing::warn!(%error, "requests could not be looked up");
    Refusal::OutcomeUnknown
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
