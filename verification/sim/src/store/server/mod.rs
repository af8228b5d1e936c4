//! The database server: every verb that writes is a transaction of steps, with time between them, on row
//! locks. That is how transactions really interleave.
//!
//! It follows the shipped statements (crates/store/src/postgres), which all run in READ COMMITTED:
//! - a statement reads, without a lock, what was committed when it began;
//! - of a row that it locks it reads the newest committed version at the time the lock is granted;
//! - its writes become visible at once, with its commit, or never;
//! - locks are held until then; a session that ends in any way releases them.
//!
//! So each verb reads first, lets time pass, locks, reads again, and writes in its commit. Heartbeats and headers
//! are one atomic statement each, without lock waits.

mod feed;
mod gate;
mod lease;
mod load;
mod locks;
mod queue;
#[cfg(test)]
mod tests;
mod transaction;

use std::time::Duration;

use crate::mutation::{self, Mutation};
use domain::LaneId;

use super::MemoryStore;
use super::rows::Rows;
use crate::network::Link;
pub(super) use locks::Locks;
use locks::Row;
use transaction::{Abort, Transaction};

/// The server as one node reaches it: with the randomness and the faults of the node's link.
#[derive(Clone)]
pub(super) struct Server {
    store: MemoryStore,
    link: Link,
}

/// How many of a thousand steps take time.
const STEP_PERMILLE: u64 = 150;
/// How long such a step takes at most.
const STEP_MS_MAX: u64 = 5;
/// How long a stalled step takes: longer than lock timeouts, and sometimes than a statement may take.
const STALL_MS: (u64, u64) = (5, 1_500);
/// How many of a thousand steps stall during takeovers, in a world with stalls.
const TAKEOVER_STALL_PERMILLE: u64 = 250;
/// How long such a step takes at most: less than a statement may take.
const TAKEOVER_STALL_MS_MAX: u64 = 400;
/// How long an external client holds a row at most.
const EXTERNAL_LOCK_MS_MAX: u64 = 400;

impl Server {
    pub(super) fn new(store: MemoryStore, link: Link) -> Self {
        Self { store, link }
    }

    /// For verbs that are a single statement.
    pub(super) fn store(&self) -> &MemoryStore {
        &self.store
    }

    fn begin(&self, verb: &'static str) -> Transaction {
        Transaction::begin(self, verb)
    }

    fn read<T>(&self, query: impl FnOnce(&Rows) -> T) -> T {
        query(&self.store.rows())
    }

    /// Between two statements of one verb.
    async fn pause(&self) {
        let span = self.pick_time(false);
        if !span.is_zero() {
            tokio::time::sleep(span).await;
        }
    }

    /// How long a step takes: mostly no time, sometimes a little, and rarely very long. During a takeover, where a
    /// lane may change its keeper while the previous one still writes, long is not rare.
    fn pick_time(&self, is_takeover: bool) -> Duration {
        let (rng, stalls) = (self.link.rng(), self.link.faults().slow);
        let draw = rng.below(1_000);
        if draw < stalls {
            rng.millis(STALL_MS.0, STALL_MS.1)
        } else if is_takeover && stalls > 0 && draw < stalls + TAKEOVER_STALL_PERMILLE {
            rng.millis(1, TAKEOVER_STALL_MS_MAX)
        } else if draw < stalls + STEP_PERMILLE {
            rng.millis(1, STEP_MS_MAX)
        } else {
            Duration::ZERO
        }
    }

    /// Rows are locked in lane order, here and everywhere; or in none (`Mutation::LockWithoutOrder`).
    fn sort_by_lane<T>(&self, items: &mut [T], lane: impl Fn(&T) -> LaneId) {
        items.sort_by_key(lane);
        if !mutation::is_on(Mutation::LockWithoutOrder) {
            return;
        }
        for end in (1..items.len()).rev() {
            let below = u64::try_from(end).expect("few items") + 1;
            let other = usize::try_from(self.link.rng().below(below)).expect("below a length");
            items.swap(end, other);
        }
    }

    /// An external client, an operator or a backup, locks rows of these lanes for a while.
    fn lock_rows_externally(&self, lanes: impl Iterator<Item = LaneId>) {
        let (rng, chance) = (self.link.rng(), self.link.faults().locked);
        if chance == 0 {
            return;
        }
        for lane in lanes {
            if !rng.permille(chance) {
                continue;
            }
            let row = if rng.permille(500) {
                Row::Lease(lane)
            } else {
                Row::Lane(lane)
            };
            let mut external_client = self.begin("external");
            let span = rng.millis(1, EXTERNAL_LOCK_MS_MAX);
            if external_client.try_lock(row) {
                // Detached: the task ends by itself, or with the world.
                drop(tokio::spawn(async move {
                    tokio::time::sleep(span).await;
                    drop(external_client);
                }));
            }
        }
    }
}
