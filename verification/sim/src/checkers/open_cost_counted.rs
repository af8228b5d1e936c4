//! The running sum in the lane row is that of the open txs: the next keeper starts from it, without reading the txs that
//! wait in the store.

use std::collections::BTreeMap;

use domain::lane::OpenCost;
use domain::{Attempt, LaneKey, Tx, TxId};
use engine::ports::LaneBatch;

use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::event::WorldEvent;

#[derive(Default)]
pub struct OpenCostCounted {
    lanes: StoreModel<BTreeMap<LaneKey, LaneRows>>,
}

/// The txs that were written to a lane.
#[derive(Clone, Default)]
pub(super) struct LaneRows {
    open: BTreeMap<TxId, Tx>,
    attempts: BTreeMap<TxId, Vec<Attempt>>,
}

impl LaneRows {
    pub(super) fn write(&mut self, batch: &LaneBatch) {
        let writes = &batch.writes;
        for tx in writes.inserts.iter().chain(&writes.updates) {
            match tx.is_open() {
                true => self.open.insert(tx.id, tx.clone()),
                false => self.open.remove(&tx.id),
            };
        }
        for attempt in &writes.attempts {
            let attempts = self.attempts.entry(attempt.tx_id).or_default();
            attempts.push(attempt.clone());
        }
    }

    /// The open txs that a keeper has seen, each with what it can cost.
    pub(super) fn costs(&self) -> impl Iterator<Item = (&Tx, OpenCost)> {
        let seen = self
            .open
            .values()
            .filter(|tx| !tx.history.event_seqs.is_empty());
        seen.map(|tx| {
            let attempts = self.attempts.get(&tx.id);
            (tx, OpenCost::of_tx(tx, attempts.map_or(&[], Vec::as_slice)))
        })
    }
}

impl Checker for OpenCostCounted {
    fn name(&self) -> &'static str {
        "the cost of open txs is counted"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.lanes.follow(event);
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        let rows = self.lanes.entry(lane).or_default();
        rows.write(batch);
        let costs = rows.costs().map(|(_, cost)| cost);
        let sum = costs.fold(OpenCost::default(), OpenCost::plus);
        match sum == batch.open_cost {
            true => Ok(()),
            false => Err(format!(
                "{lane}: the lane row has {:?}, the open txs {sum:?}",
                batch.open_cost
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use domain::{TxState, U256};

    use super::super::test_events::{applied, attempt, lane, tx};
    use super::*;

    fn with_cost(event: WorldEvent, open_cost: OpenCost) -> WorldEvent {
        let WorldEvent::Committed {
            lane,
            batch,
            outcome,
        } = event
        else {
            unreachable!("applied makes a commit")
        };
        let batch = LaneBatch {
            open_cost,
            ..(*batch).clone()
        };
        WorldEvent::Committed {
            lane,
            batch: Arc::new(batch),
            outcome,
        }
    }

    #[test]
    fn sum_follows_acceptance_signature_and_end() {
        let mut checker = OpenCostCounted::default();
        let mut one = tx(7, Some(3));
        one.history.event_seqs = vec![1];
        let accepted = || applied(lane(1), |w| w.inserts = vec![one.clone()]);
        let unsigned = OpenCost {
            wei: U256::from(7),
            unpriced_gas: 21_000,
        };
        assert!(checker.after(&accepted()).is_err(), "not counted");
        assert_eq!(checker.after(&with_cost(accepted(), unsigned)), Ok(()));
        let signed = OpenCost {
            wei: U256::from(7 + 100_000 * 5),
            unpriced_gas: 0,
        };
        let signs = || applied(lane(1), |w| w.attempts = vec![attempt(7, 3)]);
        assert!(checker.after(&with_cost(signs(), unsigned)).is_err());
        let again = applied(lane(1), |_| {});
        assert_eq!(checker.after(&with_cost(again, signed)), Ok(()));
        one.state = TxState::Confirmed;
        let ended = applied(lane(1), |w| w.updates = vec![one]);
        assert_eq!(checker.after(&ended), Ok(()));
    }
}
