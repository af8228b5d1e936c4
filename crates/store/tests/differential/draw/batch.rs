//! Commits: batches that a keeper would write, and some with one thing wrong in them.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::lane::{HeadWait, OpenCost, WatchedBlock};
use domain::{
    Attempt, AttemptKind, B256, Bytes, Event, EventKind, LastWrite, LeaseGrant, Nonce, SubState,
    Timestamp, Token, Tx, TxHistory, TxId, TxRequest, TxState, U256, Writes,
};
use engine::ports::{CommitOutcome, LaneBatch};
use sim::rng::Rng;

use super::{flaws, lease_calls, parts};
use crate::model::{Lane, Model};
use crate::operation::Write;
use crate::rules;
use crate::universe::{self, LANES};

/// The most things that a batch does.
const PARTS_MAX: u64 = 4;

/// One lane, mostly; several at once; or one lane twice.
pub(super) fn commit(rng: &Rng, model: &mut Model) -> Write {
    let places: Vec<usize> = (0..LANES).collect();
    let mut places = lease_calls::shuffled(rng, &places);
    let chance = rng.below(1_000);
    match chance {
        0..650 => places.truncate(1),
        650..930 => {}
        _ => places = vec![places[0], places[0], places[1]],
    }
    let mut batches = Vec::new();
    // As the lanes will be once the batches before have landed.
    let mut then = model.clone();
    for place in places {
        let batch = batch(rng, &mut then, model, place);
        if rules::outcomes(&then, &batch) == [CommitOutcome::Applied] {
            then.lanes[place].apply(&batch);
        }
        batches.push(batch);
    }
    // Ids that were assigned are not reused.
    model.take_names(&then);
    Write::Commit(batches)
}

fn batch(rng: &Rng, model: &mut Model, before: &Model, place: usize) -> LaneBatch {
    let lease_grant = lease_calls::grant_of(rng, model, place);
    let node = model.keeper(place);
    let mut draft = Draft::new(rng, model, place, lease_grant.token);
    for _ in 0..rng.below(PARTS_MAX + 1) {
        parts::add(&mut draft);
    }
    let mut batch = draft.finish(lease_grant);
    batch.node = node;
    if rng.permille(250) {
        flaws::spoil(rng, model, before, place, &mut batch);
    }
    let mut after = model.lanes[place].clone();
    after.apply(&batch);
    batch.floor_nonce = after.floor();
    batch
}

/// A batch that is being put together, over the lane as it will be after it.
pub(super) struct Draft<'a> {
    pub(super) rng: &'a Rng,
    pub(super) model: &'a mut Model,
    pub(super) lane: Lane,
    pub(super) writes: Writes,
    pub(super) at: Timestamp,
    token: Token,
    /// At most one write per row.
    touched: BTreeSet<TxId>,
    /// Nonces of txs that moved to another one in this batch: no tx takes them in the same batch, because
    /// PostgreSQL checks the unique index row by row.
    pub(super) vacated: BTreeSet<Nonce>,
}

impl<'a> Draft<'a> {
    fn new(rng: &'a Rng, model: &'a mut Model, place: usize, token: Token) -> Self {
        Self {
            rng,
            lane: model.lanes[place].clone(),
            writes: Writes::default(),
            at: model.time(rng),
            model,
            token,
            touched: BTreeSet::new(),
            vacated: BTreeSet::new(),
        }
    }

    fn finish(self, lease_grant: LeaseGrant) -> LaneBatch {
        LaneBatch {
            lease_grant,
            batch_seq_before: self.lane.batch_seq,
            node: domain::NodeName(String::new()),
            at: self.at,
            event_seq_before: self.lane.event_seq,
            next_nonce: self.lane.next_nonce,
            floor_nonce: domain::Nonce(0),
            // Another one with every batch that allocates.
            open_cost: OpenCost {
                wei: U256::from(self.lane.next_nonce.0),
                unpriced_gas: self.lane.event_seq.into(),
            },
            head: self.head(),
            newest_final: (!self.lane.event_seq.is_multiple_of(3)).then(|| WatchedBlock {
                number: self.lane.event_seq,
                hash: B256::repeat_byte(self.lane.batch_seq.to_le_bytes()[0]),
            }),
            writes: self.writes,
        }
    }

    /// With and without a reason.
    fn head(&self) -> Option<HeadWait> {
        let reason = match self.lane.event_seq % 4 {
            0 => return None,
            1 => None,
            _ => Some(format!("waits since event {}", self.lane.event_seq)),
        };
        Some(HeadWait {
            nonce: self.lane.next_nonce,
            blocked_for: Duration::from_millis(self.lane.batch_seq),
            reason,
        })
    }

    /// A row that this batch has not written yet.
    pub(super) fn pick(&self, is_wanted: impl Fn(&Tx) -> bool) -> Option<Tx> {
        let rows = self.lane.txs.values();
        let rows = rows.filter(|tx| !self.touched.contains(&tx.id) && is_wanted(tx));
        let rows: Vec<&Tx> = rows.collect();
        (!rows.is_empty()).then(|| (*self.rng.pick(&rows)).clone())
    }

    /// Whether a tx waits in the queue.
    pub(super) fn waits(&self, tx: &Tx) -> bool {
        self.lane.queue_rows.contains(&tx.id)
    }

    /// A new tx, under an idempotency key that is new to the lane.
    pub(super) fn new_tx(&mut self) -> Option<Tx> {
        let free = universe::request_ids().filter(|id| !self.lane.has_request(id));
        let free: Vec<_> = free.collect();
        if free.is_empty() {
            return None;
        }
        let payload = universe::payload(self.rng);
        Some(Tx {
            id: self.model.tx_id(self.rng),
            request: TxRequest {
                request_id: self.rng.pick(&free).clone(),
                fingerprint: payload.fingerprint(),
                payload,
                gas: self.rng.bits(),
                created_at: self.at,
            },
            nonce: None,
            state: TxState::Created,
            sub_state: Some(SubState::Queued),
            reason: None,
            tx_hash: None,
            inclusion: None,
            counted: None,
            written: LastWrite {
                token: self.token,
                at: self.at,
            },
            confirmed_at: None,
            history: TxHistory::default(),
        })
    }

    pub(super) fn insert(&mut self, tx: Tx) {
        self.touched.insert(tx.id);
        self.lane.txs.insert(tx.id, tx.clone());
        self.writes.inserts.push(tx);
    }

    pub(super) fn update(&mut self, mut tx: Tx) {
        (tx.written.token, tx.written.at) = (self.token, self.at);
        self.touched.insert(tx.id);
        self.lane.txs.insert(tx.id, tx.clone());
        self.writes.updates.push(tx);
    }

    /// A tx waits for a nonce from now on.
    pub(super) fn add_queue_row(&mut self, id: TxId) {
        self.lane.queue_rows.insert(id);
        self.writes.queued_added.push(id);
    }

    /// A tx waits no longer, if it did.
    pub(super) fn remove_queue_row(&mut self, id: TxId) {
        if self.lane.queue_rows.remove(&id) {
            self.writes.queued_removed.push(id);
        }
    }

    /// Signs a tx at the nonce that it holds.
    pub(super) fn sign(&mut self, tx: &mut Tx, kind: AttemptKind) {
        let nonce = tx.nonce.expect("only a tx with a nonce is signed");
        let hash = self.model.hash();
        tx.tx_hash = Some(hash);
        (tx.state, tx.sub_state) = (TxState::Tracking, Some(SubState::Signed));
        let first_sent_at = self.rng.permille(200).then_some(self.at);
        self.lane.attempts.insert(hash, (tx.id, nonce));
        self.writes.attempts.push(Attempt {
            hash,
            tx_id: tx.id,
            kind,
            nonce,
            gas: self.rng.bits(),
            fees: universe::fees(self.rng),
            raw: Bytes::copy_from_slice(&hash[..]),
            signed_at: self.at,
            first_sent_at,
        });
    }

    /// Tells of a tx, which notes the number of the event.
    pub(super) fn emit_event(&mut self, tx: &mut Tx, kind: EventKind) {
        let seq = self.event(Some(tx.id), kind);
        tx.history.event_seqs.push(seq);
    }

    /// Tells, of a tx or of the lane; the event's number.
    pub(super) fn event(&mut self, tx_id: Option<TxId>, kind: EventKind) -> u64 {
        let seq = self.lane.event_seq + self.writes.events.len() as u64 + 1;
        let later = self.rng.below(3);
        self.writes.events.push(Event {
            seq,
            at: Timestamp(self.at.0 - later),
            tx_id,
            kind,
        });
        seq
    }
}
