//! One transaction: its locks, the time that its steps take, and the ways in which it ends.

use std::time::Duration;

use engine::ports::{Conflict, StoreError};
use tokio::time::Instant;

use super::Server;
use super::locks::{LockOutcome, Owner, Row};
use crate::event::WorldEvent;
use crate::store::MemoryStore;
use crate::store::rows::Rows;

/// How long a statement waits for one row. (`lock_timeout`, a twentieth of a usual lease)
const LOCK_TIMEOUT: Duration = Duration::from_millis(200);
/// How long a statement may take. (`statement_timeout`, half of a short lease)
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a commit may take: no timeout ends one.
const COMMIT_TIMEOUT: Duration = Duration::from_hours(1);
/// How late a server notices that the client of a running statement is gone.
/// (`client_connection_check_interval`, a fifth of a lease)
const DISCONNECT_NOTICE_MS_MAX: u64 = 1_000;
/// Before which of its steps a connection breaks, at the latest.
const BREAK_STEPS_MAX: u64 = 4;

/// Why a transaction was rolled back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Abort {
    /// A row was locked for too long, or there was a deadlock. The client is told.
    LockTimeout(String),
    /// A statement took too long. The client is told.
    StatementTimeout,
    /// A row conflicts, or a row count is wrong. The client is told.
    Conflict(Conflict),
    /// Its session ended. The outcome is unknown to the client.
    Lost(&'static str),
}

impl Abort {
    pub(super) fn text(&self) -> String {
        match self {
            Self::LockTimeout(what) => what.clone(),
            Self::StatementTimeout => "the statement took too long".to_owned(),
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

/// A running transaction. Dropped without a commit, it is rolled back: it has written nothing, since all
/// writes happen in the commit.
pub(super) struct Transaction {
    server: Server,
    verb: &'static str,
    owner: Owner,
    /// See [`super::Locks::begin`].
    born: u64,
    held: Vec<Row>,
    waits_for: Option<Row>,
    deadline: Instant,
    /// After this step its connection breaks.
    breaks_in: Option<u64>,
    /// Whether it meets lanes that may be taken over.
    is_takeover: bool,
}

impl Transaction {
    pub(super) fn begin(server: &Server, verb: &'static str) -> Self {
        let (owner, born) = server.store.locks().begin();
        let rng = server.link.rng();
        let breaks = rng.permille(server.link.faults().refused);
        Self {
            server: server.clone(),
            verb,
            owner,
            born,
            held: Vec::new(),
            waits_for: None,
            deadline: Instant::now() + STATEMENT_TIMEOUT,
            breaks_in: breaks.then(|| rng.between(0, BREAK_STEPS_MAX)),
            is_takeover: false,
        }
    }

    /// What is committed at present: what a statement that begins now reads without a lock, and what one that
    /// just locked a row reads of it.
    pub(super) fn read<T>(&self, query: impl FnOnce(&Rows) -> T) -> T {
        self.server.read(query)
    }

    /// The database's clock, which advances during a transaction.
    pub(super) fn now(&self) -> domain::Timestamp {
        self.server.store.now()
    }

    /// From now on its steps stall more often, if lanes that it meets may be taken over.
    pub(super) fn set_takeover(&mut self, is_takeover: bool) {
        self.is_takeover = is_takeover;
    }

    /// Time passes, possibly too much.
    pub(super) async fn step(&mut self) -> Result<(), Abort> {
        match &mut self.breaks_in {
            Some(0) => return Err(self.disconnect()),
            Some(steps) => *steps -= 1,
            None => {}
        }
        let span = self.server.pick_time(self.is_takeover);
        if !span.is_zero() {
            let ends = Instant::now() + span;
            tokio::time::sleep_until(ends.min(self.deadline)).await;
            if ends >= self.deadline {
                return Err(self.aborted(Abort::StatementTimeout));
            }
        }
        self.check_session()
    }

    /// FOR UPDATE SKIP LOCKED: locks the row if it is free.
    pub(super) fn try_lock(&mut self, row: Row) -> bool {
        let is_free = self.server.store.locks().try_lock(self.owner, &row);
        if is_free {
            self.held.push(row);
        }
        is_free
    }

    /// FOR UPDATE, or an insert of a unique key: locks the row, when its holder has ended.
    pub(super) async fn lock(&mut self, row: Row) -> Result<(), Abort> {
        let outcome = self.server.store.locks().lock_or_queue(self.owner, &row);
        let (store, verb) = (&self.server.store, self.verb);
        match outcome {
            LockOutcome::Granted => {
                self.held.push(row);
                Ok(())
            }
            // PostgreSQL detects deadlocks after a second, and a shorter lock timeout ends one of the transactions
            // first; its client gets the same error.
            LockOutcome::Deadlock => {
                let what = row.to_string();
                store.record(|| WorldEvent::Deadlocked { verb, row: what });
                Err(self.aborted(Abort::LockTimeout(format!("a circle at {row}"))))
            }
            LockOutcome::Queued(wakeup) => {
                let what = row.to_string();
                let lane = row.lane();
                store.record(|| WorldEvent::LockWait {
                    verb,
                    row: what,
                    lane,
                });
                self.waits_for = Some(row.clone());
                let granted = tokio::time::timeout(LOCK_TIMEOUT, wakeup).await;
                self.waits_for = None;
                self.on_wait_ended(row, granted.is_ok_and(|wakeup| wakeup.is_ok()))
            }
        }
    }

    fn on_wait_ended(&mut self, row: Row, is_granted: bool) -> Result<(), Abort> {
        self.check_session()?;
        let is_mine = self.server.store.locks().stop_waiting(self.owner, &row) || is_granted;
        if !is_mine {
            let what = format!("{row} was locked for too long");
            return Err(self.aborted(Abort::LockTimeout(what)));
        }
        self.held.push(row);
        Ok(())
    }

    /// The single point in time at which all its writes become visible.
    pub(super) async fn commit<T>(
        mut self,
        write: impl FnOnce(&MemoryStore, &mut Rows) -> T,
    ) -> Result<T, Abort> {
        self.deadline += COMMIT_TIMEOUT;
        self.step().await?;
        let store = &self.server.store;
        let recorded = write(store, &mut store.rows());
        Ok(recorded)
    }

    /// Rolled back because of one of its items.
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

    /// Its client knows at once that the connection broke; its server notices later, and holds the locks until
    /// then.
    fn disconnect(&mut self) -> Abort {
        let late = self.server.link.rng().millis(0, DISCONNECT_NOTICE_MS_MAX);
        let left = Self {
            server: self.server.clone(),
            verb: self.verb,
            owner: self.owner,
            born: self.born,
            held: std::mem::take(&mut self.held),
            waits_for: None,
            deadline: self.deadline,
            breaks_in: None,
            is_takeover: false,
        };
        // Detached: the task ends by itself, or with the world.
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
