//! Records ledger entries in batches: each batch has the entries that arrived while the previous one was written.
//!
//! There is no task while there is nothing to write. A reservation is retried until the database has answered; the
//! result of a mark is returned at once, also when it is a failure.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::LaneKey;
use engine::ports::{Clock, ReservationError};
use parking_lot::Mutex;
use tokio::sync::oneshot::{self, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Result;
use crate::postgres::{EntryKind, Ledger, LedgerEntry, QueryError, WriteOutcome, write_error};

/// Entries per statement.
const BATCH_MAX: usize = 500;

/// After so many lanes were refused one by one, the remaining lanes wait for the next batch.
const LANES_REFUSED_MAX: usize = 8;

/// Delay before a batch is retried: initial and maximum.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Is notified of the outcome of writes.
#[async_trait]
pub(in crate::scheme) trait WriteObserver: Send + Sync + 'static {
    /// These entries were answered. Called before their callers get the answer.
    async fn on_written(&self, lines: &[(LedgerEntry, WriteOutcome)]);

    /// The outcome of these entries is unknown: they may have been written, or may still be.
    fn on_outcome_unknown(&self, lines: &[LedgerEntry]);
}

/// Queues entries for the ledger.
pub(in crate::scheme) struct Writer {
    shared: Arc<Shared>,
}

/// Capacity for one unwritten entry.
pub(in crate::scheme) struct WriteSlot {
    _permit: OwnedSemaphorePermit,
}

struct Shared {
    ledger: Arc<Ledger>,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn WriteObserver>,
    slots: Arc<Semaphore>,
    queue: Mutex<Queue>,
    /// The scheme is dropped: what fails now is left to the expiry.
    is_detached: AtomicBool,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<QueuedWrite>,
    is_running: bool,
}

struct QueuedWrite {
    /// `None`: a barrier, answered when all entries before it are written.
    entry: Option<LedgerEntry>,
    answer: Option<Sender<Result<WriteOutcome>>>,
    _slot: Option<WriteSlot>,
}

impl Writer {
    /// At most `unwritten_max` entries wait; beyond it, callers get `Busy`.
    pub(in crate::scheme) fn new(
        ledger: Arc<Ledger>,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn WriteObserver>,
        unwritten_max: usize,
    ) -> Self {
        let capacity = unwritten_max.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            shared: Arc::new(Shared {
                ledger,
                clock,
                observer,
                slots: Arc::new(Semaphore::new(capacity)),
                queue: Mutex::default(),
                is_detached: AtomicBool::new(false),
            }),
        }
    }

    /// Capacity for one more entry. Must be acquired before a nonce is issued.
    pub(in crate::scheme) fn acquire_slot(&self) -> Result<WriteSlot> {
        let slot = Arc::clone(&self.shared.slots).try_acquire_owned();
        slot.map(|_permit| WriteSlot { _permit })
            .map_err(|_none| ReservationError::Busy)
    }

    /// Queues a reservation that was issued, without waiting.
    pub(in crate::scheme) fn enqueue(&self, entry: LedgerEntry, slot: WriteSlot) {
        self.push(QueuedWrite {
            entry: Some(entry),
            answer: None,
            _slot: Some(slot),
        });
    }

    /// Writes an entry and waits for its outcome.
    pub(in crate::scheme) async fn write(&self, entry: LedgerEntry) -> Result<WriteOutcome> {
        let slot = self.acquire_slot()?;
        self.write_and_wait(Some(entry), Some(slot)).await
    }

    /// Waits until all queued entries are written; fails if the database is unavailable.
    pub(in crate::scheme) async fn flush(&self) -> Result<()> {
        if self.shared.queue.lock().is_idle() {
            return Ok(());
        }
        self.write_and_wait(None, None).await.map(drop)
    }

    async fn write_and_wait(
        &self,
        entry: Option<LedgerEntry>,
        slot: Option<WriteSlot>,
    ) -> Result<WriteOutcome> {
        let (answer, answered) = oneshot::channel();
        self.push(QueuedWrite {
            entry,
            answer: Some(answer),
            _slot: slot,
        });
        let lost =
            |_dropped| ReservationError::Unknown("the writer task ended before it answered".into());
        answered.await.map_err(lost)?
    }

    fn push(&self, item: QueuedWrite) {
        let mut queue = self.shared.queue.lock();
        queue.waiting.push_back(item);
        if !queue.is_running {
            queue.is_running = true;
            // The task ends when the queue is empty.
            tokio::spawn(WriterTask::of(Arc::clone(&self.shared)).run());
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.is_detached.store(true, Ordering::Release);
    }
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.is_running
    }
}

/// The writer task with its current batch. If it ends early (a panic, or the end of its runtime), the next entry
/// starts another task, and no reservation is lost.
struct WriterTask {
    shared: Arc<Shared>,
    batch: Vec<QueuedWrite>,
    /// The queue was empty, and the next task may already run.
    is_finished: bool,
}

impl WriterTask {
    fn of(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            batch: Vec::new(),
            is_finished: false,
        }
    }

    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut retry = RETRY_FIRST;
        loop {
            {
                let mut queue = shared.queue.lock();
                let count = queue.waiting.len().min(BATCH_MAX);
                if count == 0 {
                    queue.is_running = false;
                    self.is_finished = true;
                    return;
                }
                self.batch.extend(queue.waiting.drain(..count));
            }
            shared.write(&mut self.batch).await;
            if self.batch.is_empty() {
                retry = RETRY_FIRST;
                continue;
            }
            if shared.is_detached.load(Ordering::Acquire) {
                tracing::warn!(
                    lines = self.batch.len(),
                    "reservations are left to their expiry: the database is unreachable during shutdown"
                );
                return;
            }
            self.requeue();
            shared.clock.sleep(retry).await;
            retry = (retry * 2).min(RETRY_MAX);
        }
    }

    /// Puts the batch back to the front of the queue.
    fn requeue(&mut self) {
        let mut queue = self.shared.queue.lock();
        for item in self.batch.drain(..).rev() {
            queue.waiting.push_front(item);
        }
    }
}

impl Drop for WriterTask {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        // Waiting callers get the error for a lost answer.
        self.shared
            .observer
            .on_outcome_unknown(&entries(&self.batch));
        self.batch.retain(QueuedWrite::is_reservation);
        self.requeue();
        let mut queue = self.shared.queue.lock();
        queue.waiting.retain(QueuedWrite::is_reservation);
        queue.is_running = false;
    }
}

impl Shared {
    /// Writes a batch and leaves in it what must be retried.
    async fn write(&self, batch: &mut Vec<QueuedWrite>) {
        let mut answers = self.write_entries(&entries(batch)).await.into_iter();
        let mut failed: Option<ReservationError> = None;
        // No await from here on: an answered item is out of the batch.
        for item in std::mem::take(batch) {
            let answer = match item.entry {
                Some(_) => answers.next().expect("one answer per entry"),
                None => match &failed {
                    None => Ok(WriteOutcome::NotYet), // the value is not used
                    Some(why) => Err(ReservationError::Unavailable(why.to_string())),
                },
            };
            if let Err(why) = &answer {
                failed.get_or_insert_with(|| why.clone());
            }
            // Reservations are retried; every waiting caller gets an answer.
            match answer.is_err() && item.is_reservation() {
                true => batch.push(item),
                false => send_answer(item.answer, answer),
            }
        }
    }

    /// One answer per entry. A batch that the database refuses is retried lane by lane, so that one locked row does
    /// not block the other lanes.
    async fn write_entries(&self, entries: &[LedgerEntry]) -> Vec<Result<WriteOutcome>> {
        let why = match self.write_batch(entries).await {
            Ok(written) => return written.into_iter().map(Ok).collect(),
            Err(why) => why,
        };
        let is_refused = matches!(why, QueryError::Refused(_));
        let mut answers = vec![Err(write_error(why)); entries.len()];
        let lanes: BTreeSet<LaneKey> = entries.iter().map(|entry| entry.key.lane).collect();
        if !is_refused || lanes.len() == 1 {
            return answers;
        }
        let mut refused = 0;
        for lane in lanes {
            let is_of_lane = |(_, entry): &(usize, &LedgerEntry)| entry.key.lane == lane;
            let lines = entries.iter().enumerate().filter(is_of_lane);
            let (places, lines): (Vec<usize>, Vec<LedgerEntry>) =
                lines.map(|(place, entry)| (place, entry.clone())).unzip();
            match self.write_batch(&lines).await {
                Ok(written) => {
                    for (place, written) in places.into_iter().zip(written) {
                        answers[place] = Ok(written);
                    }
                }
                Err(why) => {
                    refused += 1;
                    let why = write_error(why);
                    for place in places {
                        answers[place] = Err(why.clone());
                    }
                }
            }
            if refused == LANES_REFUSED_MAX {
                break; // the cause is not a single lane
            }
        }
        answers
    }

    async fn write_batch(&self, entries: &[LedgerEntry]) -> Result<Vec<WriteOutcome>, QueryError> {
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        match self.ledger.write(entries).await {
            Ok(written) => {
                let lines: Vec<_> = entries.iter().cloned().zip(written).collect();
                self.observer.on_written(&lines).await;
                Ok(lines.into_iter().map(|(_, written)| written).collect())
            }
            Err(fault) => {
                if let QueryError::Unknown(_) = &fault {
                    self.observer.on_outcome_unknown(entries);
                }
                tracing::debug!(?fault, entries = entries.len(), "a batch was not written");
                Err(fault)
            }
        }
    }
}

impl QueuedWrite {
    /// Whether it records a reservation.
    fn is_reservation(&self) -> bool {
        let entry = self.entry.as_ref();
        entry.is_some_and(|entry| matches!(entry.kind, EntryKind::Reserved(_)))
    }
}

fn entries(batch: &[QueuedWrite]) -> Vec<LedgerEntry> {
    let entries = batch.iter().filter_map(|item| item.entry.clone());
    entries.collect()
}

fn send_answer(answer: Option<Sender<Result<WriteOutcome>>>, outcome: Result<WriteOutcome>) {
    if let Some(answer) = answer {
        // The caller may be gone.
        answer.send(outcome).ok();
    }
}

#[cfg(test)]
mod tests {
    use domain::{Address, B256, ChainId, Holder, LaneKey, Mark, MonotonicTime, Nonce, Timestamp};
    use tokio::runtime::{Builder, Runtime};
    use uuid::Uuid;

    use super::*;
    use crate::postgres::{Connector, Handout, Pool, PoolConfig, Timeouts};
    use crate::scheme::{ReservationKey, SchemeKind};

    struct NoObserver;

    #[async_trait]
    impl WriteObserver for NoObserver {
        async fn on_written(&self, _lines: &[(LedgerEntry, WriteOutcome)]) {}

        fn on_outcome_unknown(&self, _lines: &[LedgerEntry]) {}
    }

    struct StillClock;

    #[async_trait]
    impl Clock for StillClock {
        fn now(&self) -> Timestamp {
            Timestamp(0)
        }

        fn monotonic(&self) -> MonotonicTime {
            MonotonicTime(0)
        }

        async fn sleep(&self, _duration: Duration) {
            std::future::pending().await
        }

        fn random(&self) -> u128 {
            0
        }
    }

    fn entry(nonce: u64, kind: EntryKind) -> LedgerEntry {
        LedgerEntry {
            key: ReservationKey {
                lane: LaneKey {
                    chain_id: ChainId(1),
                    signer: Address::ZERO,
                },
                nonce: Nonce(nonce),
                holder: Holder(Uuid::nil()),
            },
            kind,
        }
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// The writer task ends with its runtime, in the middle of a batch.
    #[test]
    fn writer_task_is_replaced_after_abort_and_keeps_reservations() {
        // No server listens there.
        let nowhere = Connector::parse("postgres://u@127.0.0.1:1/d", &Timeouts::default());
        let db = Pool::new(nowhere.unwrap(), PoolConfig::default());
        let ledger = Arc::new(Ledger::new(Arc::new(db), SchemeKind::Segment));
        let (clock, observer) = (Arc::new(StillClock), Arc::new(NoObserver));
        let writer = Writer::new(ledger, clock, observer, 10);
        let reservation = EntryKind::Reserved(Handout {
            token: Uuid::nil(),
            allocation_id: 1,
            expires_at: Timestamp(0),
        });
        let first = runtime();
        first.block_on(async {
            writer.enqueue(entry(0, reservation), writer.acquire_slot().unwrap());
            tokio::task::yield_now().await;
        });
        assert!(!writer.shared.queue.lock().is_idle());
        drop(first);
        let second = runtime();
        let mark = entry(
            0,
            EntryKind::Marked {
                mark: Mark::Submitted(B256::ZERO),
                recycle_target: None,
            },
        );
        let outcome = second.block_on(async {
            let outcome = tokio::time::timeout(Duration::from_secs(30), writer.write(mark));
            outcome.await.expect("the mark is answered")
        });
        assert!(
            matches!(outcome, Err(ReservationError::Unavailable(_))),
            "{outcome:?}"
        );
        drop(second);
        let queue = writer.shared.queue.lock();
        assert!(!queue.is_running);
        assert_eq!(queue.waiting.len(), 1, "the reservation is kept");
    }
}
