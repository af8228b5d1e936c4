//! One turn: stage what came, sign, commit once for all lanes, and make it memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::mutation::{self, Mutation};
use domain::{B256, ChainId, Header, Input, Lane, LaneKey, LeaseGrant, RequestId, TxId};
use metrics::{counter, histogram};
use tokio::sync::oneshot;

use super::cells::{Cell, LostBatch, refuse, released};
use super::told::Told;
use super::{Message, NotOpened, Opened, STORED_HEADERS_MAX, Shard};
use crate::gate::{PendingCreate, Routed, Staged, sign_locally};
use crate::node::{Accepted, Refusal};
use crate::ownership::{self, Remembered};
use crate::ports::{CommitOutcome, Conflict, LaneBatch};
use crate::reservations::PendingMark;

/// How often a request is stepped again after conflicts before its caller is told.
const CONFLICT_TRIES_MAX: u32 = 3;

/// For how long request ids are looked up before the commit, after a repeat was seen.
const LOOK_UP_AFTER_REPEAT: Duration = Duration::from_secs(10);

/// What came for a lane in this turn.
#[derive(Default)]
struct Work {
    inputs: Vec<Input>,
    creates: Vec<PendingCreate>,
    marks: Vec<PendingMark>,
}

/// A lane's part of a commit, waiting for its outcome.
struct Committing {
    staged: Staged,
    records: Vec<Accepted>,
    changed: Vec<TxId>,
    told: Told,
}

impl Shard {
    pub(super) async fn turn(&mut self, messages: impl Iterator<Item = Message>) {
        let mut work: BTreeMap<LaneKey, Work> = BTreeMap::new();
        let mut drains = Vec::new();
        for message in messages {
            self.sort(message, &mut work, &mut drains);
        }
        self.run_lanes(work).await;
        for done in drains {
            self.drain().await;
            done.send(()).ok(); // whoever asked may have gone
        }
    }

    /// Time for every lane with work; idle ones are given back after a while.
    pub(super) async fn tick(&mut self) {
        let mut work: BTreeMap<LaneKey, Work> = BTreeMap::new();
        let mut leaving = Vec::new();
        let now = self.core.ports.clock.monotonic();
        let idle_release = self.core.config.lease.idle_release;
        let unheard = self.unheard_chains(now);
        for (key, cell) in &mut self.lanes {
            let Cell::Ready {
                lane, idle_since, ..
            } = cell
            else {
                continue;
            };
            if unheard.contains(&key.chain_id) {
                leaving.push(*key);
            } else if !lane.is_idle() {
                *idle_since = None;
                let fresh = self.core.ports.clock.tx_id();
                work.entry(*key)
                    .or_default()
                    .inputs
                    .push(Input::Tick { fresh });
            } else if lane.may_be_released()
                && now.since(*idle_since.get_or_insert(now)) >= idle_release
            {
                leaving.push(*key);
            }
        }
        self.run_lanes(work).await;
        self.stop_waiting();
        self.release(leaving).await;
        let again = self.unreleased(now);
        self.let_go(again).await;
    }

    fn sort(
        &mut self,
        message: Message,
        work: &mut BTreeMap<LaneKey, Work>,
        drains: &mut Vec<oneshot::Sender<()>>,
    ) {
        match message {
            Message::Create { lane, create } => {
                if matches!(self.lanes.get(&lane), Some(Cell::Ready { .. })) {
                    work.entry(lane).or_default().creates.push(create);
                } else {
                    self.wait_for_lane(lane, create);
                }
            }
            Message::Inputs {
                lane,
                epoch,
                inputs,
            } => {
                let current = matches!(self.lanes.get(&lane), Some(Cell::Ready { epoch: e, .. }) if *e == epoch);
                if current {
                    work.entry(lane).or_default().inputs.extend(inputs);
                }
            }
            Message::Observed { lane, input } => {
                if matches!(self.lanes.get(&lane), Some(Cell::Ready { .. })) {
                    work.entry(lane).or_default().inputs.push(input);
                }
            }
            Message::Head { chain } => {
                // The newest, as for a lane that is just opened: none is ever shown an older one after it.
                let Some(view) = self.core.chain(chain).view.get() else {
                    return;
                };
                for (key, cell) in &self.lanes {
                    if key.chain_id == chain && matches!(cell, Cell::Ready { .. }) {
                        let head = Input::Head(Arc::clone(&view));
                        work.entry(*key).or_default().inputs.push(head);
                    }
                }
            }
            Message::Wake { lane, has_queued } => {
                if self.wake(lane) && has_queued {
                    work.entry(lane)
                        .or_default()
                        .inputs
                        .push(Input::QueueChanged);
                }
            }
            Message::Opened(opened) => self.take_opened(*opened, work),
            Message::NotOpened { lane, why } => self.not_opened(lane, why),
            Message::Resume { lane } => self.resume(lane),
            Message::Resolved { lane, outcome } => self.resolved(lane, outcome),
            Message::Lost { lane, lease_grant } => {
                // After a failover the store may lack what it had.
                self.stored_headers.clear();
                if self.lost(lane, lease_grant)
                    && let Some(lost) = work.remove(&lane)
                {
                    lost.creates
                        .into_iter()
                        .for_each(|create| self.route_again(lane, create));
                }
            }
            Message::Mark(mark) => {
                let lane = mark.call.lane;
                // Where the lane is not in memory its holder tries again, when it was opened or elsewhere.
                if self.wake(lane) {
                    work.entry(lane).or_default().marks.push(mark);
                }
            }
            Message::Inspect { lane, answer } => {
                answer.send(self.inspect(lane)).ok(); // whoever asked may have gone
            }
            Message::Drain { done } => drains.push(done),
        }
    }

    /// Takes a lane into memory that was granted and read, with all that waited for it.
    fn take_opened(&mut self, opened: Opened, work: &mut BTreeMap<LaneKey, Work>) {
        let (lane, lease_grant, nonces) = (opened.lane, opened.image.lease_grant, opened.nonces);
        if self.is_draining {
            self.give_back(lane, lease_grant);
        } else if !self.core.leases.holds_grant(lane, lease_grant) {
            // Lost while it was read: a lane without a lease would never send.
            self.not_opened(lane, NotOpened::Busy);
        } else {
            let waiting = self.opened(opened);
            let first = self.first_inputs(lane, nonces);
            let entry = work.entry(lane).or_default();
            entry.inputs.extend(first);
            entry.creates.extend(waiting);
        }
    }

    /// Sends a request around once more, through the opening of its lane.
    fn route_again(&self, lane: LaneKey, create: PendingCreate) {
        let core = Arc::clone(&self.core);
        let message = Message::Create { lane, create };
        self.core.tasks.spawn("route again", async move {
            core.tell_shard(lane, message).await
        });
    }

    /// Stage → commit → apply, for all lanes at once.
    async fn run_lanes(&mut self, mut work: BTreeMap<LaneKey, Work>) {
        if work.is_empty() {
            return;
        }
        self.answer_known(&mut work).await;
        let now = self.core.ports.clock.now();
        let mut staged = Vec::with_capacity(work.len());
        for (
            key,
            Work {
                inputs,
                creates,
                marks,
            },
        ) in work
        {
            match self.lanes.remove(&key) {
                Some(Cell::Ready {
                    lane,
                    epoch,
                    idle_since,
                }) => {
                    let mut draft = Staged::new(*lane, epoch, idle_since);
                    inputs.into_iter().for_each(|input| draft.step(input, now));
                    creates
                        .into_iter()
                        .for_each(|create| draft.accept(create, now));
                    marks.into_iter().for_each(|mark| draft.mark(mark, now));
                    staged.push(draft);
                }
                Some(other) => {
                    self.lanes.insert(key, other);
                    creates
                        .into_iter()
                        .for_each(|create| self.route_again(key, create));
                }
                None => creates
                    .into_iter()
                    .for_each(|create| self.route_again(key, create)),
            }
        }
        sign_locally(&mut staged, &*self.core.ports.signer, now).await;
        self.commit(staged, now).await;
    }

    /// One look-up for all requests of the turn, before any nonce is dealt.
    ///
    /// As long as no repeat was seen for a while it is left out: the store itself refuses a second tx for
    /// a key, and the turn that meets one is stepped again with a look-up. So what is new costs one round
    /// trip, and repeats cost a conflict once in a while instead of every time.
    async fn answer_known(&mut self, work: &mut BTreeMap<LaneKey, Work>) {
        let now = self.core.ports.clock.monotonic();
        let creates = || work.values().flat_map(|work| &work.creates);
        let looks = now < self.look_up_until
            || creates().any(|create| create.is_repeat || create.maybe_stored);
        if !looks {
            self.send_doubles_around(work);
            return;
        }
        let mut keys = Vec::new();
        for (lane, Work { creates, .. }) in &mut *work {
            let Some(Cell::Ready { lane: draft, .. }) = self.lanes.get(lane) else {
                continue;
            };
            let lane_id = draft.lease_grant().lane;
            keys.extend(
                creates
                    .iter()
                    .map(|create| (lane_id, create.request.request_id.clone())),
            );
        }
        if keys.is_empty() {
            return;
        }
        counter!("lanekeeper_store_reads_total").increment(1);
        let found = match self.core.ports.store.find_requests(&keys).await {
            Ok(found) => found,
            Err(error) => {
                let refusal = Refusal::StoreUnavailable(error.to_string());
                let creates = work.values_mut().flat_map(|work| work.creates.drain(..));
                creates.for_each(|create| refuse(create, refusal.clone()));
                return;
            }
        };
        let mut found = found.into_iter();
        for (lane, Work { creates, .. }) in &mut *work {
            if !matches!(self.lanes.get(lane), Some(Cell::Ready { .. })) {
                continue;
            }
            for create in std::mem::take(creates) {
                match found.next().flatten() {
                    Some(tx) => {
                        self.look_up_until = now.plus(LOOK_UP_AFTER_REPEAT);
                        create.answer.send(Routed::Known(Box::new(tx))).ok(); // may have gone
                    }
                    None => creates.push(create),
                }
            }
        }
        self.send_doubles_around(work);
    }

    /// The same request twice in one turn: the second finds the first next time.
    fn send_doubles_around(&mut self, work: &mut BTreeMap<LaneKey, Work>) {
        for (lane, Work { creates, .. }) in work {
            let mut firsts: BTreeSet<RequestId> = BTreeSet::new();
            for mut create in std::mem::take(creates) {
                if firsts.insert(create.request.request_id.clone()) {
                    creates.push(create);
                } else {
                    create.is_repeat = true;
                    self.route_again(*lane, create);
                }
            }
        }
    }

    async fn commit(&mut self, mut staged: Vec<Staged>, now: domain::Timestamp) {
        let without_headers = self.put_headers(&mut staged).await;
        let mut batches: Vec<LaneBatch> = Vec::with_capacity(staged.len());
        let mut committing = Vec::with_capacity(staged.len());
        for mut lane in staged {
            let Some(batch) = lane.batch(&self.core.config.name, now) else {
                self.apply(lane, now);
                continue;
            };
            let rows = batch.writes.inserts.iter().chain(&batch.writes.updates);
            committing.push(Committing {
                records: lane.records(&batch),
                changed: rows.map(|tx| tx.id).collect(),
                told: Told::of(&batch.writes.events),
                staged: lane,
            });
            batches.push(batch);
        }
        let (batches, mut committing) = self.hold_back(batches, committing, &without_headers, now);
        if batches.is_empty() {
            return;
        }
        committing.iter_mut().for_each(|lane| self.hurry(lane));
        let accepted = committing
            .iter()
            .map(|lane| lane.records.len())
            .sum::<usize>();
        let started = self.core.ports.clock.monotonic();
        let outcomes = self.core.ports.store.commit(batches).await;
        let took = self.core.ports.clock.monotonic().since(started);
        let kind = if accepted > 0 { "accept" } else { "progress" };
        counter!("lanekeeper_gate_commits_total", "kind" => kind).increment(1);
        counter!("lanekeeper_gate_txs_total").increment(accepted as u64);
        histogram!("lanekeeper_gate_commit_seconds").record(took.as_secs_f64());
        assert_eq!(
            outcomes.len(),
            committing.len(),
            "the store answers every batch"
        );
        for (lane, outcome) in committing.into_iter().zip(outcomes) {
            self.conclude(lane, outcome, now);
        }
    }

    /// What two deliberate bugs do before anything is durable.
    fn hurry(&self, lane: &mut Committing) {
        if mutation::is_on(Mutation::SendBeforeCommit) {
            let effects = std::mem::take(&mut lane.staged.effects);
            self.let_out(&lane.staged.lane, lane.staged.epoch, effects);
        }
        if mutation::is_on(Mutation::AnswerBeforeCommit) {
            for (create, record) in lane.staged.creates.drain(..).zip(lane.records.drain(..)) {
                create.answer.send(Routed::Accepted(Box::new(record))).ok(); // may have gone
            }
        }
    }

    /// Takes the lanes out of a turn whose headers could not be stored.
    fn hold_back(
        &mut self,
        batches: Vec<LaneBatch>,
        committing: Vec<Committing>,
        without_headers: &BTreeMap<ChainId, String>,
        now: domain::Timestamp,
    ) -> (Vec<LaneBatch>, Vec<Committing>) {
        if without_headers.is_empty() {
            return (batches, committing);
        }
        let mut kept = (Vec::new(), Vec::new());
        for (batch, lane) in batches.into_iter().zip(committing) {
            match without_headers.get(&lane.staged.lane.key().chain_id) {
                Some(why) => self.conclude(lane, CommitOutcome::NotApplied(why.clone()), now),
                None => {
                    kept.0.push(batch);
                    kept.1.push(lane);
                }
            }
        }
        kept
    }

    /// What the store said of one lane's batch decides what becomes of the draft.
    fn conclude(&mut self, done: Committing, outcome: CommitOutcome, now: domain::Timestamp) {
        let key = done.staged.lane.key();
        let token = done.staged.lane.lease_grant().token;
        match outcome {
            CommitOutcome::Applied => {
                let Committing {
                    mut staged,
                    records,
                    changed,
                    told,
                } = done;
                staged.lane.count_batch();
                for (create, record) in staged.creates.drain(..).zip(records) {
                    create.answer.send(Routed::Accepted(Box::new(record))).ok(); // may have gone
                }
                self.failures.remove(&key);
                self.core.waiters.ring(changed.into_iter());
                told.record(key);
                if told.has_events {
                    self.core.feed.wrote(staged.lane.lease_grant().lane);
                }
                self.apply(staged, now);
            }
            CommitOutcome::Fenced => {
                tracing::warn!(lane = %key, %token, "fenced: another node keeps this lane now");
                counter!("lanekeeper_lease_fenced_total", "op" => "gate").increment(1);
                self.remember(&done.staged.lane);
                self.forget(key);
                done.staged
                    .creates
                    .into_iter()
                    .for_each(|create| self.route_again(key, create));
            }
            CommitOutcome::Conflict(conflict) => {
                self.remember(&done.staged.lane);
                if matches!(conflict, Conflict::RequestId(_)) {
                    // Expected now and then: this is how a repeat is found when nobody looked.
                    tracing::debug!(lane = %key, ?conflict, "a repeat; the lane is read again");
                    let now = self.core.ports.clock.monotonic();
                    self.look_up_until = now.plus(LOOK_UP_AFTER_REPEAT);
                } else {
                    tracing::warn!(lane = %key, ?conflict, "a batch was refused; the lane is read again");
                }
                self.reread(key, done.staged.creates, &conflict);
            }
            CommitOutcome::Locked => {
                // Whoever waits for the row waits apart from this turn's other lanes.
                tracing::warn!(lane = %key, "somebody holds a row of this lane; waiting for it");
                counter!("lanekeeper_lease_locked_total").increment(1);
                self.resolve(done);
            }
            CommitOutcome::NotApplied(why) => {
                tracing::warn!(lane = %key, %why, "the store took nothing; the lane is read again");
                let refusal = Refusal::StoreUnavailable(why);
                self.remember(&done.staged.lane);
                let mut staged = done.staged;
                std::mem::take(&mut staged.creates)
                    .into_iter()
                    .for_each(|create| refuse(create, refusal.clone()));
                if mutation::is_on(Mutation::AdvanceCursorBeforeAck) {
                    self.apply(staged, now);
                } else {
                    self.open_again(key, Vec::new());
                }
            }
            CommitOutcome::Unknown(why) => {
                tracing::warn!(lane = %key, %why, "a commit's answer was lost; asking the store");
                self.resolve(done);
            }
        }
    }

    /// The draft becomes memory, and its effects are let out.
    fn apply(&mut self, mut staged: Staged, now: domain::Timestamp) {
        staged.lane.committed(now);
        let key = staged.lane.key();
        for (mark, marked) in staged.marks.drain(..) {
            mark.answer.send(marked).ok(); // may have gone
        }
        let effects = std::mem::take(&mut staged.effects);
        let (lane, epoch) = (staged.lane, staged.epoch);
        self.let_out(&lane, epoch, effects);
        let idle_since = staged.idle_since.filter(|_| lane.is_idle());
        self.lanes.insert(
            key,
            Cell::Ready {
                lane: Box::new(lane),
                epoch,
                idle_since,
            },
        );
    }

    /// Reads a lane again after a conflict. A request that is itself the trouble is found by its id the
    /// next time; one whose batch conflicts again and again is told.
    fn reread(&mut self, key: LaneKey, creates: Vec<PendingCreate>, conflict: &Conflict) {
        let mut waiting = Vec::new();
        for mut create in creates {
            let is_guilty = match conflict {
                Conflict::RequestId(id) => create.request.request_id == *id,
                Conflict::Nonce(_) | Conflict::Rows(_) => true,
            };
            create.tries += u32::from(is_guilty);
            create.is_repeat |= is_guilty;
            if create.tries > CONFLICT_TRIES_MAX {
                let why = "the batch conflicts again and again";
                refuse(create, Refusal::StoreUnavailable(why.into()));
            } else {
                waiting.push(create);
            }
        }
        if matches!(conflict, Conflict::RequestId(_)) {
            // Nothing is wrong with the store.
            self.forget(key);
            self.open(key, waiting);
        } else {
            self.open_again(key, waiting);
        }
    }

    /// Throws the draft away and opens the lane again, waiting longer each time in a row.
    pub(super) fn open_again(&mut self, key: LaneKey, waiting: Vec<PendingCreate>) {
        self.forget(key);
        *self.failures.entry(key).or_default() += 1;
        self.open(key, waiting);
    }

    /// Keeps what a lane knew whose draft is thrown away: a store that has lost commits is told by it.
    fn remember(&self, lane: &Lane) {
        self.core.remember(lane.key(), Remembered::of(lane));
    }

    fn resolve(&mut self, done: Committing) {
        let Staged { lane, creates, .. } = done.staged;
        let (key, lease_grant) = (lane.key(), lane.lease_grant());
        self.remember(&lane);
        self.forget(key);
        let lost = LostBatch {
            batch_seq_before: lane.batch_seq(),
            creates,
            records: done.records,
        };
        self.lanes.insert(
            key,
            Cell::Resolving {
                lost,
                waiting: Vec::new(),
                since: self.core.ports.clock.monotonic(),
            },
        );
        let core = Arc::clone(&self.core);
        self.core.tasks.spawn("resolve", async move {
            ownership::resolve(&core, key, lease_grant).await
        });
    }

    /// Stores the headers that this turn's writes name, and gives the chains where that failed: nothing
    /// may be written that names a header which is not there.
    async fn put_headers(&mut self, staged: &mut [Staged]) -> BTreeMap<ChainId, String> {
        let mut named: BTreeMap<ChainId, BTreeMap<B256, Header>> = BTreeMap::new();
        for lane in staged {
            let headers = lane.take_headers(&self.stored_headers).into_iter();
            let of_chain = named.entry(lane.lane.key().chain_id).or_default();
            of_chain.extend(headers.map(|header| (header.hash, header)));
        }
        let mut failed = BTreeMap::new();
        for (chain, headers) in named.into_iter().filter(|(_, headers)| !headers.is_empty()) {
            let headers: Vec<Header> = headers.into_values().collect();
            match self.core.ports.store.put_headers(chain, &headers).await {
                Ok(()) => self.remember_headers(&headers),
                Err(error) => drop(failed.insert(chain, error.to_string())),
            }
        }
        failed
    }

    fn remember_headers(&mut self, headers: &[Header]) {
        if self.stored_headers.len() > STORED_HEADERS_MAX {
            self.stored_headers.clear();
        }
        self.stored_headers
            .extend(headers.iter().map(|header| header.hash));
    }

    /// Gives every lane back. Nothing is under way: a turn ends with its commit.
    async fn drain(&mut self) {
        self.is_draining = true;
        let keys: Vec<LaneKey> = self.lanes.keys().copied().collect();
        self.release(keys).await;
    }

    /// Gives back a lane that was granted when the node was on its way out already.
    fn give_back(&self, key: LaneKey, lease_grant: LeaseGrant) {
        self.core.leases.forget(key);
        let core = Arc::clone(&self.core);
        self.core.tasks.spawn("give back", async move {
            core.ports
                .store
                .release(&core.lease_request(), &[lease_grant])
                .await
                .ok(); // it runs out by itself
        });
    }

    /// Gives lanes back, so that anyone may take them at once.
    async fn release(&mut self, keys: Vec<LaneKey>) {
        let mut lease_grants = BTreeMap::new();
        for key in keys {
            match self.lanes.remove(&key) {
                Some(Cell::Ready { lane, .. }) => {
                    lease_grants.insert(key, lane.lease_grant());
                    self.forget(key);
                }
                Some(Cell::Opening { waiting }) => {
                    waiting.into_iter().for_each(released);
                }
                Some(Cell::Resolving { lost, waiting, .. }) => {
                    let creates = lost.creates.into_iter().chain(waiting);
                    creates.for_each(|create| refuse(create, Refusal::OutcomeUnknown));
                }
                Some(Cell::Halted { .. }) | None => {}
            }
        }
        self.let_go(lease_grants).await;
    }
}
