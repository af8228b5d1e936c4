//! The metrics of a commit, alike for every backend.

use std::sync::Arc;
use std::time::Instant;

use engine::ports::LaneBatch;

/// How many txs the batches write.
pub(crate) fn count_txs(batches: &[Arc<LaneBatch>]) -> usize {
    let txs = |batch: &Arc<LaneBatch>| batch.writes.inserts.len() + batch.writes.updates.len();
    batches.iter().map(txs).sum()
}

pub(crate) fn record_commit(txs: usize, began: Instant) {
    metrics::histogram!("lanekeeper_store_commit_seconds").record(began.elapsed());
    if txs > 0 {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a batch has far fewer than 2^52 txs"
        )]
        metrics::histogram!("lanekeeper_gate_batch_size").record(txs as f64);
    }
}
