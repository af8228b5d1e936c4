//! Foreign use of the account: a nonce of ours that another transaction has consumed.
//!
//! The account's nonce alone proves nothing: our receipt may be late, or lost at one node. Proof is what stands at
//! finality depth, and only that gives a tx another nonce.

use alloy_primitives::B256;

use crate::{AttemptKind, ChainView, EffectDigest, EventKind, Nonce, SubState, TxState};

use super::slots::Slot;
use super::{
    Effect, FOREIGN_FINALITY_DEPTH_MIN, Finality, Lane, NonceConsumer, OnForeignNonce, OpenCost,
    StepContext,
};

/// The finality depth of a foreign transaction where the chain itself says what is final.
const FOREIGN_FINALITY_DEPTH_TAGGED: u64 = 64;

impl Lane {
    /// Queries which transaction consumed the lowest unmined nonce that seems used: once at first sight, and again
    /// when what was seen then has become final.
    pub(super) fn check_foreign_use(&mut self, cx: &mut StepContext) {
        let latest = self.chain.latest();
        let Some((nonce, slot)) = self.slots.unmined(..latest).next() else {
            self.chain.drop_suspicion();
            return;
        };
        // Most likely its receipt is missing, with others: the follower skips blocks when it is far behind.
        self.chain.await_receipts(latest, cx.now);
        let Some(view) = self.chain.view.clone() else {
            return;
        };
        let Some(tip) = view.headers.tip() else {
            return;
        };
        let suspicion = self.chain.suspect(nonce, tip.number);
        let newest = foreign_final_height(self.rules.confirmations.finality, &view);
        let Some(height) = newest.and_then(|newest| suspicion.next_query(newest)) else {
            return;
        };
        let Some(up_to) = view.headers.at(height).copied() else {
            suspicion.reset_query();
            return;
        };
        cx.effects.push(Effect::FindConsumer {
            nonce,
            up_to,
            hashes: slot.hashes().collect(),
        });
    }

    /// The answer to the query for the transaction that consumed a nonce of ours. Only blocks that are final for foreign
    /// use give a tx another nonce, whatever the query was made for: the answer to the search for a claimed nonce may come
    /// when the lane has allocated that nonce.
    pub(super) fn on_consumed(
        &mut self,
        nonce: Nonce,
        up_to: u64,
        by: Option<NonceConsumer>,
        (queried, is_named): (&[B256], bool),
        cx: &mut StepContext,
    ) {
        if self.on_claim_searched(nonce, up_to, by, cx) {
            return;
        }
        if let Some(suspicion) = self.chain.suspicion_of(nonce) {
            suspicion.finish_query(by.is_some());
        }
        let slot = self.slots.get(nonce);
        let Some(slot) = slot.filter(|slot| !slot.is_mined()) else {
            return;
        };
        let all_queried = slot.hashes().all(|hash| queried.contains(&hash));
        let foreign = match by {
            None | Some(NonceConsumer::NotConsumed) => return,
            Some(NonceConsumer::Transaction { hash, .. }) if slot.has_attempt(hash) => {
                cx.effects.push(Effect::FetchReceipts(vec![hash]));
                return;
            }
            Some(_) if !self.is_final_for_foreign_use(up_to) => return,
            Some(NonceConsumer::Transaction {
                hash,
                effect_digest,
            }) => Some((hash, effect_digest)),
            Some(NonceConsumer::Unattributed) if all_queried => None,
            Some(NonceConsumer::Unattributed) => return, // an attempt was signed since: queried again
        };
        self.chain.drop_suspicion();
        if self.is_reserving() {
            let by = foreign.map(|(hash, _)| hash);
            self.on_reserved_consumed(nonce, by, is_named, cx);
        } else {
            let kind = EventKind::LaneForeignNonce {
                nonce,
                tx_hash: foreign.map(|(hash, _)| hash),
            };
            self.journal.emit_event(None, kind, cx);
            self.give_up_nonce(nonce, foreign, cx);
        }
        self.check_foreign_use(cx);
    }

    /// Whether a foreign transaction in a block of this height counts.
    pub(super) fn is_final_for_foreign_use(&self, height: u64) -> bool {
        let finality = self.rules.confirmations.finality;
        let newest = self.chain.view.as_ref();
        let newest = newest.and_then(|view| foreign_final_height(finality, view));
        newest.is_some_and(|newest| height <= newest)
    }

    /// The tx's nonce is consumed for good, so none of its attempts can be mined any more: it may have another one.
    fn give_up_nonce(
        &mut self,
        nonce: Nonce,
        foreign: Option<(B256, EffectDigest)>,
        cx: &mut StepContext,
    ) {
        let Some(mut slot) = self.slots.remove(nonce) else {
            return;
        };
        cx.effects.extend(slot.hashes().map(Effect::Unwatch));
        self.release_funds(nonce, &slot);
        let wanted = slot.tx.request.payload.effect_digest();
        let has_same_effect = foreign.is_some_and(|(_, effect_digest)| effect_digest == wanted);
        let foreign = foreign.map(|(hash, _)| hash);
        if let Some(loss) = self
            .reconciliation
            .loss
            .as_mut()
            .filter(|_| !has_same_effect)
        {
            // A lost commit may have sent it for another request.
            loss.add_unknown([nonce]);
        }
        let reason = consumed_reason(nonce, foreign, has_same_effect);
        slot.tx.nonce = None;
        slot.tx.tx_hash = None;
        let decision = self.decide_on_consumed(nonce, foreign, has_same_effect);
        if let Some(sub) = slot.sub_state_once_consumed(decision) {
            self.journal.end_failed(slot.tx, sub, reason, cx);
            return;
        }
        self.commit_funds(OpenCost::of_tx(&slot.tx, &[]));
        match decision {
            ConsumedDecision::ByRule(OnForeignNonce::Requeue) => {
                slot.tx.reason = Some(reason);
                slot.tx
                    .transition(TxState::Created, SubState::Queued, cx.now);
                let kind = EventKind::TxRequeued { nonce, foreign };
                self.journal.emit_event(Some(&mut slot.tx), kind, cx);
                self.paging.enqueue(Some(&slot.tx));
                cx.writes.queued_added.push(slot.tx.id);
            }
            ConsumedDecision::ByRule(OnForeignNonce::Hold) | ConsumedDecision::MayBeOurs => {
                if !has_same_effect {
                    self.account_for(&slot.tx, cx);
                }
                self.journal
                    .mark_stuck(&mut slot.tx, SubState::ForeignNonce, reason, cx);
            }
        }
        cx.writes.updates.push(slot.tx);
    }

    /// A transaction that the store has lost, that no node can show, or that had just this effect may be ours: then
    /// an operator decides, whatever the rule says.
    fn decide_on_consumed(
        &self,
        nonce: Nonce,
        foreign: Option<B256>,
        has_same_effect: bool,
    ) -> ConsumedDecision {
        let max_jump = self.rules.nonce.max_chain_jump;
        let is_lost = self.reconciliation.may_be_lost(nonce, max_jump);
        match foreign.is_none() || has_same_effect || is_lost {
            true => ConsumedDecision::MayBeOurs,
            false => ConsumedDecision::ByRule(self.rules.nonce.on_foreign_nonce),
        }
    }
}

/// What becomes of a tx whose nonce is consumed by something else than its known attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConsumedDecision {
    /// It is foreign for certain: what the rule says.
    ByRule(OnForeignNonce),
    /// The payload may have been executed: an operator decides.
    MayBeOurs,
}

fn consumed_reason(nonce: Nonce, foreign: Option<B256>, has_same_effect: bool) -> String {
    match foreign {
        Some(hash) if has_same_effect => format!(
            "nonce {nonce} was consumed by {hash}, which is not in the store and did exactly what this tx asks for: \
             compare with the chain"
        ),
        Some(hash) => format!("nonce {nonce} was consumed by the foreign transaction {hash}"),
        None => format!(
            "nonce {nonce} is consumed, and no endpoint shows by which transaction or has a receipt of ours: compare \
             with the chain"
        ),
    }
}

/// Up to which height a foreign transaction counts.
pub(super) fn foreign_final_height(finality: Finality, view: &ChainView) -> Option<u64> {
    let tip = view.headers.tip()?.number;
    let finality_depth = match finality {
        Finality::Depth(finality_depth) => finality_depth.max(FOREIGN_FINALITY_DEPTH_MIN),
        // The chain's own final block may lie far below the view.
        Finality::Tag(_) => FOREIGN_FINALITY_DEPTH_TAGGED,
    };
    tip.checked_sub(finality_depth)
}

impl Slot {
    /// The final sub-state of a tx that ends when its nonce is consumed: a filler always, and a tx that a no-op was to
    /// end, unless its payload may have been executed.
    fn sub_state_once_consumed(&self, decision: ConsumedDecision) -> Option<SubState> {
        if self.kind == AttemptKind::Filler {
            return Some(SubState::ForeignNonce);
        }
        let is_foreign = matches!(decision, ConsumedDecision::ByRule(_));
        (is_foreign && self.is_cancelled()).then_some(SubState::Rejected)
    }
}
