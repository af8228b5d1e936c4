//! The gate's arguments: the batches of many lanes as columns.

use std::collections::BTreeSet;

use domain::TxId;
use engine::ports::LaneBatch;
use tokio_postgres::types::Type;

use super::columns::{Attempts, Ids, Lanes, Sent, TxChanges, TxConstants};
use super::pool::Param;

/// The parameters of [`super::gate::GATE`].
#[derive(Default)]
pub struct Arguments<'a> {
    lanes: Lanes<'a>,
    new_lanes: Vec<i64>,
    new: TxConstants<'a>,
    new_states: TxChanges<'a>,
    changed: Ids<'a>,
    changed_states: TxChanges<'a>,
    attempts: Attempts<'a>,
    /// Txs that get an attempt and do not change otherwise: they must exist.
    unchanged: Ids<'a>,
    sent: Sent<'a>,
    queued_added: Ids<'a>,
    queued_removed: Ids<'a>,
}

/// The size of a batch: mostly its txs, since attempts and queue rows come along with them.
pub(super) fn items(batch: &LaneBatch) -> usize {
    let writes = &batch.writes;
    let txs = writes.inserts.len() + writes.updates.len();
    let others = [writes.attempts.len(), writes.first_sent.len(), 1];
    others.into_iter().fold(txs, usize::max)
}

impl<'a> Arguments<'a> {
    /// At most one folded batch per lane.
    pub fn of(batches: impl Iterator<Item = &'a LaneBatch>) -> Self {
        let mut arguments = Self::default();
        for batch in batches {
            arguments.push(batch);
        }
        arguments
    }

    fn push(&mut self, batch: &'a LaneBatch) {
        let (lane, writes) = (batch.lease_grant.lane.0, &batch.writes);
        let mut served: BTreeSet<TxId> = writes.attempts.iter().map(|a| a.tx_id).collect();
        self.lanes.push(batch);
        for tx in &writes.inserts {
            self.new_lanes.push(lane);
            self.new.push(tx);
            self.new_states.push(tx);
            served.remove(&tx.id);
        }
        for tx in &writes.updates {
            self.changed.push(lane, tx.id);
            self.changed_states.push(tx);
            served.remove(&tx.id);
        }
        for attempt in &writes.attempts {
            self.attempts.push(lane, attempt);
        }
        for id in served {
            self.unchanged.push(lane, id);
        }
        let mut sent_hashes = BTreeSet::new();
        for (hash, at) in &writes.first_sent {
            // The first acceptance counts.
            if sent_hashes.insert(hash) {
                self.sent.push(lane, hash.as_slice(), at.0);
            }
        }
        for id in &writes.queued_added {
            self.queued_added.push(lane, *id);
        }
        for id in &writes.queued_removed {
            self.queued_removed.push(lane, *id);
        }
    }

    /// In the order of the function's parameters, with their types.
    pub fn params(&self) -> Vec<Param<'_>> {
        let mut params: Vec<Param<'_>> = Vec::new();
        self.lanes.add_params(&mut params);
        params.push((&self.new_lanes, Type::INT8_ARRAY));
        self.new.add_params(&mut params);
        self.new_states.add_params(&mut params);
        self.changed.add_params(&mut params);
        self.changed_states.add_params(&mut params);
        self.attempts.add_params(&mut params);
        self.unchanged.add_params(&mut params);
        self.sent.add_params(&mut params);
        self.queued_added.add_params(&mut params);
        self.queued_removed.add_params(&mut params);
        params
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::gate::GATE;

    #[test]
    fn gate_call_has_a_placeholder_for_every_parameter() {
        let count = Arguments::default().params().len();
        assert!(GATE.contains(&format!("${count})")), "{count} parameters");
        let function = include_str!("migrations/0001_initial/gate.sql");
        let (_, function) = function.split_once("FUNCTION lanekeeper_gate(").unwrap();
        let (declared, _) = function.split_once(") RETURNS").unwrap();
        assert_eq!(declared.split(',').count(), count);
    }
}
