//! What the process remembers of a lane while somebody has to do with it: its lock and its turns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::LaneKey;

use super::section::Turns;

/// The lanes with which somebody has to do right now; no others are remembered.
#[derive(Default)]
pub(super) struct Lanes {
    seats: Mutex<BTreeMap<LaneKey, Arc<Shared>>>,
}

#[derive(Default)]
struct Shared {
    /// Held while a call of the lane runs.
    calls: tokio::sync::Mutex<()>,
    /// Held while a `with_nonce` of the lane runs.
    turns: Turns,
}

/// A place in a lane. The last one that leaves takes the lane along.
pub(super) struct Seat {
    lanes: Arc<Lanes>,
    lane: LaneKey,
    shared: Arc<Shared>,
}

impl Lanes {
    pub(super) fn seat(self: &Arc<Self>, lane: LaneKey) -> Seat {
        let shared = Arc::clone(self.lock().entry(lane).or_default());
        Seat {
            lanes: Arc::clone(self),
            lane,
            shared,
        }
    }

    /// A poisoned lock is taken all the same: nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<LaneKey, Arc<Shared>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    pub(super) fn lane(&self) -> LaneKey {
        self.lane
    }

    pub(super) fn calls(&self) -> &tokio::sync::Mutex<()> {
        &self.shared.calls
    }

    pub(super) fn turns(&self) -> &Turns {
        &self.shared.turns
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.lanes.lock();
        // Seats are given out under this lock: the table's and this one are the last two for sure.
        if Arc::strong_count(&self.shared) == 2 {
            seats.remove(&self.lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::{Address, ChainId};

    use super::*;

    #[test]
    fn a_lane_is_remembered_only_while_somebody_sits_there() {
        let lanes = Arc::new(Lanes::default());
        let lane = LaneKey {
            chain_id: ChainId(1),
            signer: Address::ZERO,
        };
        let (first, second) = (lanes.seat(lane), lanes.seat(lane));
        assert!(Arc::ptr_eq(&first.shared, &second.shared));
        drop(first);
        assert_eq!(lanes.lock().len(), 1);
        drop(second);
        assert_eq!(lanes.lock().len(), 0);
    }
}
