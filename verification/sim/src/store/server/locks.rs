//! Row locks: who holds which row, and who waits for it in which order.
//!
//! All are exclusive, as every lock of the shipped statements is against every other. A row that is about
//! to be inserted is locked by its unique keys: whoever inserts the same key waits, as an index makes him.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use domain::{LaneId, LaneKey, RequestId, TxId};
use tokio::sync::oneshot;

/// A row, or a unique key, that two transactions can meet at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) enum Row {
    /// The key under which a lane is made.
    Key(LaneKey),
    /// The heartbeat row.
    Lease(LaneId),
    /// The lane row: the fence.
    Lane(LaneId),
    /// The id of a tx.
    Tx(TxId),
    /// The key of the business.
    AdmittedRequest(LaneKey, RequestId),
    /// Where the feed ends.
    FeedHead,
}

impl Row {
    /// Whose lane row or lease row it is.
    pub(super) fn lane(&self) -> Option<LaneId> {
        match self {
            Self::Lease(lane) | Self::Lane(lane) => Some(*lane),
            Self::Key(_) | Self::Tx(_) | Self::AdmittedRequest(..) | Self::FeedHead => None,
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
            Self::AdmittedRequest(_, request) => write!(f, "request {request}"),
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
    /// What each transaction that waits waits for: one row at most.
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

/// What came of asking for a row.
pub(super) enum Asked {
    /// It is the asker's until its transaction ends.
    Granted,
    /// Another one holds it; this rings when it is the asker's, and breaks when all sessions ended.
    Queued(oneshot::Receiver<()>),
    /// Its holder waits for the asker, directly or not.
    Circle,
}

impl Locks {
    /// A new transaction, and the count of [`Locks::end_all`] in which it was born.
    pub(super) fn begin(&mut self) -> (Owner, u64) {
        self.owners += 1;
        (Owner(self.owners), self.ended)
    }

    /// Whether a transaction that was born then still has its session.
    pub(super) fn is_alive(&self, born: u64) -> bool {
        self.ended == born
    }

    /// SKIP LOCKED: the row, if nobody else has it.
    pub(super) fn take_free(&mut self, owner: Owner, row: &Row) -> bool {
        match self.rows.get(row) {
            Some(lock) => lock.holder == owner,
            None => {
                self.rows.insert(row.clone(), Lock::of(owner));
                true
            }
        }
    }

    /// The row, or a place in the queue for it.
    pub(super) fn lease_request(&mut self, owner: Owner, row: &Row) -> Asked {
        if self.take_free(owner, row) {
            return Asked::Granted;
        }
        if self.leads_to(row, owner) {
            return Asked::Circle;
        }
        let lock = self.rows.get_mut(row).expect("it was not free");
        let (granted, bell) = oneshot::channel();
        lock.waiting.push_back((owner, granted));
        self.waits.insert(owner, row.clone());
        Asked::Queued(bell)
    }

    /// Whether whoever holds the row waits for something of `owner`, directly or not.
    fn leads_to(&self, row: &Row, owner: Owner) -> bool {
        let mut row = row;
        // Each waits for one row, so this is one path; without a circle it is no longer than they are many.
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

    /// Leaves the queue for a row; `true` when the row came just now, and is the asker's.
    pub(super) fn stop_waiting(&mut self, owner: Owner, row: &Row) -> bool {
        self.waits.remove(&owner);
        let Some(lock) = self.rows.get_mut(row) else {
            return false;
        };
        lock.waiting.retain(|(waiting, _)| *waiting != owner);
        lock.holder == owner
    }

    /// The transaction is over: who waits for its rows gets them.
    pub(super) fn release(&mut self, owner: Owner, rows: &[Row]) {
        for row in rows {
            if self.rows.get(row).is_some_and(|lock| lock.holder == owner) {
                self.pass_on(row);
            }
        }
    }

    fn pass_on(&mut self, row: &Row) {
        let Some(lock) = self.rows.get_mut(row) else {
            return;
        };
        while let Some((next, granted)) = lock.waiting.pop_front() {
            self.waits.remove(&next);
            // One that is gone is passed over.
            if granted.send(()).is_ok() {
                lock.holder = next;
                return;
            }
        }
        self.rows.remove(row);
    }

    /// The server is gone, and with it every session.
    pub(in crate::store) fn end_all(&mut self) {
        self.rows.clear();
        self.waits.clear();
        self.ended += 1;
    }
}

impl Lock {
    fn of(holder: Owner) -> Self {
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

    fn queued(asked: Asked) -> oneshot::Receiver<()> {
        match asked {
            Asked::Queued(bell) => bell,
            Asked::Granted => panic!("somebody holds it"),
            Asked::Circle => panic!("nobody waits for the asker"),
        }
    }

    #[test]
    fn a_row_goes_to_those_who_wait_in_the_order_they_came() {
        let mut locks = Locks::default();
        let [first, second, gone, third] = std::array::from_fn(|_| locks.begin().0);
        assert!(locks.take_free(first, &ONE) && locks.take_free(first, &ONE));
        assert!(!locks.take_free(second, &ONE));
        let mut second_bell = queued(locks.lease_request(second, &ONE));
        drop(queued(locks.lease_request(gone, &ONE)));
        let mut third_bell = queued(locks.lease_request(third, &ONE));
        locks.release(first, &[ONE]);
        assert!(second_bell.try_recv().is_ok() && third_bell.try_recv().is_err());
        locks.release(first, &[ONE]);
        assert!(third_bell.try_recv().is_err(), "only its holder lets it go");
        locks.release(second, &[ONE]);
        assert!(third_bell.try_recv().is_ok());
        locks.release(third, &[ONE]);
        assert!(locks.rows.is_empty() && locks.waits.is_empty());
    }

    #[test]
    fn who_stops_to_wait_leaves_the_queue_unless_the_row_is_his() {
        let mut locks = Locks::default();
        let [first, second, third] = std::array::from_fn(|_| locks.begin().0);
        assert!(locks.take_free(first, &ONE));
        drop(queued(locks.lease_request(second, &ONE)));
        assert!(!locks.stop_waiting(second, &ONE));
        let bell = queued(locks.lease_request(third, &ONE));
        locks.release(first, &[ONE]);
        assert!(locks.stop_waiting(third, &ONE), "granted meanwhile");
        drop(bell);
    }

    #[test]
    fn a_circle_is_seen_by_whoever_would_close_it() {
        let mut locks = Locks::default();
        let [a, b, c] = std::array::from_fn(|_| locks.begin().0);
        let three = Row::FeedHead;
        assert!(locks.take_free(a, &ONE) && locks.take_free(b, &TWO));
        assert!(locks.take_free(c, &three));
        let (_ab, _bc) = (
            queued(locks.lease_request(a, &TWO)),
            queued(locks.lease_request(b, &three)),
        );
        assert!(matches!(locks.lease_request(c, &ONE), Asked::Circle));
        assert!(
            matches!(locks.lease_request(c, &three), Asked::Granted),
            "its own"
        );
    }

    #[test]
    fn the_end_of_all_sessions_frees_everything_and_wakes_everybody() {
        let mut locks = Locks::default();
        let ((a, born), (b, _)) = (locks.begin(), locks.begin());
        assert!(locks.take_free(a, &ONE));
        let mut bell = queued(locks.lease_request(b, &ONE));
        locks.end_all();
        assert!(!locks.is_alive(born));
        assert_eq!(bell.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        let (c, born) = locks.begin();
        assert!(locks.take_free(c, &ONE) && locks.is_alive(born));
        locks.release(a, &[ONE]);
        assert!(!locks.take_free(b, &ONE), "the dead let nothing go");
    }
}
