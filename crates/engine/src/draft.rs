//! The draft of a lane: what a turn does to it in memory, until the gate has made it durable.

use std::collections::{BTreeMap, BTreeSet};

use domain::admission::AdmissionError;
use domain::lane::reservations::MarkOutcome;
use domain::lane::{FundsDecision, HeadWait, LaneCheckpoint};
use domain::{
    Attempt, B256, Effect, Header, Input, Lane, MonotonicTime, NodeName, Nonce, Step, Timestamp,
    TxId, UnsignedEnvelope, Writes,
};

use crate::folded_writes::{FoldedLength, FoldedWrites};
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
    writes: FoldedWrites,
    before: StoredCounters,
    /// The draft without this turn's requests, which are accepted last.
    before_creates: Option<BeforeCreates>,
}

/// The requests of a turn that are not in its lane's draft.
#[derive(Default)]
pub(crate) struct UndraftedCreates {
    /// Those whose lane must know its account's balance first.
    pub(crate) waiting: Vec<PendingCreate>,
    /// Those that the account cannot pay for.
    pub(crate) refused: Vec<(PendingCreate, AdmissionError)>,
}

/// The lane's counters as the store has them before this turn.
struct StoredCounters {
    event_seq: u64,
    next_nonce: Nonce,
}

/// What the draft was before it accepted requests.
struct BeforeCreates {
    checkpoint: LaneCheckpoint,
    written: FoldedLength,
    to_sign: usize,
    effects: usize,
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
            writes: FoldedWrites::default(),
            before: StoredCounters {
                event_seq: lane.event_seq(),
                next_nonce: lane.next_nonce(),
            },
            before_creates: None,
            lane,
        }
    }

    /// Steps the draft and folds what it writes.
    pub(crate) fn step(&mut self, input: Input, now: Timestamp) {
        let step = self.lane.step(input, now);
        self.add_step(step);
    }

    /// Adds requests to the draft whose account can pay for them; their callers are answered by the outcome of the commit.
    /// Of the others nothing is written and no nonce is used. From here on the draft takes nothing but signatures of its
    /// requests, so that they can be retracted.
    pub(crate) fn accept_creates(
        &mut self,
        creates: Vec<PendingCreate>,
        now: Timestamp,
    ) -> UndraftedCreates {
        let mut undrafted = UndraftedCreates::default();
        if creates.is_empty() {
            return undrafted;
        }
        self.before_creates = Some(BeforeCreates {
            checkpoint: self.lane.checkpoint(),
            written: self.writes.length(),
            to_sign: self.to_sign.len(),
            effects: self.effects.len(),
        });
        for mut create in creates {
            let may_wait = create.balance_queries < BALANCE_QUERIES_MAX;
            match self.lane.check_funds(&create.request, create.arrived_at) {
                FundsDecision::Refuse(_) if !create.is_shortfall_confirmed => {
                    create.is_shortfall_confirmed = true;
                    undrafted.waiting.push(create);
                }
                FundsDecision::Refuse(why) => undrafted.refused.push((create, why)),
                FundsDecision::QueryBalance if may_wait => {
                    create.balance_queries += 1;
                    undrafted.waiting.push(create);
                }
                FundsDecision::QueryBalance | FundsDecision::Accept => {
                    self.step(Input::Accept(create.request.clone()), now);
                    self.creates.push(create);
                }
            }
        }
        undrafted
    }

    /// Retracts all requests of this turn from a draft whose writes were not applied, and returns them. `None` where the
    /// turn accepted none.
    pub(crate) fn retract_creates(&mut self, writes: Writes) -> Option<Vec<PendingCreate>> {
        let before = self.before_creates.take()?;
        let dropped = self.writes.restore(writes, before.written);
        self.lane.retract_accepts(before.checkpoint, &dropped);
        self.to_sign.truncate(before.to_sign);
        self.effects.truncate(before.effects);
        Some(std::mem::take(&mut self.creates))
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
        self.writes.add_headers(headers);
        self.writes.fold(writes);
    }

    /// The headers that this turn's writes name and that are not known to be stored.
    pub(crate) fn take_headers(&mut self, stored: &BTreeSet<B256>) -> Vec<Header> {
        self.writes.take_headers(stored)
    }

    /// The batch for the store; `None` when nothing changed.
    pub(crate) fn take_batch(&mut self, node: &NodeName, at: Timestamp) -> Option<LaneBatch> {
        let writes_nothing =
            self.writes.is_empty() && self.lane.next_nonce() == self.before.next_nonce;
        // A mark passes the fence also where it changes nothing: a keeper that was deposed without noticing must
        // not refuse a holder by its old memory.
        let stores_row = self.stores_floor || self.lane.has_unstored_head(at);
        if writes_nothing && self.marks.is_empty() && !stores_row {
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
            head: self.lane.head_wait(),
            newest_final: self.lane.newest_final(),
            writes: self.writes.take_writes(),
        })
    }

    /// The answers for this turn's callers, to be returned once the batch is applied.
    pub(crate) fn accepted_records(&self, batch: &LaneBatch) -> Vec<AcceptedTx> {
        let attempts = batch.writes.attempts.iter();
        let attempts: BTreeMap<TxId, &Attempt> = attempts.map(|one| (one.tx_id, one)).collect();
        let record = |create: &PendingCreate| {
            let id = create.request.id;
            let row = self.writes.inserted_row(id, &batch.writes);
            AcceptedTx {
                record: TxRecord {
                    lane: self.lane.key(),
                    tx: row
                        .expect("an accepted request is an insert of its turn")
                        .clone(),
                    attempts: attempts
                        .get(&id)
                        .map(|one| (*one).clone())
                        .into_iter()
                        .collect(),
                    confirmations: Vec::new(),
                    lane_wait: batch.head.clone().and_then(HeadWait::into_lane_wait),
                },
                is_new: true,
            }
        };
        self.creates.iter().map(record).collect()
    }
}

#[cfg(test)]
mod tests {
    use domain::lane::{AdmittedRequest, ChainQuery, MinedRows, OpenSummary};
    use domain::{
        Address, ChainId, GrantId, LaneId, LaneImage, LaneKey, LaneRules, LeaseGrant, Payload,
        RequestId, Token, U256,
    };
    use tokio::sync::oneshot;
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
            open: OpenSummary::default(),
            mined: MinedRows::default(),
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
    fn retracted_draft_writes_what_it_wrote_before_the_requests() {
        let mut draft = draft();
        draft.step(Input::Pause(true), NOW);
        draft.step(Input::Pause(false), NOW);
        let (replies, _callers): (Vec<_>, Vec<_>) = (1..=3).map(|_| oneshot::channel()).unzip();
        let creates = replies
            .into_iter()
            .zip(1..)
            .map(|(reply, number)| PendingCreate {
                request: request(number),
                reply,
                arrived_at: MonotonicTime(0),
                tries: 0,
                is_repeat: false,
                maybe_stored: false,
                balance_queries: 0,
                is_shortfall_confirmed: false,
            });
        draft.accept_creates(creates.collect(), NOW);
        let node = NodeName("a".into());
        let batch = draft.take_batch(&node, NOW).expect("writes");
        assert_eq!(
            (batch.writes.inserts.len(), batch.next_nonce),
            (3, Nonce(8))
        );
        let mut retracted = draft.retract_creates(batch.writes).expect("it has creates");
        assert_eq!(retracted.len(), 3);
        retracted.remove(0);
        draft.accept_creates(retracted, NOW);
        let batch = draft.take_batch(&node, NOW).expect("writes");
        assert_eq!(batch.writes.paused, Some(false));
        let nonces: Vec<_> = batch.writes.inserts.iter().map(|tx| tx.nonce).collect();
        assert_eq!(nonces, [Some(Nonce(5)), Some(Nonce(6))]);
        let seqs: Vec<u64> = batch.writes.events.iter().map(|event| event.seq).collect();
        assert_eq!(seqs, [8, 9], "no number is skipped");
        assert_eq!(draft.accepted_records(&batch).len(), 2);
    }
}
