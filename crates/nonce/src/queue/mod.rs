//! Worker-queue mode: one call per lane at a time in this process.
//!
//! A lane is always served by the same worker, and a worker runs one call after the other. Application code never runs on
//! a worker, nor while a lane's lock is held, so a call cannot wait for itself: a call nested in `with_nonce` runs in
//! place (it is never queued and never refused), and so does an overflow under [`RejectPolicy::CallerRuns`]; both take the
//! lane's lock like the worker does.
//!
//! A waiting `with_nonce` section counts for its lane's worker; as many sections as calls may wait.
//!
//! Uniqueness across processes is guaranteed by the scheme; this mode only limits the load on it.

mod lane_table;
mod queue_depth;
mod section;
mod section_queue;
mod worker;

pub(crate) use section::{SectionPermit, is_nested, run_nested};

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use domain::LaneKey;
use engine::ports::{Clock, ReservationError};
use metrics::counter;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::Result;
use crate::config::{QueueSettings, RejectPolicy};
use lane_table::LaneTable;
use queue_depth::QueueDepth;
use worker::Job;

/// Counts calls and sections beyond the capacity.
const REJECTED: &str = "lanekeeper_nonce_queue_rejected_total";

/// The workers and the lanes in use.
pub(crate) struct WorkerQueue {
    settings: QueueSettings,
    lanes: Arc<LaneTable>,
    /// One per worker.
    depths: Vec<Arc<QueueDepth>>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

/// Empty once it is closed.
struct State {
    inboxes: Vec<mpsc::Sender<Job>>,
    /// Also has the tasks that run beside the workers.
    workers: JoinSet<()>,
}

impl WorkerQueue {
    /// Starts the workers.
    pub(crate) fn start(settings: QueueSettings, clock: Arc<dyn Clock>) -> Self {
        let lanes = Arc::new(LaneTable::default());
        let mut state = State {
            inboxes: Vec::new(),
            workers: JoinSet::new(),
        };
        let depths: Vec<_> = (0..settings.workers)
            .map(QueueDepth::new)
            .map(Arc::new)
            .collect();
        for depth in &depths {
            let (inbox, jobs) = mpsc::channel(settings.capacity);
            state.inboxes.push(inbox);
            let work = worker::run_worker(jobs, Arc::clone(depth), Arc::clone(&lanes));
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
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let job = Job {
            lane,
            work: Box::pin(async move {
                // The caller may be gone with its runtime.
                answer.send(call.await).ok();
            }),
        };
        if is_nested() {
            self.spawn_beside_worker(job)?;
        } else if let Some(overflow) = self.enqueue(job)? {
            self.spawn_beside_worker(overflow)?;
        }
        // A worker that was stopped or panicked has dropped the sender.
        let lost = |_| ReservationError::Unknown("the worker ended before it answered".into());
        answered.await.map_err(lost)?
    }

    /// Queues a call for its worker. Returns the call when the queue is full and its caller should run it.
    fn enqueue(&self, job: Job) -> Result<Option<Job>> {
        let number = worker_index(job.lane, self.settings.workers);
        let state = self.state.lock();
        let Some(inbox) = state.inboxes.get(number) else {
            return Err(closed());
        };
        let sent = inbox.try_send(job);
        self.depths[number].set_calls(inbox.max_capacity() - inbox.capacity());
        match sent {
            Ok(()) => Ok(None),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(closed()),
            Err(mpsc::error::TrySendError::Full(job)) => {
                self.handle_full_queue().map(|()| Some(job))
            }
        }
    }

    /// Applies the reject policy; `Ok` when the caller should go on.
    fn handle_full_queue(&self) -> Result<()> {
        counter!(REJECTED).increment(1);
        match self.settings.reject {
            RejectPolicy::FailFast => Err(ReservationError::Busy),
            RejectPolicy::CallerRuns => Ok(()),
        }
    }

    /// Runs a call beside the worker, in a task of its own: the owner of the lane's lock must make progress even when
    /// its caller is not polled (one of several calls in one task).
    fn spawn_beside_worker(&self, job: Job) -> Result<()> {
        let mut state = self.state.lock();
        if state.inboxes.is_empty() {
            return Err(closed());
        }
        while state.workers.try_join_next().is_some() {} // removes finished tasks
        state
            .workers
            .spawn(worker::run(job, Arc::clone(&self.lanes)));
        Ok(())
    }

    /// Waits for an exclusive section in this lane. A nested section gets it at once, in any lane, because crosswise
    /// nesting would deadlock. Beyond the capacity a section is refused, or waits on its caller's task; it never
    /// overtakes.
    pub(crate) async fn enter_section(&self, lane: LaneKey) -> Result<SectionPermit> {
        let lane_ref = self.lanes.lane_ref(lane);
        if is_nested() {
            return Ok(SectionPermit::immediate(lane_ref));
        }
        let idle_timeout = self.settings.section_idle_timeout;
        let mut permit = SectionPermit::enqueue(lane_ref, Arc::clone(&self.clock), idle_timeout);
        if permit.is_granted() {
            return Ok(permit);
        }
        let depth = &self.depths[worker_index(lane, self.settings.workers)];
        let wait = depth.begin_section_wait();
        if wait.exceeds(self.settings.capacity) {
            self.handle_full_queue()?;
        }
        permit.wait_until_granted().await;
        Ok(permit)
    }

    /// Accepts no more calls, finishes the queued ones and ends the workers; after this time it aborts them. Returns
    /// whether everything was finished.
    pub(crate) async fn close(&self, within: Duration) -> bool {
        let mut workers = {
            let mut state = self.state.lock();
            state.inboxes.clear(); // a worker ends when its queue is closed and empty
            std::mem::take(&mut state.workers)
        };
        let all_ended = async { while workers.join_next().await.is_some() {} };
        let in_time = tokio::select! {
            biased;
            () = all_ended => true,
            () = self.clock.sleep(within) => false,
        };
        // Aborts the remaining tasks and waits for their end.
        workers.shutdown().await;
        self.depths.iter().for_each(|depth| depth.set_calls(0));
        in_time
    }
}

/// The worker of a lane: the same in every process.
fn worker_index(lane: LaneKey, workers: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    lane.hash(&mut hasher);
    let count = u64::try_from(workers).expect("a usize has at most 64 bits");
    usize::try_from(hasher.finish() % count).expect("below the number of workers")
}

fn closed() -> ReservationError {
    ReservationError::Unavailable("the nonce component is shutting down".into())
}

#[cfg(test)]
mod tests {
    use domain::{Address, ChainId};

    use super::*;

    #[test]
    fn lanes_are_spread_over_all_workers_and_stay_assigned() {
        let lane = |signer| LaneKey {
            chain_id: ChainId(1),
            signer: Address::repeat_byte(signer),
        };
        let mut counts = [0; 8];
        for signer in 0..=255 {
            let worker = worker_index(lane(signer), counts.len());
            assert_eq!(worker, worker_index(lane(signer), counts.len()));
            counts[worker] += 1;
        }
        assert!(counts.iter().all(|count| *count > 8), "{counts:?}");
    }
}
