//! The reads of customers. In the store they have connections of their own; here they give way to payments.
//!
//! Reads and payments share processors, on this machine and at the database. While a lane of this node commits, a place for
//! reads rests after each read, for a multiple of the time that the read took: so any number of readers together use a bounded
//! share, and the others wait. A read that its client gives up may go on in the store, so its place rests as after a slow one. A reader that finds a place free waits for nothing, and neither does any while nothing commits.
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
            read: ReadState::NotBegun,
        };
        let now = self.clock.monotonic();
        let rest = lock(&self.places).rest_left(place.rested_at, now);
        if !rest.is_zero() {
            self.clock.sleep(rest).await;
        }
        let began_at = self.clock.monotonic();
        place.read = ReadState::Running;
        let result = read.await;
        let took = self.clock.monotonic().since(began_at);
        place.read = ReadState::Ended { took };
        result
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

    /// Puts back a place that was taken when it had rested at `rested_at`.
    fn put_back(&mut self, rested_at: MonotonicTime, read: ReadState, now: MonotonicTime) {
        self.rested_at.push(match read {
            ReadState::NotBegun => rested_at,
            ReadState::Running => now.plus(REST_MAX),
            ReadState::Ended { took } => now.plus(took.saturating_mul(REST_FACTOR).min(REST_MAX)),
        });
    }
}

/// The read for which a place was taken.
#[derive(Clone, Copy)]
enum ReadState {
    /// The place still rests.
    NotBegun,
    /// Given up in this state, it may go on in the store for an unknown time.
    Running,
    Ended {
        took: Duration,
    },
}

/// A place that is in use. It is free again when the read has ended, or is given up.
struct PlaceGuard<'a> {
    customers: &'a Customers,
    rested_at: MonotonicTime,
    read: ReadState,
}

impl Drop for PlaceGuard<'_> {
    fn drop(&mut self) {
        let now = self.customers.clock.monotonic();
        lock(&self.customers.places).put_back(self.rested_at, self.read, now);
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
        let ended = |took| ReadState::Ended { took };
        for end in [100, 110] {
            let rested_at = places.take();
            places.put_back(rested_at, ended(ten), at(end));
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
        places.put_back(first, ended(Duration::from_secs(60)), long_ago);
        assert_eq!(
            places.rest_left(places.rested_at[0], long_ago),
            Duration::ZERO
        );
        places.committed_at = Some(long_ago);
        assert_eq!(places.rest_left(places.rested_at[0], long_ago), REST_MAX);
    }

    #[test]
    fn place_of_a_read_that_was_given_up_rests_as_after_a_slow_one() {
        let mut places = Places::new(1);
        let rested_at = places.take();
        places.put_back(rested_at, ReadState::Running, at(100));
        let rested_at = places.take();
        assert_eq!(rested_at, at(100).plus(REST_MAX));
        // A read that never began has cost nothing.
        places.put_back(rested_at, ReadState::NotBegun, at(120));
        assert_eq!(places.take(), rested_at);
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
