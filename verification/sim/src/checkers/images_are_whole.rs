//! Memory never knows less than the store: what a keeper is given of its lane is what was written before, to
//! the last batch.

use std::collections::{BTreeMap, BTreeSet};

use domain::{LaneImage, LaneKey, Nonce, Tx, TxId};
use engine::ports::LaneBatch;

use super::books::Books;
use super::{Checker, applied};
use crate::event::WorldEvent;

/// See the module.
#[derive(Default)]
pub struct ImagesAreWhole {
    lanes: Books<BTreeMap<LaneKey, Written>>,
}

/// What was written of a lane, as far as it is open.
#[derive(Clone, Default)]
struct Written {
    with_nonce: BTreeMap<TxId, Tx>,
    waiting: BTreeSet<TxId>,
}

impl Written {
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
                return Err(format!("tx {} is not as it was written", tx.id));
            }
        }
        let is_signed = |tx: &&Tx| tx.tx_hash.is_some();
        let signed = self.with_nonce.values().filter(is_signed).count();
        let (given, waiting) = (image.in_flight.len(), self.waiting.len());
        if given != signed || image.queued != u64::try_from(waiting).expect("few txs") {
            let queued = image.queued;
            return Err(format!(
                "{given} of {signed} txs are out, and {queued} of {waiting} wait"
            ));
        }
        Ok(())
    }
}

impl Checker for ImagesAreWhole {
    fn name(&self) -> &'static str {
        "a keeper is given all that was written"
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

    use domain::{GrantId, LaneId, LeaseGrant, Token};
    use uuid::Uuid;

    use super::super::testing::{applied, lane, tx};
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
            queued,
            finals: Vec::new(),
        };
        WorldEvent::Loaded {
            lane: lane(1),
            image: Arc::new(image),
        }
    }

    #[test]
    fn what_the_last_batch_wrote_must_be_there() {
        let mut checker = ImagesAreWhole::default();
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
