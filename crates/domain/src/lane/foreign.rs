//! Somebody else uses the account: a nonce of ours that another transaction has consumed.
//!
//! The account's nonce alone proves nothing: our receipt may be late, or lost at one node. Proof is what
//! stands at final depth, and only that gives a tx another nonce.

use alloy_primitives::{B256, U256};

use crate::mutation::{self, Mutation};
use crate::{
    Attempt, AttemptKind, ChainView, EffectDigest, EventKind, Nonce, SubState, Timestamp, TxState,
};

use super::protocol::FOREIGN_DEPTH_MIN;
use super::{Effect, Finality, Lane, NonceConsumer, OnForeignNonce, Slot, Stage, Step, Suspicion};

/// How deep another transaction counts where the chain itself says what is final.
const FOREIGN_DEPTH_TAGGED: u64 = 64;

impl Lane {
    /// Whether the lowest unmined nonce is consumed, and it is time to ask by whom: once at first sight,
    /// and again when what was seen then has become final.
    pub(super) fn look_for_foreign_use(&mut self, step: &mut Step) {
        let Some((nonce, hashes)) = self.lowest_that_seems_used() else {
            self.suspicion = None;
            return;
        };
        let Some(view) = self.view.clone() else {
            return;
        };
        let Some(tip) = view.headers.tip() else {
            return;
        };
        let before = self.suspicion.filter(|held| held.nonce == nonce);
        let suspicion = self.suspicion.insert(before.unwrap_or(Suspicion {
            nonce,
            since: tip.number,
            ask_at: 0,
            asked: None,
            is_asking: false,
        }));
        let newest = final_for_foreign(self.rules.finality, &view);
        let Some(newest) = newest.filter(|up_to| *up_to >= suspicion.ask_at) else {
            return;
        };
        if suspicion.is_asking {
            return;
        }
        suspicion.is_asking = true;
        // Until there is an answer always the same height, so that an endpoint that is behind gets there.
        let height = *suspicion.asked.get_or_insert(newest);
        let Some(up_to) = view.headers.at(height).copied() else {
            // It took so long that the view has left it behind: at the next block with another one.
            suspicion.asked = None;
            suspicion.is_asking = false;
            return;
        };
        step.effects.push(Effect::FindConsumer {
            nonce,
            up_to,
            hashes,
        });
    }

    fn lowest_that_seems_used(&self) -> Option<(Nonce, Vec<B256>)> {
        let latest = self.chain?.nonces.latest;
        let mut below = self.slots.range(..latest);
        let (nonce, slot) = below.find(|(_, slot)| slot.stage != Stage::Mined)?;
        let hashes = slot.attempts.iter().map(|attempt| attempt.hash).collect();
        Some((*nonce, hashes))
    }

    /// Who consumed a nonce of ours.
    pub(super) fn consumed(
        &mut self,
        nonce: Nonce,
        by: Option<NonceConsumer>,
        (hashes, is_named): (&[B256], bool),
        now: Timestamp,
        step: &mut Step,
    ) {
        if let Some(suspicion) = self.suspicion.as_mut().filter(|held| held.nonce == nonce) {
            suspicion.is_asking = false;
            if by.is_some() {
                // Again when what was the newest block at first sight is final, and at every block then.
                let next = suspicion
                    .asked
                    .take()
                    .map_or(0, |asked| asked.saturating_add(1));
                suspicion.ask_at = suspicion.since.max(next);
            }
        }
        let slot = self.slots.get(&nonce);
        let Some(slot) = slot.filter(|slot| slot.stage != Stage::Mined) else {
            return;
        };
        let is_ours = |hash: &B256| slot.attempts.iter().any(|attempt| attempt.hash == *hash);
        let all_asked = slot.attempts.iter().all(|a| hashes.contains(&a.hash));
        let foreign = match by {
            None | Some(NonceConsumer::Nobody) => return,
            Some(NonceConsumer::By { hash, .. }) if is_ours(&hash) => {
                step.effects.push(Effect::FetchReceipts(vec![hash]));
                return;
            }
            Some(NonceConsumer::By {
                hash,
                effect_digest,
            }) => Some((hash, effect_digest)),
            Some(NonceConsumer::Unseen) if all_asked => None,
            Some(NonceConsumer::Unseen) => return, // one was signed since: asked again
        };
        self.suspicion = None;
        if self.lends() {
            let by = foreign.map(|(hash, _)| hash);
            self.lent_was_consumed(nonce, by, is_named, now, step);
            self.look_for_foreign_use(step);
            return;
        }
        let kind = EventKind::LaneForeignNonce {
            nonce,
            tx_hash: foreign.map(|(hash, _)| hash),
        };
        self.emit_event(step, None, kind, now);
        self.give_up_nonce(nonce, foreign, now, step);
        self.look_for_foreign_use(step);
    }

    /// What two deliberate bugs do: the nonce is for somebody else, although bytes of ours may be out.
    pub(super) fn let_nonce_go(&mut self, nonce: Nonce, now: Timestamp, step: &mut Step) {
        let nobody = (B256::ZERO, EffectDigest::of(None, U256::MAX, &[]));
        self.give_up_nonce(nonce, Some(nobody), now, step);
        self.fresh_gaps.insert(nonce);
    }

    /// Its nonce is gone for good, so nothing of it can be mined any more: it may have another one.
    fn give_up_nonce(
        &mut self,
        nonce: Nonce,
        foreign: Option<(B256, EffectDigest)>,
        now: Timestamp,
        step: &mut Step,
    ) {
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return;
        };
        self.unmined = self.unmined.saturating_sub(1);
        self.consumed_below = self.consumed_below.max(nonce.next());
        for Attempt { hash, .. } in &slot.attempts {
            self.by_hash.remove(hash);
            step.effects.push(Effect::Unwatch(*hash));
        }
        let did_the_same = foreign
            .is_some_and(|(_, effect_digest)| effect_digest == slot.tx.payload.effect_digest());
        let reason = match foreign {
            Some((hash, _)) if did_the_same => format!(
                "nonce {nonce} was consumed by {hash}, which nobody here remembers and which did just what this tx \
                 wants: compare with the chain"
            ),
            Some((hash, _)) => {
                format!("nonce {nonce} was consumed by somebody else's transaction {hash}")
            }
            None => format!(
                "nonce {nonce} is consumed, and no endpoint shows by which transaction or has a receipt of \
                 ours: compare with the chain"
            ),
        };
        slot.tx.nonce = None;
        slot.tx.tx_hash = None;
        slot.tx.token = self.lease_grant.token;
        slot.tx.reason = Some(reason.clone());
        if let Some(sub) = slot.wants_nothing_but_its_nonce() {
            slot.tx.confirmed_at = Some(now);
            slot.tx.transition(TxState::FailedFinal, sub, now);
            let kind = EventKind::TxFailed { reason };
            self.emit_event(step, Some(&mut slot.tx), kind, now);
            step.writes.updates.push(slot.tx);
            return;
        }
        // What the store has lost may have paid already, and what no node can show, or did just the same, may be
        // ours: somebody must look.
        let jump = self.rules.max_chain_jump;
        let is_lost = |below: Nonce| nonce.0 < below.0.saturating_add(jump);
        let is_unseen = foreign.is_none() && !mutation::is_on(Mutation::RequeueUnseenConsumer);
        let may_be_ours = is_unseen || did_the_same || self.lost_below.is_some_and(is_lost);
        let decision = match may_be_ours {
            true => OnForeignNonce::Hold,
            false => self.rules.on_foreign_nonce,
        };
        match decision {
            OnForeignNonce::Requeue => {
                slot.tx.transition(TxState::Created, SubState::Queued, now);
                let kind = EventKind::TxRequeued {
                    nonce,
                    foreign: foreign.map(|(hash, _)| hash),
                };
                self.emit_event(step, Some(&mut slot.tx), kind, now);
                self.more_queued(Some(&slot.tx));
                step.writes.queued_added.push(slot.tx.id);
            }
            OnForeignNonce::Hold => {
                slot.tx
                    .transition(TxState::Stuck, SubState::ForeignNonce, now);
                let kind = EventKind::TxStuck { reason };
                self.emit_event(step, Some(&mut slot.tx), kind, now);
            }
        }
        step.writes.updates.push(slot.tx);
    }
}

/// Up to which height a transaction of somebody else counts.
fn final_for_foreign(finality: Finality, view: &ChainView) -> Option<u64> {
    let tip = view.headers.tip()?.number;
    if mutation::is_on(Mutation::BelieveForeignEarly) {
        return Some(tip);
    }
    let deep_enough = |depth: u64| tip.checked_sub(depth.max(FOREIGN_DEPTH_MIN));
    match finality {
        Finality::Depth(depth) => deep_enough(depth),
        // The chain's own final block may lie far below everything that is followed.
        Finality::Tag(_) => deep_enough(FOREIGN_DEPTH_TAGGED),
    }
}

impl Slot {
    /// A filler, and a tx that no node will ever take, are over when their nonce is consumed by anybody.
    fn wants_nothing_but_its_nonce(&self) -> Option<SubState> {
        match self.kind {
            AttemptKind::Filler => Some(SubState::ForeignNonce),
            AttemptKind::Original
            | AttemptKind::Bump
            | AttemptKind::Cancel
            | AttemptKind::Replace => self.is_cancelled().then_some(SubState::Rejected),
        }
    }
}
