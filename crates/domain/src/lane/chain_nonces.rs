//! The account's nonces as the chain reports them: they reconcile a lane that was just loaded, and raise suspicions
//! afterwards. They never lower the cursor.

use std::collections::BTreeSet;
use std::time::Duration;

use alloy_primitives::B256;

use crate::window::gaps;
use crate::{Nonce, Timestamp};

use super::{AccountNonces, Agreement, ChainQuery, Effect, EndpointNonces, Lane, StepContext};

/// A query that needs agreeing endpoints is repeated after this pause.
pub(super) const QUORUM_QUERY_PAUSE: Duration = Duration::from_secs(3);
/// How long an accepted attempt that the node does not hold waits until it is sent again.
const LOST_ATTEMPT_WAIT: Duration = Duration::from_secs(2);

impl Lane {
    /// Queries the account's nonces, unless an answer is awaited already.
    pub(super) fn query_chain_nonces(&mut self, cx: &mut StepContext) {
        self.chain.query_nonces(self.lowest_submitted(), cx);
    }

    /// Queries the account's nonces so that a second endpoint, where there is one, must agree.
    pub(super) fn query_with_quorum(&mut self, cx: &mut StepContext) {
        self.chain.needs_quorum = true;
        self.query_chain_nonces(cx);
    }

    /// Something waits for an answer that a second endpoint confirms: the next query needs that, and is soon.
    /// (Where the chain is queried all the time anyway, only this makes those answers count.)
    pub(super) fn keep_querying_with_quorum(&mut self, cx: &mut StepContext) {
        self.chain.needs_quorum = true;
        if self.chain.is_older_than(QUORUM_QUERY_PAUSE, cx.now) {
            self.query_chain_nonces(cx);
        }
    }

    /// The lowest unmined attempt, if a node confirmed that it has it.
    pub(super) fn lowest_submitted(&self) -> Option<(Nonce, B256)> {
        if self.chain.is_querying() {
            return None; // only a new query carries it, and finding it walks over all mined slots
        }
        let (nonce, slot) = self.slots.unmined(..).next()?;
        let mut newest_first = slot.attempts().iter().rev();
        let sent = newest_first.find(|a| a.first_sent_at.is_some())?;
        slot.is_submitted().then_some((nonce, sent.hash))
    }

    pub(super) fn on_account_nonces(
        &mut self,
        nonces: EndpointNonces,
        counts_pool: bool,
        cx: &mut StepContext,
    ) {
        self.chain.finish_query(nonces.agreement, cx.now);
        self.count_awaited_answer(cx);
        let is_loading = self.reconciliation.stored.is_some();
        let was_used = !is_loading || self.ledger.cursor() > Nonce(0);
        let Some(nonces) = self.judge_claim(nonces, was_used, cx) else {
            return; // nothing of an answer that is not credible is used
        };
        let highest = nonces.highest();
        self.chain
            .set_nonces(&nonces, self.rules.nonce.chain_query, cx.now);
        self.raise_cursor(&nonces, was_used, cx);
        if self.is_halted() {
            return;
        }
        self.reconcile(highest, cx.now);
        if self.is_halted() {
            return;
        }
        self.update_gaps(highest, nonces.agreement, cx.now);
        // Where no answer shows what the node's pool holds, what it accepted counts as held.
        let held = match counts_pool {
            true => nonces.first.pending,
            false => self.ledger.cursor(),
        };
        self.mempool.finish_probe(nonces.first.latest, held, cx.now);
        self.resend_lost_attempts(held, cx.now);
        if is_loading {
            self.fetch_missing_receipts(highest.latest, cx);
        } else {
            self.chain.await_receipts(highest.latest, cx.now);
        }
        self.read_proven_receipts(highest.latest, cx);
        self.check_foreign_use(cx);
        if is_loading {
            self.resend_loaded(highest.latest, cx);
        }
    }

    /// The chain never lowers the cursor, and raises it only by a credible claim.
    fn raise_cursor(&mut self, nonces: &EndpointNonces, was_used: bool, cx: &mut StepContext) {
        if self.reconciliation.loss.is_some() {
            self.search_lost_commits(nonces, cx);
            return;
        }
        let rule = self.rules.nonce.chain_query;
        let reported = rule.next_nonce(nonces.highest());
        if !was_used && !nonces.is_complete() {
            self.holds.halted = Some(unconfirmed_first_use(reported));
            if !self.chain.was_queried_with_quorum() {
                self.query_with_quorum(cx);
            }
            return;
        }
        if self.ledger.cursor().until(reported) == 0 {
            return;
        }
        if was_used {
            self.report_foreign_nonce(None, cx);
        }
        let agreed = nonces.confirmed();
        self.ledger
            .raise_cursor(rule.next_nonce(agreed), agreed.latest);
    }

    /// Queries again what one answer, or one endpoint, does not prove.
    pub(super) fn query_unproven_nonces(&mut self, cx: &mut StepContext) {
        if self.ledger.has_suspected_gaps() || self.waits_for_claim() || self.waits_for_first_use()
        {
            self.keep_querying_with_quorum(cx);
        }
    }

    /// Whether an account that was never used waits for a second endpoint.
    fn waits_for_first_use(&self) -> bool {
        let is_loading = self.reconciliation.stored.is_some();
        is_loading && self.ledger.cursor() == Nonce(0) && self.is_halted() && !self.is_idle()
    }

    /// Finds the nonces below the cursor that no tx holds and the chain waits for, once after the load. More of
    /// them than a credible jump means that the node is far behind, or serves another chain: not one of them is
    /// allocated, and the next answer decides anew.
    fn reconcile(&mut self, nonces: AccountNonces, now: Timestamp) {
        let Some(stored) = self.reconciliation.stored.take() else {
            return;
        };
        let floor = nonces.latest.max(stored.consumed_below);
        let (cursor, max) = (stored.cursor, self.rules.nonce.max_chain_jump);
        match gaps(floor, cursor, &stored.held, max) {
            // A nonce that was freed since the load is a gap already.
            Some(found) => self.ledger.add_found(found, nonces.pending, now),
            None => {
                self.holds.halted = Some(format!(
                    "the chain reports {} as the next nonce, but the lane's cursor is {cursor} and more than \
                     nonce.maxChainJump ({max}) of those between are held by no tx: check that the node is in sync \
                     and serves the right chain",
                    nonces.latest
                ));
                self.reconciliation.stored = Some(stored);
            }
        }
    }

    /// Updates the gaps: a foreign transaction may have vanished from a pool, or a reorg may have taken it.
    fn update_gaps(&mut self, nonces: AccountNonces, agreement: Agreement, now: Timestamp) {
        self.ledger.drop_used(nonces);
        // Txs that are being reopened hold their nonces again in a moment.
        let holes = match self.finals.is_reopening() {
            true => BTreeSet::new(),
            false => {
                let cursor = self.ledger.cursor();
                let until = self.paging.backlog_from().unwrap_or(cursor);
                let held = self.slots.nonces_from(nonces.latest);
                let max = self.rules.nonce.max_chain_jump;
                self.ledger.holes(nonces.latest, until, held, max)
            }
        };
        // A reservation ends by one answer of a quorum, so that is enough for a contested nonce too. A holder elsewhere
        // may have used the nonce, so nothing less counts; a mistake about our own nonces is found when it is sent.
        let needed = match self.is_reserving() {
            true => Agreement::Quorum,
            false => Agreement::Living,
        };
        let certainty = (agreement >= needed, self.is_reserving());
        self.ledger
            .apply_chain_nonces(nonces, holes, certainty, now);
    }

    /// Sends again what a node accepted and does not hold any more: it lost its pool, dropped them, or never held
    /// them. The wait keeps a node that accepts everything and holds nothing from being sent to without end.
    fn resend_lost_attempts(&mut self, pending: Nonce, now: Timestamp) {
        if self.rules.nonce.chain_query != ChainQuery::Pending {
            return;
        }
        for (_, slot) in self.slots.range_mut(pending..) {
            let is_long_ago = now.since(slot.history.last_sent_at) >= LOST_ATTEMPT_WAIT;
            let is_lost = slot.is_submitted() && is_long_ago;
            let Some(delivery) = slot.delivery_mut().filter(|_| is_lost) else {
                continue;
            };
            if delivery.retry_at.is_none() {
                delivery.retry_at = Some(now);
                slot.history.last_sent_at = now;
            }
        }
    }

    /// Receipts come from the follower, a block at a time. Those that did not come in time are fetched by hash.
    pub(super) fn fetch_overdue_receipts(&mut self, cx: &mut StepContext) {
        if let Some(latest) = self.chain.take_overdue_receipts(cx.now) {
            self.fetch_missing_receipts(latest, cx);
        }
    }

    /// After a takeover or a restart: what was claimed may never have been sent, so it is sent now. The same keeper
    /// sends only what no node has accepted; what a node has lost since, the account's pending nonce shows.
    fn resend_loaded(&mut self, latest: Nonce, cx: &mut StepContext) {
        let skips_submitted = self.reconciliation.are_deliveries_known;
        for (_, slot) in self.slots.range_mut(latest..) {
            let is_at_a_node = skips_submitted && slot.is_submitted();
            let needs_send = !slot.is_mined() && !is_at_a_node;
            // A slot whose first attempt is being signed has nothing to send; its retry stays.
            let Some(newest) = slot.newest().filter(|_| needs_send) else {
                continue;
            };
            if let Some(delivery) = slot.delivery_mut() {
                delivery.retry_at = None;
            }
            cx.effects.push(Effect::Send(newest));
        }
    }
}

/// One endpoint could make a lane begin at a wrong nonce, and nothing of the lane would contradict it.
fn unconfirmed_first_use(reported: Nonce) -> String {
    format!(
        "the account is used for the first time, an endpoint reports {reported} as its next nonce, and no second endpoint \
         has confirmed that yet"
    )
}
