//! The chain moved: reorgs, blocks below the view, and final results that were reorged out.

use std::collections::BTreeSet;
use std::sync::Arc;

use alloy_primitives::B256;

use crate::headers::BlockPosition;
use crate::{Attempt, ChainView, EventKind, Header, Inclusion, Nonce, SubState, Tx, TxState};

use super::slots::Slot;
use super::{Effect, Lane, RECEIPTS_MAX, StepContext};

/// The most heights of one query for headers below the view.
const OLD_HEADERS_MAX: usize = 100;

/// How deep the reorg went that took a final result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReorgDepth {
    /// Within the view, or found by a check below it.
    Watched,
    /// Deeper than the view, so that the view was built anew: the tx waits for a decision.
    Deep,
}

impl Lane {
    /// The chain moved: reorgs first, then what became final.
    pub(super) fn on_head(&mut self, view: Arc<ChainView>, cx: &mut StepContext) {
        let before = self.chain.view.replace(view.clone());
        if before.is_none() {
            self.fetch_receipts_upon_entry(cx);
        }
        let is_deep = before.is_some_and(|before| before.deep_forks != view.deep_forks);
        if is_deep {
            self.on_deep_reorg(&view, cx);
        }
        let mined = self.slots.iter().filter(|(_, slot)| slot.is_mined());
        let mined: Vec<Nonce> = mined.map(|(nonce, _)| nonce).collect();
        for nonce in mined {
            self.update_confirmations(nonce, &view, cx);
        }
        self.check_below_view(&view, cx);
        let depth = match is_deep {
            true => ReorgDepth::Deep,
            false => ReorgDepth::Watched,
        };
        self.check_finals(&view, &[], depth, cx);
        self.count_blocked_head(cx);
        self.query_for_unproven(cx);
        self.check_foreign_use(cx);
        self.query_consumers(cx);
    }

    /// The first view of a lane that was just loaded: what is in flight may be mined already.
    fn fetch_receipts_upon_entry(&mut self, cx: &mut StepContext) {
        if self.rules.confirmations.fetch_receipt_upon_entry {
            self.fetch_missing_receipts(self.ledger.cursor(), cx);
        } else if let Some(known) = self.chain.nonces() {
            self.fetch_missing_receipts(known.nonces.latest, cx);
        }
    }

    /// Checks mined txs whose block is older than the view, after the chain was unreachable for long: their
    /// receipts, with proof, end them. A block that was reorged out has no receipts, so the headers at those heights
    /// are fetched too. One query at a time for many of them: at once while receipts come in, else now and then.
    pub(super) fn check_below_view(&mut self, view: &ChainView, cx: &mut StepContext) {
        if !self.finals.can_check_below_view(cx.now) {
            return;
        }
        let base = view.headers.base().map_or(0, |header| header.number);
        let mined = self.slots.iter();
        let old: Vec<&Inclusion> = mined
            .filter_map(|(_, slot)| slot.tx.inclusion.as_ref())
            .filter(|mined| mined.block_number < base)
            .filter(|mined| self.can_be_final(mined.block_number))
            .take(RECEIPTS_MAX)
            .collect();
        let unseen = self.finals.unseen_below(base);
        let heights = old.iter().map(|mined| mined.block_number).chain(unseen);
        let heights: BTreeSet<u64> = heights.collect();
        if heights.is_empty() {
            return;
        }
        let hashes: Vec<B256> = old.iter().map(|mined| mined.tx_hash).collect();
        if !hashes.is_empty() {
            cx.effects.push(Effect::FetchReceipts(hashes));
        }
        let heights = heights.into_iter().take(OLD_HEADERS_MAX).collect();
        cx.effects.push(Effect::FetchHeaders(heights));
        self.finals.start_below_view_check(cx.now);
    }

    /// Headers at heights below the view. Another block where ours was is a reorg that went deeper than the view.
    pub(super) fn on_old_headers(&mut self, headers: &[Header], cx: &mut StepContext) {
        self.finals.finish_below_view_check();
        let Some(view) = self.chain.view.clone() else {
            return;
        };
        let base = view.headers.base().map_or(0, |header| header.number);
        let gone = self.nonces_mined_in(|mined| {
            let mut at_height = headers.iter().filter(|h| h.number == mined.block_number);
            let header = at_height.next();
            mined.block_number < base && header.is_some_and(|h| h.hash != mined.block_hash)
        });
        for nonce in gone {
            self.return_to_tracking_after_reorg(nonce, cx);
        }
        self.check_finals(&view, headers, ReorgDepth::Watched, cx);
        self.check_below_view(&view, cx);
    }

    /// The nonces whose tx is mined in such a block.
    fn nonces_mined_in(&self, is_meant: impl Fn(&Inclusion) -> bool) -> Vec<Nonce> {
        let slots = self.slots.iter();
        let meant = slots.filter(|(_, slot)| slot.tx.inclusion.as_ref().is_some_and(&is_meant));
        meant.map(|(nonce, _)| nonce).collect()
    }

    /// The tx's block was reorged out: it is tracked again, and its bytes are sent again at once.
    pub(super) fn return_to_tracking_after_reorg(&mut self, nonce: Nonce, cx: &mut StepContext) {
        let slot = self.slots.get_mut(nonce);
        let Some(gone) = slot.and_then(|slot| slot.tx.inclusion.take()) else {
            return;
        };
        // Nodes may have dropped it with the block, so their pools are not judged by it.
        let submitted = self.lowest_submitted();
        self.slots.mark_reorged(nonce, cx.now);
        self.emit_reorged(nonce, &gone, false, cx);
        self.chain.query_nonces(submitted, cx); // the account's nonce fell with the block
    }

    fn emit_reorged(
        &mut self,
        nonce: Nonce,
        gone: &Inclusion,
        after_final: bool,
        cx: &mut StepContext,
    ) {
        let Some(slot) = self.slots.get_mut(nonce) else {
            return;
        };
        self.chain.funds.forget(); // it may be that of a block that was reorged out too
        slot.tx.counted = None;
        slot.tx.confirmed_at = None;
        if !slot.is_cancelled() {
            slot.tx.reason = None;
        }
        slot.tx
            .transition(TxState::Tracking, SubState::Reorged, cx.now);
        let kind = EventKind::TxReorged {
            block_number: gone.block_number,
            block_hash: gone.block_hash,
            after_final,
        };
        self.journal.emit_event(Some(&mut slot.tx), kind, cx);
        cx.writes.updates.push(slot.tx.clone());
        cx.effects.extend(slot.newest().map(Effect::Send));
    }

    /// A reorg went deeper than the view: the txs that it took wait for a decision. Their bytes are still sent and
    /// their hashes still watched, so they may well leave STUCK without one.
    fn on_deep_reorg(&mut self, view: &ChainView, cx: &mut StepContext) {
        let gone = self.nonces_mined_in(|mined| {
            let headers = &view.headers;
            let position = headers.position_of(mined.block_number, mined.block_hash);
            position == BlockPosition::Replaced
        });
        for nonce in gone {
            self.return_to_tracking_after_reorg(nonce, cx);
            self.mark_stuck_by_deep_reorg(nonce, cx);
        }
    }

    fn mark_stuck_by_deep_reorg(&mut self, nonce: Nonce, cx: &mut StepContext) {
        let Some(slot) = self.slots.get_mut(nonce) else {
            return;
        };
        let reason = "its block was reorged out deeper than confirmations.watchDepth".to_owned();
        self.journal
            .mark_stuck(&mut slot.tx, SubState::DeepFork, reason, cx);
        cx.writes.updates.push(slot.tx.clone());
    }

    /// Reads the rows of final results again that were reorged out. `old` are headers below the view.
    fn check_finals(
        &mut self,
        view: &ChainView,
        old: &[Header],
        depth: ReorgDepth,
        cx: &mut StepContext,
    ) {
        let watch_depth = self.rules.confirmations.watch_depth;
        let reorged = self.finals.check(view, old, watch_depth, depth);
        if !reorged.is_empty() {
            cx.effects.push(Effect::LoadFinals(reorged));
        }
    }

    /// Finished txs whose block was reorged out, as they were read: open again, and reported.
    pub(super) fn reopen_finals(&mut self, txs: Vec<(Tx, Vec<Attempt>)>, cx: &mut StepContext) {
        for (mut tx, mut attempts) in txs {
            let Some(depth) = self.finals.take_reopening(tx.id) else {
                continue;
            };
            if !tx.state.is_terminal() {
                continue;
            }
            let (Some(nonce), Some(gone)) = (tx.nonce, tx.inclusion.take()) else {
                continue;
            };
            attempts.retain(|attempt| attempt.nonce == nonce);
            attempts.sort_by_key(Attempt::order);
            self.ledger.mark_reopened(nonce);
            let submitted = self.lowest_submitted();
            let slot = Slot::reopened(tx, attempts, cx.now);
            self.commit_funds(slot.cost());
            // A tx of this very turn may hold the nonce: the store's unique index refuses the batch, and the lane is
            // loaded again.
            self.slots.remove(nonce);
            self.slots.insert(self.key, nonce, slot);
            self.emit_reorged(nonce, &gone, true, cx);
            self.chain.query_nonces(submitted, cx);
            if depth == ReorgDepth::Deep {
                self.mark_stuck_by_deep_reorg(nonce, cx);
            }
        }
    }
}
