//! One worker: takes what waits, one call after the other.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use domain::LaneKey;
use futures::FutureExt;
use futures::future::BoxFuture;
use metrics::gauge;
use tokio::sync::mpsc;

use super::DEPTH;
use super::lanes::Lanes;

/// A call that waits. It answers its caller by itself.
pub(super) struct Job {
    pub(super) lane: LaneKey,
    pub(super) work: BoxFuture<'static, ()>,
}

/// Works until its queue is closed and empty.
pub(super) async fn work(number: usize, mut jobs: mpsc::Receiver<Job>, lanes: Arc<Lanes>) {
    while let Some(job) = jobs.recv().await {
        show_depth(number, jobs.len());
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

#[expect(
    clippy::cast_precision_loss,
    reason = "a queue is far shorter than 2^52"
)]
pub(super) fn show_depth(number: usize, depth: usize) {
    gauge!(DEPTH, "worker" => number.to_string()).set(depth as f64);
}
