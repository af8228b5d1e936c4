//! The account's nonce as the chain tells it: it settles a lane that was just read, and raises doubts
//! afterwards. It never lowers the cursor.

use std::collections::BTreeSet;
use std::time::Duration;

use alloy_primitives::B256;

use crate::window::gaps;
use crate::{EventKind, Nonce, Timestamp};

use super::{
    AccountNonces, ChainQuery, Effect, EndpointNonces, Known, Lane, RECEIPTS_MAX, Slot, Stage, Step,
};

/// How long what a node said yes to, and does not hold, waits until it is sent again.
const SHORTFALL_WAIT: Duration = Duration::from_secs(2);
/// A nonce that nobody holds is a gap when answers so far apart say that the chain waits for it.
const GAP_SEEN_FOR: Duration = Duration::from_secs(3);
/// A question that is asked because of a doubt is repeated after this pause.
const ASK_PAUSE: Duration = Duration::from_secs(3);
/// For so long the follower may take to bring the receipts of a block.
const RECEIPT_PATIENCE: Duration = Duration::from_secs(3);
/// For so long after a refusal for lack of room the depth does not grow again.
const GROW_PAUSE: Duration = Duration::from_secs(30);
/// The most nonces that are watched because something of somebody else is pending there.
const DOUBTFUL_MAX: usize = 1_024;

impl EndpointNonces {
    /// What any endpoint has seen.
    #[must_use]
    pub fn highest(&self) -> AccountNonces {
        self.merged(Nonce::max)
    }

    /// What all endpoints have seen.
    fn lowest(&self) -> AccountNonces {
        self.merged(Nonce::min)
    }

    fn merged(&self, choose: impl Fn(Nonce, Nonce) -> Nonce) -> AccountNonces {
        let second = self.second.unwrap_or(self.first);
        AccountNonces {
            latest: choose(self.first.latest, second.latest),
            pending: choose(self.first.pending, second.pending),
        }
    }
}

impl Lane {
    pub(super) fn ask_chain(&mut self, step: &mut Step) {
        if !self.asking_chain {
            self.asking_chain = true;
            self.asked_twice = self.in_doubt;
            let twice = self.in_doubt;
            let taken = self.lowest_taken();
            step.effects.push(Effect::QueryChainNonces { twice, taken });
        }
    }

    /// The lowest attempt that is not mined, if a node said that it has it.
    fn lowest_taken(&self) -> Option<(Nonce, B256)> {
        let mut unmined = self.slots.iter().filter(|(_, s)| s.stage != Stage::Mined);
        let (nonce, slot) = unmined.next()?;
        let sent = slot.attempts.iter().rfind(|a| a.first_sent_at.is_some())?;
        (slot.stage == Stage::Submitted).then_some((*nonce, sent.hash))
    }

    /// Asks so that a second endpoint, where there is one, must say the same.
    pub(super) fn ask_in_doubt(&mut self, step: &mut Step) {
        self.in_doubt = true;
        self.ask_chain(step);
    }

    pub(super) fn learn_nonces(
        &mut self,
        nonces: EndpointNonces,
        counts_pool: bool,
        now: Timestamp,
        step: &mut Step,
    ) {
        self.asking_chain = false;
        if nonces.is_complete {
            self.in_doubt = false;
            self.answers = self.answers.saturating_add(1);
        }
        self.count_awaited_answer(step);
        let was_used = self.unsettled.is_none() || self.next_nonce > Nonce(0);
        let highest = nonces.highest();
        self.chain = Some(Known {
            nonces: highest,
            is_complete: nonces.is_complete,
            saw_pools: nonces.is_complete
                && (self.asked_twice || self.rules.chain_query == ChainQuery::Pending),
            at: now,
        });
        self.raise_cursor(&nonces, was_used, now, step);
        if self.halted.is_some() {
            return; // nothing else of an incredible answer is believed either
        }
        let settles = self.unsettled.is_some();
        self.find_gaps(highest, now);
        if self.halted.is_some() {
            return;
        }
        self.resolve_doubts(highest, nonces.is_complete, now);
        // Where nobody can tell what a node holds, it is taken at its word.
        let held = match counts_pool {
            true => nonces.first.pending,
            false => self.next_nonce,
        };
        if let Some(probed) = self.probing.take() {
            self.learn_depth(nonces.first.latest, held, probed, now);
        }
        self.send_what_the_node_lost(held, now);
        if settles {
            self.check_what_may_be_mined(highest.latest, step);
        } else {
            self.late.get_or_insert((highest.latest, now));
        }
        self.read_unproven(highest.latest, step);
        self.look_for_foreign_use(step);
        if settles {
            self.send_all_again(highest.latest, step);
        }
    }

    /// The chain never lowers the cursor, and raises it only by a credible step.
    fn raise_cursor(
        &mut self,
        nonces: &EndpointNonces,
        was_used: bool,
        now: Timestamp,
        step: &mut Step,
    ) {
        let asked = |said: AccountNonces| match self.rules.chain_query {
            ChainQuery::Pending => said.pending.max(said.latest),
            ChainQuery::Latest | ChainQuery::Off => said.latest,
        };
        let (agreed, said) = (asked(nonces.lowest()), asked(nonces.highest()));
        self.halted = None;
        if self.next_nonce.until(said) == 0 {
            self.fears_loss &= !nonces.is_complete;
            if self.fears_loss && !self.asked_twice {
                self.ask_in_doubt(step);
            }
            return;
        }
        self.halted = self.why_not_to_raise(nonces, agreed, said, was_used);
        if self.halted.is_some() {
            if !nonces.is_complete && !self.asked_twice {
                self.ask_in_doubt(step);
            }
            self.in_doubt |= !nonces.is_complete;
            return;
        }
        if was_used {
            let kind = EventKind::LaneForeignNonce {
                nonce: self.next_nonce,
                tx_hash: None,
            };
            self.emit_event(step, None, kind, now);
        }
        // Something of somebody else may be pending there, and may vanish again.
        let latest = nonces.lowest().latest;
        let skipped = self.next_nonce.max(latest).0..agreed.0;
        self.doubtful.extend(skipped.map(Nonce).take(DOUBTFUL_MAX));
        self.next_nonce = agreed;
    }

    /// Why the cursor is not raised although an endpoint says that the account is further.
    fn why_not_to_raise(
        &self,
        nonces: &EndpointNonces,
        agreed: Nonce,
        said: Nonce,
        was_used: bool,
    ) -> Option<String> {
        let cursor = self.next_nonce;
        if !was_used {
            return None; // a lane without any tx takes the chain's nonce as it is
        }
        if self.fears_loss {
            return Some(format!(
                "the database's history changed and commits were lost: the chain has transactions at \
                 nonces {cursor} to {} that the store does not know. Compare with the chain, then resume \
                 the lane",
                said.0.saturating_sub(1)
            ));
        }
        let jump = cursor.until(said);
        if jump > self.rules.max_chain_jump {
            return Some(format!(
                "the chain says that nonce {said} is next, {jump} above our cursor {cursor}; that is more \
                 than nonce.maxChainJump ({}): check who else uses this account",
                self.rules.max_chain_jump
            ));
        }
        if !nonces.is_complete || agreed <= cursor {
            return Some(format!(
                "an endpoint says that nonce {said} is next, our cursor is {cursor}, and no second \
                 endpoint confirms it: check that all endpoints are in sync"
            ));
        }
        None
    }

    /// The nonces below the cursor that nobody holds and the chain waits for, once after a lane was
    /// read. More of them than a credible jump means that the node is far behind, or that this is
    /// another chain: not one of them is dealt, and the next answer decides anew.
    fn find_gaps(&mut self, nonces: AccountNonces, now: Timestamp) {
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

    /// Gaps that are over, those at which something is pending after all, and new ones: nonces below the
    /// cursor that nobody holds and the chain waits for, because somebody else's transaction vanished from
    /// a pool or a fork took it. One answer proves nothing, since an endpoint may be behind: only a later
    /// complete one that says the same makes a gap.
    fn resolve_doubts(&mut self, nonces: AccountNonces, is_complete: bool, now: Timestamp) {
        self.gaps.retain(|gap, _| *gap >= nonces.latest);
        self.doubtful.retain(|nonce| *nonce >= nonces.latest);
        let free = self.gaps.split_off(&nonces.pending);
        let taken = std::mem::replace(&mut self.gaps, free);
        self.doubtful.extend(taken.into_keys());

        let mut candidates: BTreeSet<Nonce> = self.holes(nonces.latest);
        candidates.extend(self.doubtful.range(nonces.pending..));
        self.maybe_gaps
            .retain(|nonce, _| candidates.contains(nonce));
        for nonce in candidates {
            if nonce < nonces.pending {
                self.maybe_gaps.remove(&nonce);
                self.doubtful.insert(nonce);
                continue;
            }
            let since = *self.maybe_gaps.entry(nonce).or_insert(now);
            // Where nonces are lent, what is enough to end a loan is enough here.
            let is_lent = self.lends() && self.doubtful.contains(&nonce);
            if is_complete && (is_lent || now.since(since) >= GAP_SEEN_FOR) {
                self.maybe_gaps.remove(&nonce);
                self.doubtful.remove(&nonce);
                self.gaps.insert(nonce, now);
            }
        }
    }

    /// The nonces from the chain's on that nobody holds, as far as memory tells. What is finished lies
    /// below.
    fn holes(&self, latest: Nonce) -> BTreeSet<Nonce> {
        let mut holes = BTreeSet::new();
        if !self.reopening.is_empty() {
            return holes; // they hold theirs again in a moment
        }
        let from = latest.max(self.consumed_below);
        let until = self.backlog.unwrap_or(self.next_nonce).min(self.next_nonce);
        let mut held = self.slots.range(from..).map(|(nonce, _)| *nonce).peekable();
        let mut nonce = from;
        while nonce < until {
            while held.next_if(|held| *held < nonce).is_some() {}
            let is_held = held.peek() == Some(&nonce);
            let is_gap = self.gaps.contains_key(&nonce) || self.fresh_gaps.contains(&nonce);
            if !is_held && !is_gap {
                holes.insert(nonce);
            }
            if holes.len() as u64 > self.rules.max_chain_jump {
                return BTreeSet::new(); // not to be believed
            }
            nonce = nonce.next();
        }
        holes
    }

    /// Something waits for an answer that a second endpoint confirms: whatever is asked next asks for that, and it
    /// is soon. (Where the chain is asked all the time anyway, only this makes those answers count.)
    pub(super) fn stay_in_doubt(&mut self, now: Timestamp, step: &mut Step) {
        self.in_doubt = true;
        if self
            .chain
            .is_none_or(|known| now.since(known.at) >= ASK_PAUSE)
        {
            self.ask_chain(step);
        }
    }

    /// Whether the node holds all that it said yes to.
    fn learn_depth(&mut self, latest: Nonce, held: Nonce, highest_out: Nonce, now: Timestamp) {
        let refused_lately = |at: Timestamp| now.since(at) < GROW_PAUSE;
        let would_grow = held > highest_out;
        let is_full = !would_grow || self.narrowed_at.is_some_and(refused_lately);
        self.full_at = is_full.then_some(now);
        self.full_times = match is_full {
            true => self.full_times.saturating_add(1),
            false => 0,
        };
        if !would_grow || !is_full {
            self.depth.learn(latest, held, highest_out);
        }
    }

    /// What a node took, and does not hold any more, is sent again: it lost its pool, dropped them, or
    /// never held them. The wait keeps one that says yes and holds nothing from being asked without end.
    fn send_what_the_node_lost(&mut self, pending: Nonce, now: Timestamp) {
        if self.rules.chain_query != ChainQuery::Pending {
            return;
        }
        let is_long_ago = |slot: &Slot| now.since(slot.left_at) >= SHORTFALL_WAIT;
        for (_, slot) in self.slots.range_mut(pending..) {
            if slot.stage == Stage::Submitted && slot.retry_at.is_none() && is_long_ago(slot) {
                slot.left_at = now;
                slot.retry_at = Some(now);
            }
        }
    }

    /// What is in a block comes from the follower, a block at a time. What did not come in time is asked
    /// for by hash.
    pub(super) fn read_late_receipts(&mut self, now: Timestamp, step: &mut Step) {
        let Some((latest, since)) = self.late else {
            return;
        };
        if now.since(since) >= RECEIPT_PATIENCE {
            self.late = None;
            self.check_what_may_be_mined(latest, step);
        }
    }

    /// Below the chain's nonce everything is in a block: ask for the receipts that we lack.
    pub(super) fn check_what_may_be_mined(&mut self, latest: Nonce, step: &mut Step) {
        let hashes: Vec<_> = self
            .slots
            .range(..latest)
            .filter(|(_, slot)| slot.stage != Stage::Mined)
            .flat_map(|(_, slot)| slot.attempts.iter().map(|attempt| attempt.hash))
            .take(RECEIPTS_MAX)
            .collect();
        self.more_receipts = hashes.len() >= RECEIPTS_MAX;
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
