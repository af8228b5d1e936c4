//! Books in memory: the rules of the trait in their simplest form. The suite runs on them first, so that a
//! clause that no scheme could keep shows itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use domain::{Holder, LaneKey, Mark, MarkRefusal, Nonce, Reservation, ReservationState, Timestamp};
use engine::ports::{Clock, LaneReservations, ReservationError};
use nonce::{Borrow, Scheme, SchemeKind, Settlement, Verdict, Watched};
use uuid::Uuid;

use super::TestClock;

/// How many open reservations are listed.
const LISTED_MAX: usize = 100;

/// One process's view of them; clones of `rows` are other processes'.
pub(crate) struct MemoryBooks {
    rows: Rows,
    is_closed: Mutex<bool>,
    /// The last one that the sweep was given.
    watched: Mutex<Option<(LaneKey, Nonce)>>,
}

/// What all processes share.
#[derive(Clone)]
pub(crate) struct Rows {
    lanes: Arc<Mutex<BTreeMap<LaneKey, LaneRows>>>,
    clock: Arc<TestClock>,
}

#[derive(Default)]
struct LaneRows {
    next: u64,
    chain_nonce: u64,
    rows: BTreeMap<Nonce, Watched>,
    /// Used ones that nobody looks at any more.
    buried: BTreeSet<Nonce>,
}

impl Rows {
    pub(crate) fn new() -> Self {
        Self {
            lanes: Arc::default(),
            clock: Arc::new(TestClock::new()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<LaneKey, LaneRows>> {
        self.lanes.lock().unwrap()
    }
}

impl MemoryBooks {
    pub(crate) fn new() -> Arc<Self> {
        Self::over(Rows::new())
    }

    pub(crate) fn over(rows: Rows) -> Arc<Self> {
        Arc::new(Self {
            rows,
            is_closed: Mutex::new(false),
            watched: Mutex::new(None),
        })
    }

    /// What stands there of a nonce.
    pub(crate) fn row(&self, lane: LaneKey, nonce: u64) -> Option<Reservation> {
        let lanes = self.rows.lock();
        let row = lanes.get(&lane)?.rows.get(&Nonce(nonce))?;
        Some(row.reservation.clone())
    }
}

impl LaneRows {
    fn lend(&mut self, lane: LaneKey, borrow: Borrow, now: Timestamp) -> Reservation {
        let at_least = borrow.at_least.0;
        if self.rows.is_empty() && self.next == 0 {
            self.next = at_least;
        }
        self.chain_nonce = self.chain_nonce.max(at_least);
        let is_free = |(nonce, row): &(&Nonce, &Watched)| {
            nonce.0 >= at_least && row.reservation.state == ReservationState::Recyclable
        };
        let free = self.rows.iter().find(is_free).map(|(nonce, _)| *nonce);
        let nonce = free.unwrap_or_else(|| {
            let skipped: Vec<u64> = (self.next..at_least).collect();
            for nonce in skipped {
                self.put(blank(lane, nonce, Holder(Uuid::nil()), now));
                let row = self.rows.get_mut(&Nonce(nonce)).unwrap();
                row.reservation.state = ReservationState::Recyclable;
            }
            let nonce = self.next.max(at_least);
            self.next = nonce + 1;
            Nonce(nonce)
        });
        let reservation = blank(lane, nonce.0, borrow.holder, now.plus(borrow.timeout));
        self.put(reservation.clone());
        reservation
    }

    fn put(&mut self, reservation: Reservation) {
        let row = Watched {
            reservation,
            closed_in: None,
        };
        self.rows.insert(row.reservation.nonce, row);
    }

    fn is_watched(&self, row: &Watched, now: Timestamp) -> bool {
        let reservation = &row.reservation;
        match reservation.state {
            ReservationState::Reserved => {
                reservation.tx_hash.is_some() || reservation.expires_at <= now
            }
            ReservationState::Used => !self.buried.contains(&reservation.nonce),
            ReservationState::Recyclable => reservation.nonce.0 < self.chain_nonce,
        }
    }
}

fn blank(lane: LaneKey, nonce: u64, holder: Holder, expires_at: Timestamp) -> Reservation {
    Reservation {
        lane,
        nonce: Nonce(nonce),
        holder,
        state: ReservationState::Reserved,
        tx_hash: None,
        was_replaced: false,
        expires_at,
        reason: None,
    }
}

fn settle(row: &mut Watched, verdict: &Verdict) {
    let reservation = &mut row.reservation;
    match verdict {
        Verdict::Free => {
            reservation.state = ReservationState::Recyclable;
            reservation.reason = Some("its time is over".into());
        }
        Verdict::Used { tx_hash, block } => {
            reservation.state = ReservationState::Used;
            let both = reservation.tx_hash.zip(*tx_hash);
            reservation.was_replaced |= both.is_some_and(|(named, by)| named != by);
            reservation.tx_hash = tx_hash.or(reservation.tx_hash);
            row.closed_in = Some(*block);
        }
        Verdict::Reopened => {
            reservation.state = ReservationState::Reserved;
            row.closed_in = None;
        }
        Verdict::Buried => row.closed_in = None,
    }
}

#[async_trait]
impl Scheme for MemoryBooks {
    fn kind(&self) -> SchemeKind {
        SchemeKind::RowLock
    }

    async fn allocate(
        &self,
        lane: LaneKey,
        borrow: Borrow,
    ) -> Result<Reservation, ReservationError> {
        if *self.is_closed.lock().unwrap() {
            return Err(ReservationError::Unavailable("closed".into()));
        }
        tokio::task::yield_now().await; // as any other books would
        let mut lanes = self.rows.lock();
        let rows = lanes.entry(lane).or_default();
        Ok(rows.lend(lane, borrow, self.rows.clock.now()))
    }

    async fn mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: Mark,
    ) -> Result<Reservation, ReservationError> {
        tokio::task::yield_now().await;
        let mut lanes = self.rows.lock();
        let row = lanes.entry(lane).or_default().rows.get_mut(&nonce);
        let row = row.ok_or(MarkRefusal::NotLent(nonce))?;
        row.reservation.mark(holder, &mark)?;
        Ok(row.reservation.clone())
    }

    async fn reservation(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
    ) -> Result<Option<Reservation>, ReservationError> {
        let row = self.row(lane, nonce.0);
        Ok(row.filter(|row| row.holder == holder))
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations, ReservationError> {
        let mut lanes = self.rows.lock();
        let rows = lanes.entry(lane).or_default();
        let is_open = |row: &&Watched| match row.reservation.state {
            ReservationState::Reserved | ReservationState::Recyclable => true,
            ReservationState::Used => {
                row.closed_in.is_none() && !rows.buried.contains(&row.reservation.nonce)
            }
        };
        let all = rows.rows.values().filter(is_open);
        let mut open = all.map(|row| row.reservation.clone());
        Ok(LaneReservations {
            next_nonce: Nonce(rows.next),
            open: open.by_ref().take(LISTED_MAX).collect(),
            has_more: open.next().is_some(),
        })
    }

    async fn to_watch(&self, limit: usize) -> Result<Vec<Watched>, ReservationError> {
        let (lanes, now) = (self.rows.lock(), self.rows.clock.now());
        let mut last = self.watched.lock().unwrap();
        let all = lanes.iter().flat_map(|(lane, rows)| {
            let watched = rows.rows.values().filter(|row| rows.is_watched(row, now));
            watched.map(|row| ((*lane, row.reservation.nonce), row.clone()))
        });
        let page: Vec<_> = all
            .filter(|(key, _)| Some(*key) > *last)
            .take(limit)
            .collect();
        // After the end: from the beginning.
        *last = page
            .last()
            .filter(|_| page.len() == limit)
            .map(|(key, _)| *key);
        Ok(page.into_iter().map(|(_, row)| row).collect())
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<(), ReservationError> {
        let mut lanes = self.rows.lock();
        for Settlement { seen, verdict } in settlements {
            let Reservation { lane, nonce, .. } = seen.reservation;
            let LaneRows { rows, buried, .. } = lanes.entry(lane).or_default();
            if let Some(row) = rows.get_mut(&nonce).filter(|row| **row == *seen) {
                settle(row, verdict);
                if *verdict == Verdict::Buried {
                    buried.insert(nonce);
                }
            }
        }
        Ok(())
    }

    async fn close(&self) -> Result<(), ReservationError> {
        *self.is_closed.lock().unwrap() = true;
        Ok(())
    }
}
