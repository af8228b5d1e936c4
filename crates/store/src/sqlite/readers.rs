//! Threads that read, each with its own connection, without waiting for the writer.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use engine::ports::StoreError;
use rusqlite::Connection;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::fault::Result;

/// How many reads of the engine run at once.
const ENGINE_THREADS: usize = 2;
/// How many reads of customers run at once.
const CUSTOMER_THREADS: usize = 4;
/// How many reads of each kind wait at most.
const QUEUE_MAX: usize = 1_024;

/// Whose reads they are. Each kind has its own threads, so that the engine's never wait for those of customers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// Waits for a place in the queue: there are few, and each is needed.
    Engine,
    /// Is refused when the queue is full.
    Customer,
}

impl Reader {
    pub(super) fn threads(self) -> usize {
        match self {
            Self::Engine => ENGINE_THREADS,
            Self::Customer => CUSTOMER_THREADS,
        }
    }
}

type Job = Box<dyn FnOnce(&Connection) + Send>;

/// The readers' handle. Dropping it waits until the threads have finished the waiting reads.
pub(super) struct Readers {
    reader: Reader,
    jobs: Option<mpsc::Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    pub(super) fn spawn(reader: Reader, connections: Vec<Connection>) -> std::io::Result<Self> {
        let (jobs, inbox) = mpsc::channel::<Job>(QUEUE_MAX);
        let inbox = Arc::new(Mutex::new(inbox));
        let mut readers = Self {
            reader,
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
            // A read whose caller was cancelled while it waited is not run; one that runs is not interrupted.
            if !reply.is_closed() {
                reply.send(snapshot(conn, question)).ok();
            }
        });
        match self.reader {
            Reader::Engine => jobs.send(job).await.map_err(|_closed| stopped())?,
            Reader::Customer => jobs.try_send(job).map_err(|error| match error {
                TrySendError::Full(_) => StoreError::Busy(format!(
                    "{QUEUE_MAX} reads wait already; try again in a moment"
                )),
                TrySendError::Closed(_) => stopped(),
            })?,
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn waiting_read_whose_caller_is_gone_is_not_run() {
        let conn = Connection::open_in_memory().unwrap();
        let readers = Readers::spawn(Reader::Customer, vec![conn]).unwrap();
        let (release, released) = std::sync::mpsc::channel::<()>();
        // Ends when `release` is dropped.
        let mut running = Box::pin(readers.read(move |_conn| Ok(released.recv().is_err())));
        assert!(running.as_mut().now_or_never().is_none());
        let was_run = Arc::new(AtomicBool::new(false));
        let mark = Arc::clone(&was_run);
        let given_up = readers.read(move |_conn| {
            mark.store(true, Ordering::SeqCst);
            Ok(())
        });
        assert!(given_up.now_or_never().is_none());
        drop(release);
        assert!(running.await.unwrap());
        // The only thread runs them in order.
        readers.read(|_conn| Ok(())).await.unwrap();
        assert!(!was_run.load(Ordering::SeqCst));
    }
}
