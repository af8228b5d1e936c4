//! Threads that read, each with its own connection, without waiting for the writer.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use engine::ports::StoreError;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::fault::Result;

/// How many reads run at once.
pub(super) const READERS: usize = 4;
/// How many reads wait at most; further callers wait for a place.
const QUEUE_MAX: usize = 1_024;

type Job = Box<dyn FnOnce(&Connection) + Send>;

/// The readers' handle. Dropping it waits until the threads have finished the waiting reads.
pub(super) struct Readers {
    jobs: Option<mpsc::Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    pub(super) fn spawn(connections: Vec<Connection>) -> std::io::Result<Self> {
        let (jobs, inbox) = mpsc::channel::<Job>(QUEUE_MAX);
        let inbox = Arc::new(Mutex::new(inbox));
        let mut readers = Self {
            jobs: Some(jobs),
            threads: Vec::new(),
        };
        for conn in connections {
            let inbox = Arc::clone(&inbox);
            let work = move || {
                while let Some(job) = next_job(&inbox) {
                    job(&conn);
                }
            };
            let thread = std::thread::Builder::new()
                .name("store-reader".into())
                .spawn(work)?;
            readers.threads.push(thread);
        }
        Ok(readers)
    }

    /// Reads from one snapshot, which contains every acknowledged write.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let stopped = || StoreError::Unavailable("the store's readers have stopped".into());
        let jobs = self.jobs.as_ref().ok_or_else(stopped)?;
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |conn| {
            // The caller may have been cancelled.
            reply.send(snapshot(conn, question)).ok();
        });
        if jobs.send(job).await.is_err() {
            return Err(stopped());
        }
        match answer.await {
            Ok(result) => result.map_err(StoreError::from),
            Err(_gone) => Err(stopped()),
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        drop(self.jobs.take());
        for thread in self.threads.drain(..) {
            // A panic of a reader was reported by its own thread already.
            thread.join().ok();
        }
    }
}

/// Waits for the next job. One thread holds the inbox and waits; the others wait for the inbox.
fn next_job(inbox: &Mutex<mpsc::Receiver<Job>>) -> Option<Job> {
    inbox
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .blocking_recv()
}

fn snapshot<T>(conn: &Connection, question: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
    conn.prepare_cached("BEGIN")?.execute([])?;
    let result = question(conn);
    // Some failures end the transaction by themselves.
    if !conn.is_autocommit() {
        conn.prepare_cached("COMMIT")?.execute([])?;
    }
    result
}
