//! Row locks: the holder of each row, and the transactions that wait for it, in order.
//!
//! All locks are exclusive, as every lock of the shipped statements is against every other. A row that is about
//! to be inserted is locked by its unique keys: an insert of the same key waits, as an index makes it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use domain::{LaneId, LaneKey, RequestId, TxId};
use tokio::sync::oneshot;

/// A row, or a unique key, that two transactions may contend for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) enum Row {
    /// The key under which a lane is created.
    Key(LaneKey),
    /// The lease row.
    Lease(LaneId),
    /// The lane row: the fence.
    Lane(LaneId),
    /// The id of a tx.
    Tx(TxId),
    /// The idempotency key of a request.
    RequestKey(LaneKey, RequestId),
    /// The end of the feed.
    FeedHead,
}

impl Row {
    /// The lane of a lane row or lease row.
    pub(super) fn lane(&self) -> Option<LaneId> {
        match self {
            Self::Lease(lane) | Self::Lane(lane) => Some(*lane),
            Self::Key(_) | Self::Tx(_) | Self::RequestKey(..) | Self::FeedHead => None,
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, "the key of {key}"),
            Self::Lease(lane) => write!(f, "lease {}", lane.0),
            Self::Lane(lane) => write!(f, "lane {}", lane.0),
            Self::Tx(id) => write!(f, "tx {id}"),
            Self::RequestKey(_, request) => write!(f, "request {request}"),
            Self::FeedHead => f.write_str("the head of the feed"),
        }
    }
}

/// A transaction, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) struct Owner(u64);

/// The locks of a server.
#[derive(Debug, Default)]
pub(in crate::store) struct Locks {
    rows: BTreeMap<Row, Lock>,
    /// The row that each waiting transaction waits for: one at most.
    waits: BTreeMap<Owner, Row>,
    owners: u64,
    /// How often all sessions were ended.
    ended: u64,
}

#[derive(Debug)]
struct Lock {
    holder: Owner,
    /// First come, first served.
    waiting: VecDeque<(Owner, oneshot::Sender<()>)>,
}

/// The outcome of a lock request.
pub(super) enum LockOutcome {
    /// The row is locked until the transaction ends.
    Granted,
    /// Another transaction holds the row; the receiver resolves when it is granted, and fails when all sessions end.
    Queued(oneshot::Receiver<()>),
    /// The holder waits for the requester, directly or indirectly.
    Deadlock,
}

impl Locks {
    /// A new transaction, and the count of [`Locks::end_all`] at its start.
    pub(super) fn begin(&mut self) -> (Owner, u64) {
        self.owners += 1;
        (Owner(self.owners), self.ended)
    }

    /// Whether a transaction that started then still has its session.
    pub(super) fn is_alive(&self, born: u64) -> bool {
        self.ended == born
    }

    /// SKIP LOCKED: locks the row if it is free.
    pub(super) fn try_lock(&mut self, owner: Owner, row: &Row) -> bool {
        match self.rows.get(row) {
            Some(lock) => lock.holder == owner,
            None => {
                self.rows.insert(row.clone(), Lock::held_by(owner));
                true
            }
        }
    }

    /// Locks the row, or queues for it.
    pub(super) fn lock_or_queue(&mut self, owner: Owner, row: &Row) -> LockOutcome {
        if self.try_lock(owner, row) {
            return LockOutcome::Granted;
        }
        if self.is_blocked_by(row, owner) {
            return LockOutcome::Deadlock;
        }
        let lock = self.rows.get_mut(row).expect("it was not free");
        let (granted, wakeup) = oneshot::channel();
        lock.waiting.push_back((owner, granted));
        self.waits.insert(owner, row.clone());
        LockOutcome::Queued(wakeup)
    }

    /// Whether the holder of the row waits for a row of `owner`, directly or indirectly.
    fn is_blocked_by(&self, row: &Row, owner: Owner) -> bool {
        let mut row = row;
        // Each transaction waits for one row, so this is one path; without a deadlock it is finite.
        for _ in 0..=self.waits.len() {
            let Some(lock) = self.rows.get(row) else {
                return false;
            };
            if lock.holder == owner {
                return true;
            }
            match self.waits.get(&lock.holder) {
                Some(next) => row = next,
                None => return false,
            }
        }
        false
    }

    /// Leaves the queue for a row; `true` when the row was granted just now.
    pub(super) fn stop_waiting(&mut self, owner: Owner, row: &Row) -> bool {
        self.waits.remove(&owner);
        let Some(lock) = self.rows.get_mut(row) else {
            return false;
        };
        lock.waiting.retain(|(waiting, _)| *waiting != owner);
        lock.holder == owner
    }

    /// The transaction has ended: its rows are granted to those that wait.
    pub(super) fn release(&mut self, owner: Owner, rows: &[Row]) {
        for row in rows {
            if self.rows.get(row).is_some_and(|lock| lock.holder == owner) {
                self.grant_next(row);
            }
        }
    }

    fn grant_next(&mut self, row: &Row) {
        let Some(lock) = self.rows.get_mut(row) else {
            return;
        };
        while let Some((next, granted)) = lock.waiting.pop_front() {
            self.waits.remove(&next);
            // Transactions that are gone are skipped.
            if granted.send(()).is_ok() {
                lock.holder = next;
                return;
            }
        }
        self.rows.remove(row);
    }

    /// The server crashed, and with it every session.
    pub(in crate::store) fn end_all(&mut self) {
        self.rows.clear();
        self.waits.clear();
        self.ended += 1;
    }
}

impl Lock {
    fn held_by(holder: Owner) -> Self {
        Self {
            holder,
            waiting: VecDeque::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Row = Row::Lane(LaneId(1));
    const TWO: Row = Row::Lane(LaneId(2));

    fn queued(requested: LockOutcome) -> oneshot::Receiver<()> {
        match requested {
            LockOutcome::Queued(wakeup) => wakeup,
            LockOutcome::Granted => panic!("another transaction holds it"),
            LockOutcome::Deadlock => panic!("no transaction waits for the requester"),
        }
    }

    #[test]
    fn row_is_granted_in_queue_order() {
        let mut locks = Locks::default();
        let [first, second, gone, third] = std::array::from_fn(|_| locks.begin().0);
        assert!(locks.try_lock(first, &ONE) && locks.try_lock(first, &ONE));
        assert!(!locks.try_lock(second, &ONE));
        let mut second_wakeup = queued(locks.lock_or_queue(second, &ONE));
        drop(queued(locks.lock_or_queue(gone, &ONE)));
        let mut third_wakeup = queued(locks.lock_or_queue(third, &ONE));
        locks.release(first, &[ONE]);
        assert!(second_wakeup.try_recv().is_ok() && third_wakeup.try_recv().is_err());
        locks.release(first, &[ONE]);
        assert!(
            third_wakeup.try_recv().is_err(),
            "only its holder releases it"
        );
        locks.release(second, &[ONE]);
        assert!(third_wakeup.try_recv().is_ok());
        locks.release(third, &[ONE]);
        assert!(locks.rows.is_empty() && locks.waits.is_empty());
    }

    #[test]
    fn cancelled_wait_leaves_the_queue_unless_granted() {
        let mut locks = Locks::default();
        let [first, second, third] = std::array::from_fn(|_| locks.begin().0);
        assert!(locks.try_lock(first, &ONE));
        drop(queued(locks.lock_or_queue(second, &ONE)));
        assert!(!locks.stop_waiting(second, &ONE));
        let wakeup = queued(locks.lock_or_queue(third, &ONE));
        locks.release(first, &[ONE]);
        assert!(locks.stop_waiting(third, &ONE), "granted meanwhile");
        drop(wakeup);
    }

    #[test]
    fn deadlock_is_detected_by_its_last_waiter() {
        let mut locks = Locks::default();
        let [a, b, c] = std::array::from_fn(|_| locks.begin().0);
        let three = Row::FeedHead;
        assert!(locks.try_lock(a, &ONE) && locks.try_lock(b, &TWO));
        assert!(locks.try_lock(c, &three));
        let (_ab, _bc) = (
            queued(locks.lock_or_queue(a, &TWO)),
            queued(locks.lock_or_queue(b, &three)),
        );
        assert!(matches!(
            locks.lock_or_queue(c, &ONE),
            LockOutcome::Deadlock
        ));
        assert!(
            matches!(locks.lock_or_queue(c, &three), LockOutcome::Granted),
            "its own"
        );
    }

    #[test]
    fn ending_all_sessions_frees_locks_and_wakes_waiters() {
        let mut locks = Locks::default();
        let ((a, born), (b, _)) = (locks.begin(), locks.begin());
        assert!(locks.try_lock(a, &ONE));
        let mut wakeup = queued(locks.lock_or_queue(b, &ONE));
        locks.end_all();
        assert!(!locks.is_alive(born));
        assert_eq!(wakeup.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        let (c, born) = locks.begin();
        assert!(locks.try_lock(c, &ONE) && locks.is_alive(born));
        locks.release(a, &[ONE]);
        assert!(
            !locks.try_lock(b, &ONE),
            "an ended session releases nothing"
        );
    }
}
