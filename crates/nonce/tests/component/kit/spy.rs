//! Sits in front of books and sees which calls of a lane are under way at once. It can keep calls back, too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use domain::{Holder, LaneKey, Mark, Nonce, Reservation};
use engine::ports::{LaneReservations, ReservationError};
use nonce::{Borrow, Scheme, SchemeKind, Settlement, Watched};

use super::Gate;

pub(crate) struct Spy {
    books: Arc<dyn Scheme>,
    seen: Mutex<Seen>,
    /// Every call goes through it.
    gate: Gate,
}

#[derive(Default)]
struct Seen {
    under_way: BTreeMap<LaneKey, usize>,
    /// The most calls of one lane that were under way at once.
    of_one_lane: usize,
    /// The most lanes that had calls under way at once.
    lanes: usize,
    begun: usize,
    breaks_next: bool,
}

impl Spy {
    pub(crate) fn on(books: Arc<dyn Scheme>) -> Arc<Self> {
        Arc::new(Self {
            books,
            seen: Mutex::default(),
            gate: Gate::open(),
        })
    }

    /// The most calls of one lane that were under way at once.
    pub(crate) fn of_one_lane(&self) -> usize {
        self.seen.lock().unwrap().of_one_lane
    }

    /// The most lanes that had calls under way at once.
    pub(crate) fn lanes(&self) -> usize {
        self.seen.lock().unwrap().lanes
    }

    /// How many calls have begun.
    pub(crate) fn begun(&self) -> usize {
        self.seen.lock().unwrap().begun
    }

    /// What calls go through.
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The next call panics.
    pub(crate) fn break_next(&self) {
        self.seen.lock().unwrap().breaks_next = true;
    }

    async fn call<T>(&self, lane: LaneKey, call: impl Future<Output = T>) -> T {
        let _under_way = UnderWay::begin(self, lane);
        self.gate.pass().await;
        let breaks = std::mem::take(&mut self.seen.lock().unwrap().breaks_next);
        assert!(!breaks, "broken on purpose");
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
        seen.of_one_lane = seen.of_one_lane.max(count);
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
        let count = seen.under_way.get_mut(&self.lane).expect("it began");
        *count -= 1;
        if *count == 0 {
            seen.under_way.remove(&self.lane);
        }
    }
}

#[async_trait]
impl Scheme for Spy {
    fn kind(&self) -> SchemeKind {
        self.books.kind()
    }

    async fn allocate(
        &self,
        lane: LaneKey,
        borrow: Borrow,
    ) -> Result<Reservation, ReservationError> {
        self.call(lane, self.books.allocate(lane, borrow)).await
    }

    async fn mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: Mark,
    ) -> Result<Reservation, ReservationError> {
        self.call(lane, self.books.mark(lane, nonce, holder, mark))
            .await
    }

    async fn reservation(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
    ) -> Result<Option<Reservation>, ReservationError> {
        self.books.reservation(lane, nonce, holder).await
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations, ReservationError> {
        self.books.list_reservations(lane).await
    }

    async fn to_watch(&self, limit: usize) -> Result<Vec<Watched>, ReservationError> {
        self.books.to_watch(limit).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<(), ReservationError> {
        self.books.settle(settlements).await
    }

    async fn close(&self) -> Result<(), ReservationError> {
        self.books.close().await
    }
}
