//! What the chain shows: receipts, confirmations, forks, and the account's nonce.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::headers::Standing;
use crate::window::gaps;
use crate::{
    Attempt, AttemptKind, ChainView, EventKind, Header, Inclusion, Nonce, SubState, Time, Tx,
    TxState,
};

use super::{
    ChainNonces, ChainQuery, Effect, FinalBlock, FinalTx, Known, Lane, RECEIPTS_MAX, Receipt, Slot,
    Stage, Step,
};

/// How long what a node said yes to, and does not hold, waits until it is sent again.
const SHORTFALL_WAIT: Duration = Duration::from_secs(2);

/// How often blocks below the view are asked about.
const CHECK_OLD_PAUSE: Duration = Duration::from_secs(10);
/// The most heights of one such question.
const OLD_HEADERS_MAX: usize = 100;
/// The most nonces that are watched because something of somebody else is pending there.
const DOUBTFUL_MAX: usize = 1_024;

impl Lane {
    /// Receipts of our hashes. Only blocks of the followed chain count, or older ones with proof.
    pub(super) fn receipts(&mut self, receipts: Vec<Receipt>, now: Time, step: &mut Step) {
        let mut found_some = false;
        for Receipt { inclusion, above } in receipts {
            let Some(nonce) = self.by_hash.get(&inclusion.tx_hash).copied() else {
                continue;
            };
            let Some(view) = self.view.clone() else {
                return;
            };
            match view
                .headers
                .standing(inclusion.block_number, inclusion.block_hash)
            {
                Standing::On { .. } => {
                    let header = view.headers.at(inclusion.block_number).copied();
                    self.mined(nonce, inclusion, header, now, step);
                    self.settle(nonce, &view, now, step);
                }
                Standing::Outside if self.proves(&inclusion, &above) => {
                    self.mined(nonce, inclusion, above.first().copied(), now, step);
                    self.finalize(nonce, &above, now, step);
                }
                // Not on our chain, or not known to be: whoever asks again will get it right.
                Standing::Outside | Standing::Replaced => continue,
            }
            found_some = true;
        }
        if let (true, Some(known)) = (found_some, self.chain) {
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
        let deep = u64::try_from(above.len()).unwrap_or(0) > self.rules.required;
        starts && linked && deep
    }

    fn mined(
        &mut self,
        nonce: Nonce,
        inclusion: Inclusion,
        header: Option<Header>,
        now: Time,
        step: &mut Step,
    ) {
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return;
        };
        if slot
            .tx
            .inclusion
            .as_ref()
            .is_some_and(|held| held.block_hash == inclusion.block_hash)
        {
            self.slots.insert(nonce, slot);
            return;
        }
        if slot.stage != Stage::Mined {
            self.unmined = self.unmined.saturating_sub(1);
        }
        // The block may be seen before the node's answer to the send: both steps are told.
        self.first_sent(&mut slot, inclusion.tx_hash, nonce, now, step);
        slot.stage = Stage::Mined;
        slot.retry_at = None;
        slot.tx.tx_hash = Some(inclusion.tx_hash);
        slot.tx.reason = None;
        slot.tx.counted = header.map(|header| header.hash);
        slot.tx.token = self.right.token;
        slot.tx.go(TxState::Tracking, SubState::Mined, now);
        let kind = EventKind::TxReceiptUpdated {
            tx_hash: inclusion.tx_hash,
            block_number: inclusion.block_number,
            block_hash: inclusion.block_hash,
            succeeded: inclusion.succeeded,
        };
        slot.tx.inclusion = Some(inclusion);
        self.tell(step, Some(&mut slot.tx), kind, now);
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
    pub(super) fn head(&mut self, view: Arc<ChainView>, now: Time, step: &mut Step) {
        let is_first = self.view.replace(view.clone()).is_none();
        if let (true, Some(known)) = (is_first, self.chain) {
            self.check_what_may_be_mined(known.nonces.latest, step);
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
        self.watch_finals(&view, step);
    }

    /// Decides on one mined tx by where its block stands.
    fn settle(&mut self, nonce: Nonce, view: &ChainView, now: Time, step: &mut Step) {
        let Some(slot) = self.slots.get(&nonce) else {
            return;
        };
        let Some(inclusion) = &slot.tx.inclusion else {
            return;
        };
        let number = inclusion.block_number;
        match view.headers.standing(number, inclusion.block_hash) {
            Standing::Replaced => self.unmine(nonce, now, step),
            Standing::On { above } if above >= self.rules.required => {
                let top = number.saturating_add(self.rules.required);
                let counted: Vec<Header> = (number..=top)
                    .filter_map(|n| view.headers.at(n))
                    .copied()
                    .collect();
                self.finalize(nonce, &counted, now, step);
            }
            Standing::On { above } => {
                if self.rules.tell_progress && above > 0 {
                    self.progress(nonce, view, above, now, step);
                }
            }
            Standing::Outside => {} // see check_below_the_view
        }
    }

    /// Mined txs whose block is older than the view, after a long silence: their receipts, with proof,
    /// end them. A block that is not there any more has no receipts, so what stands at its height is
    /// asked for too. One question for all, now and then.
    fn check_below_the_view(&mut self, view: &ChainView, now: Time, step: &mut Step) {
        let is_recent = |at: Time| now.since(at) < CHECK_OLD_PAUSE;
        if self.old_checked_at.is_some_and(is_recent) {
            return;
        }
        let base = view.headers.base().map_or(0, |header| header.number);
        let old = self
            .slots
            .values()
            .filter_map(|slot| slot.tx.inclusion.as_ref());
        let old: Vec<&Inclusion> = old
            .filter(|mined| mined.block_number < base)
            .take(RECEIPTS_MAX)
            .collect();
        if old.is_empty() {
            return;
        }
        let hashes = old.iter().map(|mined| mined.tx_hash).collect();
        let heights: BTreeSet<u64> = old.iter().map(|mined| mined.block_number).collect();
        let heights = heights.into_iter().take(OLD_HEADERS_MAX).collect();
        self.old_checked_at = Some(now);
        step.effects.push(Effect::FetchReceipts(hashes));
        step.effects.push(Effect::FetchHeaders(heights));
    }

    /// What stands at heights below the view. Another block where ours was is a fork that went deeper
    /// than the view: the tx is out again.
    pub(super) fn old_headers(&mut self, headers: &[Header], now: Time, step: &mut Step) {
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
    }

    /// Final: nothing but a fork deeper than the required depth can change it.
    fn finalize(&mut self, nonce: Nonce, counted: &[Header], now: Time, step: &mut Step) {
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
        slot.tx.counted = Some(top);
        slot.tx.confirmed_at = Some(now);
        slot.tx.token = self.right.token;
        let kind = if inclusion.succeeded {
            slot.tx.go(TxState::Confirmed, SubState::Mined, now);
            EventKind::TxConfirmed {
                tx_hash: inclusion.tx_hash,
                block_number: inclusion.block_number,
                block_hash: inclusion.block_hash,
                counted: top,
                new_fork: false, // what a fork replaced was told by TxReorged already
            }
        } else {
            let why = inclusion.revert_reason.clone();
            let reason = why.unwrap_or_else(|| "the execution reverted".into());
            slot.tx.reason = Some(reason.clone());
            slot.tx.go(TxState::FailedFinal, SubState::Reverted, now);
            EventKind::TxFailed { reason }
        };
        self.tell(step, Some(&mut slot.tx), kind, now);
        step.headers.extend_from_slice(counted);
        step.writes.updates.push(slot.tx.clone());
        for attempt in &slot.attempts {
            self.by_hash.remove(&attempt.hash);
            step.effects.push(Effect::Unwatch(attempt.hash));
        }
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
            }),
        }
    }

    /// Tells how many headers stand on the tx's block, and whether what was told before is replaced.
    fn progress(&mut self, nonce: Nonce, view: &ChainView, above: u64, now: Time, step: &mut Step) {
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return;
        };
        if let (Some(inclusion), Some(tip)) =
            (slot.tx.inclusion.clone(), view.headers.tip().copied())
            && slot.tx.counted != Some(tip.hash)
        {
            let told_before = slot.tx.counted.filter(|hash| *hash != inclusion.block_hash);
            let kind = EventKind::TxConfirmations {
                block_number: inclusion.block_number,
                block_hash: inclusion.block_hash,
                counted: tip.hash,
                count: above,
                new_fork: told_before.is_some_and(|hash| !view.headers.contains(hash)),
            };
            slot.tx.counted = Some(tip.hash);
            slot.tx.updated_at = now;
            slot.tx.token = self.right.token;
            self.tell(step, Some(&mut slot.tx), kind, now);
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
    fn unmine(&mut self, nonce: Nonce, now: Time, step: &mut Step) {
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return;
        };
        let Some(gone) = slot.tx.inclusion.take() else {
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
        now: Time,
        step: &mut Step,
    ) {
        slot.tx.counted = None;
        slot.tx.confirmed_at = None;
        slot.tx.reason = None;
        slot.tx.token = self.right.token;
        slot.claimed_at = now;
        slot.tx.go(TxState::Tracking, SubState::Reorged, now);
        let kind = EventKind::TxReorged {
            block_number: gone.block_number,
            block_hash: gone.block_hash,
            after_final,
        };
        self.tell(step, Some(&mut slot.tx), kind, now);
        step.writes.updates.push(slot.tx.clone());
        step.effects.extend(slot.newest().map(Effect::Send));
        // The account's nonce went back with the block.
        self.ask_chain(step);
    }

    /// Lets go of finals that are deep enough; reads those again that a fork took.
    fn watch_finals(&mut self, view: &ChainView, step: &mut Step) {
        let Some(tip) = view.headers.tip() else {
            return;
        };
        let watch_depth = self.rules.watch_depth;
        let mut gone = Vec::new();
        self.finals.retain(
            |block| match view.headers.standing(block.number, block.hash) {
                Standing::Replaced => {
                    gone.extend_from_slice(&block.txs);
                    false
                }
                Standing::On { .. } | Standing::Outside => {
                    tip.number.saturating_sub(block.number) <= watch_depth
                }
            },
        );
        if !gone.is_empty() {
            self.reopening.extend(gone.iter().copied());
            step.effects.push(Effect::LoadFinals(gone));
        }
    }

    /// Finished txs whose block a fork took: open again, and said.
    pub(super) fn reopen(&mut self, txs: Vec<(Tx, Vec<Attempt>)>, now: Time, step: &mut Step) {
        for (tx, attempts) in txs {
            if !self.reopening.remove(&tx.id) || !tx.state.is_terminal() {
                continue;
            }
            let (Some(nonce), Some(gone)) = (tx.nonce, tx.inclusion.clone()) else {
                continue;
            };
            let mut slot = Slot {
                tx,
                kind: AttemptKind::Original,
                attempts,
                stage: Stage::Submitted,
                claimed_at: now,
                retry_at: None,
                tries: 0,
            };
            slot.tx.inclusion = None;
            self.by_hash
                .extend(slot.attempts.iter().map(|attempt| (attempt.hash, nonce)));
            self.unmined = self.unmined.saturating_add(1);
            self.told_reorg(&mut slot, &gone, true, now, step);
            self.slots.insert(nonce, slot);
        }
    }

    /// The account's nonce. It settles a lane that was just read, and raises doubts afterwards.
    pub(super) fn learn_nonces(&mut self, nonces: ChainNonces, now: Time, step: &mut Step) {
        self.asking_chain = false;
        self.chain = Some(Known { nonces, at: now });
        let was_used = self.unsettled.is_none() || self.next_nonce > Nonce(0);
        self.raise_cursor(nonces, was_used, now, step);
        if self.halted.is_some() {
            return; // nothing else of an incredible answer is believed either
        }
        let settles = self.unsettled.is_some();
        self.find_gaps(nonces, now);
        if self.halted.is_some() {
            return;
        }
        self.resolve_doubts(nonces, now);
        if std::mem::take(&mut self.probing) {
            self.learn_depth(nonces, now);
        }
        self.check_what_may_be_mined(nonces.latest, step);
        if settles {
            self.send_all_again(nonces.latest, step);
        }
    }

    /// The nonces below the cursor that nobody holds and the chain waits for, once after a lane was
    /// read. More of them than a credible jump means that the node is far behind, or that this is
    /// another chain: not one of them is dealt, and the next answer decides anew.
    fn find_gaps(&mut self, nonces: ChainNonces, now: Time) {
        let Some(unsettled) = self.unsettled.take() else {
            return;
        };
        let floor = nonces.latest.max(unsettled.consumed_below);
        let (cursor, max) = (unsettled.next_nonce, self.rules.max_chain_jump);
        match gaps(floor, cursor, &unsettled.held, max) {
            // What was given up since the lane was read is a gap already.
            Some(found) => {
                let (pending, free) = found.into_iter().partition(|gap| *gap < nonces.pending);
                self.doubtful.extend::<BTreeSet<Nonce>>(pending);
                self.gaps.extend(free.into_iter().map(|gap| (gap, now)));
            }
            None => {
                self.halted = Some(format!(
                    "the chain says that nonce {} is next, but our cursor is {cursor} and more than \
                     nonce.maxChainJump ({max}) of those between are in no tx of ours: check that the \
                     node is in sync and serves the right chain",
                    nonces.latest
                ));
                self.unsettled = Some(unsettled);
            }
        }
    }

    /// What was pending at a nonce that is not ours was mined, or vanished: then the chain waits for it.
    fn resolve_doubts(&mut self, nonces: ChainNonces, now: Time) {
        self.gaps.retain(|gap, _| *gap >= nonces.latest);
        self.doubtful.retain(|nonce| *nonce >= nonces.latest);
        let vanished = self.doubtful.split_off(&nonces.pending);
        self.gaps.extend(vanished.into_iter().map(|gap| (gap, now)));
    }

    /// Whether the node holds all that it said yes to. What it does not hold is sent again.
    fn learn_depth(&mut self, nonces: ChainNonces, now: Time) {
        let highest_out = self
            .slots
            .iter()
            .rfind(|(_, slot)| slot.stage == Stage::Submitted);
        let Some(highest_out) = highest_out.map(|(nonce, _)| *nonce) else {
            return;
        };
        self.depth.learn(nonces.latest, nonces.pending, highest_out);
        for (_, slot) in self.slots.range_mut(nonces.pending..) {
            if slot.stage == Stage::Submitted {
                // A node that says yes and holds nothing would be asked without end otherwise.
                slot.retry_at = Some(now.plus(SHORTFALL_WAIT));
            }
        }
    }

    /// The chain never lowers the cursor, and raises it only by a credible step.
    fn raise_cursor(&mut self, nonces: ChainNonces, was_used: bool, now: Time, step: &mut Step) {
        let asked = match self.rules.chain_query {
            ChainQuery::Pending => nonces.pending.max(nonces.latest),
            ChainQuery::Latest | ChainQuery::Off => nonces.latest,
        };
        let jump = self.next_nonce.until(asked);
        self.halted = None;
        if jump == 0 {
            self.fears_loss = false;
            return;
        }
        if was_used && self.fears_loss {
            self.halted = Some(format!(
                "the database's history changed and commits were lost: the chain has transactions at \
                 nonces {} to {} that the store does not know. Compare with the chain, then resume the \
                 lane",
                self.next_nonce,
                asked.0.saturating_sub(1)
            ));
            return;
        }
        if was_used && jump > self.rules.max_chain_jump {
            self.halted = Some(format!(
                "the chain says that nonce {asked} is next, {jump} above our cursor {}; that is more \
                 than nonce.maxChainJump ({}): check who else uses this account",
                self.next_nonce, self.rules.max_chain_jump
            ));
            return;
        }
        if was_used {
            let nonce = self.next_nonce;
            self.tell(step, None, EventKind::LaneForeignNonce { nonce }, now);
        }
        // Something of somebody else may be pending there, and may vanish again.
        let skipped = self.next_nonce.max(nonces.latest).0..asked.0;
        self.doubtful.extend(skipped.map(Nonce).take(DOUBTFUL_MAX));
        self.next_nonce = asked;
    }

    /// Below the chain's nonce everything is in a block: ask for the receipts that we lack.
    fn check_what_may_be_mined(&self, latest: Nonce, step: &mut Step) {
        let hashes: Vec<_> = self
            .slots
            .range(..latest)
            .filter(|(_, slot)| slot.stage != Stage::Mined)
            .flat_map(|(_, slot)| slot.attempts.iter().map(|attempt| attempt.hash))
            .take(RECEIPTS_MAX)
            .collect();
        if !hashes.is_empty() {
            step.effects.push(Effect::FetchReceipts(hashes));
        }
    }

    /// After a takeover or a restart: what was claimed may never have left, so it leaves now.
    fn send_all_again(&mut self, latest: Nonce, step: &mut Step) {
        let out = self
            .slots
            .range_mut(latest..)
            .filter(|(_, slot)| slot.stage != Stage::Mined);
        for (_, slot) in out {
            // One that is being signed has nothing to send; its retry stays.
            if let Some(out) = slot.newest() {
                slot.retry_at = None;
                step.effects.push(Effect::Send(out));
            }
        }
    }
}
