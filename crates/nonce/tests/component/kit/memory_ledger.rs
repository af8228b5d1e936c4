//! A scheme in memory: the rules of the trait in their simplest form. The suite runs on it first, so that a clause that no
//! scheme could fulfil is found.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use domain::{Holder, LaneKey, Mark, MarkRefusal, Nonce, Reservation, ReservationState, Timestamp};
use engine::ports::{Clock, LaneReservations, ReservationError};
use nonce::{
    ConditionalVerdict, ReservationKey, ReserveRequest, Scheme, SchemeKind, Verdict,
    WatchedReservation,
};
use uuid::Uuid;

use super::TestClock;

/// Limit of a listing.
const LISTED_MAX: usize = 100;

/// One process's view of the ledger; clones of `rows` belong to other processes.
pub(crate) struct MemoryLedger {
    rows: LedgerRows,
    is_closed: Mutex<bool>,
    /// The last reservation that was passed to the sweep.
    watched: Mutex<Option<(LaneKey, Nonce)>>,
}

/// Shared by all processes.
#[derive(Clone)]
pub(crate) struct LedgerRows {
    lanes: Arc<Mutex<BTreeMap<LaneKey, LaneRows>>>,
    clock: Arc<TestClock>,
}

#[derive(Default)]
struct LaneRows {
    next: u64,
    chain_nonce: u64,
    rows: BTreeMap<Nonce, WatchedReservation>,
    /// Used ones that are not watched any more.
    buried: BTreeSet<Nonce>,
}

impl LedgerRows {
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

impl MemoryLedger {
    pub(crate) fn new() -> Arc<Self> {
        Self::over(LedgerRows::new())
    }

    pub(crate) fn over(rows: LedgerRows) -> Arc<Self> {
        Arc::new(Self {
            rows,
            is_closed: Mutex::new(false),
            watched: Mutex::new(None),
        })
    }

    /// The row of a nonce, for any holder.
    pub(crate) fn row(&self, lane: LaneKey, nonce: u64) -> Option<Reservation> {
        let lanes = self.rows.lock();
        let row = lanes.get(&lane)?.rows.get(&Nonce(nonce))?;
        Some(row.reservation.clone())
    }
}

impl LaneRows {
    fn reserve(&mut self, lane: LaneKey, request: ReserveRequest, now: Timestamp) -> Reservation {
        let at_least = request.at_least.0;
        if self.rows.is_empty() && self.next == 0 {
            self.next = at_least;
        }
        self.chain_nonce = self.chain_nonce.max(at_least);
        let is_free = |(nonce, row): &(&Nonce, &WatchedReservation)| {
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
        let reservation = blank(lane, nonce.0, request.holder, now.plus(request.timeout));
        self.put(reservation.clone());
        reservation
    }

    fn put(&mut self, reservation: Reservation) {
        let row = WatchedReservation {
            reservation,
            closed_in: None,
        };
        self.rows.insert(row.reservation.nonce, row);
    }

    fn is_watched(&self, row: &WatchedReservation, now: Timestamp) -> bool {
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

fn apply_verdict(row: &mut WatchedReservation, verdict: &Verdict) {
    let reservation = &mut row.reservation;
    match verdict {
        Verdict::Free => {
            reservation.state = ReservationState::Recyclable;
            reservation.reason = Some("expired".into());
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
impl Scheme for MemoryLedger {
    fn kind(&self) -> SchemeKind {
        SchemeKind::RowLock
    }

    async fn allocate(
        &self,
        lane: LaneKey,
        request: ReserveRequest,
    ) -> Result<Reservation, ReservationError> {
        if *self.is_closed.lock().unwrap() {
            return Err(ReservationError::Unavailable("closed".into()));
        }
        tokio::task::yield_now().await; // a real ledger yields too
        let mut lanes = self.rows.lock();
        let rows = lanes.entry(lane).or_default();
        Ok(rows.reserve(lane, request, self.rows.clock.now()))
    }

    async fn mark(&self, key: ReservationKey, mark: Mark) -> Result<Reservation, ReservationError> {
        tokio::task::yield_now().await;
        let mut lanes = self.rows.lock();
        let row = lanes.entry(key.lane).or_default().rows.get_mut(&key.nonce);
        let row = row.ok_or(MarkRefusal::NotReserved(key.nonce))?;
        row.reservation.mark(key.holder, &mark)?;
        Ok(row.reservation.clone())
    }

    async fn find_reservation(
        &self,
        key: ReservationKey,
    ) -> Result<Option<Reservation>, ReservationError> {
        let row = self.row(key.lane, key.nonce.0);
        Ok(row.filter(|row| row.holder == key.holder))
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations, ReservationError> {
        let mut lanes = self.rows.lock();
        let rows = lanes.entry(lane).or_default();
        let is_open = |row: &&WatchedReservation| match row.reservation.state {
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

    async fn list_watched(
        &self,
        limit: usize,
    ) -> Result<Vec<WatchedReservation>, ReservationError> {
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
        // Behind the last page the first one follows.
        *last = page
            .last()
            .filter(|_| page.len() == limit)
            .map(|(key, _)| *key);
        Ok(page.into_iter().map(|(_, row)| row).collect())
    }

    async fn list_overdue(
        &self,
        limit: usize,
    ) -> Result<Vec<WatchedReservation>, ReservationError> {
        let (lanes, now) = (self.rows.lock(), self.rows.clock.now());
        let rows = lanes.values().flat_map(|lane| lane.rows.values());
        let overdue = rows.filter(|row| {
            let reservation = &row.reservation;
            reservation.state == ReservationState::Reserved
                && reservation.tx_hash.is_none()
                && reservation.expires_at <= now
        });
        Ok(overdue.take(limit).cloned().collect())
    }

    async fn apply_verdicts(
        &self,
        verdicts: &[ConditionalVerdict],
    ) -> Result<(), ReservationError> {
        let mut lanes = self.rows.lock();
        for ConditionalVerdict { seen, verdict } in verdicts {
            let Reservation { lane, nonce, .. } = seen.reservation;
            let LaneRows { rows, buried, .. } = lanes.entry(lane).or_default();
            if let Some(row) = rows.get_mut(&nonce).filter(|row| **row == *seen) {
                apply_verdict(row, verdict);
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
