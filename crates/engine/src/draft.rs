//! The draft of a lane: what a turn does to it in memory, until the gate has made it durable.

use std::collections::{BTreeMap, BTreeSet};

use domain::admission::AdmissionError;
use domain::lane::FundsDecision;
use domain::lane::reservations::MarkOutcome;
use domain::{
    Attempt, B256, Effect, Header, Input, Lane, MonotonicTime, NodeName, Nonce, Step, Timestamp,
    TxId, UnsignedEnvelope, Writes,
};

use crate::node::AcceptedTx;
use crate::ports::{LaneBatch, TxRecord};
use crate::reservations::PendingMark;
use crate::shard::{BALANCE_QUERIES_MAX, PendingCreate};

/// A lane that was taken out of its shard for one turn. It replaces the lane in memory when its batch is applied,
/// and is dropped otherwise.
pub(crate) struct LaneDraft {
    pub(crate) lane: Lane,
    pub(crate) epoch: u64,
    /// Since when the lane had nothing to do, before this turn.
    pub(crate) idle_since: Option<MonotonicTime>,
    pub(crate) creates: Vec<PendingCreate>,
    pub(crate) marks: Vec<(PendingMark, MarkOutcome)>,
    pub(crate) to_sign: Vec<UnsignedEnvelope>,
    pub(crate) effects: Vec<Effect>,
    /// Whether the floor is written even if nothing else is.
    pub(crate) stores_floor: bool,
    writes: Writes,
    headers: BTreeMap<B256, Header>,
    rows: BTreeMap<TxId, RowIndex>,
    before: StoredCounters,
}

/// What came of a request in a turn.
pub(crate) enum CreateOutcome {
    Drafted,
    /// The lane must know its account's balance first.
    AwaitsBalance(PendingCreate),
    Refused(PendingCreate, AdmissionError),
}

/// The lane's counters as the store has them before this turn.
struct StoredCounters {
    event_seq: u64,
    next_nonce: Nonce,
}

/// Where a tx's image lies in the folded writes.
#[derive(Clone, Copy)]
enum RowIndex {
    Insert(usize),
    Update(usize),
}

impl LaneDraft {
    pub(crate) fn new(lane: Lane, epoch: u64, idle_since: Option<MonotonicTime>) -> Self {
        Self {
            epoch,
            idle_since,
            creates: Vec::new(),
            marks: Vec::new(),
            to_sign: Vec::new(),
            effects: Vec::new(),
            stores_floor: false,
            writes: Writes::default(),
            headers: BTreeMap::new(),
            rows: BTreeMap::new(),
            before: StoredCounters {
                event_seq: lane.event_seq(),
                next_nonce: lane.next_nonce(),
            },
            lane,
        }
    }

    /// Steps the draft and folds what it writes.
    pub(crate) fn step(&mut self, input: Input, now: Timestamp) {
        let step = self.lane.step(input, now);
        self.add_step(step);
    }

    /// Adds a request to the draft, if its account can pay for it; then its caller is answered by the outcome of the
    /// commit. Otherwise nothing of it is written and no nonce is used.
    pub(crate) fn accept_create(
        &mut self,
        mut create: PendingCreate,
        now: Timestamp,
    ) -> CreateOutcome {
        let may_wait = create.balance_queries < BALANCE_QUERIES_MAX;
        match self.lane.check_funds(&create.request, create.arrived_at) {
            FundsDecision::Refuse(why) => return CreateOutcome::Refused(create, why),
            FundsDecision::QueryBalance if may_wait => {
                create.balance_queries += 1;
                return CreateOutcome::AwaitsBalance(create);
            }
            FundsDecision::QueryBalance | FundsDecision::Accept => {}
        }
        self.step(Input::Accept(create.request.clone()), now);
        self.creates.push(create);
        CreateOutcome::Drafted
    }

    /// Applies the mark of a reservation's holder, who is answered when it is durable.
    pub(crate) fn apply_mark(&mut self, pending: PendingMark, now: Timestamp) {
        let call = &pending.call;
        let (step, outcome) = self.lane.mark(call.nonce, call.holder, &call.mark, now);
        self.add_step(step);
        self.marks.push((pending, outcome));
    }

    fn add_step(&mut self, step: Step) {
        let Step {
            writes,
            headers,
            to_sign,
            effects,
        } = step;
        self.to_sign.extend(to_sign);
        self.effects.extend(effects);
        self.headers
            .extend(headers.into_iter().map(|header| (header.hash, header)));
        self.fold_writes(writes);
    }

    /// One write per row: inserting and updating one row in one statement would lose the update.
    fn fold_writes(&mut self, writes: Writes) {
        for tx in writes.inserts {
            let index = RowIndex::Insert(self.writes.inserts.len());
            let before = self.rows.insert(tx.id, index);
            assert!(
                before.is_none(),
                "tx {} is inserted twice in one turn",
                tx.id
            );
            self.writes.inserts.push(tx);
        }
        for tx in writes.updates {
            match self.rows.get(&tx.id) {
                Some(RowIndex::Insert(at)) => self.writes.inserts[*at] = tx,
                Some(RowIndex::Update(at)) => self.writes.updates[*at] = tx,
                None => {
                    let index = RowIndex::Update(self.writes.updates.len());
                    self.rows.insert(tx.id, index);
                    self.writes.updates.push(tx);
                }
            }
        }
        for id in writes.queued_removed {
            // Added and removed in one turn: no row at all.
            let mut added = self.writes.queued_added.iter();
            match added.position(|added| *added == id) {
                Some(at) => drop(self.writes.queued_added.swap_remove(at)),
                None => self.writes.queued_removed.push(id),
            }
        }
        self.writes.attempts.extend(writes.attempts);
        self.writes.first_sent.extend(writes.first_sent);
        self.writes.events.extend(writes.events);
        self.writes.queued_added.extend(writes.queued_added);
        self.writes.paused = writes.paused.or(self.writes.paused);
    }

    /// The headers that this turn's writes name and that are not known to be stored.
    pub(crate) fn take_headers(&mut self, stored: &BTreeSet<B256>) -> Vec<Header> {
        let headers = std::mem::take(&mut self.headers).into_values();
        headers
            .filter(|header| !stored.contains(&header.hash))
            .collect()
    }

    /// The batch for the store; `None` when nothing changed.
    pub(crate) fn take_batch(&mut self, node: &NodeName, at: Timestamp) -> Option<LaneBatch> {
        let writes_nothing =
            self.writes == Writes::default() && self.lane.next_nonce() == self.before.next_nonce;
        // A mark passes the fence also where it changes nothing: a keeper that was deposed without noticing must
        // not refuse a holder by its old memory.
        if writes_nothing && self.marks.is_empty() && !self.stores_floor {
            return None;
        }
        Some(LaneBatch {
            lease_grant: self.lane.lease_grant(),
            batch_seq_before: self.lane.batch_seq(),
            node: node.clone(),
            at,
            event_seq_before: self.before.event_seq,
            next_nonce: self.lane.next_nonce(),
            floor_nonce: self.lane.floor_nonce(),
            open_cost: self.lane.open_cost(),
            writes: std::mem::take(&mut self.writes),
        })
    }

    /// The answers for this turn's callers, to be returned once the batch is applied.
    pub(crate) fn accepted_records(&self, batch: &LaneBatch) -> Vec<AcceptedTx> {
        let attempts = batch.writes.attempts.iter();
        let attempts: BTreeMap<TxId, &Attempt> = attempts.map(|one| (one.tx_id, one)).collect();
        let record = |create: &PendingCreate| {
            let Some(RowIndex::Insert(at)) = self.rows.get(&create.request.id) else {
                unreachable!("an accepted request is an insert of its turn");
            };
            let attempt = attempts.get(&create.request.id).copied();
            AcceptedTx {
                record: TxRecord {
                    lane: self.lane.key(),
                    tx: batch.writes.inserts[*at].clone(),
                    attempts: attempt.cloned().into_iter().collect(),
                    confirmations: Vec::new(),
                },
                is_new: true,
            }
        };
        self.creates.iter().map(record).collect()
    }
}

#[cfg(test)]
mod tests {
    use domain::lane::{AdmittedRequest, ChainQuery, OpenTotals};
    use domain::{
        Address, ChainId, GrantId, LaneId, LaneImage, LaneKey, LaneRules, LeaseGrant, Payload,
        RequestId, Token, Tx, U256,
    };
    use uuid::Uuid;

    use super::*;

    const NOW: Timestamp = Timestamp(1_000);

    fn draft() -> LaneDraft {
        let key = LaneKey {
            chain_id: ChainId(1),
            signer: Address::ZERO,
        };
        let image = LaneImage {
            key,
            lease_grant: LeaseGrant {
                lane: LaneId(1),
                token: Token(1),
                grant: GrantId(Uuid::nil()),
            },
            next_nonce: Nonce(5),
            event_seq: 7,
            batch_seq: 3,
            paused: false,
            in_flight: Vec::new(),
            backlog_from: None,
            held: Vec::new(),
            consumed_below: Nonce(5),
            totals: OpenTotals::default(),
            finals: Vec::new(),
        };
        let mut rules = LaneRules::default();
        rules.resubmit.interval = None;
        rules.nonce.chain_query = ChainQuery::Off;
        LaneDraft::new(Lane::load(image, rules, None), 1, None)
    }

    fn request(number: u128) -> AdmittedRequest {
        let payload = Payload::transfer(Address::repeat_byte(2), U256::from(1));
        AdmittedRequest {
            id: TxId(Uuid::from_u128(number)),
            request_id: RequestId::parse(format!("r{number}")).expect("valid"),
            fingerprint: payload.fingerprint(),
            payload,
            gas: 21_000,
        }
    }

    fn tx(number: u128, nonce: Option<u64>) -> Tx {
        let mut tx = Tx::created(request(number), Token(1), NOW);
        tx.nonce = nonce.map(Nonce);
        tx
    }

    #[test]
    fn rows_are_written_once_with_their_last_image() {
        let mut draft = draft();
        draft.fold_writes(Writes {
            inserts: vec![tx(1, None)],
            updates: vec![tx(2, Some(3))],
            ..Writes::default()
        });
        draft.fold_writes(Writes {
            updates: vec![tx(1, Some(5)), tx(2, Some(4))],
            ..Writes::default()
        });
        let batch = draft
            .take_batch(&NodeName("a".into()), NOW)
            .expect("writes");
        assert_eq!(batch.writes.inserts, [tx(1, Some(5))]);
        assert_eq!(batch.writes.updates, [tx(2, Some(4))]);
    }

    #[test]
    #[should_panic(expected = "inserted twice in one turn")]
    fn inserting_a_tx_twice_panics() {
        let mut draft = draft();
        for _ in 0..2 {
            draft.fold_writes(Writes {
                inserts: vec![tx(1, None)],
                ..Writes::default()
            });
        }
    }

    #[test]
    fn queue_row_added_and_removed_in_one_turn_is_not_written() {
        let mut draft = draft();
        let ids = [1, 2, 3].map(|number| TxId(Uuid::from_u128(number)));
        draft.fold_writes(Writes {
            queued_added: ids[..2].to_vec(),
            ..Writes::default()
        });
        draft.fold_writes(Writes {
            queued_removed: vec![ids[0], ids[2]],
            ..Writes::default()
        });
        assert_eq!(draft.writes.queued_added, [ids[1]]);
        assert_eq!(draft.writes.queued_removed, [ids[2]]);
    }

    #[test]
    fn batch_carries_the_counters_from_before_the_turn() {
        let mut draft = draft();
        assert_eq!(draft.take_batch(&NodeName("a".into()), NOW), None);
        draft.step(Input::Accept(request(1)), NOW);
        let batch = draft
            .take_batch(&NodeName("a".into()), NOW)
            .expect("writes");
        assert_eq!((batch.event_seq_before, batch.batch_seq_before), (7, 3));
        assert_eq!(draft.lane.event_seq(), 8, "the draft has counted on");
        assert_eq!(batch.next_nonce, Nonce(6));
        assert_eq!(batch.writes.inserts[0].nonce, Some(Nonce(5)));
    }

    #[test]
    fn headers_that_are_stored_already_are_not_written_again() {
        let mut draft = draft();
        let [stored, fresh] = [1, 2].map(|number| Header {
            number,
            hash: B256::with_last_byte(u8::try_from(number).expect("small")),
            parent_hash: B256::ZERO,
            timestamp: 0,
        });
        for header in [stored, fresh, fresh] {
            draft.add_step(Step {
                headers: vec![header],
                ..Step::default()
            });
        }
        let taken = draft.take_headers(&BTreeSet::from([stored.hash]));
        assert_eq!(taken, [fresh]);
        assert_eq!(draft.take_headers(&BTreeSet::new()), [], "taken once");
    }
}
