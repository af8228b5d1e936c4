//! The reads of customers. In the store they have connections of their own; here they give way to payments.
//!
//! Reads and payments share processors, on this machine and at the database. While a lane of this node commits, a place for
//! reads rests after each read, for a multiple of the time that the read took: so any number of readers together use a bounded
//! share, and the others wait. A reader that finds a place free waits for nothing, and neither does any while nothing commits.
//! Waiters are left out: a waiter reads only when its tx has changed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::MonotonicTime;
use tokio::sync::Semaphore;

use crate::core::lock;
use crate::ports::{Clock, Store, StoreError};
use crate::watch::Waiters;

/// How many reads run at once, per shard (the configured number of shards is that of processors by default).
const PLACES_PER_SHARD: usize = 2;
/// A place rests for so many times as long as its read took.
const REST_FACTOR: u32 = 7;
/// It rests no longer: one slow read must not take its place away.
const REST_MAX: Duration = Duration::from_millis(250);
/// Payments are under way for this long after a commit.
const COMMIT_RECENT: Duration = Duration::from_secs(1);
/// How many reads wait for a place; further ones are refused at once.
const WAITING_MAX: usize = 4_096;
/// How long a read waits for a place.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// What serves the reads of customers, apart from the engine's own.
pub(crate) struct Customers {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) waiters: Waiters,
    clock: Arc<dyn Clock>,
    permits: Semaphore,
    places: Mutex<Places>,
    waiting: AtomicUsize,
}

impl Customers {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, shards: usize) -> Self {
        let count = shards.saturating_mul(PLACES_PER_SHARD).max(1);
        Self {
            store,
            waiters: Waiters::default(),
            clock,
            permits: Semaphore::new(count),
            places: Mutex::new(Places::new(count)),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Runs one read of the customers' store when it has a place.
    pub(crate) async fn read<T>(
        &self,
        read: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let _permit = self.wait_for_permit().await?;
        let mut place = PlaceGuard {
            customers: self,
            rested_at: lock(&self.places).take(),
            began_at: None,
        };
        let now = self.clock.monotonic();
        let rest = lock(&self.places).rest_left(place.rested_at, now);
        if !rest.is_zero() {
            self.clock.sleep(rest).await;
        }
        place.began_at = Some(self.clock.monotonic());
        read.await
    }

    /// A lane of this node has committed.
    pub(crate) fn note_commit(&self) {
        lock(&self.places).committed_at = Some(self.clock.monotonic());
    }

    async fn wait_for_permit(&self) -> Result<tokio::sync::SemaphorePermit<'_>, StoreError> {
        let closed = |_closed| StoreError::Unavailable("the node is ending".into());
        if let Ok(permit) = self.permits.try_acquire() {
            return Ok(permit);
        }
        let _waiting = WaitingGuard::new(&self.waiting).ok_or_else(|| {
            StoreError::Busy(format!(
                "{WAITING_MAX} reads wait already; try again in a moment"
            ))
        })?;
        tokio::select! {
            biased;
            permit = self.permits.acquire() => permit.map_err(closed),
            () = self.clock.sleep(WAIT_MAX) => Err(StoreError::Busy(format!(
                "this read waited for {WAIT_MAX:?} behind others; try again in a moment"
            ))),
        }
    }
}

/// The places that are free, and when each has rested.
struct Places {
    rested_at: Vec<MonotonicTime>,
    committed_at: Option<MonotonicTime>,
}

impl Places {
    fn new(count: usize) -> Self {
        Self {
            rested_at: vec![MonotonicTime(0); count],
            committed_at: None,
        }
    }

    /// The place that has rested first. The permit of the caller says that one is free.
    fn take(&mut self) -> MonotonicTime {
        let first = self.rested_at.iter().enumerate().min_by_key(|(_, at)| **at);
        let index = first.map(|(index, _)| index);
        index.map_or(MonotonicTime(0), |index| self.rested_at.swap_remove(index))
    }

    /// How long the place must still rest.
    fn rest_left(&self, rested_at: MonotonicTime, now: MonotonicTime) -> Duration {
        let is_recent = |at: MonotonicTime| now.since(at) <= COMMIT_RECENT;
        match self.committed_at.is_some_and(is_recent) {
            true => rested_at.since(now),
            false => Duration::ZERO,
        }
    }

    /// A read that took this long has ended.
    fn put_back(&mut self, now: MonotonicTime, took: Duration) {
        let rest = took.saturating_mul(REST_FACTOR).min(REST_MAX);
        self.rested_at.push(now.plus(rest));
    }
}

/// A place that is in use. It is free again when the read has ended, or is given up.
struct PlaceGuard<'a> {
    customers: &'a Customers,
    rested_at: MonotonicTime,
    /// `None` while it rests.
    began_at: Option<MonotonicTime>,
}

impl Drop for PlaceGuard<'_> {
    fn drop(&mut self) {
        let now = self.customers.clock.monotonic();
        let mut places = lock(&self.customers.places);
        match self.began_at {
            Some(began_at) => places.put_back(now, now.since(began_at)),
            None => places.rested_at.push(self.rested_at),
        }
    }
}

/// A read that waits for a place.
struct WaitingGuard<'a>(&'a AtomicUsize);

impl<'a> WaitingGuard<'a> {
    /// `None` when too many wait already.
    fn new(waiting: &'a AtomicUsize) -> Option<Self> {
        if waiting.fetch_add(1, Ordering::Relaxed) < WAITING_MAX {
            return Some(Self(waiting));
        }
        waiting.fetch_sub(1, Ordering::Relaxed);
        None
    }
}

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> MonotonicTime {
        MonotonicTime(0).plus(Duration::from_millis(millis))
    }

    #[test]
    fn place_rests_while_lanes_commit_and_the_most_rested_is_taken_first() {
        let mut places = Places::new(2);
        let ten = Duration::from_millis(10);
        for end in [100, 110] {
            places.take();
            places.put_back(at(end), ten);
        }
        let first = places.take();
        assert_eq!(first, at(170));
        assert_eq!(
            places.rest_left(first, at(120)),
            Duration::ZERO,
            "nothing commits"
        );
        places.committed_at = Some(at(119));
        assert_eq!(places.rest_left(first, at(120)), Duration::from_millis(50));
        assert_eq!(places.rest_left(first, at(171)), Duration::ZERO);
        assert_eq!(places.take(), at(180));
        let long_ago = at(119).plus(COMMIT_RECENT).plus(ten);
        places.put_back(long_ago, Duration::from_secs(60));
        assert_eq!(
            places.rest_left(places.rested_at[0], long_ago),
            Duration::ZERO
        );
        places.committed_at = Some(long_ago);
        assert_eq!(places.rest_left(places.rested_at[0], long_ago), REST_MAX);
    }

    #[test]
    fn only_so_many_reads_wait() {
        let waiting = AtomicUsize::new(0);
        let guards: Vec<_> = (0..WAITING_MAX)
            .map(|_| WaitingGuard::new(&waiting))
            .collect();
        assert!(guards.iter().all(Option::is_some));
        assert!(WaitingGuard::new(&waiting).is_none());
        drop(guards);
        assert!(WaitingGuard::new(&waiting).is_some());
        assert_eq!(waiting.load(Ordering::Relaxed), 0);
    }
}
