//! Memory never knows less than the store: a keeper loads everything that was written to its lane, up to the
//! last batch.

use std::collections::{BTreeMap, BTreeSet};

use domain::{LaneImage, LaneKey, Nonce, Tx, TxId};
use engine::ports::LaneBatch;

use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::event::WorldEvent;

#[derive(Default)]
pub struct LoadsComplete {
    lanes: StoreModel<BTreeMap<LaneKey, OpenRows>>,
}

/// The open txs that were written to a lane.
#[derive(Clone, Default)]
struct OpenRows {
    with_nonce: BTreeMap<TxId, Tx>,
    waiting: BTreeSet<TxId>,
}

impl OpenRows {
    fn write(&mut self, batch: &LaneBatch) {
        let writes = &batch.writes;
        for tx in writes.inserts.iter().chain(&writes.updates) {
            self.with_nonce.remove(&tx.id);
            if tx.is_open() && tx.nonce.is_some() {
                self.with_nonce.insert(tx.id, tx.clone());
            }
        }
        self.waiting.extend(&writes.queued_added);
        for id in &writes.queued_removed {
            self.waiting.remove(id);
        }
    }

    fn compare(&self, image: &LaneImage) -> Result<(), String> {
        let nonces: BTreeSet<u64> = image.held.iter().cloned().flatten().collect();
        let written = self.with_nonce.values().filter_map(|tx| tx.nonce);
        let written: BTreeSet<u64> = written.map(|Nonce(nonce)| nonce).collect();
        if nonces != written {
            return Err(format!(
                "nonces {nonces:?} are held, {written:?} were written"
            ));
        }
        for (tx, _) in &image.in_flight {
            if self.with_nonce.get(&tx.id) != Some(tx) {
                return Err(format!("tx {} differs from what was written", tx.id));
            }
        }
        let is_signed = |tx: &&Tx| tx.tx_hash.is_some();
        let signed = self.with_nonce.values().filter(is_signed).count();
        let (loaded, waiting) = (image.in_flight.len(), self.waiting.len());
        if loaded != signed || image.open.queued != u64::try_from(waiting).expect("few txs") {
            let queued = image.open.queued;
            return Err(format!(
                "{loaded} of {signed} txs are in flight, and {queued} of {waiting} are queued"
            ));
        }
        Ok(())
    }
}

impl Checker for LoadsComplete {
    fn name(&self) -> &'static str {
        "a keeper loads everything that was written"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.lanes.follow(event);
        if let WorldEvent::Queued { lane, tx_id, .. } = event {
            self.lanes.entry(*lane).or_default().waiting.insert(*tx_id);
        }
        if let WorldEvent::Loaded { lane, image } = event {
            let written = self.lanes.entry(*lane).or_default();
            return written
                .compare(image)
                .map_err(|what| format!("{lane} after {}: {what}", image.batch_seq));
        }
        if let Some((lane, batch)) = applied(event) {
            self.lanes.entry(lane).or_default().write(batch);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use domain::lane::OpenSummary;
    use domain::{GrantId, LaneId, LeaseGrant, Token};
    use uuid::Uuid;

    use super::super::test_events::{applied, lane, tx};
    use super::*;

    fn loaded(held: std::ops::Range<u64>, queued: u64) -> WorldEvent {
        let lease_grant = LeaseGrant {
            lane: LaneId(1),
            token: Token(1),
            grant: GrantId(Uuid::nil()),
        };
        let image = LaneImage {
            key: lane(1),
            lease_grant,
            next_nonce: Nonce(9),
            event_seq: 0,
            batch_seq: 0,
            paused: false,
            in_flight: Vec::new(),
            backlog_from: None,
            held: vec![held],
            consumed_below: Nonce(0),
            open: OpenSummary {
                queued,
                ..OpenSummary::default()
            },
            mined: domain::lane::MinedRows::default(),
        };
        WorldEvent::Loaded {
            lane: lane(1),
            image: Arc::new(image),
        }
    }

    #[test]
    fn image_must_include_the_last_batch() {
        let mut checker = LoadsComplete::default();
        let first = applied(lane(1), |w| w.inserts = vec![tx(1, Some(5))]);
        let last = applied(lane(1), |writes| {
            writes.inserts = vec![tx(2, Some(6)), tx(3, None)];
            writes.queued_added = vec![tx(3, None).id];
        });
        assert_eq!(checker.after(&first), Ok(()));
        assert_eq!(checker.after(&loaded(5..6, 0)), Ok(()));
        assert_eq!(checker.after(&last), Ok(()));
        assert_eq!(checker.after(&loaded(5..7, 1)), Ok(()));
        assert!(checker.after(&loaded(5..6, 1)).is_err());
        assert!(checker.after(&loaded(5..7, 0)).is_err());
    }
}
