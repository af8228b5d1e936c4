//! What a lane does while commits of it may be lost: it finds out what consumed every nonce that no tx of the store
//! holds, before it allocates another one.
//!
//! A lost commit may have sent a request that is still queued, or whose row is gone and that its client sends again.
//! Such a transaction is recorded as a row ([`unrecorded`](super::unrecorded)) and accounts for one equal request, which is
//! held. Above the cursor it proves a loss: the lane halts until an operator accepts that. A nonce whose transaction no two
//! endpoints show stays unknown, and nothing is allocated until they do. A nonce that a tx holds is searched as well as long as
//! no receipt shows that this tx consumed it: a lost commit may have ended the tx and allocated its nonce again.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::window::gaps;
use crate::{B256, EventKind, Nonce, SubState, Tx};

use super::foreign_use::foreign_final_height;
use super::possible_loss::{Heights, PossibleLoss, SECOND_ANSWER_AFTER};
use super::slots::Slot;
use super::unrecorded::{UNRECORDED_MAX, new_row};
use super::{ConsumedNonce, Effect, EndpointNonces, Lane, MinedTransaction, StepContext};

/// How many of an account's newest transactions are read for a lane without any tx that holds a nonce.
const FIRST_COMMITS_MAX: u64 = 1_000;
/// How many transactions a reason names; the rest are counted.
const NAMED_MAX: usize = 20;

impl Lane {
    /// Commits of the lane may be lost: its store has another history than when the lane was last reconciled. The cursor was
    /// compared with the chain just now, unless `is_accepted`: an operator has accepted the loss, so the lane does not halt
    /// for it.
    #[must_use]
    pub fn with_possible_loss(mut self, is_accepted: bool) -> Self {
        let cursor = self.ledger.cursor();
        let mut unknown = BTreeSet::new();
        let mut unsigned = Vec::new();
        let mut is_too_large = false;
        if let Some(stored) = &self.reconciliation.stored {
            let from = match (stored.consumed_below, stored.held.first()) {
                // Nonces below the first one of the store are the account's past as well.
                (Nonce(0), Some(run)) => Nonce(run.start),
                // Every nonce that the store knows of was freed again: any of the newest may be ours.
                (Nonce(0), None) => Nonce(cursor.0.saturating_sub(FIRST_COMMITS_MAX)),
                (below, _) => below,
            };
            let most = UNRECORDED_MAX as u64;
            match gaps(from, cursor, &stored.held, most) {
                Some(unheld) if !self.is_reserving() => {
                    let is_new = |nonce: &Nonce| !self.reconciliation.unrecorded.contains(*nonce);
                    unknown = unheld.into_iter().filter(is_new).collect();
                    let sent = self.slots.iter().map(|(nonce, _)| nonce.0);
                    unsigned = without(&stored.held, sent);
                }
                Some(_) => {}
                None => is_too_large = true,
            }
        }
        let mut loss = PossibleLoss::new(cursor, unknown, is_accepted);
        loss.set_unsigned(unsigned);
        if is_too_large {
            loss.mark_too_large();
        }
        self.reconciliation.loss = Some(loss);
        self
    }

    /// Applies an answer of the chain while commits may be lost, in place of the rule for foreign use: the cursor is
    /// raised only over recorded transactions.
    pub(super) fn search_lost_commits(&mut self, nonces: &EndpointNonces, cx: &mut StepContext) {
        let (latest, pending) = (nonces.highest().latest, nonces.highest().pending);
        let cursor = self.ledger.cursor();
        let is_reserving = self.is_reserving();
        let Some(loss) = self.reconciliation.loss.as_mut() else {
            return;
        };
        if loss.is_halting() {
            return;
        }
        // A lane that never had a tx has a past that is not ours. Should its first commits be lost, theirs are the newest.
        let from = match cursor {
            Nonce(0) => Nonce(latest.0.saturating_sub(FIRST_COMMITS_MAX)),
            _ => cursor,
        };
        let most = UNRECORDED_MAX as u64;
        let recorded = self.reconciliation.unrecorded.len() as u64;
        if loss.is_too_large() || from.until(latest) > most || recorded > most {
            loss.reopen();
            self.holds.note_too_many_unknown();
            return;
        }
        self.holds.halted = None;
        if !is_reserving {
            let above = (from.0..latest.0).map(Nonce);
            loss.drop_unknown_from(cursor.max(latest));
            loss.add_unknown(
                above.filter(|nonce| !self.reconciliation.unrecorded.contains(*nonce)),
            );
        }
        let used = latest.max(pending);
        self.note_unproven_below(used);
        let is_shown = self.is_own_use_shown(latest);
        let Some(loss) = self.reconciliation.loss.as_mut() else {
            return;
        };
        let is_pending_unknown = used > cursor.max(latest);
        let is_unproven = !is_reserving && loss.unproven_below(used).is_some();
        if is_pending_unknown || is_unproven || loss.unknown_below(used).is_some() {
            loss.reopen();
        } else if nonces.is_complete() && is_shown {
            loss.note_last_answer(cx.now);
            if loss.note_clean_answer(cx.now) {
                self.conclude_search(latest, cx);
            }
        }
        if self.reconciliation.is_searching() {
            self.chain.needs_quorum = true;
        }
        self.query_consumers(cx);
    }

    /// A tx that has sent nothing does not explain what is consumed or pending at its nonce: a lost commit may have ended
    /// it, and allocated its nonce again.
    fn note_unproven_below(&mut self, used: Nonce) {
        let Some(loss) = self.reconciliation.loss.as_mut() else {
            return;
        };
        let is_waiting = |nonce: Nonce| match self.slots.get(nonce) {
            Some(slot) => !slot.is_mined(),
            None => !self.paging.is_before_backlog(nonce),
        };
        let is_unsent = |nonce: &Nonce| match self.slots.get(*nonce) {
            Some(slot) => !slot.is_mined() && slot.attempts().is_empty(),
            None => !self.paging.is_before_backlog(*nonce),
        };
        let unsigned = loss.take_unsigned_below(used, UNRECORDED_MAX);
        loss.add_unproven(unsigned.into_iter().filter(is_unsent));
        loss.retain_unproven(is_waiting);
    }

    /// Whether receipts show that our attempts consumed the nonces of our txs below this one, and no node reports another
    /// transaction at one above: a lost commit may have replaced them.
    fn is_own_use_shown(&self, latest: Nonce) -> bool {
        let backlog = self.paging.backlog_from();
        let has_backlog_below = backlog.is_some_and(|from| from < latest);
        let mut unmined = self.slots.unmined(..);
        let is_unshown =
            |(nonce, slot): (Nonce, &Slot)| nonce < latest || slot.history.is_foreign_pending;
        self.is_reserving() || !(has_backlog_below || unmined.any(is_unshown))
    }

    /// Two answers agree that every consumed nonce is known.
    fn conclude_search(&mut self, latest: Nonce, cx: &mut StepContext) {
        let reason = self.describe_loss(latest);
        let Some(loss) = self.reconciliation.loss.as_mut() else {
            return;
        };
        if let Some(reason) = reason.filter(|_| !loss.is_accepted) {
            loss.halt();
            self.holds.halted = Some(reason.clone());
            cx.effects.push(Effect::Halt(reason));
            return;
        }
        loss.settle();
        let cursor = self.ledger.cursor();
        if latest > cursor {
            if self.is_reserving() {
                let kind = EventKind::LaneForeignNonce {
                    nonce: cursor,
                    tx_hash: None,
                };
                self.journal.emit_event(None, kind, cx);
            }
            self.ledger.raise_cursor(latest, latest);
        }
    }

    /// What was lost, for the operator; `None` when nothing proves a loss. A recorded transaction below the cursor does
    /// not: the store may have known that a foreign one stood there.
    fn describe_loss(&self, latest: Nonce) -> Option<String> {
        let cursor = self.ledger.cursor();
        // An account may have a past of its own before its lane's first tx.
        if latest <= cursor || cursor == Nonce(0) {
            return None;
        }
        let last = latest.0.saturating_sub(1);
        let hashes = self.reconciliation.unrecorded.from(cursor);
        let named = hashes.filter_map(|(nonce, tx)| Some(format!("{nonce}: {}", tx.tx_hash?)));
        Some(format!(
            "the database's history changed and commits were lost: the chain has transactions at nonces {cursor} to {last} \
             that the store does not know{}. Compare with the chain, then resume the lane",
            listed(named)
        ))
    }

    /// Queries the chain again while the search is open.
    pub(super) fn continue_search(&mut self, cx: &mut StepContext) {
        self.query_consumers(cx);
        let heights = self.view_heights();
        let nonces = (self.ledger.cursor(), self.floor_nonce());
        let Some(loss) = self.reconciliation.loss.as_mut() else {
            return;
        };
        let awaits_last = loss.follow_aftermath(heights, nonces, cx.now);
        if loss.is_halting() || (loss.is_settled() && !awaits_last) {
            return;
        }
        if loss.is_clean() && self.chain.is_older_than(SECOND_ANSWER_AFTER, cx.now) {
            self.query_with_quorum(cx);
        } else {
            self.keep_querying_with_quorum(cx);
        }
    }

    fn view_heights(&self) -> Option<Heights> {
        let view = self.chain.view.as_ref()?;
        Some(Heights {
            tip: view.headers.tip()?.number,
            final_height: foreign_final_height(self.rules.confirmations.finality, view),
        })
    }

    /// Queries which transactions consumed the lowest unknown nonces, up to the newest block that counts.
    pub(super) fn query_consumers(&mut self, cx: &mut StepContext) {
        let latest = self.chain.latest();
        let (Some(loss), Some(view)) =
            (self.reconciliation.loss.as_mut(), self.chain.view.as_ref())
        else {
            return;
        };
        let height = foreign_final_height(self.rules.confirmations.finality, view);
        let Some(up_to) = height.and_then(|height| view.headers.at(height).copied()) else {
            return;
        };
        if let Some(nonces) = loss.next_query(latest, up_to.number, cx.now) {
            cx.effects.push(Effect::AttributeNonces { nonces, up_to });
        }
    }

    /// The answer to that query. What was found is recorded before anything is allocated.
    pub(super) fn on_nonces_attributed(
        &mut self,
        up_to: u64,
        found: Option<Vec<ConsumedNonce>>,
        cx: &mut StepContext,
    ) {
        let Some(loss) = self.reconciliation.loss.as_mut() else {
            return;
        };
        let is_shown = |consumed: &ConsumedNonce| consumed.transaction.is_some();
        let shown = found.as_ref().map(|found| found.iter().any(is_shown));
        loss.finish_query(up_to, shown, cx.now);
        let unseen = found.iter().flatten().find(|one| one.transaction.is_none());
        loss.set_unattributed(unseen.map(|one| one.nonce));
        for consumed in found.into_iter().flatten() {
            let Some(transaction) = consumed.transaction else {
                break; // without it nothing shows what was paid: queried again at every block
            };
            let loss = self.reconciliation.loss.as_mut();
            if loss.is_some_and(|loss| loss.remove_unknown(consumed.nonce)) {
                self.record_unrecorded(consumed.nonce, &transaction, cx);
            }
        }
        self.query_consumers(cx);
    }

    fn record_unrecorded(
        &mut self,
        nonce: Nonce,
        transaction: &MinedTransaction,
        cx: &mut StepContext,
    ) {
        if self.reconciliation.unrecorded.contains(nonce) {
            return; // a reorg reopened it since
        }
        let kind = EventKind::LaneForeignNonce {
            nonce,
            tx_hash: Some(transaction.hash),
        };
        self.journal.emit_event(None, kind, cx);
        let token = self.journal.token();
        let mut tx = new_row(self.key, (nonce, transaction), token, cx.now);
        let kind = EventKind::TxAccepted { nonce: None };
        self.journal.emit_event(Some(&mut tx), kind, cx);
        let reason = format!(
            "nonce {nonce} was consumed by {}, which no tx of the store recorded: commits were lost. An equal request is \
             held instead of being executed again",
            transaction.hash
        );
        self.journal
            .mark_stuck(&mut tx, SubState::ForeignNonce, reason, cx);
        self.reconciliation.unrecorded.insert(nonce, tx.clone());
        cx.writes.inserts.push(tx);
    }

    fn end_unrecorded(&mut self, tx: Tx, reason: String, cx: &mut StepContext) {
        self.journal
            .end_failed(tx, SubState::ForeignNonce, reason, cx);
        if let Some(ended) = cx.writes.updates.last() {
            self.reconciliation.unrecorded.replace(ended.clone());
        }
    }

    /// Whether the effect of this queued tx may be on chain already; then it is held for a decision, and the transaction
    /// accounts for no other request.
    pub(super) fn hold_if_executed(&mut self, tx: &mut Tx, cx: &mut StepContext) -> bool {
        let Some(hash) = self.account_for(tx, cx) else {
            return false;
        };
        let reason = format!(
            "{hash} did exactly what this tx asks for, and no tx of the store recorded it: commits were lost, and it may \
             have been this request's. Compare with the chain"
        );
        self.journal
            .mark_stuck(tx, SubState::ForeignNonce, reason, cx);
        true
    }

    /// Lets an unrecorded transaction with the same effect account for this tx; its hash.
    pub(super) fn account_for(&mut self, tx: &Tx, cx: &mut StepContext) -> Option<B256> {
        let row = self.reconciliation.unrecorded.claim(&tx.request.payload)?;
        let hash = row.tx_hash;
        let reason = format!(
            "it accounts for request {} ({}), which is held",
            tx.request.request_id, tx.id
        );
        self.end_unrecorded(row, reason, cx);
        hash
    }

    /// Why nothing is allocated while commits may be lost, for people.
    pub(super) fn search_reason(&self) -> Option<String> {
        let loss = self.reconciliation.loss.as_ref()?;
        if loss.is_settled() {
            return None;
        }
        let unknown = loss.unknown_below(self.chain.latest());
        let detail = match (loss.unattributed(), unknown) {
            (Some(nonce), Some(_)) => format!(
                "nonce {nonce} is consumed, and no two endpoints (or the only one) show by which transaction: add an endpoint \
                 that has the account's states since then (an archive node)"
            ),
            (_, Some((lowest, highest))) => format!(
                "nonces {lowest} to {highest} are consumed by transactions that the store does not know; they are read \
                 from two endpoints when their blocks are final"
            ),
            (_, None) => "two endpoints (or the only one) have not shown twice that nothing unknown is pending".to_owned(),
        };
        Some(format!(
            "the database's history changed and commits may be lost: {detail}"
        ))
    }
}

/// These runs without the nonces in `taken`, which ascend.
fn without(runs: &[Range<u64>], taken: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    let mut taken = taken.peekable();
    for run in runs {
        let mut start = run.start;
        while let Some(nonce) = taken.next_if(|nonce| *nonce < run.end) {
            if start < nonce {
                left.push(start..nonce);
            }
            start = start.max(nonce.saturating_add(1));
        }
        if start < run.end {
            left.push(start..run.end);
        }
    }
    left
}

/// A list in parentheses with a few names; empty for none.
fn listed(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.collect();
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    match (names.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!(" ({})", names.join(", ")),
        (false, more) => format!(" ({} and {more} more)", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_lose_what_is_taken_from_them() {
        let runs = [2..5, 7..8, 10..13];
        let left = |taken: &[u64]| without(&runs, taken.iter().copied());
        assert_eq!(left(&[]), runs);
        assert_eq!(left(&[2, 4, 7, 11]), [3..4, 10..11, 12..13]);
        assert_eq!(left(&[0, 6, 12, 20]), [2..5, 7..8, 10..12]);
    }
}
