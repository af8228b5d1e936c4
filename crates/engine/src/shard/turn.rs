//! One turn: sort what came by lane, step every lane as a draft, sign, and pass all drafts through the gate.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::admission::AdmissionError;
use domain::{ChainId, Input, LaneKey, RequestId, Timestamp};
use metrics::counter;
use tokio::sync::oneshot;

use super::signing::sign_locally;
use super::{
    LaneCell, Message, OpenError, OpenedLane, PendingCreate, Shard, ShardOutcome, lookup_refusal,
    refuse_creates,
};
use crate::draft::{CreateOutcome, LaneDraft};
use crate::gate::FIND_REQUESTS_AFTER_REPEAT;
use crate::node::Refusal;
use crate::reservations::PendingMark;

/// What came for a lane in this turn.
#[derive(Default)]
pub(super) struct TurnInput {
    pub(super) inputs: Vec<Input>,
    pub(super) creates: Vec<PendingCreate>,
    marks: Vec<PendingMark>,
    stores_floor: bool,
}

/// What came in this turn, by lane.
pub(super) type TurnInputs = BTreeMap<LaneKey, TurnInput>;

/// The requests of a turn that are not in its lane's draft.
struct Undrafted {
    lane: LaneKey,
    /// Those that wait for the account's balance.
    waiting: Vec<PendingCreate>,
    /// Those that the account cannot pay for.
    refused: Vec<(PendingCreate, AdmissionError)>,
    /// Whether the known balance is to be queried again.
    refreshes_balance: bool,
}

/// Steps all that came for a lane.
fn step_draft(draft: &mut LaneDraft, input: TurnInput, now: Timestamp) -> Undrafted {
    let mut rest = Undrafted {
        lane: draft.lane.key(),
        waiting: Vec::new(),
        refused: Vec::new(),
        refreshes_balance: false,
    };
    draft.stores_floor = input.stores_floor;
    for input in input.inputs {
        draft.step(input, now);
    }
    for create in input.creates {
        match draft.accept_create(create, now) {
            CreateOutcome::Drafted => {}
            CreateOutcome::AwaitsBalance(create) => rest.waiting.push(create),
            CreateOutcome::Refused(create, why) => rest.refused.push((create, why)),
        }
    }
    for mark in input.marks {
        draft.apply_mark(mark, now);
    }
    rest
}

impl Shard {
    pub(super) async fn run_turn(&mut self, messages: impl Iterator<Item = Message>) {
        let mut turn = TurnInputs::new();
        let mut drains = Vec::new();
        for message in messages {
            self.sort_message(message, &mut turn, &mut drains);
        }
        self.run_lanes(turn).await;
        for done in drains {
            self.drain_lanes().await;
            done.send(()).ok(); // the caller may have gone
        }
    }

    /// Steps every lane that has work with the time, and releases lanes that were idle for long or whose chain
    /// this node cannot reach.
    pub(super) async fn run_tick(&mut self) {
        let mut turn = TurnInputs::new();
        let mut leaving = Vec::new();
        let now = self.core.ports.clock.monotonic();
        let idle_release = self.core.config.lease.idle_release;
        let unreachable = self.chains_to_release(now);
        for (key, cell) in &mut self.lanes {
            let LaneCell::Ready {
                lane, idle_since, ..
            } = cell
            else {
                continue;
            };
            if unreachable.contains(&key.chain_id) {
                leaving.push(*key);
            } else if !lane.is_idle() {
                *idle_since = None;
                let fresh = self.core.ports.clock.tx_id();
                let input = turn.entry(*key).or_default();
                input.inputs.push(Input::Tick { fresh });
            } else if lane.has_unstored_floor() {
                turn.entry(*key).or_default().stores_floor = true;
            } else if lane.can_be_released()
                && now.since(*idle_since.get_or_insert(now)) >= idle_release
            {
                leaving.push(*key);
            }
        }
        self.run_lanes(turn).await;
        self.answer_overdue_callers();
        self.release_lanes(leaving).await;
        let retries = self.take_pending_releases(now);
        self.release_grants(retries).await;
    }

    fn sort_message(
        &mut self,
        message: Message,
        turn: &mut TurnInputs,
        drains: &mut Vec<oneshot::Sender<()>>,
    ) {
        match message {
            Message::Create { lane, create } => {
                if self.is_in_memory(lane) {
                    turn.entry(lane).or_default().creates.push(create);
                } else {
                    self.hold_create(lane, create);
                }
            }
            Message::Inputs {
                lane,
                epoch,
                inputs,
            } => {
                if let Some(LaneCell::Ready { epoch: current, .. }) = self.lanes.get(&lane)
                    && epoch.is_none_or(|epoch| epoch == *current)
                {
                    turn.entry(lane).or_default().inputs.extend(inputs);
                }
            }
            Message::BalanceQueried {
                lane,
                queried_at,
                answer,
            } => self.sort_balance(lane, queried_at, answer, turn),
            Message::Head { chain } => self.sort_head(chain, turn),
            Message::Wake { lane, has_queued } => {
                if self.wake_lane(lane) && has_queued {
                    let input = turn.entry(lane).or_default();
                    input.inputs.push(Input::QueueChanged);
                }
            }
            Message::LaneOpened(opened) => self.sort_opened_lane(*opened, turn),
            Message::RequestsLookedUp { lane, found } => self.on_requests_looked_up(lane, found),
            Message::LaneNotOpened { lane, why } => self.on_open_failed(lane, why),
            Message::Resume { lane } => self.resume_lane(lane),
            Message::UnknownCommitResolved { lane, outcome } => {
                self.on_unknown_commit_resolved(lane, outcome);
            }
            Message::LeaseLost { lane, lease_grant } => {
                // After a failover the store may lack headers that it had.
                self.stored_headers.clear();
                if self.drop_lost_lane(lane, lease_grant)
                    && let Some(lost) = turn.remove(&lane)
                {
                    self.resend_creates(lane, lost.creates);
                }
            }
            Message::Mark(mark) => {
                let lane = mark.call.lane;
                // Where the lane is not in memory the mark is dropped: its holder's node sends it again.
                if self.wake_lane(lane) {
                    turn.entry(lane).or_default().marks.push(mark);
                }
            }
            Message::Inspect { lane, answer } => {
                answer.send(self.inspect_lane(lane)).ok(); // the caller may have gone
            }
            Message::Drain { done } => drains.push(done),
        }
    }

    pub(super) fn is_in_memory(&self, lane: LaneKey) -> bool {
        matches!(self.lanes.get(&lane), Some(LaneCell::Ready { .. }))
    }

    /// Every lane of the chain gets the newest view, as a lane does that is just opened: none ever sees an older
    /// view after a newer one.
    fn sort_head(&self, chain: ChainId, turn: &mut TurnInputs) {
        let Some(view) = self.core.chain(chain).view.get() else {
            return;
        };
        for key in self.lanes.keys() {
            if key.chain_id == chain && self.is_in_memory(*key) {
                let head = Input::Head(Arc::clone(&view));
                turn.entry(*key).or_default().inputs.push(head);
            }
        }
    }

    /// Puts a lane into memory that was granted and read, with all that waited for it.
    fn sort_opened_lane(&mut self, opened: OpenedLane, turn: &mut TurnInputs) {
        let (lane, lease_grant, nonces) = (opened.lane, opened.image.lease_grant, opened.nonces);
        if self.is_draining {
            self.release_late_grant(lane, lease_grant);
        } else if !self.core.leases.holds_grant(lane, lease_grant) {
            // Lost while it was read: a lane without a lease would never send.
            self.on_open_failed(lane, OpenError::Busy);
        } else {
            let waiting = self.install_opened_lane(opened);
            let first = self.first_inputs(lane, nonces);
            let input = turn.entry(lane).or_default();
            input.inputs.extend(first);
            input.creates.extend(waiting);
        }
    }

    /// Sends requests to this shard once more, through the opening of their lane.
    pub(crate) fn resend_creates(&self, lane: LaneKey, creates: Vec<PendingCreate>) {
        for create in creates {
            let core = Arc::clone(&self.core);
            let message = Message::Create { lane, create };
            self.core.tasks.spawn("resend create", async move {
                core.send_to_shard(lane, message).await
            });
        }
    }

    /// Drafts, signatures, gate: for all lanes of the turn at once.
    async fn run_lanes(&mut self, mut turn: TurnInputs) {
        if turn.is_empty() {
            return;
        }
        let is_looked_up = self.answer_existing(&mut turn).await;
        let clock = &self.core.ports.clock;
        let (now, monotonic) = (clock.now(), clock.monotonic());
        let mut drafts = Vec::with_capacity(turn.len());
        let mut undrafted = Vec::new();
        for (key, input) in turn {
            match self.lanes.remove(&key) {
                Some(LaneCell::Ready {
                    lane,
                    epoch,
                    idle_since,
                }) => {
                    let mut draft = LaneDraft::new(*lane, epoch, idle_since);
                    let has_creates = !input.creates.is_empty();
                    let mut rest = step_draft(&mut draft, input, now);
                    rest.refreshes_balance = has_creates && draft.lane.is_balance_due(monotonic);
                    undrafted.push(rest);
                    drafts.push(draft);
                }
                cell @ (Some(_) | None) => {
                    self.lanes.extend(cell.map(|cell| (key, cell)));
                    self.resend_creates(key, input.creates);
                }
            }
        }
        sign_locally(&mut drafts, &*self.core.ports.signer, now).await;
        self.commit_drafts(drafts, now).await;
        for rest in undrafted {
            self.handle_undrafted(rest, is_looked_up);
        }
    }

    /// Handles the requests of a lane that are not in its draft, after the commit of the turn. A request that its lane
    /// refuses may have been accepted before, then it has its original answer: where it was not looked up in this turn,
    /// it is in the next one. Where the draft did not become memory, its refusals mean nothing.
    fn handle_undrafted(&mut self, rest: Undrafted, is_looked_up: bool) {
        let lane = rest.lane;
        let is_decided = is_looked_up && self.is_in_memory(lane);
        for (mut create, why) in rest.refused {
            if is_decided {
                refuse_creates([create], &Refusal::Underfunded(why.to_string()));
            } else {
                create.is_repeat = true;
                self.resend_creates(lane, vec![create]);
            }
        }
        if rest.refreshes_balance || !rest.waiting.is_empty() {
            self.query_balance(lane, rest.waiting);
        }
    }

    /// Looks up all requests of the turn at once, before any nonce is allocated. Returns whether it did.
    ///
    /// As long as no repeated request id was seen for a while this is left out: the store itself refuses a second
    /// tx for a request id, and the turn that meets one is stepped again with a lookup. So a new request costs one
    /// round trip, and repeats cost a conflict once in a while instead of a read every time.
    async fn answer_existing(&mut self, turn: &mut TurnInputs) -> bool {
        let now = self.core.ports.clock.monotonic();
        let mut creates = turn.values().flat_map(|input| &input.creates);
        let needs_lookup = now < self.find_requests_until
            || creates.any(|create| create.is_repeat || create.maybe_stored);
        if !needs_lookup {
            self.resend_duplicates(turn);
            return false;
        }
        let mut keys = Vec::new();
        for (lane, input) in turn.iter().filter(|(lane, _)| self.is_in_memory(**lane)) {
            let ids = input
                .creates
                .iter()
                .map(|create| &create.request.request_id);
            keys.extend(ids.map(|id| (*lane, id.clone())));
        }
        if keys.is_empty() {
            return true;
        }
        counter!("lanekeeper_store_reads_total").increment(1);
        let found = match self.core.ports.store.find_requests(&keys).await {
            Ok(found) => found,
            Err(error) => {
                let creates = turn.values_mut().flat_map(|input| input.creates.drain(..));
                refuse_creates(creates, &lookup_refusal(&error));
                return true;
            }
        };
        let mut found = found.into_iter();
        for (lane, TurnInput { creates, .. }) in &mut *turn {
            if !self.is_in_memory(*lane) {
                continue;
            }
            for create in std::mem::take(creates) {
                match found.next().flatten() {
                    Some(tx) => {
                        self.find_requests_until = now.plus(FIND_REQUESTS_AFTER_REPEAT);
                        create.answer(ShardOutcome::Existing(tx.id));
                    }
                    None => creates.push(create),
                }
            }
        }
        self.resend_duplicates(turn);
        true
    }

    /// The same request id twice in one turn: the second finds the tx of the first in a later turn.
    fn resend_duplicates(&mut self, turn: &mut TurnInputs) {
        for (lane, TurnInput { creates, .. }) in turn {
            let mut firsts: BTreeSet<RequestId> = BTreeSet::new();
            for mut create in std::mem::take(creates) {
                if firsts.insert(create.request.request_id.clone()) {
                    creates.push(create);
                } else {
                    create.is_repeat = true;
                    self.resend_creates(*lane, vec![create]);
                }
            }
        }
    }
}
