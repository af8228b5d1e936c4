//! The gate: the one place through which every critical write passes.
//!
//! A turn is *stage → commit → apply*. A lane is taken out of its shard and stepped as a draft
//! ([`Staged`]); all writes of the turn are folded to at most one per row; local signatures are made
//! inside the turn, so that bytes are durable before they are sent and the answer carries the hash;
//! one commit carries every lane of the turn; and only what the store calls Applied becomes memory.

use std::collections::{BTreeMap, BTreeSet};

use domain::lane::AdmittedRequest;
use domain::lane::reserve::MarkOutcome;
use domain::mutation::{self, Mutation};
use domain::{
    B256, Effect, Header, Input, Lane, MonotonicTime, NodeName, Step, Timestamp, Tx, TxId,
    UnsignedEnvelope, Writes,
};
use tokio::sync::oneshot;

use crate::node::Accepted;
use crate::ports::{LaneBatch, SignError, Signer, TxRecord};
use crate::reservations::{MarkRequest, PendingMark};

/// What came of a request that reached its lane's shard.
#[derive(Debug)]
pub(crate) enum Routed {
    /// Durable.
    Accepted(Box<Accepted>),
    /// Known before: the caller compares and reads it.
    Known(Box<Tx>),
    /// Another node keeps the lane.
    NotKeeper {
        keeper: NodeName,
        /// Whether an earlier commit, whose answer was lost, may have stored the request.
        maybe_stored: bool,
    },
    /// This node has given the lane back and does not take it again.
    Released,
    /// Not accepted.
    Refused(crate::node::Refusal),
}

/// A caller who waits for the commit of its request.
#[derive(Debug)]
pub(crate) struct PendingCreate {
    pub(crate) request: AdmittedRequest,
    pub(crate) answer: oneshot::Sender<Routed>,
    /// How often its lane had to be read again because of a conflict.
    pub(crate) tries: u32,
    /// Whether its request id may be known already: it is looked up.
    pub(crate) is_repeat: bool,
    /// Whether an earlier commit, whose answer was lost, may have stored it.
    pub(crate) maybe_stored: bool,
}

/// A lane in a turn: a draft until its batch is applied.
pub(crate) struct Staged {
    pub(crate) lane: Lane,
    pub(crate) epoch: u64,
    /// Since when the lane had nothing to do, before this turn.
    pub(crate) idle_since: Option<MonotonicTime>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) creates: Vec<PendingCreate>,
    pub(crate) marks: Vec<(PendingMark, MarkOutcome)>,
    writes: Writes,
    headers: BTreeMap<B256, Header>,
    rows: BTreeMap<TxId, Row>,
    event_seq_before: u64,
    cursor_before: domain::Nonce,
}

/// Where a tx's image lies in the folded writes.
#[derive(Clone, Copy)]
enum Row {
    Insert(usize),
    Update(usize),
}

impl Staged {
    pub(crate) fn new(lane: Lane, epoch: u64, idle_since: Option<MonotonicTime>) -> Self {
        Self {
            epoch,
            idle_since,
            effects: Vec::new(),
            creates: Vec::new(),
            marks: Vec::new(),
            writes: Writes::default(),
            headers: BTreeMap::new(),
            rows: BTreeMap::new(),
            event_seq_before: lane.event_seq(),
            cursor_before: lane.next_nonce(),
            lane,
        }
    }

    /// Steps the draft and folds what it writes.
    pub(crate) fn step(&mut self, input: Input, now: Timestamp) {
        let step = self.lane.step(input, now);
        self.take(step);
    }

    fn take(&mut self, step: Step) {
        let Step {
            writes,
            headers,
            effects,
        } = step;
        self.effects.extend(effects);
        self.headers
            .extend(headers.into_iter().map(|header| (header.hash, header)));
        self.fold(writes);
    }

    /// Takes a request into the draft.
    pub(crate) fn accept(&mut self, create: PendingCreate, now: Timestamp) {
        self.step(Input::Accept(create.request.clone()), now);
        self.creates.push(create);
    }

    /// Takes what a holder says of a lent nonce; he is answered when it is durable.
    pub(crate) fn mark(&mut self, pending: PendingMark, now: Timestamp) {
        let MarkRequest {
            nonce,
            holder,
            mark,
            ..
        } = &pending.call;
        let (step, marked) = self.lane.mark(*nonce, *holder, mark, now);
        self.take(step);
        self.marks.push((pending, marked));
    }

    /// One write per row: inserting and updating one row in one statement would lose the update.
    fn fold(&mut self, writes: Writes) {
        for tx in writes.inserts {
            let place = Row::Insert(self.writes.inserts.len());
            let before = self.rows.insert(tx.id, place);
            assert!(
                before.is_none(),
                "tx {} is inserted twice in one turn",
                tx.id
            );
            self.writes.inserts.push(tx);
        }
        for tx in writes.updates {
            match self.rows.get(&tx.id) {
                Some(Row::Insert(at)) => self.writes.inserts[*at] = tx,
                Some(Row::Update(at)) => self.writes.updates[*at] = tx,
                None => {
                    self.rows
                        .insert(tx.id, Row::Update(self.writes.updates.len()));
                    self.writes.updates.push(tx);
                }
            }
        }
        for id in writes.queued_removed {
            // Added and done in one turn: no row at all.
            match self
                .writes
                .queued_added
                .iter()
                .position(|added| *added == id)
            {
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

    /// The envelopes that a local key signs inside this turn.
    fn take_local_signatures(&mut self, signer: &dyn Signer) -> Vec<UnsignedEnvelope> {
        let in_turn = mutation::is_on(Mutation::WaitForSignerInTurn);
        if !signer.is_local(self.lane.key().signer) && !in_turn {
            return Vec::new();
        }
        let mut wanted = Vec::new();
        self.effects.retain(|effect| match effect {
            Effect::Sign(unsigned) => {
                wanted.push(unsigned.clone());
                false
            }
            Effect::Send(_)
            | Effect::Watch(_)
            | Effect::Unwatch(_)
            | Effect::LoadBacklog { .. }
            | Effect::LoadQueued { .. }
            | Effect::QueryChainNonces { .. }
            | Effect::FindConsumer { .. }
            | Effect::FetchReceipts(_)
            | Effect::FetchHeaders(_)
            | Effect::LoadFinals(_)
            | Effect::MarkReconciled => true,
        });
        wanted
    }

    /// The headers that this turn's writes name and that are not known to be stored.
    pub(crate) fn take_headers(&mut self, stored: &BTreeSet<B256>) -> Vec<Header> {
        let headers = std::mem::take(&mut self.headers).into_values();
        headers
            .filter(|header| !stored.contains(&header.hash))
            .collect()
    }

    /// What goes to the store; `None` when nothing changed.
    pub(crate) fn batch(&mut self, node: &NodeName, at: Timestamp) -> Option<LaneBatch> {
        let writes_nothing =
            self.writes == Writes::default() && self.lane.next_nonce() == self.cursor_before;
        // What is said of a nonce passes the fence also where it changes nothing: a keeper that is deposed and does
        // not know it must not refuse anybody by what it remembers.
        if writes_nothing && self.marks.is_empty() {
            return None;
        }
        Some(LaneBatch {
            lease_grant: self.lane.lease_grant(),
            batch_seq_before: self.lane.batch_seq(),
            node: node.clone(),
            at,
            event_seq_before: self.event_seq_before,
            next_nonce: self.lane.next_nonce(),
            floor_nonce: self.lane.floor_nonce(),
            writes: std::mem::take(&mut self.writes),
        })
    }

    /// The answers for this turn's callers, ready to be given once the batch is applied.
    pub(crate) fn records(&self, batch: &LaneBatch) -> Vec<Accepted> {
        let mut attempts: BTreeMap<TxId, usize> = BTreeMap::new();
        for (at, attempt) in batch.writes.attempts.iter().enumerate() {
            attempts.insert(attempt.tx_id, at);
        }
        let record = |create: &PendingCreate| {
            let Some(Row::Insert(at)) = self.rows.get(&create.request.id) else {
                unreachable!("an accepted request is an insert of its turn");
            };
            let attempt = attempts
                .get(&create.request.id)
                .map(|at| &batch.writes.attempts[*at]);
            Accepted {
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

/// Signs what local keys can sign, for all lanes of the turn at once.
pub(crate) async fn sign_locally(staged: &mut [Staged], signer: &dyn Signer, now: Timestamp) {
    let mut owners = Vec::new();
    let mut envelopes = Vec::new();
    for (at, lane) in staged.iter_mut().enumerate() {
        let wanted = lane.take_local_signatures(signer);
        owners.extend(std::iter::repeat_n(at, wanted.len()));
        envelopes.extend(wanted);
    }
    if envelopes.is_empty() {
        return;
    }
    let nonces: Vec<_> = envelopes.iter().map(|unsigned| unsigned.nonce).collect();
    let answers = signer.sign(envelopes, now).await;
    assert_eq!(
        answers.len(),
        owners.len(),
        "the signer answers every envelope"
    );
    for ((at, nonce), answer) in owners.into_iter().zip(nonces).zip(answers) {
        staged[at].step(signed_input(nonce, answer), now);
    }
}

/// The lane's view of a signer's answer.
pub(crate) fn signed_input(
    nonce: domain::Nonce,
    answer: Result<domain::Attempt, SignError>,
) -> Input {
    match answer {
        Ok(attempt) => Input::Signed(attempt),
        Err(error @ SignError::Refused(_)) => Input::SigningFailed {
            nonce,
            reason: error.to_string(),
            retryable: false,
        },
        Err(error @ SignError::Unavailable(_)) => Input::SigningFailed {
            nonce,
            reason: error.to_string(),
            retryable: true,
        },
    }
}
