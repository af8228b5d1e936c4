//! One turn: sort what came by lane, step every lane as a draft, sign, and pass all drafts through the gate.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::{ChainId, Input, LaneKey, RequestId, Timestamp};
use metrics::counter;
use tokio::sync::oneshot;

use super::signing::sign_locally;
use super::{
    LaneCell, Message, OpenError, OpenedLane, PendingCreate, Shard, ShardOutcome, lookup_refusal,
    refuse_creates,
};
use crate::draft::{LaneDraft, UndraftedCreates};
use crate::gate::{FIND_REQUESTS_AFTER_REPEAT, RetractedDraft};
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

/// The requests of a turn that are not in their lane's draft.
struct Undrafted {
    lane: LaneKey,
    creates: UndraftedCreates,
    /// Whether the known balance is to be queried again.
    refreshes_balance: bool,
    /// Whether none of them is a repeat.
    is_looked_up: bool,
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
            let busy = self.drain_lanes().await;
            done.send(busy).ok(); // the caller may have gone
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
            } else if !lane.is_idle() && self.core.is_send_blocked(*key, now) {
                tracing::warn!(lane = %key, "no endpoint answered the lane's sends for a whole lease; it is released to other nodes");
                counter!("lanekeeper_lanes_given_back_total").increment(1);
                let health = &self.core.chain(key.chain_id).send_health;
                health.record_release(*key, now);
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

    /// Writes the floors of lanes without work: a lower one in the row would look like work to the next keeper.
    pub(super) async fn store_floors_of_idle_lanes(&mut self) {
        let mut turn = TurnInputs::new();
        for (key, cell) in &self.lanes {
            if let LaneCell::Ready { lane, .. } = cell
                && lane.is_idle()
                && lane.has_unstored_floor()
            {
                turn.entry(*key).or_default().stores_floor = true;
            }
        }
        self.run_lanes(turn).await;
    }

    fn sort_message(
        &mut self,
        message: Message,
        turn: &mut TurnInputs,
        drains: &mut Vec<oneshot::Sender<Vec<LaneKey>>>,
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
            Message::LaneHalted {
                lane,
                lease_grant,
                reason,
            } => {
                if self.drop_halted_lane(lane, lease_grant, reason)
                    && let Some(halted) = turn.remove(&lane)
                {
                    self.resend_creates(lane, halted.creates);
                }
            }
            Message::Mark(mark) => {
                let lane = mark.call.lane;
                // Where the lane is not in memory the mark is dropped: its holder's node sends it again.
                if self.wake_lane(lane) {
                    turn.entry(lane).or_default().marks.push(mark);
                }
            }
            Message::Inspect { lanes, answer } => {
                let inspected = lanes.iter().map(|lane| self.inspect_lane(*lane));
                answer.send(inspected.collect()).ok(); // the caller may have gone
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

    /// Drafts, signatures, gate: for all lanes of the turn at once. Requests are accepted last, so that a repeated one
    /// can leave its draft without anything else.
    async fn run_lanes(&mut self, mut turn: TurnInputs) {
        if turn.is_empty() {
            return;
        }
        let is_looked_up = self.answer_existing(&mut turn).await;
        let clock = &self.core.ports.clock;
        let (now, monotonic) = (clock.now(), clock.monotonic());
        let (mut drafts, creates) = self.draft_lanes(turn, now);
        sign_locally(&mut drafts, &*self.core.ports.signer, now).await;
        let mut undrafted = Vec::new();
        for (draft, creates) in drafts.iter_mut().zip(creates) {
            let refreshes_balance = !creates.is_empty() && draft.lane.is_balance_due(monotonic);
            undrafted.push(Undrafted {
                lane: draft.lane.key(),
                creates: draft.accept_creates(creates, now),
                refreshes_balance,
                is_looked_up,
            });
        }
        while !drafts.is_empty() {
            sign_locally(&mut drafts, &*self.core.ports.signer, now).await;
            let retracted = self.commit_drafts(drafts, now).await;
            drafts = self.accept_again(retracted, now, &mut undrafted).await;
        }
        for rest in undrafted {
            self.handle_undrafted(rest);
        }
    }

    /// Takes the turn's lanes out of memory and steps them with everything but their requests, which are returned in the
    /// same order.
    fn draft_lanes(
        &mut self,
        turn: TurnInputs,
        now: Timestamp,
    ) -> (Vec<LaneDraft>, Vec<Vec<PendingCreate>>) {
        let mut drafts = Vec::with_capacity(turn.len());
        let mut creates = Vec::with_capacity(turn.len());
        for (key, input) in turn {
            match self.lanes.remove(&key) {
                Some(LaneCell::Ready {
                    lane,
                    epoch,
                    idle_since,
                }) => {
                    let mut draft = LaneDraft::new(*lane, epoch, idle_since);
                    draft.stores_floor = input.stores_floor;
                    for input in input.inputs {
                        draft.step(input, now);
                    }
                    for mark in input.marks {
                        draft.apply_mark(mark, now);
                    }
                    drafts.push(draft);
                    creates.push(input.creates);
                }
                cell @ (Some(_) | None) => {
                    self.lanes.extend(cell.map(|cell| (key, cell)));
                    self.resend_creates(key, input.creates);
                }
            }
        }
        (drafts, creates)
    }

    /// Answers the repeats among the requests that were retracted, and accepts the others again.
    async fn accept_again(
        &mut self,
        mut retracted: Vec<RetractedDraft>,
        now: Timestamp,
        undrafted: &mut Vec<Undrafted>,
    ) -> Vec<LaneDraft> {
        let lanes = retracted.iter_mut();
        let lanes = lanes.map(|one| (one.draft.lane.key(), &mut one.creates));
        self.answer_stored(lanes.collect()).await;
        let mut drafts = Vec::with_capacity(retracted.len());
        for RetractedDraft { mut draft, creates } in retracted {
            undrafted.push(Undrafted {
                lane: draft.lane.key(),
                creates: draft.accept_creates(creates, now),
                refreshes_balance: false,
                is_looked_up: true,
            });
            drafts.push(draft);
        }
        drafts
    }

    /// Handles the requests of a lane that are not in its draft, after the commit of the turn. A request that its lane
    /// refuses may have been accepted before, then it has its original answer: where it was not looked up in this turn,
    /// it is in the next one. Where the draft did not become memory, its refusals mean nothing.
    fn handle_undrafted(&mut self, rest: Undrafted) {
        let lane = rest.lane;
        let UndraftedCreates { waiting, refused } = rest.creates;
        let is_decided = rest.is_looked_up && self.is_in_memory(lane);
        for (mut create, why) in refused {
            if is_decided {
                refuse_creates([create], &Refusal::Underfunded(why.to_string()));
            } else {
                create.is_repeat = true;
                self.resend_creates(lane, vec![create]);
            }
        }
        if rest.refreshes_balance || !waiting.is_empty() {
            self.query_balance(lane, waiting);
        }
    }

    /// Looks up all requests of the turn at once, before any nonce is allocated. Returns whether it did.
    ///
    /// As long as no repeated request id was seen for a while this is left out: the store itself refuses a second
    /// tx for a request id, and the turn that meets one continues without it. So a new request costs one
    /// round trip, and repeats cost a conflict once in a while instead of a read every time.
    async fn answer_existing(&mut self, turn: &mut TurnInputs) -> bool {
        let now = self.core.ports.clock.monotonic();
        let mut creates = turn.values().flat_map(|input| &input.creates);
        let needs_lookup = now < self.find_requests_until
            || creates.any(|create| create.is_repeat || create.maybe_stored);
        if needs_lookup {
            let lanes = turn
                .iter_mut()
                .filter(|(lane, _)| self.is_in_memory(**lane));
            let lanes = lanes.map(|(lane, input)| (*lane, &mut input.creates));
            let lanes: Vec<_> = lanes.collect();
            self.answer_stored(lanes).await;
        }
        self.resend_duplicates(turn);
        needs_lookup
    }

    /// Looks requests up, and answers those that are stored; where that fails, all of them are refused.
    async fn answer_stored(&mut self, lanes: Vec<(LaneKey, &mut Vec<PendingCreate>)>) {
        let mut keys = Vec::new();
        for (lane, creates) in &lanes {
            let ids = creates.iter().map(|create| &create.request.request_id);
            keys.extend(ids.map(|id| (*lane, id.clone())));
        }
        if keys.is_empty() {
            return;
        }
        counter!("lanekeeper_store_reads_total").increment(1);
        let found = match self.core.ports.store.find_requests(&keys).await {
            Ok(found) => found,
            Err(error) => {
                let creates = lanes.into_iter().flat_map(|(_, creates)| creates.drain(..));
                refuse_creates(creates, &lookup_refusal(&error));
                return;
            }
        };
        let now = self.core.ports.clock.monotonic();
        let mut found = found.into_iter();
        for (_, creates) in lanes {
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
