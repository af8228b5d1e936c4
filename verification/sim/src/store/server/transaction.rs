//! One transaction: its locks, the time that its steps take, and the many ways in which it ends.

use std::time::Duration;

use engine::ports::{Conflict, StoreError};
use tokio::time::Instant;

use super::Server;
use super::locks::{Asked, Owner, Row};
use crate::event::WorldEvent;
use crate::store::MemoryStore;
use crate::store::rows::Rows;

/// How long a statement waits for one row. (`lock_timeout`, a twentieth of a usual lease)
const LOCK_TIMEOUT: Duration = Duration::from_millis(200);
/// How long a statement may take. (`statement_timeout`, half of a short lease)
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a commit may take: no timeout ends one.
const COMMIT_TIMEOUT: Duration = Duration::from_hours(1);
/// How late a server notices that the asker of a running statement is gone.
/// (`client_connection_check_interval`, a fifth of a lease)
const GONE_MS_MAX: u64 = 1_000;
/// Before which of its steps a connection breaks, at the latest.
const BREAK_STEPS_MAX: u64 = 4;

/// Why a transaction was rolled back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Abort {
    /// Somebody held a row for too long, or all waited for each other. The asker is told.
    Waited(String),
    /// A statement took too long. The asker is told.
    TooLong,
    /// A row is in the way, or a count is off. The asker is told.
    Conflict(Conflict),
    /// Its session ended. The asker knows nothing.
    Lost(&'static str),
}

impl Abort {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Waited(what) => what.clone(),
            Self::TooLong => "the statement took too long".to_owned(),
            Self::Conflict(conflict) => format!("{conflict:?}"),
            Self::Lost(why) => (*why).to_owned(),
        }
    }
}

impl From<Abort> for StoreError {
    fn from(abort: Abort) -> Self {
        Self::Unavailable(abort.text())
    }
}

/// A transaction under way. Dropped without a commit, it is rolled back: it has written nothing, since what
/// it writes is written by its commit.
pub(super) struct Transaction {
    server: Server,
    verb: &'static str,
    owner: Owner,
    /// See [`super::Locks::begin`].
    born: u64,
    held: Vec<Row>,
    waits_for: Option<Row>,
    deadline: Instant,
    /// After so many steps its connection breaks.
    breaks_in: Option<u64>,
    /// Whether it meets lanes that may be changing hands.
    is_in_trouble: bool,
}

impl Transaction {
    pub(super) fn begin(server: &Server, verb: &'static str) -> Self {
        let (owner, born) = server.store.locks().begin();
        let rng = server.line.rng();
        let breaks = rng.permille(server.line.faults().refused);
        Self {
            server: server.clone(),
            verb,
            owner,
            born,
            held: Vec::new(),
            waits_for: None,
            deadline: Instant::now() + STATEMENT_TIMEOUT,
            breaks_in: breaks.then(|| rng.between(0, BREAK_STEPS_MAX)),
            is_in_trouble: false,
        }
    }

    /// What is committed at this moment: what a statement that begins now reads without a lock, and what one
    /// that just got a lock reads of its row.
    pub(super) fn read<T>(&self, question: impl FnOnce(&Rows) -> T) -> T {
        self.server.read(question)
    }

    /// The database's clock, which does not stand still in a transaction.
    pub(super) fn now(&self) -> domain::Timestamp {
        self.server.store.now()
    }

    /// From now on its steps take long more often, when lanes that it meets may be changing hands.
    pub(super) fn expect_trouble(&mut self, is_in_trouble: bool) {
        self.is_in_trouble = is_in_trouble;
    }

    /// Time passes, perhaps too much of it.
    pub(super) async fn step(&mut self) -> Result<(), Abort> {
        match &mut self.breaks_in {
            Some(0) => return Err(self.leave_behind()),
            Some(steps) => *steps -= 1,
            None => {}
        }
        let span = self.server.some_time(self.is_in_trouble);
        if !span.is_zero() {
            let ends = Instant::now() + span;
            tokio::time::sleep_until(ends.min(self.deadline)).await;
            if ends >= self.deadline {
                return Err(self.aborted(Abort::TooLong));
            }
        }
        self.check_session()
    }

    /// FOR UPDATE SKIP LOCKED: the row, if nobody else has it.
    pub(super) fn take_free(&mut self, row: Row) -> bool {
        let is_free = self.server.store.locks().take_free(self.owner, &row);
        if is_free {
            self.held.push(row);
        }
        is_free
    }

    /// FOR UPDATE, or an insert of a unique key: the row, when whoever holds it is done.
    pub(super) async fn take(&mut self, row: Row) -> Result<(), Abort> {
        let asked = self.server.store.locks().lease_request(self.owner, &row);
        let (store, verb) = (&self.server.store, self.verb);
        match asked {
            Asked::Granted => {
                self.held.push(row);
                Ok(())
            }
            // PostgreSQL finds circles after a second, and a lock timeout that is shorter ends one of them
            // first; that one is told the same.
            Asked::Circle => {
                let what = row.to_string();
                store.tell(|| WorldEvent::Deadlocked { verb, row: what });
                Err(self.aborted(Abort::Waited(format!("a circle at {row}"))))
            }
            Asked::Queued(bell) => {
                let what = row.to_string();
                let lane = row.lane();
                store.tell(|| WorldEvent::Waits {
                    verb,
                    row: what,
                    lane,
                });
                self.waits_for = Some(row.clone());
                let rung = tokio::time::timeout(LOCK_TIMEOUT, bell).await;
                self.waits_for = None;
                self.waited(row, rung.is_ok_and(|bell| bell.is_ok()))
            }
        }
    }

    fn waited(&mut self, row: Row, is_rung: bool) -> Result<(), Abort> {
        self.check_session()?;
        let is_mine = self.server.store.locks().stop_waiting(self.owner, &row) || is_rung;
        if !is_mine {
            let what = format!("{row} was locked for too long");
            return Err(self.aborted(Abort::Waited(what)));
        }
        self.held.push(row);
        Ok(())
    }

    /// The one moment at which everything that it writes is there.
    pub(super) async fn commit<T>(
        mut self,
        write: impl FnOnce(&MemoryStore, &mut Rows) -> T,
    ) -> Result<T, Abort> {
        self.deadline += COMMIT_TIMEOUT;
        self.step().await?;
        let store = &self.server.store;
        let told = write(store, &mut store.rows());
        Ok(told)
    }

    /// Rolled back because of an item of it.
    pub(super) fn aborted(&self, why: Abort) -> Abort {
        self.server
            .store
            .note(|| format!("store  {} rolled back: {}", self.verb, why.text()));
        why
    }

    fn check_session(&self) -> Result<(), Abort> {
        if self.server.store.locks().is_alive(self.born) {
            return Ok(());
        }
        Err(self.aborted(Abort::Lost("the server is gone")))
    }

    /// Its asker knows at once that the connection broke; its server notices later, and holds the locks
    /// until then.
    fn leave_behind(&mut self) -> Abort {
        let late = self.server.line.rng().millis(0, GONE_MS_MAX);
        let left = Self {
            server: self.server.clone(),
            verb: self.verb,
            owner: self.owner,
            born: self.born,
            held: std::mem::take(&mut self.held),
            waits_for: None,
            deadline: self.deadline,
            breaks_in: None,
            is_in_trouble: false,
        };
        // The handle is let go: it ends by itself, or with the world.
        drop(tokio::spawn(async move {
            tokio::time::sleep(late).await;
            drop(left);
        }));
        self.aborted(Abort::Lost("the connection broke"))
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let mut locks = self.server.store.locks();
        if let Some(row) = self.waits_for.take()
            && locks.stop_waiting(self.owner, &row)
        {
            self.held.push(row);
        }
        locks.release(self.owner, &self.held);
    }
}
