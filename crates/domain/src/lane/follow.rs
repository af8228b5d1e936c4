//! What the chain shows: receipts, confirmations, forks, and the account's nonce.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;

use crate::headers::BlockPosition;
use crate::mutation::{self, Mutation};
use crate::{
    Attempt, AttemptKind, ChainView, EventKind, Header, Inclusion, Nonce, SubState, Timestamp, Tx,
    TxId, TxState,
};

use super::{
    Effect, FinalBlock, FinalTx, Finality, Lane, OLD_DEPTH_MAX, RECEIPTS_MAX, Receipt, Slot, Stage,
    Step,
};

/// How often blocks below the view are asked about.
const CHECK_OLD_PAUSE: Duration = Duration::from_secs(10);
/// The most heights of one such question.
const OLD_HEADERS_MAX: usize = 100;
/// Headers above a block older than the view that prove it final where the chain itself decides.
const TAG_PROOF: u64 = 64;

impl Lane {
    /// Receipts of our hashes. Only blocks of the followed chain count, or older ones with proof.
    pub(super) fn receipts(&mut self, receipts: Vec<Receipt>, now: Timestamp, step: &mut Step) {
        let mut found_some = false;
        for Receipt { inclusion, above } in receipts {
            let Some(nonce) = self.by_hash.get(&inclusion.tx_hash).copied() else {
                continue;
            };
            let slot = self.slots.get(&nonce);
            if mutation::is_on(Mutation::ForgetConsumedOld)
                && slot.is_some_and(|slot| slot.tx.tx_hash != Some(inclusion.tx_hash))
            {
                continue;
            }
            let Some(view) = self.view.clone() else {
                return;
            };
            if self.is_unproven(nonce, step) {
                continue;
            }
            match view
                .headers
                .position_of(inclusion.block_number, inclusion.block_hash)
            {
                BlockPosition::On { .. } => {
                    let header = view.headers.at(inclusion.block_number).copied();
                    self.mined(nonce, inclusion, header, now, step);
                    self.settle(nonce, &view, now, step);
                }
                BlockPosition::Outside if self.proves(&inclusion, &above) => {
                    self.mined(nonce, inclusion, above.first().copied(), now, step);
                    self.finalize(nonce, &above, now, step);
                }
                // Not on our chain, or not known to be: whoever asks again will get it right.
                BlockPosition::Outside | BlockPosition::Replaced => continue,
            }
            found_some = true;
        }
        if let (true, true, Some(known)) = (found_some, self.more_receipts, self.chain) {
            self.check_what_may_be_mined(known.nonces.latest, step);
        }
    }

    /// Whether these headers show, by parent links, that the block lies at final depth.
    fn proves(&self, inclusion: &Inclusion, above: &[Header]) -> bool {
        let starts = above.first().is_some_and(|first| {
            first.hash == inclusion.block_hash && first.number == inclusion.block_number
        });
        let linked = above
            .windows(2)
            .all(|pair| pair[1].parent_hash == pair[0].hash);
        let deep = u64::try_from(above.len()).unwrap_or(0) >= self.rules.finality.proof();
        starts && linked && deep && self.may_be_final(inclusion.block_number)
    }

    /// Whether it is worth asking about a block below the view.
    fn may_be_final(&self, number: u64) -> bool {
        match self.rules.finality {
            Finality::Depth(_) => true,
            Finality::Tag(_) => self.is_tagged(number),
        }
    }

    /// Whether the chain itself says that this height is final.
    fn is_tagged(&self, number: u64) -> bool {
        let final_up_to = self.view.as_ref().and_then(|view| view.final_up_to);
        final_up_to.is_some_and(|up_to| up_to >= number)
    }

    fn mined(
        &mut self,
        nonce: Nonce,
        inclusion: Inclusion,
        header: Option<Header>,
        now: Timestamp,
        step: &mut Step,
    ) {
        let held = self.slots.get(&nonce).and_then(|s| s.tx.inclusion.as_ref());
        match held.map(|held| held.block_hash) {
            Some(block) if block == inclusion.block_hash => return,
            Some(_) => self.unmine(nonce, now, step), // what was told before is taken back first
            None => {}
        }
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return;
        };
        if slot.stage != Stage::Mined {
            self.unmined = self.unmined.saturating_sub(1);
        }
        // The block may be seen before the node's answer to the send: both steps are told.
        self.first_sent(&mut slot, inclusion.tx_hash, nonce, now, step);
        slot.stage = Stage::Mined;
        slot.retry_at = None;
        slot.signing = None;
        slot.tx.tx_hash = Some(inclusion.tx_hash);
        if slot.kind_of(inclusion.tx_hash) != AttemptKind::Cancel {
            slot.tx.reason = None;
        }
        slot.tx.counted = header.map(|header| header.hash);
        slot.tx.token = self.lease_grant.token;
        slot.tx.transition(TxState::Tracking, SubState::Mined, now);
        let kind = EventKind::TxReceiptUpdated {
            tx_hash: inclusion.tx_hash,
            block_number: inclusion.block_number,
            block_hash: inclusion.block_hash,
            succeeded: inclusion.succeeded,
        };
        slot.tx.inclusion = Some(inclusion);
        self.emit_event(step, Some(&mut slot.tx), kind, now);
        step.headers.extend(header);
        step.writes.updates.push(slot.tx.clone());
        self.slots.insert(nonce, slot);
        self.mined_up_to(nonce);
    }

    /// A mined nonce says what the account's nonce is at least.
    fn mined_up_to(&mut self, nonce: Nonce) {
        if let Some(known) = &mut self.chain {
            known.nonces.latest = known.nonces.latest.max(nonce.next());
            known.nonces.pending = known.nonces.pending.max(nonce.next());
        }
    }

    /// The chain moved: forks first, then what became final.
    pub(super) fn head(&mut self, view: Arc<ChainView>, now: Timestamp, step: &mut Step) {
        let before = self.view.replace(view.clone());
        if before.is_none() {
            self.check_upon_entry(step);
        }
        if before.is_some_and(|before| before.deep_forks != view.deep_forks) {
            self.deep_fork(&view, now, step);
        }
        let mined: Vec<Nonce> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.stage == Stage::Mined)
            .map(|(nonce, _)| *nonce)
            .collect();
        for nonce in mined {
            self.settle(nonce, &view, now, step);
        }
        self.check_below_the_view(&view, now, step);
        self.watch_finals(&view, &[], step);
        self.ask_for_unproven(step);
        self.look_for_foreign_use(step);
    }

    /// The first view of a lane that was just read: what is out may be mined already.
    fn check_upon_entry(&mut self, step: &mut Step) {
        if self.rules.fetch_receipt_upon_entry {
            self.check_what_may_be_mined(self.next_nonce, step);
        } else if let Some(known) = self.chain {
            self.check_what_may_be_mined(known.nonces.latest, step);
        }
    }

    /// Decides on one mined tx by where its block stands.
    fn settle(&mut self, nonce: Nonce, view: &ChainView, now: Timestamp, step: &mut Step) {
        let Some(slot) = self.slots.get(&nonce) else {
            return;
        };
        let Some(inclusion) = &slot.tx.inclusion else {
            return;
        };
        let number = inclusion.block_number;
        match view.headers.position_of(number, inclusion.block_hash) {
            BlockPosition::Replaced => self.unmine(nonce, now, step),
            BlockPosition::On { above } => match self.final_with(view, number, above) {
                Some(top) => {
                    let counted: Vec<Header> = (number..=top)
                        .filter_map(|n| view.headers.at(n))
                        .copied()
                        .collect();
                    self.finalize(nonce, &counted, now, step);
                }
                None if self.rules.emit_progress && above > 0 => {
                    self.progress(nonce, view, above, now, step);
                }
                None => {}
            },
            BlockPosition::Outside => {} // see check_below_the_view
        }
    }

    /// The height whose header makes a block of the view final; `None` while it is not.
    fn final_with(&self, view: &ChainView, number: u64, above: u64) -> Option<u64> {
        let early = u64::from(mutation::is_on(Mutation::FinalizeOneEarly));
        match self.rules.finality {
            Finality::Depth(depth) => (above.saturating_add(early) >= depth)
                .then(|| number.saturating_add(depth.saturating_sub(early))),
            Finality::Tag(_) => view.final_up_to.filter(|up_to| *up_to >= number),
        }
    }

    /// Mined txs whose block is older than the view, after a long silence: their receipts, with proof,
    /// end them. A block that is not there any more has no receipts, so what stands at its height is
    /// asked for too. One question for all, now and then.
    fn check_below_the_view(&mut self, view: &ChainView, now: Timestamp, step: &mut Step) {
        let is_recent = |at: Timestamp| now.since(at) < CHECK_OLD_PAUSE;
        if self.checking_old || self.old_checked_at.is_some_and(is_recent) {
            return;
        }
        let base = view.headers.base().map_or(0, |header| header.number);
        let old = self
            .slots
            .values()
            .filter_map(|slot| slot.tx.inclusion.as_ref());
        let old: Vec<&Inclusion> = old
            .filter(|mined| mined.block_number < base)
            .filter(|mined| self.may_be_final(mined.block_number))
            .take(RECEIPTS_MAX)
            .collect();
        let unseen = self.finals.iter().filter(|block| !block.is_seen);
        let unseen = unseen.map(|block| block.number).filter(|n| *n < base);
        let heights = old.iter().map(|mined| mined.block_number).chain(unseen);
        let heights: BTreeSet<u64> = heights.collect();
        if heights.is_empty() {
            return;
        }
        let hashes: Vec<B256> = old.iter().map(|mined| mined.tx_hash).collect();
        if !hashes.is_empty() {
            step.effects.push(Effect::FetchReceipts(hashes));
        }
        let heights = heights.into_iter().take(OLD_HEADERS_MAX).collect();
        step.effects.push(Effect::FetchHeaders(heights));
        self.old_checked_at = Some(now);
        self.checking_old = true;
    }

    /// What stands at heights below the view. Another block where ours was is a fork that went deeper
    /// than the view: the tx is out again.
    pub(super) fn old_headers(&mut self, headers: &[Header], now: Timestamp, step: &mut Step) {
        self.checking_old = false;
        let Some(view) = self.view.clone() else {
            return;
        };
        let base = view.headers.base().map_or(0, |header| header.number);
        let replaced = |mined: &Inclusion| {
            let here = headers
                .iter()
                .find(|header| header.number == mined.block_number);
            mined.block_number < base && here.is_some_and(|here| here.hash != mined.block_hash)
        };
        let gone: Vec<Nonce> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.tx.inclusion.as_ref().is_some_and(replaced))
            .map(|(nonce, _)| *nonce)
            .collect();
        for nonce in gone {
            self.unmine(nonce, now, step);
        }
        self.watch_finals(&view, headers, step);
    }

    /// Final: nothing but a fork deeper than the required depth can change it.
    fn finalize(&mut self, nonce: Nonce, counted: &[Header], now: Timestamp, step: &mut Step) {
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return;
        };
        let Some(inclusion) = slot.tx.inclusion.clone() else {
            self.slots.insert(nonce, slot);
            return;
        };
        let top = counted
            .last()
            .map_or(inclusion.block_hash, |header| header.hash);
        let told_before = slot.tx.counted.filter(|_| self.rules.emit_progress);
        let view = self.view.clone();
        let is_replaced = |told: B256| {
            let is_on_view = view.as_ref().is_some_and(|v| v.headers.contains(told));
            !is_on_view && counted.iter().all(|header| header.hash != told)
        };
        slot.tx.counted = Some(top);
        slot.tx.confirmed_at = Some(now);
        slot.tx.token = self.lease_grant.token;
        let is_cancelled = slot.kind_of(inclusion.tx_hash) == AttemptKind::Cancel;
        let kind = if inclusion.succeeded && !is_cancelled {
            slot.tx.transition(TxState::Confirmed, SubState::Mined, now);
            EventKind::TxConfirmed {
                tx_hash: inclusion.tx_hash,
                block_number: inclusion.block_number,
                block_hash: inclusion.block_hash,
                counted: top,
                // A fork that took its block was told by TxReorged; one above it is told here.
                new_fork: told_before.is_some_and(is_replaced)
                    && !mutation::is_on(Mutation::ForgetNewFork),
            }
        } else {
            let (sub, why, otherwise) = if is_cancelled {
                let why = slot.tx.reason.clone();
                (
                    SubState::Rejected,
                    why,
                    "no node took it; a no-op used its nonce",
                )
            } else {
                let why = inclusion.revert_reason.clone();
                (SubState::Reverted, why, "the execution reverted")
            };
            let reason = why.unwrap_or_else(|| otherwise.to_owned());
            slot.tx.reason = Some(reason.clone());
            slot.tx.transition(TxState::FailedFinal, sub, now);
            EventKind::TxFailed { reason }
        };
        self.emit_event(step, Some(&mut slot.tx), kind, now);
        step.headers.extend_from_slice(counted);
        step.writes.updates.push(slot.tx.clone());
        for attempt in &slot.attempts {
            self.by_hash.remove(&attempt.hash);
            step.effects.push(Effect::Unwatch(attempt.hash));
        }
        self.consumed_below = self.consumed_below.max(nonce.next());
        self.watch_final(FinalTx {
            id: slot.tx.id,
            block_number: inclusion.block_number,
            block_hash: inclusion.block_hash,
        });
    }

    /// A result that is final, and watched on for forks.
    pub(super) fn watch_final(&mut self, tx: FinalTx) {
        let known = self.finals.iter_mut().rev();
        match known.into_iter().find(|block| block.hash == tx.block_hash) {
            Some(block) => block.txs.push(tx.id),
            None => self.finals.push_back(FinalBlock {
                number: tx.block_number,
                hash: tx.block_hash,
                txs: vec![tx.id],
                is_seen: false,
            }),
        }
    }

    /// Tells how many headers stand on the tx's block, and whether what was told before is replaced.
    fn progress(
        &mut self,
        nonce: Nonce,
        view: &ChainView,
        above: u64,
        now: Timestamp,
        step: &mut Step,
    ) {
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return;
        };
        if let (Some(inclusion), Some(tip)) =
            (slot.tx.inclusion.clone(), view.headers.tip().copied())
            && slot.tx.counted != Some(tip.hash)
        {
            let told_before = slot.tx.counted.filter(|hash| *hash != inclusion.block_hash);
            let since = told_before.filter(|hash| view.headers.contains(*hash));
            let kind = EventKind::TxConfirmations {
                block_number: inclusion.block_number,
                block_hash: inclusion.block_hash,
                counted: tip.hash,
                count: above,
                since,
                new_fork: told_before.is_some()
                    && since.is_none()
                    && !mutation::is_on(Mutation::ForgetNewFork),
            };
            slot.tx.counted = Some(tip.hash);
            slot.tx.updated_at = now;
            slot.tx.token = self.lease_grant.token;
            self.emit_event(step, Some(&mut slot.tx), kind, now);
            let counted = view
                .headers
                .iter()
                .filter(|h| h.number >= inclusion.block_number);
            step.headers.extend(counted.copied());
            step.writes.updates.push(slot.tx.clone());
        }
        self.slots.insert(nonce, slot);
    }

    /// A fork took its block: the tx is out again, and its bytes leave again at once.
    fn unmine(&mut self, nonce: Nonce, now: Timestamp, step: &mut Step) {
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return;
        };
        let Some(gone) = slot.tx.inclusion.take() else {
            self.slots.insert(nonce, slot);
            return;
        };
        slot.stage = Stage::Submitted;
        self.unmined = self.unmined.saturating_add(1);
        self.told_reorg(&mut slot, &gone, false, now, step);
        self.slots.insert(nonce, slot);
    }

    fn told_reorg(
        &mut self,
        slot: &mut Slot,
        gone: &Inclusion,
        after_final: bool,
        now: Timestamp,
        step: &mut Step,
    ) {
        slot.tx.counted = None;
        slot.tx.confirmed_at = None;
        slot.tx.reason = None;
        slot.tx.token = self.lease_grant.token;
        slot.claimed_at = now;
        slot.tx
            .transition(TxState::Tracking, SubState::Reorged, now);
        let kind = EventKind::TxReorged {
            block_number: gone.block_number,
            block_hash: gone.block_hash,
            after_final,
        };
        self.emit_event(step, Some(&mut slot.tx), kind, now);
        step.writes.updates.push(slot.tx.clone());
        step.effects.extend(slot.newest().map(Effect::Send));
        // The account's nonce went back with the block.
        self.ask_chain(step);
    }

    /// A fork went deeper than is watched: what it took waits for a decision. Its bytes are still sent and
    /// its hashes still watched, so it may well leave STUCK by itself.
    fn deep_fork(&mut self, view: &ChainView, now: Timestamp, step: &mut Step) {
        let gone: Vec<Nonce> = self
            .slots
            .iter()
            .filter(|(_, slot)| {
                slot.tx
                    .inclusion
                    .as_ref()
                    .is_some_and(|at| at.is_gone(view))
            })
            .map(|(nonce, _)| *nonce)
            .collect();
        for nonce in gone {
            self.unmine(nonce, now, step);
            let Some(mut slot) = self.slots.remove(&nonce) else {
                continue;
            };
            self.stuck_by_deep_fork(&mut slot, now, step);
            self.slots.insert(nonce, slot);
        }
        let finals = self.finals.iter().filter(|block| {
            view.headers.position_of(block.number, block.hash) == BlockPosition::Replaced
        });
        let taken: Vec<TxId> = finals.flat_map(|block| block.txs.iter().copied()).collect();
        self.deeply_reopened.extend(taken);
    }

    fn stuck_by_deep_fork(&mut self, slot: &mut Slot, now: Timestamp, step: &mut Step) {
        let reason = "a fork deeper than confirmations.watchDepth took its block".to_owned();
        slot.tx.reason = Some(reason.clone());
        slot.tx.transition(TxState::Stuck, SubState::DeepFork, now);
        self.emit_event(step, Some(&mut slot.tx), EventKind::TxStuck { reason }, now);
        step.writes.updates.push(slot.tx.clone());
    }

    /// Lets go of finals that are deep enough; reads those again that a fork took. `old` are headers below
    /// the view.
    fn watch_finals(&mut self, view: &ChainView, old: &[Header], step: &mut Step) {
        let Some(tip) = view.headers.tip() else {
            return;
        };
        let base = view.headers.base().map_or(0, |header| header.number);
        let watch_depth = self.rules.watch_depth;
        let mut gone = Vec::new();
        self.finals.retain_mut(|block| {
            let below = old.iter().find(|header| header.number == block.number);
            let standing = match (view.headers.position_of(block.number, block.hash), below) {
                (BlockPosition::Outside, Some(header)) if header.hash == block.hash => {
                    BlockPosition::On { above: 0 }
                }
                (BlockPosition::Outside, Some(_)) => BlockPosition::Replaced,
                (standing, _) => standing,
            };
            match standing {
                BlockPosition::Replaced if mutation::is_on(Mutation::ForgetFinals) => return false,
                BlockPosition::Replaced => {
                    gone.extend_from_slice(&block.txs);
                    return false;
                }
                BlockPosition::On { .. } => block.is_seen = true,
                // So deep nobody looks any more.
                BlockPosition::Outside => {
                    block.is_seen |= base.saturating_sub(block.number) > OLD_DEPTH_MAX;
                }
            }
            !block.is_seen || tip.number.saturating_sub(block.number) <= watch_depth
        });
        if !gone.is_empty() {
            self.reopening.extend(gone.iter().copied());
            step.effects.push(Effect::LoadFinals(gone));
        }
    }

    /// Finished txs whose block a fork took: open again, and said.
    pub(super) fn reopen(&mut self, txs: Vec<(Tx, Vec<Attempt>)>, now: Timestamp, step: &mut Step) {
        for (mut tx, mut attempts) in txs {
            if !self.reopening.remove(&tx.id) || !tx.state.is_terminal() {
                continue;
            }
            let (Some(nonce), Some(gone)) = (tx.nonce, tx.inclusion.take()) else {
                continue;
            };
            attempts.retain(|attempt| attempt.nonce == nonce);
            attempts.sort_by_key(Attempt::order);
            self.consumed_below = self.consumed_below.min(nonce);
            let kind = attempts.first().map_or(AttemptKind::Original, |a| a.kind);
            let is_deep = self.deeply_reopened.remove(&tx.id);
            let mut slot = Slot {
                attempts,
                stage: Stage::Submitted,
                signing: None,
                ..Slot::new(tx, kind, now)
            };
            self.by_hash
                .extend(slot.attempts.iter().map(|attempt| (attempt.hash, nonce)));
            self.unmined = self.unmined.saturating_add(1);
            self.told_reorg(&mut slot, &gone, true, now, step);
            if is_deep {
                self.stuck_by_deep_fork(&mut slot, now, step);
            }
            self.slots.insert(nonce, Box::new(slot));
        }
    }
}

impl Slot {
    /// Why one of its attempts exists.
    pub(super) fn kind_of(&self, hash: B256) -> AttemptKind {
        let attempt = self.attempts.iter().find(|attempt| attempt.hash == hash);
        attempt.map_or(self.kind, |attempt| attempt.kind)
    }
}

impl Inclusion {
    /// Whether another block stands at its height.
    fn is_gone(&self, view: &ChainView) -> bool {
        view.headers.position_of(self.block_number, self.block_hash) == BlockPosition::Replaced
    }
}

impl Finality {
    /// How many linked headers, from its own on, prove a block below the view final.
    #[must_use]
    pub fn proof(self) -> u64 {
        match self {
            Self::Depth(depth) => depth.saturating_add(1),
            Self::Tag(_) => TAG_PROOF,
        }
    }
}
