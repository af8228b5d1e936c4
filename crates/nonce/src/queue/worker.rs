//! One worker: runs its queued calls one after the other.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use domain::LaneKey;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::mpsc;

use super::lane_table::LaneTable;
use super::queue_depth::QueueDepth;

/// A queued call. It answers its caller by itself.
pub(super) struct Job {
    pub(super) lane: LaneKey,
    pub(super) work: BoxFuture<'static, ()>,
}

/// Runs until the queue is closed and empty.
pub(super) async fn run_worker(
    mut jobs: mpsc::Receiver<Job>,
    depth: Arc<QueueDepth>,
    lanes: Arc<LaneTable>,
) {
    while let Some(job) = jobs.recv().await {
        depth.set_calls(jobs.len());
        run(job, Arc::clone(&lanes)).await;
    }
}

/// Runs one call, alone in its lane.
pub(super) async fn run(Job { lane, work }: Job, lanes: Arc<LaneTable>) {
    let lane_ref = lanes.lane_ref(lane);
    let alone = lane_ref.call_lock().lock().await;
    // A panic must not stop the worker; the caller gets the error for a lost answer.
    if AssertUnwindSafe(work).catch_unwind().await.is_err() {
        tracing::error!(%lane, "a call of the nonce component panicked");
    }
    drop(alone);
}
