//! STUCK only where a rule asks for it: attempts are limited, a foreign nonce is to be held, or a fork
//! went deeper than is watched (which no simulated fork does).

use domain::lane::OnForeignNonce;
use domain::{LaneRules, SubState, Tx, TxState};

use super::{Checker, applied};
use crate::event::WorldEvent;

/// See the module.
pub struct StuckByPolicy {
    rules: LaneRules,
    /// Whether what consumed a nonce may have been ours: the store may have lost commits, or nodes cannot
    /// show who it was.
    may_be_ours: bool,
}

impl StuckByPolicy {
    pub(super) const PROMISE: &'static str = "STUCK only by a rule";

    /// For lanes with these rules, where a foreign transaction may or may not be one of ours.
    #[must_use]
    pub fn new(rules: LaneRules, may_be_ours: bool) -> Self {
        Self { rules, may_be_ours }
    }

    fn is_asked_for(&self, tx: &Tx) -> bool {
        if tx.sub_state == Some(SubState::ForeignNonce) {
            return self.may_be_ours || self.rules.on_foreign_nonce == OnForeignNonce::Hold;
        }
        let is_deep_fork = tx.sub_state == Some(SubState::DeepFork);
        !is_deep_fork && self.rules.resubmit.max_attempts.is_some()
    }
}

impl Checker for StuckByPolicy {
    fn name(&self) -> &'static str {
        Self::PROMISE
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        let rows = batch.writes.inserts.iter().chain(&batch.writes.updates);
        for tx in rows.filter(|tx| tx.state == TxState::Stuck) {
            if !self.is_asked_for(tx) {
                let (id, sub, reason) = (tx.id, tx.sub_state, &tx.reason);
                return Err(format!("tx {id} of {lane} is STUCK/{sub:?}: {reason:?}"));
            }
        }
        Ok(())
    }
}
