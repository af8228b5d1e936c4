//! A lane's place in its shard: being opened, in memory, or waiting for the truth about a commit.

use std::sync::Arc;

use domain::lane::ChainNonces;
use domain::{Input, Lane, LaneImage, LaneKey, Moment, NodeName, Right};

use super::{Inspection, NotOpened, Shard};
use crate::gate::{PendingCreate, Routed};
use crate::node::{Accepted, Refusal};
use crate::ownership;
use crate::ports::Regranted;

/// A lane's place.
pub(super) enum Cell {
    /// Being acquired and read by another task; requests wait here.
    Opening { waiting: Vec<PendingCreate> },
    /// In memory.
    Ready {
        lane: Box<Lane>,
        epoch: u64,
        idle_since: Option<Moment>,
    },
    /// A commit's answer was lost; the store is being asked. Callers wait here.
    Resolving {
        lost: LostBatch,
        waiting: Vec<PendingCreate>,
    },
}

/// A batch whose answer was lost, with the callers whom it would answer.
pub(super) struct LostBatch {
    pub(super) batch: domain::BatchId,
    pub(super) creates: Vec<PendingCreate>,
    pub(super) records: Vec<Accepted>,
}

impl Shard {
    /// Puts a request for a lane that is not in memory aside, and has the lane opened.
    pub(super) fn wait_for_lane(&mut self, key: LaneKey, create: PendingCreate) {
        let bound = self.core.config.inbox;
        match self.lanes.get_mut(&key) {
            Some(Cell::Opening { waiting } | Cell::Resolving { waiting, .. }) => {
                if waiting.len() < bound {
                    waiting.push(create);
                } else {
                    refuse(create, Refusal::Busy);
                }
            }
            Some(Cell::Ready { .. }) => unreachable!("a lane in memory takes its requests itself"),
            None if self.is_draining => refuse(create, Refusal::Draining),
            None => self.open(key, vec![create]),
        }
    }

    /// Has a lane acquired and read by another task.
    pub(super) fn open(&mut self, key: LaneKey, waiting: Vec<PendingCreate>) {
        self.lanes.insert(key, Cell::Opening { waiting });
        let core = Arc::clone(&self.core);
        let failures = self.failures.get(&key).copied().unwrap_or(0);
        let opening = async move { ownership::open(&core, key, failures).await };
        self.core.tasks.spawn("open lane", opening);
    }

    /// A lane was granted and read: it goes into memory, and learns what the shard knows of its chain.
    pub(super) fn opened(
        &mut self,
        key: LaneKey,
        image: LaneImage,
        taken_from: Option<NodeName>,
    ) -> Vec<PendingCreate> {
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
        let lane = Lane::load(image, part.rules.lane, taken_from);
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

    pub(super) fn not_opened(&mut self, key: LaneKey, why: &NotOpened) {
        let Some(Cell::Opening { waiting }) = self.lanes.get_mut(&key) else {
            return;
        };
        for create in std::mem::take(waiting) {
            match why {
                NotOpened::NotKeeper(node) => {
                    create.answer.send(Routed::NotKeeper(node.clone())).ok(); // may have gone
                }
                NotOpened::Store(why) => refuse(create, Refusal::StoreUnavailable(why.clone())),
            }
        }
        self.lanes.remove(&key);
    }

    /// Forgets a lane whose lease was lost. Says whether it was the present one: the lane may have
    /// been opened anew in the meantime.
    pub(super) fn lost(&mut self, key: LaneKey, right: Right) -> bool {
        let is_present = match self.lanes.get(&key) {
            Some(Cell::Ready { lane, .. }) => lane.right() == right,
            Some(Cell::Opening { .. } | Cell::Resolving { .. }) | None => false,
        };
        if is_present {
            self.lanes.remove(&key);
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
    pub(super) fn resolved(&mut self, key: LaneKey, outcome: Regranted) {
        if !matches!(self.lanes.get(&key), Some(Cell::Resolving { .. })) {
            return;
        }
        let Some(Cell::Resolving {
            mut lost,
            mut waiting,
        }) = self.lanes.remove(&key)
        else {
            return;
        };
        match outcome {
            Regranted::Held { last_batch, .. } if last_batch == Some(lost.batch) => {
                for (create, record) in lost.creates.into_iter().zip(lost.records) {
                    create.answer.send(Routed::Accepted(Box::new(record))).ok(); // may have gone
                }
            }
            // It never landed: the requests are still to be done.
            Regranted::Held { .. } => drop(waiting.splice(0..0, lost.creates)),
            // Another keeper is there by now. What did land before it came is found by its request
            // id; until then nobody may say that nothing was stored.
            Regranted::Fenced => {
                lost.creates
                    .iter_mut()
                    .for_each(|create| create.maybe_stored = true);
                drop(waiting.splice(0..0, lost.creates));
            }
        }
        self.open(key, waiting);
    }

    pub(super) fn inspect(&self, key: LaneKey) -> Inspection {
        match self.lanes.get(&key) {
            Some(Cell::Ready { lane, .. }) => Inspection {
                chain_nonces: lane.chain_nonces(),
                gaps: lane.gaps(),
                waiting_for: lane.waiting_for(),
            },
            Some(Cell::Opening { .. }) => Inspection {
                waiting_for: Some("the lane is being opened".into()),
                ..Inspection::default()
            },
            Some(Cell::Resolving { .. }) => Inspection {
                waiting_for: Some("the store lost an answer and is being asked again".into()),
                ..Inspection::default()
            },
            None => Inspection::default(),
        }
    }

    /// The first inputs of a lane that just came into memory.
    pub(super) fn first_inputs(&self, key: LaneKey, nonces: Option<ChainNonces>) -> Vec<Input> {
        let fresh = self.core.ports.clock.tx_id();
        let view = self.core.chain(key.chain_id).view.get();
        let head = view.map(Input::Head).into_iter();
        head.chain(nonces.map(Input::ChainNonces))
            .chain([Input::Tick { fresh }])
            .collect()
    }
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
