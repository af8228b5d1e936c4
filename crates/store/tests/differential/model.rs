//! The present state of the stores, as far as it is needed for meaningful operations, and ids for
//! new. Follows the answers of one store, the authority.

use std::collections::{BTreeMap, BTreeSet};

use domain::{
    Attempt, B256, EventKind, GrantId, LaneKey, LeaseGrant, NodeName, Nonce, RequestId, Timestamp,
    Tx, TxId,
};
use engine::ports::{
    ACCEPTED_LOSS_GAP, AcquireOutcome, CommitOutcome, EventFilter, LaneBatch, QueuedRequest,
    RegrantOutcome,
};
use sim::rng::Rng;
use uuid::Uuid;

use crate::answers::Answer;
use crate::operation::{Incident, LeaseCall, Operation, ReadCall, Write};
use crate::universe::{self, BEGIN, LANES, NODES};

/// A lane as the stores have it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lane {
    /// Whether the stores know it.
    pub(crate) is_known: bool,
    pub(crate) lease_grant: Option<LeaseGrant>,
    /// Rights that are over, oldest first.
    pub(crate) past: Vec<LeaseGrant>,
    /// The incarnation of the last grant.
    pub(crate) keeper: (usize, u64),
    pub(crate) batch_seq: u64,
    pub(crate) event_seq: u64,
    pub(crate) next_nonce: Nonce,
    pub(crate) txs: BTreeMap<TxId, Tx>,
    /// Which tx and nonce each hash belongs to.
    pub(crate) attempts: BTreeMap<B256, (TxId, Nonce)>,
    pub(crate) queue_rows: BTreeSet<TxId>,
    pub(crate) is_halted: bool,
    pub(crate) is_reconciled: bool,
}

/// A cursor that was returned.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    /// A page's own cursor may lie behind what its filter left out: it goes on with this filter only.
    pub(crate) filter: Option<EventFilter>,
}

/// Everything that a sequence knows.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) lanes: [Lane; LANES],
    /// The present incarnation of each node.
    pub(crate) incarnations: [u64; NODES.len()],
    pub(crate) marks: Vec<Mark>,
    /// Whether the store has left the history in which it was created.
    has_new_history: bool,
    names: u64,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            lanes: std::array::from_fn(|_| Lane::default()),
            incarnations: [0; NODES.len()],
            marks: Vec::new(),
            has_new_history: false,
            names: 0,
        }
    }

    /// Ids that were assigned in a copy of this are not reused.
    pub(crate) fn take_names(&mut self, copy: &Self) {
        self.names = copy.names;
    }

    fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    pub(crate) fn grant(&mut self) -> GrantId {
        GrantId(Uuid::from_u128(0xA000_0000 + u128::from(self.name())))
    }

    pub(crate) fn hash(&mut self) -> B256 {
        B256::left_padding_from(&(0xC000_0000 + self.name()).to_be_bytes())
    }

    /// A new tx id: greater than all before, mostly, as clocks of nodes differ a little.
    pub(crate) fn tx_id(&mut self, rng: &Rng) -> TxId {
        let name = self.name();
        let back = if rng.permille(150) { rng.below(4) } else { 0 };
        let time = BEGIN.0 + name.saturating_sub(back);
        TxId(Uuid::from_u128(u128::from(time) << 64 | u128::from(name)))
    }

    /// The time of the next write, by its node's clock: not always later than the last.
    pub(crate) fn time(&mut self, rng: &Rng) -> Timestamp {
        Timestamp(BEGIN.0 + self.name() * 1_000 - rng.below(3_000))
    }

    pub(crate) fn keeper(&self, lane: usize) -> NodeName {
        NodeName(NODES[self.lanes[lane].keeper.0].into())
    }

    pub(crate) fn has_tx(&self, id: TxId) -> bool {
        self.lanes.iter().any(|lane| lane.txs.contains_key(&id))
    }

    pub(crate) fn has_hash(&self, hash: B256) -> bool {
        let mut lanes = self.lanes.iter();
        lanes.any(|lane| lane.attempts.contains_key(&hash))
    }

    /// Learns from what the authority answered.
    pub(crate) fn follow(&mut self, operation: &Operation, answer: &Answer) {
        match operation {
            Operation::LeaseCall(lease_call) => self.follow_lease_call(lease_call, answer),
            Operation::Write(write) => self.follow_write(write, answer),
            Operation::Load(_) => {}
            Operation::ReadCall(read_call) => self.follow_read_call(read_call, answer),
            Operation::Incident(Incident::Advance(_)) => {}
            Operation::Incident(Incident::Promote) => {
                self.has_new_history = true;
                for lane in &mut self.lanes {
                    lane.is_reconciled = false;
                }
            }
        }
    }

    fn follow_lease_call(&mut self, lease_call: &LeaseCall, answer: &Answer) {
        match (lease_call, answer) {
            (LeaseCall::Acquire(lease_request, lanes), Answer::AcquireOutcome(answers)) => {
                let node = NODES.iter().position(|name| *name == lease_request.node.0);
                let node = node.expect("one of the universe's nodes");
                let incarnations = 0..=self.incarnations[node];
                let incarnation = incarnations
                    .rev()
                    .find(|n| universe::incarnation(node, *n) == lease_request.incarnation);
                for ((key, _), answer) in lanes.iter().zip(answers) {
                    let lane = self.make_lane(*key);
                    if let AcquireOutcome::Granted { lease_grant, .. } = answer {
                        lane.past.extend(lane.lease_grant.replace(*lease_grant));
                        lane.keeper = (node, incarnation.expect("a life that has begun"));
                    }
                }
            }
            (
                LeaseCall::Regrant(lease_grant, _),
                Answer::RegrantOutcome(RegrantOutcome::Held {
                    lease_grant: new, ..
                }),
            ) => {
                let lane = &mut self.lanes[place(*lease_grant)];
                lane.past.extend(lane.lease_grant.replace(*new));
            }
            (LeaseCall::MarkReconciled(lease_grant), Answer::Whether(true)) => {
                if let Some(lane) = self.lanes.get_mut(place(*lease_grant))
                    && lane.lease_grant == Some(*lease_grant)
                {
                    lane.is_reconciled = true;
                }
            }
            (LeaseCall::Halt(lease_grant, _), Answer::Whether(true)) => {
                self.lanes[place(*lease_grant)].is_halted = true;
            }
            (LeaseCall::AcceptLoss(key), Answer::Whether(true)) => {
                let lane = &mut self.lanes[universe::place_of(*key)];
                (lane.is_halted, lane.is_reconciled) = (false, false);
                lane.batch_seq += ACCEPTED_LOSS_GAP;
            }
            // Refused, or a question that changes nothing here.
            (_, _) => {}
        }
    }

    fn follow_write(&mut self, write: &Write, answer: &Answer) {
        match (write, answer) {
            (Write::Commit(batches), Answer::Outcomes(outcomes)) => {
                for (batch, outcome) in batches.iter().zip(outcomes) {
                    if *outcome == CommitOutcome::Applied {
                        self.lanes[place(batch.lease_grant)].apply(batch);
                    }
                }
            }
            (Write::Queue(requests), Answer::Txs(_)) => {
                for request in requests {
                    self.queue(request);
                }
            }
            // Refused, or a question that changes nothing here.
            (_, _) => {}
        }
    }

    fn queue(&mut self, new: &QueuedRequest) {
        let lane = self.make_lane(new.lane);
        if lane.has_request(&new.request.request_id) {
            return;
        }
        let tx = new.clone().into_tx();
        lane.queue_rows.insert(tx.id);
        lane.txs.insert(tx.id, tx);
    }

    fn follow_read_call(&mut self, read_call: &ReadCall, answer: &Answer) {
        let mark = |filter| Mark { filter };
        match (read_call, answer) {
            (ReadCall::TxEvents(_), Answer::History(Some(events))) => {
                self.marks.extend(events.iter().map(|_| mark(None)));
            }
            (ReadCall::Events(_, filter), Answer::Events(events)) => {
                self.marks.extend(events.iter().map(|_| mark(None)));
                self.marks.push(mark(Some(filter.clone())));
            }
            // Refused, or a question that changes nothing here.
            (_, _) => {}
        }
    }

    fn make_lane(&mut self, key: LaneKey) -> &mut Lane {
        let is_reconciled = !self.has_new_history;
        let lane = &mut self.lanes[universe::place_of(key)];
        if !lane.is_known {
            (lane.is_known, lane.is_reconciled) = (true, is_reconciled);
        }
        lane
    }
}

impl Lane {
    pub(crate) fn has_request(&self, request: &RequestId) -> bool {
        self.txs
            .values()
            .any(|tx| tx.request.request_id == *request)
    }

    /// The txs by their nonces.
    pub(crate) fn nonces(&self) -> BTreeMap<Nonce, TxId> {
        let txs = self.txs.values();
        txs.filter_map(|tx| Some((tx.nonce?, tx.id))).collect()
    }

    /// The tx with a nonce.
    pub(crate) fn holder(&self, nonce: Nonce) -> Option<TxId> {
        self.nonces().get(&nonce).copied()
    }

    /// The lowest nonce of an open tx; the cursor when there is none.
    pub(crate) fn floor(&self) -> Nonce {
        let open = self.txs.values().filter(|tx| tx.is_open());
        let lowest = open.filter_map(|tx| tx.nonce).min();
        lowest.unwrap_or(self.next_nonce)
    }

    /// Writes a batch down that became durable.
    pub(crate) fn apply(&mut self, batch: &LaneBatch) {
        let writes = &batch.writes;
        for tx in writes.updates.iter().chain(&writes.inserts) {
            self.txs.insert(tx.id, tx.clone());
        }
        for Attempt {
            hash, tx_id, nonce, ..
        } in &writes.attempts
        {
            self.attempts.insert(*hash, (*tx_id, *nonce));
        }
        for id in &writes.queued_removed {
            self.queue_rows.remove(id);
        }
        self.queue_rows.extend(&writes.queued_added);
        self.next_nonce = batch.next_nonce;
        self.batch_seq += 1;
        self.event_seq += writes.events.len() as u64;
    }
}

/// The place of a right's lane; beyond all of them for the lane of no store.
pub(crate) fn place(lease_grant: LeaseGrant) -> usize {
    usize::try_from(lease_grant.lane.0).expect("a place")
}

/// The kinds of events about a lane itself, which need no tx.
pub(crate) fn lane_event(rng: &Rng, nonce: Nonce, hash: B256) -> EventKind {
    match rng.below(3) {
        0 => EventKind::LaneForeignPending { nonce },
        1 => EventKind::LaneForeignNonce {
            nonce,
            tx_hash: rng.permille(500).then_some(hash),
        },
        _ => EventKind::LaneFenced {
            from: NodeName("node-ä".into()),
            token: domain::Token(rng.below(9)),
        },
    }
}
