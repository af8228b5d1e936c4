//! One worker: takes what waits, one call after the other.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use domain::LaneKey;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::mpsc;

use super::depth::Depth;
use super::lanes::Lanes;

/// A call that waits. It answers its caller by itself.
pub(super) struct Job {
    pub(super) lane: LaneKey,
    pub(super) work: BoxFuture<'static, ()>,
}

/// Works until its queue is closed and empty.
pub(super) async fn work(mut jobs: mpsc::Receiver<Job>, depth: Arc<Depth>, lanes: Arc<Lanes>) {
    while let Some(job) = jobs.recv().await {
        depth.calls(jobs.len());
        run(job, &lanes).await;
    }
}

/// One call that does not wait for the worker.
pub(super) async fn run_beside(job: Job, lanes: Arc<Lanes>) {
    run(job, &lanes).await;
}

/// One call, alone in its lane.
async fn run(Job { lane, work }: Job, lanes: &Arc<Lanes>) {
    let seat = lanes.seat(lane);
    let alone = seat.calls().lock().await;
    // A broken call must not take the lanes behind it along; its caller learns that it has no answer.
    if AssertUnwindSafe(work).catch_unwind().await.is_err() {
        tracing::error!(%lane, "a call of the nonce component panicked");
    }
    drop(alone);
}
