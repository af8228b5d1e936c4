//! Writes batches down, one at a time: whatever has come while the last one was on its way.
//!
//! There is no task while there is nothing to write. A loan that was handed out is tried again until the database
//! has answered; a mark is answered at once, whatever the answer is.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use engine::ports::{Clock, LendError};
use tokio::sync::oneshot::{self, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::postgres::{Books, Entry, Fault, What, Written};

/// How many lines go into one statement.
const BATCH_MAX: usize = 500;

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
    answer: Option<Sender<Result<Written, LendError>>>,
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
    pub(in crate::scheme) fn room(&self) -> Result<Room, LendError> {
        let room = Arc::clone(&self.shared.room).try_acquire_owned();
        room.map(|_permit| Room { _permit })
            .map_err(|_none| LendError::Busy)
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
    pub(in crate::scheme) async fn write(&self, entry: Entry) -> Result<Written, LendError> {
        let room = self.room()?;
        self.ask(Line::Entry(entry), Some(room)).await
    }

    /// Waits until everything so far is written down; fails if it cannot be at present.
    pub(in crate::scheme) async fn settled(&self) -> Result<(), LendError> {
        if self.shared.queue().is_idle() {
            return Ok(());
        }
        self.ask(Line::Barrier, None).await.map(|_nothing| ())
    }

    async fn ask(&self, line: Line, room: Option<Room>) -> Result<Written, LendError> {
        let (answer, answered) = oneshot::channel();
        self.push(Item {
            line,
            answer: Some(answer),
            _room: room,
        });
        let lost = |_dropped| LendError::Unknown("the runtime ends".into());
        answered.await.map_err(lost)?
    }

    fn push(&self, item: Item) {
        let mut queue = self.shared.queue();
        queue.waiting.push_back(item);
        if !queue.is_running {
            queue.is_running = true;
            // It ends when nothing is left.
            tokio::spawn(Arc::clone(&self.shared).run());
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

impl Shared {
    async fn run(self: Arc<Self>) {
        let mut retry = RETRY_FIRST;
        loop {
            let batch: Vec<Item> = {
                let mut queue = self.queue();
                let count = queue.waiting.len().min(BATCH_MAX);
                if count == 0 {
                    queue.is_running = false;
                    return;
                }
                queue.waiting.drain(..count).collect()
            };
            let left = self.write(batch).await;
            if left.is_empty() {
                retry = RETRY_FIRST;
                continue;
            }
            if self.is_orphan.load(Ordering::Acquire) {
                tracing::warn!(
                    lines = left.len(),
                    "loans are left to their time-out: the books are not to be reached"
                );
                self.queue().is_running = false;
                return;
            }
            {
                let mut queue = self.queue();
                for item in left.into_iter().rev() {
                    queue.waiting.push_front(item);
                }
            }
            self.clock.sleep(retry).await;
            retry = (retry * 2).min(RETRY_MAX);
        }
    }

    /// Writes a batch, and gives back what must be tried again.
    async fn write(&self, batch: Vec<Item>) -> Vec<Item> {
        let entries: Vec<Entry> = batch.iter().filter_map(Item::entry).cloned().collect();
        let answer = match entries.is_empty() {
            true => Ok(Vec::new()),
            false => self.books.write(&entries).await,
        };
        match answer {
            Ok(written) => {
                let lines: Vec<_> = entries.into_iter().zip(written).collect();
                self.aftermath.written(&lines).await;
                let mut written = lines.into_iter().map(|(_, written)| written);
                for item in batch {
                    let answer = match item.line {
                        Line::Entry(_) => written.next().expect("one for each line"),
                        Line::Barrier => Written::NotYet, // it only waits for the word
                    };
                    tell(item.answer, Ok(answer));
                }
                Vec::new()
            }
            Err(fault) => {
                if let Fault::Lost(_) = &fault {
                    self.aftermath.lost(&entries);
                }
                let why = fault.of_write();
                tracing::debug!(%why, lines = entries.len(), "a batch was not written");
                self.after_failure(batch, &why)
            }
        }
    }

    /// Loans are kept; everybody who waits is told.
    fn after_failure(&self, batch: Vec<Item>, why: &LendError) -> Vec<Item> {
        let mut left = Vec::new();
        for item in batch {
            match &item.line {
                Line::Entry(Entry {
                    what: What::Lent { .. },
                    ..
                }) => left.push(item),
                Line::Entry(_) => tell(item.answer, Err(why.clone())),
                Line::Barrier => {
                    let why = LendError::Unavailable(why.to_string());
                    tell(item.answer, Err(why));
                }
            }
        }
        left
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Item {
    fn entry(&self) -> Option<&Entry> {
        match &self.line {
            Line::Entry(entry) => Some(entry),
            Line::Barrier => None,
        }
    }
}

fn tell(answer: Option<Sender<Result<Written, LendError>>>, said: Result<Written, LendError>) {
    if let Some(answer) = answer {
        // Whoever asked may be gone.
        answer.send(said).ok();
    }
}
