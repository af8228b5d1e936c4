//! A lane's place in its shard: being opened, in memory, or waiting for the truth about a commit.

use std::sync::Arc;
use std::time::Duration;

use domain::lane::EndpointNonces;
use domain::mutation::{self, Mutation};
use domain::{Input, Lane, LaneKey, LaneRules, LeaseGrant, MonotonicTime};
use metrics::counter;

use super::{Inspection, NotOpened, Opened, Shard};
use crate::gate::{PendingCreate, Routed};
use crate::node::{Accepted, Refusal};
use crate::ownership::Remembered;
use crate::ports::RegrantOutcome;

/// How long callers are held while the store is asked what became of their commit.
const RESOLVE_PATIENCE: Duration = Duration::from_secs(2);

/// How often a halted lane is looked at again when requests come for it.
const HALT_LOOK_PERIOD: Duration = Duration::from_secs(1);

/// A lane's place.
pub(super) enum Cell {
    /// Being acquired and read by another task; requests wait here.
    Opening { waiting: Vec<PendingCreate> },
    /// In memory.
    Ready {
        lane: Box<Lane>,
        epoch: u64,
        idle_since: Option<MonotonicTime>,
    },
    /// A commit's answer was lost; the store is being asked. Callers wait here.
    Resolving {
        lost: LostBatch,
        waiting: Vec<PendingCreate>,
        since: MonotonicTime,
    },
    /// Takes no work until an operator decides.
    Halted {
        reason: String,
        since: MonotonicTime,
    },
}

/// A batch whose answer was lost, with the callers whom it would answer.
pub(super) struct LostBatch {
    pub(super) batch_seq_before: u64,
    pub(super) creates: Vec<PendingCreate>,
    pub(super) records: Vec<Accepted>,
}

impl Shard {
    /// Puts a request for a lane that is not in memory aside, and has the lane opened.
    pub(super) fn wait_for_lane(&mut self, key: LaneKey, create: PendingCreate) {
        let bound = self.core.config.inbox;
        let now = self.core.ports.clock.monotonic();
        match self.lanes.get_mut(&key) {
            Some(Cell::Resolving { since, .. }) if now.since(*since) >= RESOLVE_PATIENCE => {
                refuse(create, not_told());
            }
            Some(Cell::Opening { waiting } | Cell::Resolving { waiting, .. }) => {
                if waiting.len() < bound {
                    waiting.push(create);
                } else {
                    refuse(create, Refusal::Busy);
                }
            }
            Some(Cell::Ready { .. }) => unreachable!("a lane in memory takes its requests itself"),
            Some(Cell::Halted { since, .. }) if now.since(*since) >= HALT_LOOK_PERIOD => {
                // Perhaps an operator gave the word to another node.
                self.open(key, vec![create]);
            }
            Some(Cell::Halted { reason, .. }) => {
                let why = Refusal::Halted(reason.clone());
                refuse(create, why);
            }
            None if self.is_draining => released(create),
            None => self.open(key, vec![create]),
        }
    }

    /// Has a lane opened that is not in memory; whether it is there already.
    pub(super) fn wake(&mut self, key: LaneKey) -> bool {
        let now = self.core.ports.clock.monotonic();
        match self.lanes.get(&key) {
            Some(Cell::Ready { .. }) => true,
            Some(Cell::Opening { .. } | Cell::Resolving { .. }) => false,
            // Perhaps an operator has given the word to another node.
            Some(Cell::Halted { since, .. }) if now.since(*since) < HALT_LOOK_PERIOD => false,
            Some(Cell::Halted { .. }) | None => {
                if !self.is_draining {
                    self.open(key, Vec::new());
                }
                false
            }
        }
    }

    /// Has a lane acquired and read by another task.
    pub(super) fn open(&mut self, key: LaneKey, waiting: Vec<PendingCreate>) {
        self.lanes.insert(key, Cell::Opening { waiting });
        let failures = self.failures.get(&key).copied().unwrap_or(0);
        let Some(mut tries) = failures.checked_sub(1) else {
            self.core.want(key);
            return;
        };
        // After failures in a row it waits a little first: a store in trouble is not run down.
        let core = Arc::clone(&self.core);
        self.core.tasks.spawn("open later", async move {
            core.back_off(&mut tries).await;
            core.want(key);
        });
    }

    /// A lane was granted and read: it goes into memory, and learns what the shard knows of its chain.
    pub(super) fn opened(&mut self, opened: Opened) -> Vec<PendingCreate> {
        let Opened {
            lane: key,
            image,
            previous_keeper,
            is_reconciled,
            ..
        } = opened;
        let waiting = match self.lanes.remove(&key) {
            Some(Cell::Opening { waiting }) => waiting,
            // An opening that was overtaken by another one: its grant is void.
            Some(other) => {
                self.lanes.insert(key, other);
                return Vec::new();
            }
            None => Vec::new(),
        };
        let part = self.core.chain(key.chain_id);
        let rules = LaneRules {
            lent: self.core.reservations(key),
            ..part.rules.lane
        };
        let mut lane = Lane::load(image, rules, previous_keeper);
        if !is_reconciled {
            // It was compared with the chain a moment ago; a node may have been behind all the same.
            lane = lane.with_suspect_history();
        }
        part.watched.add(key, lane.hashes());
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        self.lanes.insert(
            key,
            Cell::Ready {
                lane: Box::new(lane),
                epoch,
                idle_since: None,
            },
        );
        waiting
    }

    pub(super) fn not_opened(&mut self, key: LaneKey, why: NotOpened) {
        let Some(Cell::Opening { waiting }) = self.lanes.get_mut(&key) else {
            return;
        };
        let waiting = std::mem::take(waiting);
        self.lanes.remove(&key);
        match why {
            NotOpened::NotKeeper(node) => {
                for create in waiting {
                    let routed = Routed::NotKeeper {
                        keeper: node.clone(),
                        maybe_stored: create.maybe_stored,
                    };
                    create.answer.send(routed).ok(); // may have gone
                }
            }
            NotOpened::Store(why) => {
                let refusal = Refusal::StoreUnavailable(why);
                waiting
                    .into_iter()
                    .for_each(|create| refuse(create, refusal.clone()));
            }
            NotOpened::Busy => self.open_again(key, waiting),
            NotOpened::Halted(reason) => {
                let refusal = Refusal::Halted(reason.clone());
                waiting
                    .into_iter()
                    .for_each(|create| refuse(create, refusal.clone()));
                let since = self.core.ports.clock.monotonic();
                self.lanes.insert(key, Cell::Halted { reason, since });
            }
        }
    }

    /// An operator has accepted what a halted lane has lost: it is opened again.
    pub(super) fn resume(&mut self, key: LaneKey) {
        let is_halted = match self.lanes.get(&key) {
            Some(Cell::Halted { .. }) => true,
            Some(Cell::Ready { lane, .. }) => lane.is_halted(),
            Some(Cell::Opening { .. } | Cell::Resolving { .. }) | None => false,
        };
        if is_halted {
            self.lanes.remove(&key);
            self.forget(key);
        }
        if !self.lanes.contains_key(&key) && !self.is_draining {
            self.open(key, Vec::new());
        }
    }

    /// Forgets a lane whose lease was lost. Says whether it was the present one: the lane may have
    /// been opened anew in the meantime.
    pub(super) fn lost(&mut self, key: LaneKey, lease_grant: LeaseGrant) -> bool {
        let is_present = match self.lanes.get(&key) {
            Some(Cell::Ready { lane, .. }) => lane.lease_grant() == lease_grant,
            Some(Cell::Opening { .. } | Cell::Resolving { .. } | Cell::Halted { .. }) | None => {
                false
            }
        };
        if is_present && let Some(Cell::Ready { lane, .. }) = self.lanes.remove(&key) {
            self.core.remember(key, Remembered::of(&lane));
            self.forget(key);
        }
        is_present
    }

    /// Drops what other parts know of a lane that left memory.
    pub(super) fn forget(&self, key: LaneKey) {
        self.core.leases.forget(key);
        self.core.chain(key.chain_id).watched.remove_lane(key);
    }

    /// The truth about a lost answer: the callers get it, and the lane is read again.
    pub(super) fn resolved(&mut self, key: LaneKey, outcome: RegrantOutcome) {
        if !matches!(self.lanes.get(&key), Some(Cell::Resolving { .. })) {
            return;
        }
        let Some(Cell::Resolving {
            mut lost,
            mut waiting,
            ..
        }) = self.lanes.remove(&key)
        else {
            return;
        };
        match outcome {
            RegrantOutcome::Held { batch_seq, .. } if batch_seq > lost.batch_seq_before => {
                for (create, record) in lost.creates.into_iter().zip(lost.records) {
                    create.answer.send(Routed::Accepted(Box::new(record))).ok(); // may have gone
                }
            }
            RegrantOutcome::Held { .. } if mutation::is_on(Mutation::ResolveUnknownByRead) => {
                let creates = lost.creates.into_iter();
                creates.for_each(|create| refuse(create, not_told()));
                if waiting.is_empty() {
                    return;
                }
            }
            // It never landed: the requests are still to be done.
            RegrantOutcome::Held { .. } => drop(waiting.splice(0..0, lost.creates)),
            // Another keeper is there by now. What did land before it came is found by its request
            // id; until then nobody may say that nothing was stored.
            RegrantOutcome::Fenced => {
                tracing::warn!(lane = %key, "fenced: another node keeps this lane now");
                counter!("lanekeeper_lease_fenced_total", "op" => "resolve").increment(1);
                lost.creates
                    .iter_mut()
                    .for_each(|create| create.maybe_stored = true);
                drop(waiting.splice(0..0, lost.creates));
            }
        }
        self.open(key, waiting);
    }

    /// Answers the callers of a lane whose store does not tell for a while: quickly is better than surely.
    pub(super) fn stop_waiting(&mut self) {
        let now = self.core.ports.clock.monotonic();
        for cell in self.lanes.values_mut() {
            let Cell::Resolving {
                lost,
                waiting,
                since,
            } = cell
            else {
                continue;
            };
            if now.since(*since) < RESOLVE_PATIENCE {
                continue;
            }
            lost.records.clear();
            for create in lost.creates.drain(..) {
                refuse(create, Refusal::OutcomeUnknown);
            }
            for create in waiting.drain(..) {
                refuse(create, not_told());
            }
        }
    }

    pub(super) fn inspect(&self, key: LaneKey) -> Inspection {
        match self.lanes.get(&key) {
            Some(Cell::Ready { lane, .. }) => Inspection {
                chain_nonces: lane.chain_nonces(),
                gaps: lane.gaps(),
                waiting_for: lane.waiting_for(),
                unmined: lane.in_flight().filter(|tx| tx.inclusion.is_none()).count(),
            },
            Some(Cell::Opening { .. }) => Inspection {
                waiting_for: Some("the lane is being opened".into()),
                ..Inspection::default()
            },
            Some(Cell::Resolving { .. }) => Inspection {
                waiting_for: Some("the store lost an answer and is being asked again".into()),
                ..Inspection::default()
            },
            // Why it stands still is in the store, and may be over there.
            Some(Cell::Halted { .. }) | None => Inspection::default(),
        }
    }

    /// The first inputs of a lane that just came into memory.
    pub(super) fn first_inputs(&self, key: LaneKey, nonces: Option<EndpointNonces>) -> Vec<Input> {
        let fresh = self.core.ports.clock.tx_id();
        let view = self.core.chain(key.chain_id).view.get();
        let head = view.map(Input::Head).into_iter();
        let told = nonces.map(|nonces| Input::AccountNonces {
            nonces,
            counts_pool: true,
        });
        head.chain(told).chain([Input::Tick { fresh }]).collect()
    }
}

fn not_told() -> Refusal {
    Refusal::StoreUnavailable("it does not tell what became of an earlier commit".into())
}

/// Tells a caller no. Whose request may be stored all the same is told that.
pub(super) fn refuse(create: PendingCreate, why: Refusal) {
    let why = if create.maybe_stored {
        Refusal::OutcomeUnknown
    } else {
        why
    };
    create.answer.send(Routed::Refused(why)).ok(); // the caller may have gone
}

/// Sends a caller on: this node has given the lane back.
pub(super) fn released(create: PendingCreate) {
    if create.maybe_stored {
        refuse(create, Refusal::OutcomeUnknown);
    } else {
        create.answer.send(Routed::Released).ok(); // the caller may have gone
    }
}
