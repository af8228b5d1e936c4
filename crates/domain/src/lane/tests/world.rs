//! One lane between a store and a chain, with everything under way in the open: each answer comes
//! when the test wants it, in the order and with the outcome that the test chooses.

use std::collections::VecDeque;
use std::ops::Range;

use alloy_primitives::{B256, Bytes, U256, keccak256};

use crate::attempt::OutgoingEnvelope;
use crate::lane::{
    AccountBalance, AccountNonces, AdmittedRequest, Agreement, ChainQuery, Effect, EndpointNonces,
    Input, Lane, LaneRules, Receipt, Step, Writes, reservations::MarkOutcome,
};
use crate::{
    Attempt, Header, Holder, Mark, MonotonicTime, NodeName, Nonce, SendOutcome, Timestamp, Token,
    Tx, TxId, UnsignedEnvelope,
};

use super::chain::{Chain, FORK_MAX};
use super::invariants::InFlight;
use super::store::Store;
use super::{START, invariants, request, tx_id};

/// How often a foreign transaction uses the account: fewer than a jump that is not credible.
const USED_ELSEWHERE_MAX: u64 = 4;

/// A page as it was read, and whether there was more.
type Page = (Vec<Tx>, bool);

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) rules: LaneRules,
    pub(super) lane: Lane,
    /// What is durable.
    pub(super) store: Store,
    /// What will be durable when the present turn is committed.
    pub(super) draft: Store,
    pub(super) chain: Chain,
    pub(super) now: Timestamp,
    /// What others work on for the lane.
    pub(super) jobs: Vec<Job>,
    /// What waits for the commit.
    held: Vec<Effect>,
    /// Whether the present turn writes anything.
    is_dirty: bool,
    /// What the follower has seen and the lane has not.
    follower: VecDeque<Input>,
    history: Vec<AccountNonces>,
    token: Token,
    /// What the store was told of the lane's history.
    pub(super) halted: Option<String>,
    pub(super) is_reconciled: bool,
    /// How often the lane queried which transactions consumed its nonces.
    pub(super) attributions: u64,
    made: u64,
    used_elsewhere: u64,
    /// The account's balance.
    pub(super) balance: U256,
}

#[derive(Clone, Debug)]
pub(super) enum Job {
    Sign(UnsignedEnvelope),
    Send(OutgoingEnvelope),
    QueryNonces(Option<AccountNonces>),
    Fetch(Vec<B256>),
    FindConsumer {
        nonce: Nonce,
        up_to: Header,
        hashes: Vec<B256>,
    },
    Backlog {
        from: Nonce,
        limit: u64,
        page: Option<Page>,
    },
    Queued {
        limit: u64,
        page: Option<Page>,
    },
    Attribute(Range<u64>, Header),
    Finals(Vec<TxId>),
    Headers(Vec<u64>),
    QueryBalance,
}

impl World {
    pub(super) fn new(rules: LaneRules, start: Nonce) -> Self {
        let (store, chain) = (Store::default(), Chain::new(start));
        let lane = Lane::load(store.image(Token(1)), rules, None);
        let follower = VecDeque::from([Input::Head(chain.view())]);
        let history = vec![chain.nonces()];
        Self {
            rules,
            lane,
            draft: store.clone(),
            store,
            chain,
            now: START,
            jobs: Vec::new(),
            held: Vec::new(),
            is_dirty: false,
            follower,
            history,
            token: Token(1),
            halted: None,
            is_reconciled: true,
            attributions: 0,
            made: 0,
            used_elsewhere: 0,
            balance: U256::from(u64::MAX),
        }
    }

    /// A number that was never given before.
    fn fresh(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    /// A lane that knows its chain: its head and the account's nonce.
    pub(super) fn ready(rules: LaneRules) -> Self {
        let mut world = Self::new(rules, Nonce(0));
        world.deliver_all();
        world.tick(0);
        world.deliver_all();
        world
    }

    /// What a holder reports of a reserved nonce, into the present turn.
    pub(super) fn mark(&mut self, nonce: u64, holder: Holder, mark: &Mark) -> MarkOutcome {
        let (step, marked) = self.lane.mark(Nonce(nonce), holder, mark, self.now);
        self.apply_step(step);
        marked
    }

    /// One step of the lane, into the present turn.
    pub(super) fn input(&mut self, input: Input) {
        let cursor = self.lane.next_nonce();
        let out = InFlight::before(&self.lane);
        let forks = matches!(input, Input::Head(_) | Input::Finals(_));
        let raises = matches!(input, Input::AccountNonces { .. });
        let step = self.lane.step(input, self.now);
        self.apply_step(step);
        if self.lane.next_nonce() > cursor && !raises {
            invariants::window_is_kept(&self.rules, &self.draft);
        }
        if !forks {
            invariants::mempool_depth_is_kept(&out, &self.lane);
        }
    }

    fn apply_step(&mut self, step: Step) {
        for store in [&mut self.store, &mut self.draft] {
            let headers = step.headers.iter().map(|header| (header.hash, *header));
            store.headers.extend(headers);
        }
        self.draft.apply(&step.writes, self.lane.next_nonce());
        self.is_dirty |= step.writes != Writes::default();
        assert_eq!(self.draft.event_seq(), self.lane.event_seq());
        // Signing does not wait for the commit; everything else does.
        self.held.extend(step.effects);
        self.jobs.extend(step.to_sign.into_iter().map(Job::Sign));
    }

    /// Accepts and signs requests and retracts them before the commit: the lane is as it was before.
    pub(super) fn accept_and_retract(&mut self, count: u8, how: u8) {
        let before = format!("{:?}", self.lane);
        let checkpoint = self.lane.checkpoint();
        let mut accepted = Vec::new();
        for _ in 0..count {
            let number = self.fresh();
            let accept = Input::Accept(request(number));
            let step = self.lane.step(accept, self.now);
            for unsigned in step.to_sign {
                let signed = self.sign(&unsigned, how);
                self.lane.step(signed, self.now);
            }
            accepted.extend(step.writes.inserts);
        }
        self.lane.retract_accepts(checkpoint, &accepted);
        assert_eq!(format!("{:?}", self.lane), before);
    }

    /// Makes the turn durable, and dispatches its effects.
    pub(super) fn commit(&mut self) {
        let stores_head = self.lane.has_unstored_head(self.now);
        if std::mem::take(&mut self.is_dirty) || stores_head {
            self.store = self.draft.clone();
            self.store.head = self.lane.head_wait();
            self.draft.head = self.store.head.clone();
            invariants::of_the_store(&self.store);
            self.lane.mark_head_stored();
        }
        self.lane.on_commit(self.now);
        for effect in std::mem::take(&mut self.held) {
            self.start(effect);
        }
        invariants::of_memory(&self.lane, &self.store, &self.chain);
    }

    fn start(&mut self, effect: Effect) {
        let job = match effect {
            Effect::Send(out) => {
                assert!(
                    self.store.attempts.contains_key(&out.hash),
                    "sent before it was durable"
                );
                let tx = self.store.attempts[&out.hash].tx_id;
                let first = *self.chain.seen.entry(out.nonce).or_insert(tx);
                assert_eq!(first, tx, "two txs left for nonce {}", out.nonce);
                Job::Send(out)
            }
            Effect::Watch(_) | Effect::Unwatch(_) => return,
            Effect::MarkReconciled => {
                self.is_reconciled = true;
                return;
            }
            Effect::Halt(reason) => {
                self.halted = Some(reason);
                return;
            }
            Effect::AttributeNonces { nonces, up_to } => {
                self.attributions += 1;
                Job::Attribute(nonces, up_to)
            }
            Effect::LoadBacklog { from, limit } => Job::Backlog {
                from,
                limit,
                page: None,
            },
            Effect::LoadQueued { limit } => Job::Queued { limit, page: None },
            Effect::QueryChainNonces { .. } => Job::QueryNonces(None),
            Effect::FindConsumer {
                nonce,
                up_to,
                hashes,
            } => Job::FindConsumer {
                nonce,
                up_to,
                hashes,
            },
            Effect::FetchReceipts(hashes) => Job::Fetch(hashes),
            Effect::LoadFinals(ids) => Job::Finals(ids),
            Effect::FetchHeaders(heights) => Job::Headers(heights),
            Effect::QueryBalance => Job::QueryBalance,
        };
        self.jobs.push(job);
    }

    /// A client's request reaches the keeper.
    pub(super) fn accept(&mut self) -> TxId {
        let request = request(self.fresh());
        let id = request.id;
        self.input(Input::Accept(request));
        id
    }

    /// A client's request reaches another node, which puts it into the store.
    pub(super) fn queue_elsewhere(&mut self) -> TxId {
        let request = request(self.fresh());
        let id = request.id;
        self.store.queue(request.clone(), self.now);
        self.draft.queue(request, self.now);
        id
    }

    pub(super) fn tick(&mut self, millis: u64) {
        self.now = Timestamp(self.now.0 + millis);
        let fresh = tx_id(self.fresh());
        self.input(Input::Tick { fresh });
    }

    /// The keeper dies: memory and all that was under way are gone.
    pub(super) fn crash(&mut self) {
        self.token = self.token.next();
        self.load(Some("old"));
    }

    /// The store is replaced by an older copy of it, under another history.
    pub(super) fn restore(&mut self, backup: Store, is_accepted: bool) {
        self.store = backup;
        self.is_reconciled = false;
        self.chain.seen.clear(); // a lost commit may have sent another tx at a nonce
        self.crash();
        self.lane = self.lane.clone().with_possible_loss(is_accepted);
    }

    /// A client's request with the payload of another one reaches the keeper.
    pub(super) fn accept_like(&mut self, id: TxId) -> TxId {
        let number = u64::try_from(id.0.as_u128()).expect("ids of requests are small");
        let like = request(number);
        let request = AdmittedRequest {
            payload: like.payload,
            fingerprint: like.fingerprint,
            ..request(self.fresh())
        };
        let id = request.id;
        self.input(Input::Accept(request));
        id
    }

    /// Nodes can show the transactions of all attempts so far.
    pub(super) fn show_payloads(&mut self) {
        for attempt in self.store.attempts.values() {
            let payload = self.store.rows[&attempt.tx_id].request.payload.clone();
            self.chain.payloads.insert(attempt.hash, payload);
        }
    }

    /// A commit fails, and its keeper reads the lane again: memory and all that was under way are gone.
    pub(super) fn reload(&mut self) {
        self.load(None);
        self.lane = self.lane.clone().with_known_deliveries();
    }

    fn load(&mut self, previous_keeper: Option<&str>) {
        self.jobs.clear();
        self.held.clear();
        self.is_dirty = false;
        self.draft = self.store.clone();
        let image = self.store.image(self.token);
        let previous_keeper = previous_keeper.map(|name| NodeName(name.into()));
        self.lane = Lane::load(image, self.rules, previous_keeper);
        self.follower = VecDeque::from([Input::Head(self.chain.view())]);
    }

    /// A block with up to `most` txs; its receipts may get lost on the way to the lane.
    pub(super) fn mine(&mut self, most: usize, receipts_arrive: bool) {
        let receipts = self.chain.mine(most);
        self.seen(receipts, receipts_arrive);
    }

    /// A fork: `depth` blocks are taken back and one more are put there.
    pub(super) fn fork(&mut self, depth: u64, most: usize, lost: u8, receipts_arrive: bool) {
        let depth = depth.min(FORK_MAX).min(self.chain.height());
        self.chain
            .unwind(depth, if self.is_forgetful() { lost } else { 0 });
        let receipts = (0..=depth).flat_map(|_| self.chain.mine(most)).collect();
        self.seen(receipts, receipts_arrive);
    }

    /// A foreign transaction uses the account; not often, and only where the chain is queried and pools forget.
    pub(super) fn use_elsewhere(&mut self, ahead: u64) {
        let is_seen = self.rules.nonce.chain_query == ChainQuery::Pending && self.is_forgetful();
        if is_seen && self.used_elsewhere < USED_ELSEWHERE_MAX && self.chain.use_elsewhere(ahead) {
            self.used_elsewhere += 1;
        }
    }

    /// Whether pools forget: a lane that never sends again would wait for ever.
    pub(super) fn is_forgetful(&self) -> bool {
        self.rules.resubmit.interval.is_some()
    }

    fn seen(&mut self, receipts: Vec<Receipt>, receipts_arrive: bool) {
        self.history.push(self.chain.nonces());
        self.follower.push_back(Input::Head(self.chain.view()));
        if receipts_arrive && !receipts.is_empty() {
            self.follower.push_back(Input::Receipts(receipts));
        }
    }

    /// The follower's next news reaches the lane; whether there was any.
    pub(super) fn follow(&mut self) -> bool {
        let Some(input) = self.follower.pop_front() else {
            return false;
        };
        self.input(input);
        true
    }

    /// The follower was far behind, and follows the newest head without what lies between.
    pub(super) fn skip_to_newest_head(&mut self) {
        self.follower = VecDeque::from([Input::Head(self.chain.view())]);
    }

    /// A page or an answer of the chain is read now, and delivered later.
    pub(super) fn freeze(&mut self, index: usize) {
        let nonces = self.query_nonces();
        match &mut self.jobs[index] {
            Job::Backlog { from, limit, page } => {
                page.get_or_insert_with(|| self.store.backlog_page(*from, *limit));
            }
            Job::Queued { limit, page } => {
                page.get_or_insert_with(|| self.store.queued_page(*limit));
            }
            Job::QueryNonces(answer) => *answer = Some(nonces),
            Job::Sign(_) | Job::Send(_) | Job::Fetch(_) | Job::Finals(_) | Job::Headers(_) => {}
            Job::FindConsumer { .. } | Job::QueryBalance | Job::Attribute(..) => {}
        }
    }

    /// Finishes a job, with the outcome that `how` picks; 0 is the good one.
    pub(super) fn answer(&mut self, index: usize, how: u8) {
        let input = match self.jobs.remove(index) {
            Job::Sign(unsigned) => self.sign(&unsigned, how),
            Job::Send(out) => self.send(&out, how),
            Job::QueryNonces(frozen) => {
                let old = usize::from(how / 4) % self.history.len();
                let stale = how % 4 == 3;
                let now = frozen.unwrap_or_else(|| self.query_nonces());
                agreed(if stale {
                    self.as_queried(self.history[old])
                } else {
                    now
                })
            }
            Job::FindConsumer {
                nonce,
                up_to,
                hashes,
            } => Input::Consumed {
                nonce,
                up_to: up_to.number,
                by: Some(self.chain.consumer(nonce, up_to.number)),
                hashes,
                is_named: false,
            },
            Job::Fetch(hashes) => Input::Receipts(
                self.chain
                    .receipts(&hashes, self.rules.confirmations.finality.depth()),
            ),
            Job::Backlog { from, limit, page } => {
                let (txs, more) = page.unwrap_or_else(|| self.store.backlog_page(from, limit));
                Input::Backlog { txs, more }
            }
            Job::Queued { limit, page } => {
                let (txs, more) = page.unwrap_or_else(|| self.store.queued_page(limit));
                Input::Queued { txs, more }
            }
            Job::Headers(heights) => Input::OldHeaders(self.chain.headers(&heights)),
            Job::QueryBalance => Input::Balance {
                queried_at: MonotonicTime(self.now.0),
                answer: (how % 4 != 3).then(|| self.balance()),
            },
            Job::Attribute(nonces, up_to) => Input::NoncesAttributed {
                up_to: up_to.number,
                found: (how == 0).then(|| self.chain.consumed(nonces, up_to.number)),
            },
            Job::Finals(ids) => {
                let rows = ids.iter().map(|id| self.store.rows[id].clone());
                Input::Finals(
                    rows.map(|tx| (tx.clone(), self.store.attempts_of(tx.id)))
                        .collect(),
                )
            }
        };
        self.input(input);
    }

    /// Finishes all present jobs of a kind.
    pub(super) fn answer_all(&mut self, how: u8, is_meant: impl Fn(&Job) -> bool) {
        for index in (0..self.jobs.len()).rev() {
            if is_meant(&self.jobs[index]) {
                self.answer(index, how);
            }
        }
    }

    /// The account's balance and nonce at the newest block.
    fn balance(&self) -> AccountBalance {
        AccountBalance {
            block: self.chain.height(),
            nonce: self.chain.nonce(),
            balance: self.balance,
        }
    }

    fn query_nonces(&self) -> AccountNonces {
        self.as_queried(self.chain.nonces())
    }

    fn as_queried(&self, nonces: AccountNonces) -> AccountNonces {
        match self.rules.nonce.chain_query {
            ChainQuery::Pending | ChainQuery::Off => nonces,
            ChainQuery::Latest => AccountNonces {
                pending: nonces.latest,
                ..nonces
            },
        }
    }

    fn sign(&mut self, unsigned: &UnsignedEnvelope, how: u8) -> Input {
        let (nonce, tx_id) = (unsigned.nonce, unsigned.tx_id);
        if how % 8 >= 5 {
            let retryable = how % 8 < 7;
            return Input::SigningFailed {
                nonce,
                reason: "no key".into(),
                retryable,
            };
        }
        let salt = self.fresh();
        Input::Signed(Attempt {
            hash: keccak256(format!("{tx_id} {nonce} {salt}")),
            tx_id,
            kind: unsigned.kind,
            nonce,
            gas: unsigned.gas,
            fees: unsigned.fees,
            raw: Bytes::from_static(b"signed"),
            signed_at: self.now,
            first_sent_at: None,
        })
    }

    fn send(&mut self, out: &OutgoingEnvelope, how: u8) -> Input {
        let text = || "the node's text".to_owned();
        let is_used = out.nonce < self.chain.nonce();
        let (taken, outcome) = match how % 16 {
            6 if self.is_forgetful() => (false, SendOutcome::Accepted), // and does not hold it
            7 | 8 => (true, SendOutcome::Unknown(text())),
            9 => (false, SendOutcome::Unknown(text())),
            15 => (false, SendOutcome::NotSent(MonotonicTime(0))),
            _ if is_used => (false, SendOutcome::NonceTooLow),
            _ if self.chain.is_foreign_pending(out.nonce) => {
                (false, SendOutcome::ForeignPending(text()))
            }
            10 => (false, SendOutcome::Underpriced(text())),
            // Perhaps it does not hold it.
            11 if !out.others.is_empty() => (false, SendOutcome::ReplacementUnderpriced(text())),
            11 => (false, SendOutcome::Refused(text())),
            5 => (
                false,
                SendOutcome::Full {
                    text: text(),
                    most: Some(2),
                },
            ),
            12 => (false, SendOutcome::Underfunded(text())),
            13 => (false, SendOutcome::Busy(text())),
            14 => (false, SendOutcome::Rejected(text())),
            4 => (false, SendOutcome::GasTooLow(text())),
            _ => (true, SendOutcome::Accepted),
        };
        if taken {
            self.chain.add_to_pool(out.nonce, out.hash);
        }
        Input::Sent {
            hash: out.hash,
            nonce: out.nonce,
            outcome,
        }
    }

    /// Everything works from now on: all that was accepted must end, within a bound.
    pub(super) fn heal(&mut self) {
        let blocks_per_tx = self.rules.confirmations.finality.depth() + 4;
        // A foreign transaction counts at finality depth.
        let rounds = 120 + blocks_per_tx * self.draft.rows.len() as u64;
        for _ in 0..rounds {
            if self.draft.paused {
                self.input(Input::Pause(false));
            }
            self.deliver_all();
            if self.is_quiet() {
                return;
            }
            if !self.store.queued.is_empty() {
                self.input(Input::QueueChanged);
            }
            self.mine(usize::MAX, true);
            self.tick(61_000);
        }
        panic!("not quiet after {rounds} rounds: {}", self.describe());
    }

    /// Delivers all news and good answers until nothing is under way.
    pub(super) fn deliver_all(&mut self) {
        self.deliver_all_but(|_| false);
    }

    /// The same, without answers to such jobs.
    pub(super) fn deliver_all_but(&mut self, is_left: impl Fn(&Job) -> bool) {
        self.commit();
        for _ in 0..5_000 {
            let next = self.jobs.iter().position(|job| !is_left(job));
            if let Some(index) = next {
                self.answer(index, 0);
            } else if !self.follow() {
                return;
            }
            self.commit();
        }
        panic!("answers make questions without end: {:#?}", self.jobs);
    }

    /// What a person needs to see why a lane does not move.
    fn describe(&self) -> String {
        let lane = &self.lane;
        let slots = lane.slots.iter();
        let slots: Vec<_> = slots
            .map(|(nonce, slot)| (nonce, slot.progress()))
            .collect();
        format!(
            "slots {slots:?}, gaps {:?}, {:?}, {:?}, {:?}, jobs {:?}",
            lane.gaps(),
            lane.paging,
            lane.chain,
            lane.reconciliation,
            self.jobs,
        )
    }

    fn is_quiet(&self) -> bool {
        self.lane.is_idle()
            && self.store.queued.is_empty()
            && self.store.rows.values().all(|tx| tx.state.is_terminal())
    }
}

/// All endpoints report this.
pub(super) fn agreed(first: AccountNonces) -> Input {
    answered(EndpointNonces::new(first, Some(first), Agreement::Quorum))
}

/// Some endpoints report this.
pub(super) fn answered(nonces: EndpointNonces) -> Input {
    Input::AccountNonces {
        nonces,
        counts_pool: true,
    }
}
