//! Receipts, confirmations and finality: what blocks of the followed chain do to the lane's txs.

use alloy_primitives::B256;

use crate::headers::{BlockPosition, is_linked};
use crate::{AttemptKind, ChainView, EventKind, Header, Inclusion, Nonce, SubState, TxState};

use super::sending::record_first_sent;
use super::slots::Slot;
use super::{Effect, FinalTx, Finality, Lane, RECEIPTS_MAX, Receipt, StepContext};

impl Lane {
    /// Receipts of our hashes. Only blocks of the followed chain count, or older ones with proof.
    pub(super) fn on_receipts(&mut self, receipts: Vec<Receipt>, cx: &mut StepContext) {
        let Some(view) = self.chain.view.clone() else {
            return;
        };
        let mut found_some = false;
        let mut found_below_view = false;
        for Receipt { inclusion, above } in receipts {
            let Some(nonce) = self.slots.nonce_of(inclusion.tx_hash) else {
                continue;
            };
            if self.is_unproven(nonce, cx) {
                continue;
            }
            match view
                .headers
                .position_of(inclusion.block_number, inclusion.block_hash)
            {
                BlockPosition::On { .. } => {
                    let header = view.headers.at(inclusion.block_number).copied();
                    self.record_inclusion(nonce, inclusion, header, cx);
                    self.update_confirmations(nonce, &view, cx);
                }
                BlockPosition::Outside if self.is_proof_of_finality(&inclusion, &above) => {
                    self.record_inclusion(nonce, inclusion, above.first().copied(), cx);
                    self.finalize(nonce, &above, cx);
                    found_below_view = true;
                }
                // Not on our chain, or not known to be: a later fetch will get it right.
                BlockPosition::Outside | BlockPosition::Replaced => continue,
            }
            found_some = true;
        }
        if found_some
            && self.chain.has_more_receipts
            && let Some(known) = self.chain.nonces()
        {
            self.fetch_missing_receipts(known.nonces.latest, cx);
        }
        if found_below_view {
            self.finals.end_below_view_pause();
            self.check_below_view(&view, cx);
        }
    }

    /// A revert reason is fetched after its receipt is delivered: nothing waits for it. It comes too late for a tx that
    /// is finished, or whose block was reorged out.
    pub(super) fn on_revert_reason(&mut self, tx_hash: B256, reason: String, cx: &mut StepContext) {
        let nonce = self.slots.nonce_of(tx_hash);
        let Some(slot) = nonce.and_then(|nonce| self.slots.get_mut(nonce)) else {
            return;
        };
        let mined = slot.tx.inclusion.as_mut();
        let Some(mined) = mined.filter(|mined| mined.tx_hash == tx_hash && !mined.succeeded) else {
            return;
        };
        mined.revert_reason = Some(reason);
        slot.tx.written.at = cx.now;
        cx.writes.updates.push(slot.tx.clone());
    }

    /// Below the chain's nonce everything is in a block: fetches the receipts that the lane lacks.
    pub(super) fn fetch_missing_receipts(&mut self, latest: Nonce, cx: &mut StepContext) {
        let unmined = self.slots.unmined(..latest);
        let hashes = unmined.flat_map(|(_, slot)| slot.hashes());
        let hashes: Vec<B256> = hashes.take(RECEIPTS_MAX).collect();
        self.chain.has_more_receipts = hashes.len() >= RECEIPTS_MAX;
        if !hashes.is_empty() {
            cx.effects.push(Effect::FetchReceipts(hashes));
        }
    }

    /// Whether these headers show, by parent links, that the block is final.
    fn is_proof_of_finality(&self, inclusion: &Inclusion, above: &[Header]) -> bool {
        let starts = above.first().is_some_and(|first| {
            first.hash == inclusion.block_hash && first.number == inclusion.block_number
        });
        let linked = is_linked(above);
        let needed = self.rules.confirmations.finality.proof_headers();
        let is_deep = u64::try_from(above.len()).unwrap_or(0) >= needed;
        starts && linked && is_deep && self.can_be_final(inclusion.block_number)
    }

    /// Whether a block below the view can be final at this height.
    pub(super) fn can_be_final(&self, number: u64) -> bool {
        let tagged = self.chain.view.as_ref().and_then(|view| view.final_up_to);
        match self.rules.confirmations.finality {
            Finality::Depth(_) => true,
            Finality::Tag(_) => tagged.is_some_and(|up_to| up_to >= number),
        }
    }

    fn record_inclusion(
        &mut self,
        nonce: Nonce,
        inclusion: Inclusion,
        header: Option<Header>,
        cx: &mut StepContext,
    ) {
        let recorded = self.slots.get(nonce).and_then(|s| s.tx.inclusion.as_ref());
        match recorded.map(|recorded| recorded.block_hash) {
            Some(block) if block == inclusion.block_hash => return,
            // What was reported before is withdrawn first.
            Some(_) => self.return_to_tracking_after_reorg(nonce, cx),
            None => {}
        }
        let Some(slot) = self.slots.mark_mined(nonce) else {
            return;
        };
        // The block may be seen before the node's answer to the send: both steps are recorded.
        record_first_sent(&mut self.journal, slot, inclusion.tx_hash, cx);
        slot.tx.tx_hash = Some(inclusion.tx_hash);
        if slot.attempt_kind(inclusion.tx_hash) != AttemptKind::Cancel {
            slot.tx.reason = None;
        }
        slot.tx.counted = header.map(|header| header.hash);
        slot.tx
            .transition(TxState::Tracking, SubState::Mined, cx.now);
        let kind = EventKind::TxReceiptUpdated {
            tx_hash: inclusion.tx_hash,
            block_number: inclusion.block_number,
            block_hash: inclusion.block_hash,
            succeeded: inclusion.succeeded,
        };
        slot.tx.inclusion = Some(inclusion);
        self.journal.emit_event(Some(&mut slot.tx), kind, cx);
        cx.headers.extend(header);
        cx.writes.updates.push(slot.tx.clone());
        self.chain.raise_to_mined(nonce);
    }

    /// Decides on one mined tx by where its block stands.
    pub(super) fn update_confirmations(
        &mut self,
        nonce: Nonce,
        view: &ChainView,
        cx: &mut StepContext,
    ) {
        let Some(inclusion) = self.slots.get(nonce).and_then(|s| s.tx.inclusion.as_ref()) else {
            return;
        };
        let number = inclusion.block_number;
        match view.headers.position_of(number, inclusion.block_hash) {
            BlockPosition::Replaced => self.return_to_tracking_after_reorg(nonce, cx),
            BlockPosition::On { above } => match self.final_height(view, number, above) {
                Some(top) => {
                    let heights = number..=top;
                    let counted = heights.filter_map(|n| view.headers.at(n)).copied();
                    self.finalize(nonce, &counted.collect::<Vec<_>>(), cx);
                }
                None if self.rules.confirmations.emit_progress && above > 0 => {
                    self.emit_progress(nonce, view, above, cx);
                }
                None => {}
            },
            BlockPosition::Outside => {} // see check_below_view
        }
    }

    /// The height whose header makes a block of the view final; `None` while it is not.
    fn final_height(&self, view: &ChainView, number: u64, above: u64) -> Option<u64> {
        match self.rules.confirmations.finality {
            Finality::Depth(depth) => (above >= depth).then(|| number.saturating_add(depth)),
            Finality::Tag(_) => view.final_up_to.filter(|up_to| *up_to >= number),
        }
    }

    /// The result is final: nothing but a reorg deeper than finality can change it.
    fn finalize(&mut self, nonce: Nonce, counted: &[Header], cx: &mut StepContext) {
        let slot = self.slots.get(nonce);
        let Some(inclusion) = slot.and_then(|slot| slot.tx.inclusion.clone()) else {
            return;
        };
        let Some(mut slot) = self.slots.remove(nonce) else {
            return;
        };
        self.spend_funds(nonce, &slot);
        let top = counted.last().map_or(inclusion.block_hash, |h| h.hash);
        let reported = slot.tx.counted.replace(top);
        let reported = reported.filter(|_| self.rules.confirmations.emit_progress);
        let new_fork = reported.is_some_and(|hash| self.is_report_replaced(hash, counted));
        cx.headers.extend_from_slice(counted);
        cx.effects.extend(slot.hashes().map(Effect::Unwatch));
        self.ledger.mark_consumed(nonce);
        let Inclusion {
            tx_hash,
            block_number,
            block_hash,
            ..
        } = inclusion;
        self.finals.watch(FinalTx {
            id: slot.tx.id,
            nonce,
            block_number,
            block_hash,
        });
        if let Some((sub, reason)) = slot.failure(&inclusion) {
            self.journal.end_failed(slot.tx, sub, reason, cx);
            return;
        }
        slot.tx.confirmed_at = Some(cx.now);
        slot.tx
            .transition(TxState::Confirmed, SubState::Mined, cx.now);
        let kind = EventKind::TxConfirmed {
            tx_hash,
            block_number,
            block_hash,
            counted: top,
            // A reorg of its block was reported by TxReorged; one above it is reported here.
            new_fork,
        };
        self.journal.emit_event(Some(&mut slot.tx), kind, cx);
        cx.writes.updates.push(slot.tx);
    }

    /// Reports how many headers stand on the tx's block, and whether this replaces what was reported before.
    fn emit_progress(&mut self, nonce: Nonce, view: &ChainView, above: u64, cx: &mut StepContext) {
        let Some(tx) = self.slots.get(nonce).map(|slot| &slot.tx) else {
            return;
        };
        let (Some(inclusion), Some(tip)) = (&tx.inclusion, view.headers.tip()) else {
            return;
        };
        if tx.counted == Some(tip.hash) {
            return;
        }
        let (block_number, block_hash) = (inclusion.block_number, inclusion.block_hash);
        // What a lossy failover has lost counts as not reported.
        let is_known = |hash: &B256| self.chain.reported_height(*hash).is_some();
        let reported = tx.counted.filter(|hash| *hash != block_hash);
        let reported = reported.filter(|hash| view.headers.contains(*hash) || is_known(hash));
        let replaced = match reported {
            Some(hash) => self.chain.is_reported_replaced(hash),
            None => Some(false),
        };
        let is_ahead = |hash: B256| !view.headers.contains(hash);
        let new_fork = match replaced {
            Some(replaced) if replaced || !reported.is_some_and(is_ahead) => replaced,
            Some(_) | None => return, // the view is behind what was reported: it has nothing to add
        };
        let since = reported.filter(|_| !new_fork);
        let Some(slot) = self.slots.get_mut(nonce) else {
            return;
        };
        let kind = EventKind::TxConfirmations {
            block_number,
            block_hash,
            counted: tip.hash,
            count: above,
            since,
            new_fork,
        };
        slot.tx.counted = Some(tip.hash);
        slot.tx.written.at = cx.now;
        self.journal.emit_event(Some(&mut slot.tx), kind, cx);
        let counted = view.headers.iter().filter(|h| h.number >= block_number);
        cx.headers.extend(counted.copied());
        cx.writes.updates.push(slot.tx.clone());
        self.chain.note_report();
    }

    /// The step is over: what it has reported is compared with the next views, as long as a tx may have been reported with it.
    pub(super) fn finish_reports(&mut self) {
        if !self.chain.finish_reports() {
            return;
        }
        let inclusions = self
            .slots
            .iter()
            .filter_map(|(_, slot)| slot.tx.inclusion.as_ref());
        let lowest = inclusions.map(|inclusion| inclusion.block_number).min();
        self.chain.forget_reported_below(lowest.unwrap_or(u64::MAX));
    }

    /// Whether a header that was reported is not among the headers on the block any more: `counted` end with those that
    /// make it final. What is not known to be replaced is not reported as replaced.
    fn is_report_replaced(&self, hash: B256, counted: &[Header]) -> bool {
        if counted.iter().any(|header| header.hash == hash) {
            return false;
        }
        let height = self.chain.reported_height(hash);
        let has_other = counted.iter().any(|header| Some(header.number) == height);
        has_other || self.chain.is_reported_replaced(hash) == Some(true)
    }
}

impl Slot {
    /// Why the tx ends without its effect although it is mined; `None` when it ends with it.
    fn failure(&self, inclusion: &Inclusion) -> Option<(SubState, String)> {
        let is_cancelled = self.attempt_kind(inclusion.tx_hash) == AttemptKind::Cancel;
        let (sub, why, otherwise) = match (is_cancelled, inclusion.succeeded) {
            (true, _) => {
                let otherwise =
                    "a no-op used its nonce, because no node accepted it or it blocked its lane";
                (SubState::Rejected, &self.tx.reason, otherwise)
            }
            (false, false) => {
                let why = &inclusion.revert_reason;
                (SubState::Reverted, why, "the execution reverted")
            }
            (false, true) => return None,
        };
        let reason = why.clone().unwrap_or_else(|| otherwise.to_owned());
        Some((sub, reason))
    }
}
