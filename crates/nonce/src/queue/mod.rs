//! Worker-queue mode: in this process, one call of a lane at a time.
//!
//! A lane always has the same worker, and a worker does one call after the other. Code of the business never
//! runs on a worker, nor while a lane's lock is held, so no call can wait for itself: what is called from inside
//! `with_nonce` runs in place (it is never queued and never refused), and so does what overflows under
//! [`RejectPolicy::CallerRuns`]; both take the lane's lock like the worker does.
//!
//! Whoever waits for a turn in a lane (`with_nonce`) is counted with that lane's worker, and there may be as many of
//! them as calls.
//!
//! Correctness across processes is the books' matter; this only keeps crowds off them.

mod depth;
mod lanes;
mod line;
mod section;
mod worker;

pub(crate) use section::{Turn, is_inside, nested};

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::LaneKey;
use engine::ports::{Clock, ReservationError};
use metrics::counter;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::config::{QueueSettings, RejectPolicy};
use depth::Depth;
use lanes::Lanes;
use worker::Job;

/// How many calls, and how many that wait for a turn, found no room.
const REJECTED: &str = "lanekeeper_nonce_queue_rejected_total";

/// The workers and the locks of the lanes.
pub(crate) struct WorkerQueue {
    settings: QueueSettings,
    lanes: Arc<Lanes>,
    /// Of each worker.
    depths: Vec<Arc<Depth>>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

/// Empty once it is closed.
struct State {
    inboxes: Vec<mpsc::Sender<Job>>,
    /// And what runs beside them.
    workers: JoinSet<()>,
}

impl WorkerQueue {
    /// Starts the workers.
    pub(crate) fn start(settings: QueueSettings, clock: Arc<dyn Clock>) -> Self {
        let lanes = Arc::new(Lanes::default());
        let mut state = State {
            inboxes: Vec::new(),
            workers: JoinSet::new(),
        };
        let depths: Vec<_> = (0..settings.workers).map(Depth::of).map(Arc::new).collect();
        for depth in &depths {
            let (inbox, jobs) = mpsc::channel(settings.capacity);
            state.inboxes.push(inbox);
            let work = worker::work(jobs, Arc::clone(depth), Arc::clone(&lanes));
            state.workers.spawn(work);
        }
        Self {
            settings,
            lanes,
            depths,
            clock,
            state: Mutex::new(state),
        }
    }

    /// Runs one call, alone in its lane.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        lane: LaneKey,
        call: impl Future<Output = Result<T, ReservationError>> + Send + 'static,
    ) -> Result<T, ReservationError> {
        let (tell, told) = oneshot::channel();
        let job = Job {
            lane,
            work: Box::pin(async move {
                // Whoever waited may be gone with its runtime; nobody else wants the answer.
                tell.send(call.await).ok();
            }),
        };
        if is_inside() {
            self.in_place(job)?;
        } else if let Some(overflow) = self.enqueue(job)? {
            self.in_place(overflow)?;
        }
        // A worker that was stopped, or panicked, has let go of the other end.
        let lost = |_| ReservationError::Unknown("the worker ended before it answered".into());
        told.await.map_err(lost)?
    }

    /// Leaves a call to its worker. It comes back when there is no room and its caller is to run it.
    fn enqueue(&self, job: Job) -> Result<Option<Job>, ReservationError> {
        let number = worker_of(job.lane, self.settings.workers);
        let state = self.lock();
        let Some(inbox) = state.inboxes.get(number) else {
            return Err(closed());
        };
        let sent = inbox.try_send(job);
        self.depths[number].calls(inbox.max_capacity() - inbox.capacity());
        match sent {
            Ok(()) => Ok(None),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(closed()),
            Err(mpsc::error::TrySendError::Full(job)) => self.reject().map(|()| Some(job)),
        }
    }

    /// There is no room. Whether the caller goes on by himself.
    fn reject(&self) -> Result<(), ReservationError> {
        counter!(REJECTED).increment(1);
        match self.settings.reject {
            RejectPolicy::FailFast => Err(ReservationError::Busy),
            RejectPolicy::CallerRuns => Ok(()),
        }
    }

    /// Runs a call beside the worker, at once. In a task of its own: whoever has the lane's lock must go on
    /// even when its caller is not polled, because it does something else first (one of several calls in one task).
    fn in_place(&self, job: Job) -> Result<(), ReservationError> {
        let mut state = self.lock();
        if state.inboxes.is_empty() {
            return Err(closed());
        }
        while state.workers.try_join_next().is_some() {} // those that have ended
        state
            .workers
            .spawn(worker::run_beside(job, Arc::clone(&self.lanes)));
        Ok(())
    }

    /// Waits for a section of one's own in this lane. Nested ones get theirs at once, in any lane: two that
    /// nest crosswise would wait for each other for ever. Where too many wait, one more is refused, or waits all
    /// the same on its caller's task: it never goes in before its turn.
    pub(crate) async fn turn(&self, lane: LaneKey) -> Result<Turn, ReservationError> {
        let seat = self.lanes.seat(lane);
        if is_inside() {
            return Ok(Turn::without_waiting(seat));
        }
        let patience = self.settings.section_patience;
        let mut turn = Turn::in_line(seat, Arc::clone(&self.clock), patience);
        if turn.has_come() {
            return Ok(turn);
        }
        let depth = &self.depths[worker_of(lane, self.settings.workers)];
        let waits = depth.wait_for_turn();
        if waits.are_more_than(self.settings.capacity) {
            self.reject()?;
        }
        turn.come().await;
        Ok(turn)
    }

    /// Takes no more calls, finishes those that wait, and ends the workers: by themselves within this time, at
    /// the await where they stand after it. Whether all was finished.
    pub(crate) async fn close(&self, within: Duration) -> bool {
        let mut workers = {
            let mut state = self.lock();
            state.inboxes.clear(); // a worker ends when its queue is closed and empty
            std::mem::take(&mut state.workers)
        };
        let all_ended = async { while workers.join_next().await.is_some() {} };
        let in_time = tokio::select! {
            biased;
            () = all_ended => true,
            () = self.clock.sleep(within) => false,
        };
        // Aborts what is left, and waits until it is gone.
        workers.shutdown().await;
        self.depths.iter().for_each(|depth| depth.calls(0));
        in_time
    }

    /// A poisoned lock is taken all the same: nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which worker a lane has: the same one for ever, in every process.
fn worker_of(lane: LaneKey, workers: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    lane.hash(&mut hasher);
    let count = u64::try_from(workers).expect("a usize has at most 64 bits");
    usize::try_from(hasher.finish() % count).expect("it is below a usize")
}

fn closed() -> ReservationError {
    ReservationError::Unavailable("the nonce component is shutting down".into())
}

#[cfg(test)]
mod tests {
    use domain::{Address, ChainId};

    use super::*;

    #[test]
    fn lanes_spread_over_all_workers_and_stay_where_they_are() {
        let lane = |signer| LaneKey {
            chain_id: ChainId(1),
            signer: Address::repeat_byte(signer),
        };
        let mut counts = [0; 8];
        for signer in 0..=255 {
            let worker = worker_of(lane(signer), counts.len());
            assert_eq!(worker, worker_of(lane(signer), counts.len()));
            counts[worker] += 1;
        }
        assert!(counts.iter().all(|count| *count > 8), "{counts:?}");
    }
}
