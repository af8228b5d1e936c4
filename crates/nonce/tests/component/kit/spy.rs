//! Wraps a scheme, counts concurrent calls per lane, and can block calls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use domain::{LaneKey, Mark, Reservation};
use engine::ports::{LaneReservations, ReservationError};
use nonce::{
    ConditionalVerdict, ReservationKey, ReserveRequest, Scheme, SchemeKind, WatchedReservation,
};

use super::Latch;

pub(crate) struct Spy {
    ledger: Arc<dyn Scheme>,
    seen: Mutex<Seen>,
    /// Blocks every call while closed.
    latch: Latch,
}

#[derive(Default)]
struct Seen {
    under_way: BTreeMap<LaneKey, usize>,
    /// Largest number of concurrent calls of one lane.
    calls_per_lane_max: usize,
    /// Largest number of lanes with calls in progress.
    lanes: usize,
    begun: usize,
    panics_next: bool,
}

impl Spy {
    pub(crate) fn on(ledger: Arc<dyn Scheme>) -> Arc<Self> {
        Arc::new(Self {
            ledger,
            seen: Mutex::default(),
            latch: Latch::open(),
        })
    }

    /// Largest number of concurrent calls of one lane.
    pub(crate) fn calls_per_lane_max(&self) -> usize {
        self.seen.lock().unwrap().calls_per_lane_max
    }

    /// Largest number of lanes with calls in progress.
    pub(crate) fn lanes_max(&self) -> usize {
        self.seen.lock().unwrap().lanes
    }

    /// Number of calls that have begun.
    pub(crate) fn calls_begun(&self) -> usize {
        self.seen.lock().unwrap().begun
    }

    /// Blocks every call while closed.
    pub(crate) fn latch(&self) -> &Latch {
        &self.latch
    }

    /// Makes the next call panic.
    pub(crate) fn panic_next(&self) {
        self.seen.lock().unwrap().panics_next = true;
    }

    async fn call<T>(&self, lane: LaneKey, call: impl Future<Output = T>) -> T {
        let _under_way = UnderWay::begin(self, lane);
        self.latch.wait_until_open().await;
        let breaks = std::mem::take(&mut self.seen.lock().unwrap().panics_next);
        assert!(!breaks, "panics on purpose");
        call.await
    }
}

struct UnderWay<'a> {
    spy: &'a Spy,
    lane: LaneKey,
}

impl<'a> UnderWay<'a> {
    fn begin(spy: &'a Spy, lane: LaneKey) -> Self {
        let mut seen = spy.seen.lock().unwrap();
        let count = seen.under_way.entry(lane).or_default();
        *count += 1;
        let count = *count;
        seen.calls_per_lane_max = seen.calls_per_lane_max.max(count);
        seen.lanes = seen.lanes.max(seen.under_way.len());
        seen.begun += 1;
        Self { spy, lane }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut seen = self
            .spy
            .seen
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let count = seen
            .under_way
            .get_mut(&self.lane)
            .expect("the call is counted");
        *count -= 1;
        if *count == 0 {
            seen.under_way.remove(&self.lane);
        }
    }
}

#[async_trait]
impl Scheme for Spy {
    fn kind(&self) -> SchemeKind {
        self.ledger.kind()
    }

    async fn allocate(
        &self,
        lane: LaneKey,
        request: ReserveRequest,
    ) -> Result<Reservation, ReservationError> {
        self.call(lane, self.ledger.allocate(lane, request)).await
    }

    async fn mark(&self, key: ReservationKey, mark: Mark) -> Result<Reservation, ReservationError> {
        self.call(key.lane, self.ledger.mark(key, mark)).await
    }

    async fn find_reservation(
        &self,
        key: ReservationKey,
    ) -> Result<Option<Reservation>, ReservationError> {
        self.ledger.find_reservation(key).await
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations, ReservationError> {
        self.ledger.list_reservations(lane).await
    }

    async fn list_watched(
        &self,
        limit: usize,
    ) -> Result<Vec<WatchedReservation>, ReservationError> {
        self.ledger.list_watched(limit).await
    }

    async fn list_overdue(
        &self,
        limit: usize,
    ) -> Result<Vec<WatchedReservation>, ReservationError> {
        self.ledger.list_overdue(limit).await
    }

    async fn apply_verdicts(
        &self,
        verdicts: &[ConditionalVerdict],
    ) -> Result<(), ReservationError> {
        self.ledger.apply_verdicts(verdicts).await
    }

    async fn close(&self) -> Result<(), ReservationError> {
        self.ledger.close().await
    }
}
