//! The one thread that writes. It takes every job that waits into one transaction and answers all
//! of them after its COMMIT; it never waits for more. So under load the price of an fsync is shared
//! by everyone, and without load nobody waits for anybody.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use domain::Time;
use engine::ports::StoreError;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::fault::Fault;

/// The store's clock.
pub(super) type Now = Arc<dyn Fn() -> Time + Send + Sync>;

/// How many jobs wait at most; more callers wait for a place.
const QUEUE_MAX: usize = 4_096;
/// How many txs one transaction takes before it commits, so that nobody's answer waits for long.
const GROUP_TXS_MAX: usize = 5_000;
/// How many jobs one transaction takes.
const GROUP_JOBS_MAX: usize = 1_024;

/// Why a job has no result.
#[derive(Clone, Debug)]
pub(super) enum Lost {
    /// Certainly nothing of it was written.
    NotDone(StoreError),
    /// It failed while it was becoming durable.
    Unknown(String),
}

/// The writer's handle. Dropping it lets the thread finish what waits, and waits for that.
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
    /// The work may run twice (a transaction that fails as a whole is tried again one by one), so it
    /// must not remember anything. `txs` is how many txs it writes.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        txs: usize,
        mut work: impl FnMut(&Connection, Time) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let guarded = move |conn: &Connection, now| savepoint(conn, |conn| work(conn, now));
        match self.submit(txs, guarded).await {
            Ok(result) => result.map_err(StoreError::from),
            Err(Lost::NotDone(error)) => Err(error),
            Err(Lost::Unknown(text)) => Err(StoreError::Unavailable(text)),
        }
    }

    /// As [`Writer::write`], for work that guards its own parts by savepoints and therefore always
    /// has a result.
    pub(super) async fn submit<T: Send + 'static>(
        &self,
        txs: usize,
        work: impl FnMut(&Connection, Time) -> T + Send + 'static,
    ) -> Result<T, Lost> {
        let stopped = || StoreError::Unavailable("the store's writer has stopped".into());
        let jobs = self.jobs.as_ref().ok_or_else(|| Lost::NotDone(stopped()))?;
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Pending {
            txs,
            work,
            result: None,
            reply,
        });
        if jobs.send(job).await.is_err() {
            return Err(Lost::NotDone(stopped()));
        }
        // The thread is gone without an answer: it may have died before or after the COMMIT.
        answer
            .await
            .unwrap_or_else(|_gone| Err(Lost::Unknown(stopped().to_string())))
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

/// Runs one part of a transaction so that its failure takes back nothing but itself.
pub(super) fn savepoint<T, E: From<rusqlite::Error>>(
    conn: &Connection,
    part: impl FnOnce(&Connection) -> Result<T, E>,
) -> Result<T, E> {
    execute(conn, "SAVEPOINT part")?;
    let result = part(conn);
    // Some failures (a full disk, for example) end the whole transaction: nothing is left to undo.
    if result.is_err() && !conn.is_autocommit() && execute(conn, "ROLLBACK TO part").is_err() {
        execute(conn, "ROLLBACK").ok();
        assert!(
            conn.is_autocommit(),
            "a part that cannot be taken back must not be committed"
        );
    }
    if !conn.is_autocommit() {
        execute(conn, "RELEASE part")?;
    }
    result
}

/// A piece of work of any type, with its caller.
trait Job: Send {
    fn txs(&self) -> usize;
    fn apply(&mut self, conn: &Connection, now: Time);
    fn answer(self: Box<Self>, fate: Result<(), Lost>);
}

struct Pending<T, W> {
    txs: usize,
    work: W,
    result: Option<T>,
    reply: oneshot::Sender<Result<T, Lost>>,
}

impl<T: Send, W: FnMut(&Connection, Time) -> T + Send> Job for Pending<T, W> {
    fn txs(&self) -> usize {
        self.txs
    }

    fn apply(&mut self, conn: &Connection, now: Time) {
        self.result = Some((self.work)(conn, now));
    }

    fn answer(self: Box<Self>, fate: Result<(), Lost>) {
        let Self { result, reply, .. } = *self;
        let answer = fate.map(|()| result.expect("a committed job was applied"));
        // Nobody waits any more: the caller gave up, and what is durable stays so.
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
    let fate = match transact(conn, now(), &mut group) {
        Ok(()) => Ok(()),
        // Something ended the whole transaction. Alone, only the guilty one fails again.
        Err(Lost::NotDone(_)) if group.len() > 1 => {
            for job in group {
                run_group(conn, now, vec![job]);
            }
            return;
        }
        Err(lost) => Err(lost),
    };
    for job in group {
        job.answer(fate.clone());
    }
}

fn transact(conn: &Connection, now: Time, group: &mut [Box<dyn Job>]) -> Result<(), Lost> {
    let began = Instant::now();
    let not_done = |error: rusqlite::Error| Lost::NotDone(Fault::from(error).into());
    execute(conn, "BEGIN IMMEDIATE").map_err(not_done)?;
    for job in &mut *group {
        job.apply(conn, now);
        if conn.is_autocommit() {
            let text = "the transaction was rolled back (is the disk full?)";
            return Err(Lost::NotDone(StoreError::Unavailable(text.into())));
        }
    }
    let committed = execute(conn, "COMMIT");
    let txs: usize = group.iter().map(|job| job.txs()).sum();
    if txs > 0 {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a batch has far fewer than 2^52 txs"
        )]
        metrics::histogram!("lanekeeper_gate_batch_size").record(txs as f64);
    }
    metrics::histogram!("lanekeeper_store_commit_seconds").record(began.elapsed());
    committed.map_err(|error| {
        tracing::error!(%error, "the store could not commit");
        if !conn.is_autocommit() {
            // Where even that fails, the next BEGIN fails too and says so to its callers.
            execute(conn, "ROLLBACK").ok();
        }
        // Frames with a commit mark may be on disk although their fsync failed.
        Lost::Unknown(format!("the commit failed: {error}"))
    })
}

fn execute(conn: &Connection, sql: &str) -> Result<(), rusqlite::Error> {
    conn.prepare_cached(sql)?.execute([])?;
    Ok(())
}
