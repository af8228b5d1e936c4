//! How a lane decides. One step at a time, on one task, with no await inside.
//!
//! A lane in memory is a *draft* as long as its step is not committed: the shard takes it out of its
//! map, steps it, commits the writes, and puts it back only when the store answers Applied. A request whose id is
//! stored already is retracted; any other answer discards the draft and the lane is loaded again. So memory never
//! knows more than the store.
//!
//! Memory is O(in-flight txs), not O(waiting txs): txs beyond the mempool depth stay in the store.
//!
//! A lane consists of parts with one responsibility each (`ledger`, `slots`, `paging`, `chain`, `mempool`, `finals`,
//! `reservations`, `reconciliation`, `possible_loss`, `unrecorded`, `holds`, `journal`, `head`), which keep their own
//! invariants. The other files hold the rules, by what happens: `allocation`, `funds`, `signing`, `sending`, `rejection`,
//! `resubmission`, `inclusion`, `reorg`, `chain_nonces` (with `endpoint_nonces`), `nonce_claims`, `foreign_use`,
//! `attribution` (with `consumers`). `status` is what the lane shows of itself; `checkpoint` retracts accepts that were not
//! committed.

pub mod protocol;
pub mod reservations;
pub mod rules;

mod chain;
mod checkpoint;
mod consumers;
mod context;
mod cost;
mod finals;
mod head;
mod holds;
mod journal;
mod ledger;
mod mempool;
mod paging;
mod possible_loss;
mod reconciliation;
mod slots;
mod unrecorded;

mod allocation;
mod attribution;
mod chain_nonces;
mod endpoint_nonces;
mod foreign_use;
mod funds;
mod inclusion;
mod nonce_claims;
mod rejection;
mod reorg;
mod resubmission;
mod sending;
mod signing;
mod status;

#[cfg(test)]
mod tests;

pub use checkpoint::LaneCheckpoint;
pub use consumers::{ConsumersDisputed, agree_on_consumers};
pub use cost::OpenCost;
pub(crate) use cost::total as total_cost;
pub use finals::BELOW_VIEW_MAX;
pub use funds::FundsDecision;
pub use protocol::{
    AccountBalance, AccountNonces, AdmittedRequest, Agreement, ConsumedNonce, Effect,
    EndpointNonces, FinalTx, HeadWait, Input, LaneImage, LaneWait, MinedRows, MinedTransaction,
    NonceConsumer, OpenSummary, Receipt, Step, WatchedBlock, Writes,
};
pub use rules::{
    BalanceCheck, CapacityRules, ChainQuery, ConfirmationRules, FOREIGN_FINALITY_DEPTH_MIN,
    Finality, FinalityTag, LaneRules, NonceRules, OnForeignNonce, Resubmit, ResubmitPolicy,
};
pub use unrecorded::{UNRECORDED_MAX, UNRECORDED_PREFIX};

use crate::{Attempt, LaneKey, NodeName, Timestamp, Tx, TxId};

use chain::ChainKnowledge;
use context::StepContext;
use finals::WatchedFinals;
use holds::Holds;
use journal::Journal;
use ledger::NonceLedger;
use mempool::MempoolControl;
use paging::Paging;
use reconciliation::{Reconciliation, StoredNonces};
use reorg::ReorgDepth;
use reservations::ReservationTracker;
use slots::{Slot, SlotTable};
use unrecorded::UnrecordedTransactions;

/// The most txs that one load brings into memory.
pub const LOAD_MAX: u64 = 500;
/// The most receipts that one step fetches; the rest follow when these are in.
pub const RECEIPTS_MAX: usize = 500;

/// A lane in the memory of its keeper.
#[derive(Clone, Debug)]
pub struct Lane {
    key: LaneKey,
    rules: LaneRules,
    /// The grant under which it is kept, and the numbering of its events and batches.
    journal: Journal,
    /// Why it does no work, or makes no progress.
    holds: Holds,
    /// Its nonces that no tx holds.
    ledger: NonceLedger,
    /// Its in-flight txs.
    slots: SlotTable,
    /// Its txs that wait in the store.
    paging: Paging,
    /// What it knows of its chain.
    chain: ChainKnowledge,
    /// How many attempts may be in nodes' pools.
    mempool: MempoolControl,
    /// Its final results that are watched for reorgs.
    finals: WatchedFinals,
    /// What its reservations wait for.
    reservations: ReservationTracker,
    /// What must still be compared with the chain after the load.
    reconciliation: Reconciliation,
}

impl Lane {
    /// A lane as it was just read from the store. The first step records the takeover from `previous_keeper`.
    #[must_use]
    pub fn load(image: LaneImage, rules: LaneRules, previous_keeper: Option<NodeName>) -> Self {
        let mut lane = Self {
            key: image.key,
            rules,
            journal: Journal::load(&image, previous_keeper),
            holds: Holds::new(image.paused, image.open.head),
            ledger: NonceLedger::new(image.next_nonce, image.consumed_below),
            slots: SlotTable::default(),
            paging: Paging::new(image.backlog_from, image.open.queued),
            chain: ChainKnowledge::load(image.open.reported),
            mempool: MempoolControl::new(rules.capacity.mempool_depth),
            finals: WatchedFinals::default(),
            reservations: ReservationTracker::default(),
            reconciliation: Reconciliation::new(
                StoredNonces::new(image.next_nonce, image.held, image.consumed_below),
                UnrecordedTransactions::load(image.mined.unrecorded),
            ),
        };
        for final_tx in image.mined.finals {
            lane.ledger.mark_consumed(final_tx.nonce);
            lane.finals.watch(final_tx);
        }
        for (tx, attempts) in image.in_flight {
            lane.load_in_flight(tx, attempts);
        }
        lane
    }

    /// The same keeper reads its lane again, without an ownership change: what nodes have accepted is not sent again.
    #[must_use]
    pub fn with_known_deliveries(mut self) -> Self {
        self.reconciliation.are_deliveries_known = true;
        self
    }

    /// Brings a tx with attempts into memory, at the stage that its row shows.
    fn load_in_flight(&mut self, tx: Tx, mut attempts: Vec<Attempt>) {
        let Some(nonce) = tx.nonce else { return };
        self.holds.note_misplaced(self.misplaced_reason(&tx));
        // A tx that got another nonce keeps its old attempts; none of them can be mined any more.
        attempts.retain(|attempt| attempt.nonce == nonce);
        attempts.sort_by_key(Attempt::order);
        if attempts.is_empty() {
            self.paging.defer(nonce);
            return;
        }
        self.slots
            .insert(self.key, nonce, Slot::loaded(tx, attempts));
    }

    /// Applies one input. Pure: the same lane and input give the same step.
    pub fn step(&mut self, input: Input, now: Timestamp) -> Step {
        let mut cx = StepContext::new(now);
        self.journal.emit_takeover(&mut cx);
        self.apply(input, &mut cx);
        self.finish_reports();
        self.request_work(&mut cx);
        cx.into_step(self.journal.token())
    }

    fn apply(&mut self, input: Input, cx: &mut StepContext) {
        match input {
            Input::Accept(request) => self.accept(request, cx),
            Input::Queued { txs, more } => self.receive_queue_page(txs, more, cx),
            Input::Backlog { txs, more } => self.receive_backlog_page(txs, more, cx),
            Input::Signed(attempt) => self.on_signed(attempt, cx),
            Input::SigningFailed {
                nonce,
                reason,
                retryable,
            } => self.on_signing_failed(nonce, reason, retryable, cx),
            Input::Sent {
                hash,
                nonce,
                outcome,
            } => self.on_sent(hash, nonce, outcome, cx),
            Input::Receipts(receipts) => self.on_receipts(receipts, cx),
            Input::RevertReason { tx_hash, reason } => self.on_revert_reason(tx_hash, reason, cx),
            Input::Head(view) => self.on_head(view, cx),
            Input::AccountNonces {
                nonces,
                counts_pool,
            } => self.on_account_nonces(nonces, counts_pool, cx),
            Input::Balance { queried_at, answer } => {
                self.on_balance(queried_at, answer);
                self.end_blocked_head(answer, cx);
            }
            Input::Consumed {
                nonce,
                up_to,
                by,
                hashes,
                is_named,
            } => self.on_consumed(nonce, up_to, by, (&hashes, is_named), cx),
            Input::NoncesAttributed { up_to, found } => self.on_nonces_attributed(up_to, found, cx),
            Input::Finals(txs) => self.reopen_finals(txs, cx),
            Input::OldHeaders(headers) => self.on_old_headers(&headers, cx),
            Input::QueueChanged => self.paging.enqueue(None),
            Input::Tick { fresh } => self.on_tick(fresh, cx),
            Input::Pause(paused) => {
                self.holds.is_paused = paused;
                cx.writes.paused = Some(paused);
            }
        }
    }

    /// Time has passed.
    fn on_tick(&mut self, filler: TxId, cx: &mut StepContext) {
        self.clamp_times(cx.now);
        self.retry_due_slots(cx);
        self.fetch_overdue_receipts(cx);
        self.expire_reservations(cx);
        self.resubmit_head(cx);
        self.fill_smallest_gap(filler, cx);
        self.compare_stored_head(cx.now);
        self.continue_search(cx);
        self.query_unproven_nonces(cx);
        let timeout = self.rules.nonce.chain_nonce_timeout;
        let is_known = self.chain.nonces().is_some();
        if is_known && self.chain.is_older_than(timeout, cx.now) && !self.is_idle() {
            self.query_chain_nonces(cx);
        }
    }

    /// A wall clock that was set back must not postpone everything until it has caught up.
    fn clamp_times(&mut self, now: Timestamp) {
        for (_, slot) in self.slots.range_mut(..) {
            slot.clamp_times(now);
        }
        self.ledger.clamp_times(now);
        self.chain.clamp_times(now);
        self.finals.clamp_times(now);
        self.mempool.clamp_times(now);
        self.holds.head.clamp_times(now);
        self.reconciliation.clamp_times(now);
    }

    /// Requests more work where there is room for it.
    fn request_work(&mut self, cx: &mut StepContext) {
        if self.reconciliation.finish() {
            cx.effects.push(Effect::MarkReconciled);
        }
        // An answer that is not proven is no knowledge: then the next query has its own time.
        let is_unknown = self.chain.nonces().is_none() && self.chain.claim.is_none();
        if is_unknown && self.rules.nonce.chain_query != ChainQuery::Off {
            self.query_chain_nonces(cx);
        }
        self.probe_mempool(cx);
        self.request_pages(cx);
    }

    /// Counts the batch that made all steps since the last call durable.
    pub fn count_batch(&mut self) {
        self.journal.batch_seq = self.journal.batch_seq.saturating_add(1);
        self.journal.stored_floor = Some(self.floor_nonce());
        self.journal.has_stored_final = self.newest_final().is_some();
        self.mark_head_stored();
    }

    /// Notes that all steps since the last call are durable.
    pub fn on_commit(&mut self, now: Timestamp) {
        self.ledger.on_commit(now);
    }
}
