//! Claims: reports of a nonce above the lane's cursor, as if another program used the account.
//!
//! A cursor that follows a wrong claim leaves a gap behind it, and a lane that waits for one stands still. So a claim of
//! one endpoint counts when a block shows the transaction, and is ignored when another endpoint keeps contradicting it.
//! If it was true all the same, the lane's next attempt finds its nonce consumed, and the rule of foreign use decides.

use std::time::Duration;

use alloy_primitives::B256;

use crate::{EventKind, Nonce, Timestamp};

use super::chain_nonces::QUORUM_QUERY_PAUSE;
use super::foreign_use::foreign_final_height;
use super::{AccountNonces, Agreement, Effect, EndpointNonces, Lane, NonceConsumer, StepContext};

/// How long a second endpoint must contradict a claim before it is ignored. An endpoint that is behind by a block
/// has caught up by then.
const CONTRADICTED_FOR: Duration = QUORUM_QUERY_PAUSE;

/// A claim that is not proven.
#[derive(Clone, Copy, Debug)]
pub(super) struct NonceClaim {
    since: Timestamp,
    /// Two endpoints, or one for a while, contradict it.
    is_ignored: bool,
    /// The highest nonce that is claimed to be mined, and the search for its transaction.
    search: Option<ConsumerSearch>,
}

/// The search for the transaction that consumed a claimed nonce.
#[derive(Clone, Copy, Debug)]
struct ConsumerSearch {
    nonce: Nonce,
    /// The height of the tip when it was first claimed.
    first_seen: u64,
    is_under_way: bool,
}

impl NonceClaim {
    fn new(now: Timestamp) -> Self {
        Self {
            since: now,
            is_ignored: false,
            search: None,
        }
    }

    pub(super) fn clamp_times(&mut self, now: Timestamp) {
        self.since = self.since.min(now);
    }
}

impl Lane {
    /// Whether the lane does nothing until a claim is proven or withdrawn.
    pub(super) fn waits_for_claim(&self) -> bool {
        !self.is_idle() && self.chain.claim.is_some_and(|claim| !claim.is_ignored)
    }

    /// What of an answer is credible; `None` when nothing is. The lane halts while a claim is neither proven nor
    /// contradicted.
    pub(super) fn judge_claim(
        &mut self,
        nonces: EndpointNonces,
        was_used: bool,
        cx: &mut StepContext,
    ) -> Option<EndpointNonces> {
        if self.reconciliation.loss.is_some() {
            self.chain.claim = None;
            return Some(self.without_outvoted_claim(nonces));
        }
        let halted_before = self.holds.halted.take();
        let (rule, cursor) = (self.rules.nonce.chain_query, self.ledger.cursor());
        let is_claim = |reported: AccountNonces| rule.next_nonce(reported) > cursor;
        let claims = nonces.retain(is_claim);
        let Some(claims) = claims.filter(|_| was_used) else {
            if nonces.is_complete() {
                self.chain.claim = None;
            }
            return Some(nonces);
        };
        let is_only = nonces.is_complete() && nonces.count() == 1;
        let is_confirmed = claims.count() > 1;
        let claimed = rule.next_nonce(claims.confirmed());
        let max = self.rules.nonce.max_chain_jump;
        let is_absurd = cursor.until(claimed) > max;
        if is_confirmed && !is_absurd {
            self.chain.claim = None;
            return Some(nonces.capped(claims.confirmed()));
        }
        if is_only && !is_absurd && claims.first.latest <= cursor {
            return Some(self.judge_pool_of_only_endpoint(nonces));
        }
        let others = nonces.retain(|reported| !is_claim(reported));
        if !is_confirmed && self.is_contradicted(others.as_ref(), cx.now) {
            self.query_again_if_one_answered(&nonces, cx);
            self.holds.halted = halted_before.filter(|_| others.is_none());
            return others;
        }
        let reason = match is_absurd {
            true => absurd_jump(claimed, cursor, max),
            false => unproven(claimed, cursor),
        };
        self.wait_for_claim(reason, cx.now);
        self.query_again_if_one_answered(&nonces, cx);
        if !is_absurd {
            self.search_consumer(claims.first.latest, cx);
        }
        None
    }

    /// While commits may be lost, what any endpoint reports counts, because the nonces may be the lane's own. One that is
    /// wrong would stop the lane as long as it is: of three, what two contradict counts until its block would be final.
    fn without_outvoted_claim(&mut self, nonces: EndpointNonces) -> EndpointNonces {
        let (Some(view), Some(loss)) = (&self.chain.view, &mut self.reconciliation.loss) else {
            return nonces;
        };
        let Some(tip) = view.headers.tip() else {
            return nonces;
        };
        let final_height = foreign_final_height(self.rules.confirmations.finality, view);
        match loss.is_outvoted(&nonces, tip.number, final_height) {
            true => nonces.capped(nonces.confirmed()),
            false => nonces,
        }
    }

    /// The only endpoint claims that something is pending above the cursor: no block can prove that. It is credible
    /// if its other nonce is: a pool that ends above the cursor, on top of blocks that the lane knows.
    fn judge_pool_of_only_endpoint(&mut self, nonces: EndpointNonces) -> EndpointNonces {
        self.chain.claim = None;
        let mut known = nonces;
        if nonces.first.latest > self.proven_latest() {
            known.first.pending = known.first.pending.min(self.ledger.cursor());
        }
        known
    }

    /// Below this every nonce is mined, as receipts show.
    fn proven_latest(&self) -> Nonce {
        let mined = self.slots.highest_mined().map_or(Nonce(0), Nonce::next);
        mined.max(self.ledger.consumed_below())
    }

    /// Whether a claim is to be ignored: two other endpoints contradict it, or one has for a while. An endpoint that is
    /// behind what the lane knows contradicts nothing.
    fn is_contradicted(&mut self, others: Option<&EndpointNonces>, now: Timestamp) -> bool {
        let proven = self.proven_latest();
        let claim = self.chain.claim.get_or_insert_with(|| NonceClaim::new(now));
        let Some(others) = others.filter(|others| others.highest().latest >= proven) else {
            return claim.is_ignored;
        };
        claim.is_ignored |= others.count() > 1 || now.since(claim.since) >= CONTRADICTED_FOR;
        claim.is_ignored
    }

    /// One endpoint of several claims it: the others are queried at once.
    fn query_again_if_one_answered(&mut self, nonces: &EndpointNonces, cx: &mut StepContext) {
        if nonces.agreement == Agreement::One {
            self.chain.needs_quorum = true;
        }
        if nonces.agreement == Agreement::One && !self.chain.was_queried_with_quorum() {
            self.query_chain_nonces(cx);
        }
    }

    fn wait_for_claim(&mut self, reason: String, now: Timestamp) {
        let claim = self.chain.claim.get_or_insert_with(|| NonceClaim::new(now));
        claim.is_ignored = false;
        self.holds.halted = Some(reason);
    }

    /// Searches the followed blocks for the transaction with the highest nonce that is claimed to be mined: it proves
    /// that everything below it is consumed too.
    fn search_consumer(&mut self, claimed: Nonce, cx: &mut StepContext) {
        let finality = self.rules.confirmations.finality;
        let cursor = self.ledger.cursor();
        let (Some(view), Some(claim)) = (self.chain.view.clone(), self.chain.claim.as_mut()) else {
            return;
        };
        let (Some(tip), Some(highest)) = (view.headers.tip().copied(), claimed.0.checked_sub(1))
        else {
            return;
        };
        if claimed <= cursor {
            return; // only a pool is claimed to end above
        }
        let same_claim = claim.search.filter(|search| search.nonce.0 <= highest);
        let mut search = same_claim.unwrap_or(ConsumerSearch {
            nonce: Nonce(highest),
            first_seen: tip.number,
            is_under_way: false,
        });
        if !search.is_under_way {
            // Up to a final block, when that was the tip at first sight or came later.
            let last = foreign_final_height(finality, &view);
            let last = last.filter(|height| *height >= search.first_seen);
            let last = last.and_then(|height| view.headers.at(height));
            search.is_under_way = true;
            cx.effects.push(Effect::FindConsumer {
                nonce: search.nonce,
                up_to: last.copied().unwrap_or(tip),
                hashes: Vec::new(),
            });
        }
        claim.search = Some(search);
    }

    /// The answer to the search for a claimed nonce's transaction; returns whether it was one. Where no endpoint can
    /// show the transaction, a final block at which the nonce is consumed counts, as it does for a tx's own nonce.
    pub(super) fn on_claim_searched(
        &mut self,
        nonce: Nonce,
        up_to: u64,
        by: Option<NonceConsumer>,
        cx: &mut StepContext,
    ) -> bool {
        let is_final = self.is_final_for_foreign_use(up_to);
        let claim = self.chain.claim.as_mut();
        let search = claim.and_then(|claim| claim.search.as_mut());
        let Some(search) = search.filter(|search| search.nonce == nonce) else {
            return false;
        };
        if !std::mem::take(&mut search.is_under_way) {
            return false;
        }
        let hash = match by {
            Some(NonceConsumer::Transaction { hash, .. }) => Some(hash),
            Some(NonceConsumer::Unattributed) if is_final && up_to >= search.first_seen => None,
            Some(NonceConsumer::NotConsumed | NonceConsumer::Unattributed) | None => return true,
        };
        self.chain.claim = None;
        self.holds.halted = None;
        let cursor = self.ledger.cursor();
        if nonce >= cursor {
            self.report_foreign_nonce(hash.filter(|_| nonce == cursor), cx);
            self.ledger.raise_cursor(nonce.next(), nonce.next());
        }
        self.query_chain_nonces(cx);
        true
    }

    /// Records that another program used the nonce at the cursor.
    pub(super) fn report_foreign_nonce(&mut self, tx_hash: Option<B256>, cx: &mut StepContext) {
        let nonce = self.ledger.cursor();
        let kind = EventKind::LaneForeignNonce { nonce, tx_hash };
        self.journal.emit_event(None, kind, cx);
    }
}

fn absurd_jump(reported: Nonce, cursor: Nonce, max: u64) -> String {
    format!(
        "the chain reports {reported} as the next nonce, {} above the lane's cursor {cursor}; that is more than \
         nonce.maxChainJump ({max}): check what else uses this account",
        cursor.until(reported)
    )
}

fn unproven(reported: Nonce, cursor: Nonce) -> String {
    format!(
        "an endpoint reports {reported} as the next nonce, the lane's cursor is {cursor}, no second endpoint confirms it, \
         and no block shows the transactions yet: check that all endpoints are in sync"
    )
}
