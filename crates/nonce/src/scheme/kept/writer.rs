//! Writes batches down, one at a time: whatever has come while the last one was on its way.
//!
//! There is no task while there is nothing to write. A loan that was handed out is tried again until the database
//! has answered; a mark is answered at once, whatever the answer is.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use domain::LaneKey;
use engine::ports::{Clock, ReservationError};
use tokio::sync::oneshot::{self, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::postgres::{Books, Entry, Fault, What, Written};

/// How many lines go into one statement.
const BATCH_MAX: usize = 500;

/// After so many lanes that were refused one by one, the others wait for the next time.
const LANES_REFUSED_MAX: usize = 8;

/// How soon a batch is tried again: at first, and at most.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// What its owner does with what was written.
#[async_trait]
pub(in crate::scheme) trait Aftermath: Send + Sync + 'static {
    /// These lines were answered. Callers are told afterwards.
    async fn written(&self, lines: &[(Entry, Written)]);

    /// These lines may have been written, or may yet be.
    fn lost(&self, lines: &[Entry]);
}

/// The way to the books.
pub(in crate::scheme) struct Writer {
    shared: Arc<Shared>,
}

/// Room for one line that is not written yet.
pub(in crate::scheme) struct Room {
    _permit: OwnedSemaphorePermit,
}

struct Shared {
    books: Arc<Books>,
    clock: Arc<dyn Clock>,
    aftermath: Arc<dyn Aftermath>,
    room: Arc<Semaphore>,
    queue: Mutex<Queue>,
    /// Nobody can ask any more: what fails now is left to the time-outs.
    is_orphan: AtomicBool,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Item>,
    is_running: bool,
}

struct Item {
    line: Line,
    answer: Option<Sender<Result<Written, ReservationError>>>,
    _room: Option<Room>,
}

enum Line {
    Entry(Entry),
    /// Answered when everything before it is written.
    Barrier,
}

impl Writer {
    /// At most so many lines wait; beyond, callers are told to come back.
    pub(in crate::scheme) fn new(
        books: Arc<Books>,
        clock: Arc<dyn Clock>,
        aftermath: Arc<dyn Aftermath>,
        unwritten_max: usize,
    ) -> Self {
        let room = unwritten_max.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            shared: Arc::new(Shared {
                books,
                clock,
                aftermath,
                room: Arc::new(Semaphore::new(room)),
                queue: Mutex::default(),
                is_orphan: AtomicBool::new(false),
            }),
        }
    }

    /// Room for one more line. To be had before anything is handed out.
    pub(in crate::scheme) fn room(&self) -> Result<Room, ReservationError> {
        let room = Arc::clone(&self.shared.room).try_acquire_owned();
        room.map(|_permit| Room { _permit })
            .map_err(|_none| ReservationError::Busy)
    }

    /// Has a loan written down that is handed out. Nobody waits for it.
    pub(in crate::scheme) fn hand_out(&self, entry: Entry, room: Room) {
        self.push(Item {
            line: Line::Entry(entry),
            answer: None,
            _room: Some(room),
        });
    }

    /// Has a line written down, and waits for its answer.
    pub(in crate::scheme) async fn write(&self, entry: Entry) -> Result<Written, ReservationError> {
        let room = self.room()?;
        self.ask(Line::Entry(entry), Some(room)).await
    }

    /// Waits until everything so far is written down; fails if it cannot be at present.
    pub(in crate::scheme) async fn settled(&self) -> Result<(), ReservationError> {
        if self.shared.queue().is_idle() {
            return Ok(());
        }
        self.ask(Line::Barrier, None).await.map(|_nothing| ())
    }

    async fn ask(&self, line: Line, room: Option<Room>) -> Result<Written, ReservationError> {
        let (answer, answered) = oneshot::channel();
        self.push(Item {
            line,
            answer: Some(answer),
            _room: room,
        });
        let lost = |_dropped| ReservationError::Unknown("whoever writes has ended".into());
        answered.await.map_err(lost)?
    }

    fn push(&self, item: Item) {
        let mut queue = self.shared.queue();
        queue.waiting.push_back(item);
        if !queue.is_running {
            queue.is_running = true;
            // It ends when nothing is left.
            tokio::spawn(Run::of(Arc::clone(&self.shared)).run());
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.is_orphan.store(true, Ordering::Release);
    }
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.is_running
    }
}

/// The task that writes, with the lines that are on their way. However it ends, by a panic or with its runtime too,
/// the next line that comes starts another one, and no loan is forgotten.
struct Run {
    shared: Arc<Shared>,
    batch: Vec<Item>,
    /// There was nothing left, and the next one may be at work.
    is_over: bool,
}

impl Run {
    fn of(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            batch: Vec::new(),
            is_over: false,
        }
    }

    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut retry = RETRY_FIRST;
        loop {
            {
                let mut queue = shared.queue();
                let count = queue.waiting.len().min(BATCH_MAX);
                if count == 0 {
                    queue.is_running = false;
                    self.is_over = true;
                    return;
                }
                self.batch.extend(queue.waiting.drain(..count));
            }
            shared.write(&mut self.batch).await;
            if self.batch.is_empty() {
                retry = RETRY_FIRST;
                continue;
            }
            if shared.is_orphan.load(Ordering::Acquire) {
                tracing::warn!(
                    lines = self.batch.len(),
                    "loans are left to their time-out: the books are not to be reached"
                );
                return;
            }
            self.put_back();
            shared.clock.sleep(retry).await;
            retry = (retry * 2).min(RETRY_MAX);
        }
    }

    /// What is tried again comes first.
    fn put_back(&mut self) {
        let mut queue = self.shared.queue();
        for item in self.batch.drain(..).rev() {
            queue.waiting.push_front(item);
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // Whoever waits for an answer hears that it is lost.
        let entries: Vec<Entry> = self.batch.iter().filter_map(Item::entry).cloned().collect();
        self.shared.aftermath.lost(&entries);
        self.batch.retain(Item::is_loan);
        self.put_back();
        let mut queue = self.shared.queue();
        queue.waiting.retain(Item::is_loan);
        queue.is_running = false;
    }
}

impl Shared {
    /// Writes a batch, and leaves in it what must be tried again.
    async fn write(&self, batch: &mut Vec<Item>) {
        let entries: Vec<Entry> = batch.iter().filter_map(Item::entry).cloned().collect();
        let mut answers = self.answers(&entries).await.into_iter();
        let mut failed: Option<ReservationError> = None;
        // Nothing is awaited from here on: whoever is told is out of the batch.
        for item in std::mem::take(batch) {
            let answer = match item.line {
                Line::Entry(_) => answers.next().expect("one for each line"),
                Line::Barrier => match &failed {
                    None => Ok(Written::NotYet), // it only waits for the word
                    Some(why) => Err(ReservationError::Unavailable(why.to_string())),
                },
            };
            if let Err(why) = &answer {
                failed.get_or_insert_with(|| why.clone());
            }
            // Loans are kept; everybody who waits is told.
            match answer.is_err() && item.is_loan() {
                true => batch.push(item),
                false => tell(item.answer, answer),
            }
        }
    }

    /// One answer for each line. What the database refuses as a whole is tried lane by lane: a row that somebody
    /// has locked must not stop the others.
    async fn answers(&self, entries: &[Entry]) -> Vec<Result<Written, ReservationError>> {
        let why = match self.write_down(entries).await {
            Ok(written) => return written.into_iter().map(Ok).collect(),
            Err(Fault::Refused(why)) => Fault::Refused(why),
            Err(why @ (Fault::NotReached(_) | Fault::Lost(_) | Fault::Malformed(_))) => {
                return vec![Err(why.of_write()); entries.len()];
            }
        };
        let mut answers = vec![Err(why.of_write()); entries.len()];
        let lanes: BTreeSet<LaneKey> = entries.iter().map(|entry| entry.lane).collect();
        if lanes.len() == 1 {
            return answers;
        }
        let mut refused = 0;
        for lane in lanes {
            let is_of_lane = |(_, entry): &(usize, &Entry)| entry.lane == lane;
            let lines = entries.iter().enumerate().filter(is_of_lane);
            let (places, lines): (Vec<usize>, Vec<Entry>) =
                lines.map(|(place, entry)| (place, entry.clone())).unzip();
            match self.write_down(&lines).await {
                Ok(written) => {
                    for (place, written) in places.into_iter().zip(written) {
                        answers[place] = Ok(written);
                    }
                }
                Err(why) => {
                    refused += 1;
                    let why = why.of_write();
                    for place in places {
                        answers[place] = Err(why.clone());
                    }
                }
            }
            if refused == LANES_REFUSED_MAX {
                break; // it is not for the lanes
            }
        }
        answers
    }

    async fn write_down(&self, entries: &[Entry]) -> Result<Vec<Written>, Fault> {
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        match self.books.write(entries).await {
            Ok(written) => {
                let lines: Vec<_> = entries.iter().cloned().zip(written).collect();
                self.aftermath.written(&lines).await;
                Ok(lines.into_iter().map(|(_, written)| written).collect())
            }
            Err(fault) => {
                if let Fault::Lost(_) = &fault {
                    self.aftermath.lost(entries);
                }
                tracing::debug!(?fault, lines = entries.len(), "a batch was not written");
                Err(fault)
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Item {
    /// Whether somebody was lent a nonce by it.
    fn is_loan(&self) -> bool {
        self.entry()
            .is_some_and(|entry| matches!(entry.what, What::LaneReservations { .. }))
    }

    fn entry(&self) -> Option<&Entry> {
        match &self.line {
            Line::Entry(entry) => Some(entry),
            Line::Barrier => None,
        }
    }
}

fn tell(
    answer: Option<Sender<Result<Written, ReservationError>>>,
    said: Result<Written, ReservationError>,
) {
    if let Some(answer) = answer {
        // Whoever asked may be gone.
        answer.send(said).ok();
    }
}

#[cfg(test)]
mod tests {
    use domain::{Address, B256, ChainId, Holder, LaneKey, MonotonicTime, Nonce, Timestamp};
    use tokio::runtime::{Builder, Runtime};
    use uuid::Uuid;

    use super::*;
    use crate::postgres::{Connect, Connection, Db, DbConfig};
    use crate::scheme::SchemeKind;

    struct NoDatabase;

    #[async_trait]
    impl Connect for NoDatabase {
        async fn connect(&self) -> Result<Connection, String> {
            Err("there is none".to_owned())
        }
    }

    struct NoAftermath;

    #[async_trait]
    impl Aftermath for NoAftermath {
        async fn written(&self, _lines: &[(Entry, Written)]) {}

        fn lost(&self, _lines: &[Entry]) {}
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

    fn entry(nonce: u64, what: What) -> Entry {
        Entry {
            lane: LaneKey {
                chain_id: ChainId(1),
                signer: Address::ZERO,
            },
            nonce: Nonce(nonce),
            holder: Holder(Uuid::nil()),
            what,
        }
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// The task that writes ends with its runtime, in the middle of its work.
    #[test]
    fn a_task_that_was_cut_off_is_replaced_and_its_loans_are_kept() {
        let db = Db::new(Arc::new(NoDatabase), DbConfig::default());
        let books = Arc::new(Books::new(Arc::new(db), SchemeKind::Segment));
        let (clock, aftermath) = (Arc::new(StillClock), Arc::new(NoAftermath));
        let writer = Writer::new(books, clock, aftermath, 10);
        let loan = What::LaneReservations {
            token: Uuid::nil(),
            stint: 1,
            expires_at: Timestamp(0),
        };
        let first = runtime();
        first.block_on(async {
            writer.hand_out(entry(0, loan), writer.room().unwrap());
            tokio::task::yield_now().await;
        });
        assert!(!writer.shared.queue().is_idle());
        drop(first);
        let second = runtime();
        let mark = entry(0, What::Submitted(B256::ZERO));
        let said = second.block_on(async {
            let said = tokio::time::timeout(Duration::from_secs(30), writer.write(mark));
            said.await.expect("it is answered")
        });
        assert!(
            matches!(said, Err(ReservationError::Unavailable(_))),
            "{said:?}"
        );
        drop(second);
        let queue = writer.shared.queue();
        assert!(!queue.is_running);
        assert_eq!(queue.waiting.len(), 1, "the loan");
    }
}
