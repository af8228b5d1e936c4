//! STUCK only where a rule requires it: attempts are limited, a foreign nonce is to be held, or a reorg was
//! deeper than is watched (which no simulated reorg is).

use domain::lane::OnForeignNonce;
use domain::{LaneRules, SubState, Tx, TxState};

use super::{Checker, applied};
use crate::event::WorldEvent;

pub struct StuckByPolicy {
    rules: LaneRules,
    /// Whether the consumer of a nonce may be the tx's own attempt: the store may have lost commits, or endpoints
    /// cannot show the consumer.
    may_be_ours: bool,
}

impl StuckByPolicy {
    pub(super) const PROMISE: &'static str = "STUCK only by a rule";

    /// For lanes with these rules, where a foreign transaction may or may not be the lane's own.
    #[must_use]
    pub fn new(rules: LaneRules, may_be_ours: bool) -> Self {
        Self { rules, may_be_ours }
    }

    fn is_required_by_policy(&self, tx: &Tx) -> bool {
        if tx.sub_state == Some(SubState::ForeignNonce) {
            return self.may_be_ours || self.rules.nonce.on_foreign_nonce == OnForeignNonce::Hold;
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
            if !self.is_required_by_policy(tx) {
                let (id, sub, reason) = (tx.id, tx.sub_state, &tx.reason);
                return Err(format!("tx {id} of {lane} is STUCK/{sub:?}: {reason:?}"));
            }
        }
        Ok(())
    }
}
