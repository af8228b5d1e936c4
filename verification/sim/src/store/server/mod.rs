//! The database server: every verb that writes is a transaction of steps, with time between them, on row
//! locks. That is how two of them really meet.
//!
//! It follows the shipped statements (crates/store/src/postgres), which all run in READ COMMITTED:
//! - what a statement reads without a lock is what was committed when the statement began;
//! - what it reads of a row that it locks is the newest committed one at the moment the lock is granted;
//! - what it writes is there for others at one moment, its commit, or never;
//! - locks are held until then; a session that ends, however it does, lets them go.
//!
//! So each verb reads first, lets time pass, locks, looks again, and writes in its commit. Heartbeats and
//! headers are one atomic statement each: nobody waits for them, and they wait for nobody.

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

use domain::LaneId;
use domain::mutation::{self, Mutation};

use super::MemoryStore;
use super::rows::Rows;
use crate::wire::Wire;
pub(super) use locks::Locks;
use locks::Row;
use transaction::{Abort, Transaction};

/// The server as one node reaches it: its chance and its faults are those of the node's line.
#[derive(Clone)]
pub(super) struct Server {
    store: MemoryStore,
    line: Wire,
}

/// So many steps in a thousand take time.
const STEP_PERMILLE: u64 = 150;
/// How long such a step takes at most.
const STEP_MS_MAX: u64 = 5;
/// How long a step takes that stalls: longer than lock timeouts, and sometimes than a statement may take.
const STALL_MS: (u64, u64) = (5, 1_500);
/// So many steps in a thousand take long where hands change, in a world where anything stalls.
const TROUBLE_PERMILLE: u64 = 250;
/// How long such a step takes at most: less than a statement may take.
const TROUBLE_MS_MAX: u64 = 400;
/// How long somebody else holds a row at most.
const STRANGER_MS_MAX: u64 = 400;

impl Server {
    pub(super) fn new(store: MemoryStore, line: Wire) -> Self {
        Self { store, line }
    }

    /// What can be asked in one statement is asked here.
    pub(super) fn store(&self) -> &MemoryStore {
        &self.store
    }

    fn begin(&self, verb: &'static str) -> Transaction {
        Transaction::begin(self, verb)
    }

    fn read<T>(&self, question: impl FnOnce(&Rows) -> T) -> T {
        question(&self.store.rows())
    }

    /// Between two statements of one verb.
    async fn pause(&self) {
        let span = self.some_time(false);
        if !span.is_zero() {
            tokio::time::sleep(span).await;
        }
    }

    /// How long a step takes: mostly no time, now and then a little, and rarely very long. In trouble, which
    /// is where a lane may change hands while somebody still writes it, long is not rare.
    fn some_time(&self, is_in_trouble: bool) -> Duration {
        let (rng, stalls) = (self.line.rng(), self.line.faults().slow);
        let draw = rng.below(1_000);
        if draw < stalls {
            rng.millis(STALL_MS.0, STALL_MS.1)
        } else if is_in_trouble && stalls > 0 && draw < stalls + TROUBLE_PERMILLE {
            rng.millis(1, TROUBLE_MS_MAX)
        } else if draw < stalls + STEP_PERMILLE {
            rng.millis(1, STEP_MS_MAX)
        } else {
            Duration::ZERO
        }
    }

    /// Rows are locked in lane order, here and everywhere; or in none (`Mutation::LockInNoOrder`).
    fn put_in_order<T>(&self, items: &mut [T], lane: impl Fn(&T) -> LaneId) {
        items.sort_by_key(lane);
        if !mutation::is_on(Mutation::LockInNoOrder) {
            return;
        }
        for end in (1..items.len()).rev() {
            let below = u64::try_from(end).expect("few items") + 1;
            let other = usize::try_from(self.line.rng().below(below)).expect("below a length");
            items.swap(end, other);
        }
    }

    /// Somebody else, an operator or a backup, locks rows of these lanes for a while.
    fn let_strangers_in(&self, lanes: impl Iterator<Item = LaneId>) {
        let (rng, chance) = (self.line.rng(), self.line.faults().locked);
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
            let mut stranger = self.begin("stranger");
            let span = rng.millis(1, STRANGER_MS_MAX);
            if stranger.take_free(row) {
                // The handle is let go: it ends by itself, or with the world.
                drop(tokio::spawn(async move {
                    tokio::time::sleep(span).await;
                    drop(stranger);
                }));
            }
        }
    }
}
