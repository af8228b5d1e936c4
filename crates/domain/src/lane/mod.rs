//! How a lane decides. One step at a time, on one task, with no await inside.
//!
//! A lane in memory is a *draft* as long as its step is not committed: the shard takes it out of its
//! map, steps it, commits the writes, and puts it back only when the store says Applied. Any other
//! answer throws the draft away and the lane is read again. So memory never knows more than the store.
//!
//! Memory is O(what is out), not O(what waits): txs beyond the mempool depth stay in the store.

mod broadcast;
mod deal;
mod follow;
mod foreign;
mod nonces;
pub mod protocol;
pub mod reserve;
mod resubmit;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;

pub use protocol::{
    AccountNonces, AdmittedRequest, ChainQuery, Effect, EndpointNonces, FOREIGN_DEPTH_MIN, FinalTx,
    Finality, FinalityTag, Input, LaneImage, LaneRules, NonceConsumer, OLD_DEPTH_MAX,
    OnForeignNonce, Receipt, Resubmit, ResubmitPolicy, Step, Writes,
};

use crate::mutation::{self, Mutation};
use crate::window::Depth;
use crate::{
    Attempt, AttemptKind, ChainView, Event, EventKind, LaneKey, LeaseGrant, NodeName, Nonce,
    SubState, Timestamp, Token, Tx, TxId,
};

/// The most txs that one load brings into memory.
pub const LOAD_MAX: u64 = 500;
/// The most receipts that one step asks for; the rest follow when these are in.
pub const RECEIPTS_MAX: usize = 500;

/// A lane in the memory of its keeper.
#[derive(Clone, Debug)]
pub struct Lane {
    key: LaneKey,
    lease_grant: LeaseGrant,
    rules: LaneRules,
    depth: Depth,

    next_nonce: Nonce,
    event_seq: u64,
    batch_seq: u64,
    paused: bool,
    /// Why no nonce is dealt until somebody decides.
    halted: Option<String>,
    /// Whether nonces that the chain knows and the store does not are ours and lost, not somebody else's:
    /// until the chain agrees with the cursor for the first time.
    fears_loss: bool,
    /// Attempts below this nonce may be lost: what consumed such a nonce may be ours although we do not
    /// know it. Until all of them are resolved.
    lost_below: Option<Nonce>,

    /// The txs whose attempts are being made, are out, or are mined and not final.
    /// (Boxed: nonces ascend, so half of each of the map's leaves stays empty.)
    slots: BTreeMap<Nonce, Box<Slot>>,
    /// Which slot an attempt belongs to.
    by_hash: BTreeMap<B256, Nonce>,
    /// How many slots are not mined yet.
    unmined: u64,
    /// Results that are final and still watched for forks, by block.
    finals: VecDeque<FinalBlock>,
    /// Finals that a fork took back and that are being read again.
    reopening: BTreeSet<TxId>,
    /// Those of them whose fork went deeper than is watched.
    deeply_reopened: BTreeSet<TxId>,

    /// Nonces that nobody holds and the chain waits for, and since when.
    gaps: BTreeMap<Nonce, Timestamp>,
    /// Nonces that nobody of ours holds, at which the node says that something is pending: somebody
    /// else's, never to be outbid. A gap when it vanishes.
    doubtful: BTreeSet<Nonce>,
    /// Nonces that the chain seems to wait for, and since when: an endpoint may be behind, so they are gaps
    /// only when a later answer says the same.
    maybe_gaps: BTreeMap<Nonce, Timestamp>,
    /// Gaps of this turn: usable once it is committed, so that no commit gives one nonce to two rows.
    fresh_gaps: BTreeSet<Nonce>,
    /// Every nonce below this was once consumed at final depth, and by what we know.
    consumed_below: Nonce,
    /// The lowest nonce whose tx waits in the store for its signature.
    backlog: Option<Nonce>,
    /// While a page of the backlog is being read: the lowest nonce that was dealt since it was asked
    /// for. From there on the page may lack some.
    loading_backlog: Option<Nonce>,
    /// How many txs wait in the store for a nonce: at least one when it is not zero.
    queued: u64,
    /// While a page of the queued is being read: what came since, and may not be on it.
    loading_queued: Option<CameSince>,

    /// When blocks below the view were last asked about.
    old_checked_at: Option<Timestamp>,
    /// Whether that question is under way.
    checking_old: bool,
    /// When the depth was last narrowed: a burst of refusals counts once.
    narrowed_at: Option<Timestamp>,

    view: Option<Arc<ChainView>>,
    chain: Option<Known>,
    asking_chain: bool,
    /// Whether the question that is under way is put to a second endpoint too.
    asked_twice: bool,
    /// Whether the next question must be.
    in_doubt: bool,
    /// A nonce of ours that seems to be consumed by somebody else.
    suspicion: Option<Suspicion>,
    /// The highest nonce that a node should hold with all below it, when the answer is to tell that.
    probing: Option<Nonce>,
    /// When such an answer last said that no more may be out: it is not asked for again at once.
    full_at: Option<Timestamp>,
    full_times: u32,
    /// Whether more receipts are to be asked for when those that were are in.
    more_receipts: bool,
    /// Since when nonces below this one are consumed while receipts of ours are not known.
    late: Option<(Nonce, Timestamp)>,
    /// How many complete answers of the chain came since the lane was read.
    answers: u64,
    /// How many more answers of the chain are needed before a nonce is lent.
    answers_awaited: u8,
    /// Lent nonces whose named transaction has a receipt, while the chain does not show them as consumed.
    unproven: BTreeSet<Nonce>,
    /// When loans were last looked at.
    ticked_at: Option<Timestamp>,
    /// Why what the store holds does not belong in this lane.
    misplaced: Option<String>,
    /// What the store said at load, until the chain's nonce is known.
    unsettled: Option<Unsettled>,
    /// Who held the lane before, until that is told.
    previous_keeper: Option<(NodeName, Token)>,
}

/// A tx in memory.
#[derive(Clone, Debug)]
struct Slot {
    tx: Tx,
    /// Why it exists: a request's own, or a filler.
    kind: AttemptKind,
    attempts: Vec<Attempt>,
    stage: Stage,
    /// The attempt that is at the signer.
    signing: Option<AttemptKind>,
    /// When it was last claimed for sending.
    claimed_at: Timestamp,
    /// When a node last got it, as far as that is known.
    left_at: Timestamp,
    /// When its bytes are tried again, after something went wrong.
    retry_at: Option<Timestamp>,
    /// When the signer is asked again, after it failed.
    sign_at: Option<Timestamp>,
    tries: u32,
    /// Nodes do not take it: nothing behind it is tried before it.
    is_blocked: bool,
    /// Somebody else's transaction stood at its nonce in a node's pool when it was last sent.
    is_foreign_pending: bool,
    /// A node called its nonce used, and none has taken it since: more money would not help.
    is_said_used: bool,
    /// An answer to a send was lost: some node may have it.
    may_be_out: bool,
    /// How often in a row every node refused it for good.
    rejections: u32,
    /// How often it was sent again because it waited too long.
    resubmits: u32,
    /// For how long its nonce is lent, as far as this keeper saw; from its first tick on.
    lent_for: Option<Duration>,
    /// After how many answers of the chain the next one counts, once its time is over.
    overdue_since: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Lent: nothing was said of it yet.
    Lent,
    /// At the signer for the first time.
    Signing,
    /// Durable, on its way to a node; no node has said yes.
    Out,
    /// A node has it.
    Submitted,
    /// In a block of the followed chain.
    Mined,
}

/// Txs that joined the queue while a page of it was being read.
#[derive(Clone, Debug, Default)]
struct CameSince {
    /// Those that came through this lane, oldest first; at most [`LOAD_MAX`].
    known: Vec<Tx>,
    /// How many others there are, at least.
    others: u64,
}

#[derive(Clone, Debug)]
struct FinalBlock {
    number: u64,
    hash: B256,
    txs: Vec<TxId>,
    /// Whether it was seen on the chain since the lane was read: nobody may have looked for long.
    is_seen: bool,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    nonces: AccountNonces,
    is_complete: bool,
    /// Whether pools were asked too: a plain question asks only for what `nonce.chainQuery` says.
    saw_pools: bool,
    at: Timestamp,
}

/// A nonce of ours that is consumed, and not by what we know.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    nonce: Nonce,
    /// The newest height when it was first seen.
    since: u64,
    /// From which final height on it is asked again who did it.
    ask_at: u64,
    /// The height of the last question, while it has no answer.
    asked: Option<u64>,
    is_asking: bool,
}

#[derive(Clone, Debug)]
struct Unsettled {
    /// The cursor then: what was dealt since is not in `held`.
    next_nonce: Nonce,
    held: Vec<Range<u64>>,
    /// As it was then: what a fork opened again since is not in `held` either.
    consumed_below: Nonce,
}

impl Lane {
    /// A lane as it was just read from the store. `previous_keeper` is told to the world in the first step.
    #[must_use]
    pub fn load(image: LaneImage, rules: LaneRules, previous_keeper: Option<NodeName>) -> Self {
        let token_before = Token(image.lease_grant.token.0.saturating_sub(1));
        let mut lane = Self {
            key: image.key,
            lease_grant: image.lease_grant,
            rules,
            depth: rules.depth,
            next_nonce: image.next_nonce,
            event_seq: image.event_seq,
            batch_seq: image.batch_seq,
            paused: image.paused,
            halted: None,
            fears_loss: false,
            lost_below: None,
            slots: BTreeMap::new(),
            by_hash: BTreeMap::new(),
            unmined: 0,
            finals: VecDeque::new(),
            reopening: BTreeSet::new(),
            deeply_reopened: BTreeSet::new(),
            gaps: BTreeMap::new(),
            maybe_gaps: BTreeMap::new(),
            fresh_gaps: BTreeSet::new(),
            doubtful: BTreeSet::new(),
            old_checked_at: None,
            checking_old: false,
            narrowed_at: None,
            consumed_below: image.consumed_below,
            backlog: image.backlog_from,
            loading_backlog: None,
            queued: image.queued,
            loading_queued: None,
            view: None,
            chain: None,
            asking_chain: false,
            asked_twice: false,
            in_doubt: false,
            suspicion: None,
            probing: None,
            full_at: None,
            full_times: 0,
            more_receipts: false,
            late: None,
            answers: 0,
            answers_awaited: 0,
            unproven: BTreeSet::new(),
            ticked_at: None,
            misplaced: None,
            unsettled: Some(Unsettled {
                next_nonce: image.next_nonce,
                held: image.held,
                consumed_below: image.consumed_below,
            }),
            previous_keeper: previous_keeper.map(|node| (node, token_before)),
        };
        for final_tx in image.finals {
            lane.watch_final(final_tx);
        }
        for (tx, attempts) in image.in_flight {
            lane.track(tx, attempts);
        }
        lane
    }

    /// The store's history changed since the lane was last written: it may have lost commits.
    #[must_use]
    pub fn with_suspect_history(self) -> Self {
        Self {
            fears_loss: true,
            lost_below: Some(self.next_nonce),
            ..self
        }
    }

    /// Whether it deals nothing until somebody decides.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.halted.is_some()
    }

    /// Brings a tx with attempts into memory, at the stage that its row tells.
    fn track(&mut self, tx: Tx, mut attempts: Vec<Attempt>) {
        let Some(nonce) = tx.nonce else { return };
        if let Some(why) = self.is_misplaced(&tx) {
            self.misplaced = Some(why);
        }
        // A tx that was given another nonce keeps its old attempts; none of them can be mined any more.
        attempts.retain(|attempt| attempt.nonce == nonce);
        attempts.sort_by_key(Attempt::order);
        let Some(first) = attempts.first() else {
            self.backlog = Some(self.backlog.map_or(nonce, |from| from.min(nonce)));
            return;
        };
        let was_sent = attempts.iter().any(|a| a.first_sent_at.is_some());
        let stage = match &tx.inclusion {
            Some(_) => Stage::Mined,
            None if was_sent => Stage::Submitted,
            None => Stage::Out,
        };
        if stage != Stage::Mined {
            self.unmined = self.unmined.saturating_add(1);
        }
        self.by_hash
            .extend(attempts.iter().map(|attempt| (attempt.hash, nonce)));
        let (kind, claimed_at) = (first.kind, tx.updated_at);
        let bumps = attempts.len().saturating_sub(1);
        let slot = Slot {
            stage,
            signing: None,
            is_foreign_pending: tx.sub_state == Some(SubState::ForeignPending),
            // Claimed, and perhaps never handed out: it leaves at the next tick, if not before.
            retry_at: (stage == Stage::Out).then_some(claimed_at),
            resubmits: u32::try_from(bumps).unwrap_or(u32::MAX),
            attempts,
            ..Slot::new(tx, kind, claimed_at)
        };
        let before = self.slots.insert(nonce, Box::new(slot));
        assert!(
            before.is_none(),
            "lane {}: nonce {nonce} is held twice",
            self.key
        );
    }

    /// Takes one input. Pure: the same lane and input give the same step.
    pub fn step(&mut self, input: Input, now: Timestamp) -> Step {
        let mut step = Step::default();
        if let Some((from, token)) = self.previous_keeper.take() {
            self.emit_event(&mut step, None, EventKind::LaneFenced { from, token }, now);
        }
        match input {
            Input::Accept(request) => self.accept(request, now, &mut step),
            Input::Queued { txs, more } => self.adopt_queued(txs, more, now, &mut step),
            Input::Backlog { txs, more } => self.take_backlog(txs, more, now, &mut step),
            Input::Signed(attempt) => self.signed(attempt, now, &mut step),
            Input::SigningFailed {
                nonce,
                reason,
                retryable,
            } => {
                self.signing_failed(nonce, reason, retryable, now, &mut step);
            }
            Input::Sent {
                hash,
                nonce,
                outcome,
            } => {
                self.sent(hash, nonce, outcome, now, &mut step);
            }
            Input::Receipts(receipts) => self.receipts(receipts, now, &mut step),
            Input::Head(view) => self.head(view, now, &mut step),
            Input::AccountNonces {
                nonces,
                counts_pool,
            } => self.learn_nonces(nonces, counts_pool, now, &mut step),
            Input::Consumed {
                nonce,
                by,
                hashes,
                is_named,
            } => {
                self.consumed(nonce, by, (&hashes, is_named), now, &mut step);
            }
            Input::Finals(txs) => self.reopen(txs, now, &mut step),
            Input::OldHeaders(headers) => self.old_headers(&headers, now, &mut step),
            Input::QueueChanged => self.more_queued(None),
            Input::Tick { fresh } => self.tick(fresh, now, &mut step),
            Input::Pause(paused) => {
                self.paused = paused;
                step.writes.paused = Some(paused);
            }
        }
        self.pump(now, &mut step);
        step
    }

    /// Counts the batch that made all steps since the last call durable.
    pub fn count_batch(&mut self) {
        self.batch_seq = self.batch_seq.saturating_add(1);
    }

    /// Says that all steps since the last call are durable.
    pub fn committed(&mut self, now: Timestamp) {
        for nonce in std::mem::take(&mut self.fresh_gaps) {
            self.gaps.insert(nonce, now);
        }
    }

    /// Asks for more work where there is room for it.
    fn pump(&mut self, now: Timestamp, step: &mut Step) {
        if self
            .lost_below
            .is_some_and(|below| self.floor_nonce() >= below)
            && !self.fears_loss
        {
            self.lost_below = None;
            step.effects.push(Effect::MarkReconciled);
        }
        if self.chain.is_none() && self.rules.chain_query != ChainQuery::Off {
            self.ask_chain(step);
        }
        self.ask_whether_the_node_holds_it(now, step);
        if let Some(from) = self.backlog
            && self.loading_backlog.is_none()
            && (self.lends() || (self.may_sign() && self.has_room_for(from)))
        {
            self.loading_backlog = Some(self.next_nonce);
            let limit = match self.lends() {
                true => LOAD_MAX,
                false => self.room().clamp(1, LOAD_MAX),
            };
            step.effects.push(Effect::LoadBacklog { from, limit });
        }
        if self.queued > 0 && self.loading_queued.is_none() && self.may_deal() {
            self.loading_queued = Some(CameSince::default());
            let room = self.rules.window.room(self.unresolved());
            let limit = room.clamp(1, LOAD_MAX); // a gap is lent without room
            step.effects.push(Effect::LoadQueued { limit });
        }
    }

    /// How many more attempts may be out.
    fn room(&self) -> u64 {
        self.depth.limit().saturating_sub(self.unmined)
    }

    /// Whether an attempt at this nonce may be out. One that stands before others that are out does
    /// not wait for room: they would wait for it.
    fn has_room_for(&self, nonce: Nonce) -> bool {
        self.room() > 0
            || mutation::is_on(Mutation::IgnoreDepth)
            || self
                .slots
                .last_key_value()
                .is_some_and(|(last, _)| *last > nonce)
    }

    /// Writes an event, and its number into the tx's history.
    fn emit_event(
        &mut self,
        step: &mut Step,
        tx: Option<&mut Tx>,
        kind: EventKind,
        now: Timestamp,
    ) {
        self.event_seq = self.event_seq.saturating_add(1);
        let tx_id = tx.as_ref().map(|tx| tx.id);
        if let Some(tx) = tx {
            tx.event_seqs.push(self.event_seq);
        }
        step.writes.events.push(Event {
            seq: self.event_seq,
            at: now,
            tx_id,
            kind,
        });
    }

    /// Which lane it is.
    #[must_use]
    pub fn key(&self) -> LaneKey {
        self.key
    }

    /// The right under which it is held.
    #[must_use]
    pub fn lease_grant(&self) -> LeaseGrant {
        self.lease_grant
    }

    /// The next nonce that was never dealt.
    #[must_use]
    pub fn next_nonce(&self) -> Nonce {
        self.next_nonce
    }

    /// The sequence number of its last event.
    #[must_use]
    pub fn event_seq(&self) -> u64 {
        self.event_seq
    }

    /// How many batches became durable.
    #[must_use]
    pub fn batch_seq(&self) -> u64 {
        self.batch_seq
    }

    /// No open tx has a nonce below this one; the cursor when none is open. Whoever reads the lane
    /// next starts here, however many finished txs lie below.
    #[must_use]
    pub fn floor_nonce(&self) -> Nonce {
        let out = self.slots.first_key_value().map(|(nonce, _)| *nonce);
        let waits = self
            .backlog
            .filter(|_| !mutation::is_on(Mutation::ForgetBacklogInFloor));
        let lowest = out.into_iter().chain(waits).min();
        lowest.map_or(self.next_nonce, |nonce| nonce.min(self.next_nonce))
    }

    /// The txs that are being signed, out or mined, with their request ids: what to name when the store
    /// has lost them.
    pub fn in_flight(&self) -> impl Iterator<Item = &Tx> {
        self.slots.values().map(|slot| &slot.tx)
    }

    /// What the chain last said of the account.
    #[must_use]
    pub fn chain_nonces(&self) -> Option<AccountNonces> {
        self.chain.map(|known| known.nonces)
    }

    /// The nonces that the chain waits for and nobody holds.
    #[must_use]
    pub fn gaps(&self) -> Vec<Nonce> {
        self.gaps.keys().chain(&self.fresh_gaps).copied().collect()
    }

    /// The hashes of all attempts that may be mined.
    pub fn hashes(&self) -> impl Iterator<Item = B256> {
        self.by_hash.keys().copied()
    }

    /// Whether nothing is open and no fork is watched for, so that the lane may be given back.
    #[must_use]
    pub fn may_be_released(&self) -> bool {
        self.is_idle() && self.finals.is_empty()
    }

    /// Whether nothing is open. A gap that nobody waits behind
    /// is no work: whoever reads the lane next finds it again.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.slots.is_empty()
            && self.backlog.is_none()
            && self.queued == 0
            && self.reopening.is_empty()
    }

    /// Why it does not move, in words; `None` when it does or has nothing to do.
    #[must_use]
    pub fn waiting_for(&self) -> Option<String> {
        if let Some(reason) = self.misplaced.as_ref().or(self.halted.as_ref()) {
            return Some(reason.clone());
        }
        if self.paused {
            return Some("an operator paused the lane".into());
        }
        if self.is_idle() {
            return None;
        }
        if self.chain.is_none() && self.rules.chain_query != ChainQuery::Off {
            return Some("the chain does not answer with the account's nonce yet".into());
        }
        if self.view.is_none() {
            return Some("the chain's head is not known yet".into());
        }
        let head = self
            .slots
            .values()
            .find(|slot| slot.stage != Stage::Mined)?;
        head.tx.reason.clone()
    }
}

impl Slot {
    /// A tx that is about to get its first attempt.
    fn new(tx: Tx, kind: AttemptKind, now: Timestamp) -> Self {
        Self {
            tx,
            kind,
            attempts: Vec::new(),
            stage: Stage::Signing,
            signing: Some(kind),
            claimed_at: now,
            left_at: now,
            retry_at: None,
            sign_at: None,
            tries: 0,
            is_blocked: false,
            is_foreign_pending: false,
            is_said_used: false,
            may_be_out: false,
            rejections: 0,
            resubmits: 0,
            lent_for: None,
            overdue_since: None,
        }
    }
}
