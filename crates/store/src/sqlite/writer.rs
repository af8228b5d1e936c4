//! The thread that writes. It runs all waiting jobs in one transaction and answers them after its COMMIT;
//! it never waits for more. So under load all jobs share the cost of an fsync, and without load no job
//! waits for another.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use domain::Timestamp;
use engine::ports::StoreError;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::fault::{Fault, Result};
use crate::commit_metrics::record_commit;

/// The store's clock.
pub(super) type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// How many jobs wait at most; further callers wait for a place.
const QUEUE_MAX: usize = 4_096;
/// How many txs one transaction writes before it commits, so that no answer waits for long.
const GROUP_TXS_MAX: usize = 5_000;
/// How many jobs one transaction takes.
const GROUP_JOBS_MAX: usize = 1_024;

/// The error of a job whose transaction was rolled back by SQLite itself.
const ROLLED_BACK: &str = "the transaction was rolled back (is the disk full?)";

/// Why a job has no result.
#[derive(Clone, Debug)]
pub(super) enum JobFailure {
    /// Nothing of it was written.
    NotDone(StoreError),
    /// It failed while it was becoming durable.
    Unknown(String),
}

/// The writer's handle. Dropping it waits until the thread has finished the waiting jobs.
pub(super) struct Writer {
    jobs: Option<mpsc::Sender<Box<dyn Job>>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn spawn(conn: Connection, now: Now) -> std::io::Result<Self> {
        let (jobs, inbox) = mpsc::channel(QUEUE_MAX);
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || run(&conn, &now, inbox))?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Runs work inside the next transaction, whole or not at all, and answers once that is durable.
    ///
    /// The work may run twice (a transaction that fails as a whole is repeated job by job), so it must not
    /// have side effects elsewhere. `txs` is how many txs it writes.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        txs: usize,
        mut work: impl FnMut(&Connection, Timestamp) -> Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let guarded = move |conn: &Connection, now| savepoint(conn, |conn| work(conn, now));
        match self.submit(txs, guarded).await {
            Ok(result) => result.map_err(StoreError::from),
            Err(JobFailure::NotDone(error)) => Err(error),
            Err(JobFailure::Unknown(text)) => Err(StoreError::Unavailable(text)),
        }
    }

    /// As [`Writer::write`], for work that guards its own parts by savepoints and therefore always
    /// has a result.
    pub(super) async fn submit<T: Send + 'static>(
        &self,
        txs: usize,
        work: impl FnMut(&Connection, Timestamp) -> T + Send + 'static,
    ) -> Result<T, JobFailure> {
        let stopped = || StoreError::Unavailable("the store's writer has stopped".into());
        let jobs = self
            .jobs
            .as_ref()
            .ok_or_else(|| JobFailure::NotDone(stopped()))?;
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Pending {
            txs,
            work,
            result: None,
            reply,
        });
        if jobs.send(job).await.is_err() {
            return Err(JobFailure::NotDone(stopped()));
        }
        // The thread ended without an answer: before or after the COMMIT.
        answer
            .await
            .unwrap_or_else(|_gone| Err(JobFailure::Unknown(stopped().to_string())))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the writer was reported by its own thread already.
            thread.join().ok();
        }
    }
}

/// Runs one part of a transaction so that its failure rolls back only itself.
pub(super) fn savepoint<T, E: From<rusqlite::Error>>(
    conn: &Connection,
    part: impl FnOnce(&Connection) -> Result<T, E>,
) -> Result<T, E> {
    // Some failures (a full disk, for example) end the whole transaction. Then a savepoint would
    // begin one of its own, and its release would commit that one.
    if conn.is_autocommit() {
        let aborted = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_ABORT);
        return Err(rusqlite::Error::SqliteFailure(aborted, Some(ROLLED_BACK.into())).into());
    }
    execute(conn, "SAVEPOINT part")?;
    let result = part(conn);
    if conn.is_autocommit() {
        return result;
    }
    let undone = result
        .as_ref()
        .map_or_else(|_| execute(conn, "ROLLBACK TO part"), |_| Ok(()));
    if undone.and_then(|()| execute(conn, "RELEASE part")).is_err() {
        // The outer caller sees that the transaction is gone.
        execute(conn, "ROLLBACK").ok();
        assert!(
            conn.is_autocommit(),
            "a part that cannot be taken back must not be committed"
        );
    }
    result
}

/// A piece of work of any type, with its caller.
trait Job: Send {
    fn txs(&self) -> usize;
    fn apply(&mut self, conn: &Connection, now: Timestamp);
    fn answer(self: Box<Self>, outcome: Result<(), JobFailure>);
}

/// The outcome of one transaction.
enum TransactionOutcome {
    Committed,
    /// A job ended it as a whole, and nothing of it was written.
    Broken,
    JobFailure(JobFailure),
}

struct Pending<T, W> {
    txs: usize,
    work: W,
    result: Option<T>,
    reply: oneshot::Sender<Result<T, JobFailure>>,
}

impl<T: Send, W: FnMut(&Connection, Timestamp) -> T + Send> Job for Pending<T, W> {
    fn txs(&self) -> usize {
        self.txs
    }

    fn apply(&mut self, conn: &Connection, now: Timestamp) {
        self.result = Some((self.work)(conn, now));
    }

    fn answer(self: Box<Self>, outcome: Result<(), JobFailure>) {
        let Self { result, reply, .. } = *self;
        let answer = outcome.map(|()| result.expect("a committed job was applied"));
        // The caller may have been cancelled; a durable write stays durable.
        reply.send(answer).ok();
    }
}

fn run(conn: &Connection, now: &Now, mut inbox: mpsc::Receiver<Box<dyn Job>>) {
    while let Some(first) = inbox.blocking_recv() {
        let mut txs = first.txs();
        let mut group = vec![first];
        while txs < GROUP_TXS_MAX && group.len() < GROUP_JOBS_MAX {
            let Ok(next) = inbox.try_recv() else { break };
            txs = txs.saturating_add(next.txs());
            group.push(next);
        }
        run_group(conn, now, group);
    }
}

fn run_group(conn: &Connection, now: &Now, mut group: Vec<Box<dyn Job>>) {
    let outcome = match transact(conn, now(), &mut group) {
        TransactionOutcome::Committed => Ok(()),
        TransactionOutcome::JobFailure(lost) => Err(lost),
        // Alone, only the job at fault breaks its transaction again.
        TransactionOutcome::Broken if group.len() > 1 => {
            for job in group {
                run_group(conn, now, vec![job]);
            }
            return;
        }
        TransactionOutcome::Broken => Err(JobFailure::NotDone(StoreError::Unavailable(
            ROLLED_BACK.into(),
        ))),
    };
    for job in group {
        job.answer(outcome.clone());
    }
}

fn transact(conn: &Connection, now: Timestamp, group: &mut [Box<dyn Job>]) -> TransactionOutcome {
    let began = Instant::now();
    if let Err(error) = execute(conn, "BEGIN IMMEDIATE") {
        return TransactionOutcome::JobFailure(JobFailure::NotDone(Fault::from(error).into()));
    }
    for job in &mut *group {
        job.apply(conn, now);
        if conn.is_autocommit() {
            return TransactionOutcome::Broken;
        }
    }
    let committed = execute(conn, "COMMIT");
    record_commit(group.iter().map(|job| job.txs()).sum(), began);
    let Err(error) = committed else {
        return TransactionOutcome::Committed;
    };
    tracing::error!(%error, "the store could not commit");
    if !conn.is_autocommit() {
        // If even that fails, the next BEGIN fails too and reports that to its callers.
        execute(conn, "ROLLBACK").ok();
    }
    // Frames with a commit mark may be on disk although their fsync failed.
    TransactionOutcome::JobFailure(JobFailure::Unknown(format!("the commit failed: {error}")))
}

fn execute(conn: &Connection, sql: &str) -> Result<(), rusqlite::Error> {
    conn.prepare_cached(sql)?.execute([])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::task::JoinSet;

    use super::*;

    /// A writer over a table of numbers, and how many transactions it began.
    fn writer(setup: &str) -> (Arc<Writer>, Arc<AtomicU64>) {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE item (n INTEGER PRIMARY KEY, pad BLOB)")
            .unwrap();
        conn.execute_batch(setup).unwrap();
        let begun = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&begun);
        let now = Arc::new(move || Timestamp(count.fetch_add(1, Ordering::SeqCst)));
        (Arc::new(Writer::spawn(conn, now).unwrap()), begun)
    }

    async fn insert(writer: &Writer, n: i64, pad: usize) -> Result<(), StoreError> {
        let insert = move |conn: &Connection, _now| {
            let pad = vec![0_u8; pad];
            conn.execute("INSERT INTO item VALUES (?1, ?2)", (n, pad))?;
            Ok(())
        };
        writer.write(1, insert).await
    }

    async fn items(writer: &Writer) -> i64 {
        let count = |conn: &Connection, _now| {
            Ok(conn.query_row("SELECT count(*) FROM item", [], |row| row.get(0))?)
        };
        writer.write(0, count).await.unwrap()
    }

    /// Queues jobs behind one that waits, so that they run in one transaction.
    async fn pile_up<T: Send + 'static>(
        writer: &Arc<Writer>,
        jobs: Vec<impl Future<Output = T> + Send + 'static>,
    ) -> Vec<T> {
        let (open, closed) = std::sync::mpsc::channel::<()>();
        let mut tasks = JoinSet::new();
        let waits = Arc::clone(writer);
        tasks.spawn(async move {
            // Ends when `open` is dropped.
            waits
                .submit(0, move |_conn, _now| closed.recv().is_err())
                .await
                .unwrap();
            None
        });
        tokio::task::yield_now().await;
        for job in jobs {
            tasks.spawn(async move { Some(job.await) });
        }
        // One turn of this single-threaded runtime: every task has submitted its job.
        tokio::task::yield_now().await;
        drop(open);
        tasks.join_all().await.into_iter().flatten().collect()
    }

    fn inserts(
        writer: &Arc<Writer>,
        items: impl IntoIterator<Item = (i64, usize)>,
    ) -> Vec<impl Future<Output = Result<(), StoreError>> + Send + 'static> {
        let insert = |(n, pad)| {
            let writer = Arc::clone(writer);
            async move { insert(&writer, n, pad).await }
        };
        items.into_iter().map(insert).collect()
    }

    #[tokio::test]
    async fn waiting_jobs_share_one_transaction() {
        let (writer, begun) = writer("");
        let jobs = inserts(&writer, (0..50).map(|n| (n, 0)));
        let answers = pile_up(&writer, jobs).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        // The first one, perhaps already with others, and then the rest.
        assert!(begun.load(Ordering::SeqCst) <= 2);
        assert_eq!(items(&writer).await, 50);
    }

    #[tokio::test]
    async fn failing_job_rolls_back_only_itself() {
        let (writer, _) = writer("INSERT INTO item VALUES (7, NULL)");
        let answers = pile_up(&writer, inserts(&writer, (5..10).map(|n| (n, 0)))).await;
        assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 1);
        assert_eq!(items(&writer).await, 5);
    }

    #[tokio::test]
    async fn full_disk_fails_only_jobs_that_do_not_fit() {
        let (writer, _) = writer("PRAGMA max_page_count = 20");
        let jobs = inserts(
            &writer,
            (0..10).map(|n| (n, if n == 4 { 1 << 20 } else { 10 })),
        );
        let answers = pile_up(&writer, jobs).await;
        let failed: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
        assert!(
            matches!(failed[..], [StoreError::Unavailable(_)]),
            "{failed:?}"
        );
        assert_eq!(items(&writer).await, 9);
    }

    #[tokio::test]
    async fn job_that_ends_the_transaction_fails_alone() {
        let (writer, _) = writer("");
        let breaks = Arc::clone(&writer);
        let broken = tokio::spawn(async move {
            let part = |conn: &Connection| -> Result<usize, rusqlite::Error> {
                conn.execute("INSERT INTO item VALUES (99, NULL)", [])
            };
            let work = move |conn: &Connection, _now| {
                conn.execute("ROLLBACK", []).unwrap();
                savepoint(conn, part).is_err()
            };
            breaks.submit(1, work).await
        });
        let answers = pile_up(&writer, inserts(&writer, (0..5).map(|n| (n, 0)))).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        let broken = broken.await.unwrap();
        assert!(matches!(broken, Err(JobFailure::NotDone(_))), "{broken:?}");
        assert_eq!(
            items(&writer).await,
            5,
            "nothing was committed behind the others"
        );
    }

    #[tokio::test]
    async fn failed_commit_is_unknown_and_the_next_one_works() {
        let (writer, _) = writer(
            "PRAGMA foreign_keys = ON;
             CREATE TABLE child (n INTEGER REFERENCES item (n) DEFERRABLE INITIALLY DEFERRED);",
        );
        let orphan = "INSERT INTO child VALUES (99)";
        // A deferred foreign key is checked at COMMIT only: there is no other way to make one fail.
        let bad = writer
            .submit(1, move |conn, _now| conn.execute(orphan, []).is_ok())
            .await;
        assert!(matches!(bad, Err(JobFailure::Unknown(_))), "{bad:?}");
        insert(&writer, 1, 0).await.unwrap();
        assert_eq!(items(&writer).await, 1);
    }

    #[tokio::test]
    async fn cancelled_caller_does_not_stop_its_job() {
        let (writer, _) = writer("");
        let given_up = tokio::time::timeout(std::time::Duration::ZERO, insert(&writer, 1, 0)).await;
        assert_eq!(items(&writer).await, 1, "{given_up:?}");
    }
}
