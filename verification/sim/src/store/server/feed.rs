//! The feed across lanes (`lk_feed_1`): places are dealt under the lock of one row, so a later one never
//! becomes visible before an earlier one.

use domain::LaneId;
use engine::ports::StoreError;

use super::{Row, Server};

impl Server {
    pub(in crate::store) async fn extend_feed(&self, lanes: &[LaneId]) -> Result<(), StoreError> {
        let mut transaction = self.begin("feed");
        // Without the lock first: most often somebody who sweeps finds nothing.
        let mut lanes = lanes.to_vec();
        if lanes.is_empty() {
            let unfed = transaction.read(|rows| rows.unfed(&[]));
            lanes.extend(unfed.into_iter().map(|(lane, _)| lane));
        }
        if lanes.is_empty() {
            return Ok(());
        }
        transaction.step().await?;
        transaction.take(Row::FeedHead).await?;
        // The next statement sees what is committed by now.
        let unfed = transaction.read(|rows| rows.unfed(&lanes));
        transaction.step().await?;
        Ok(transaction.commit(|_, rows| rows.feed(&unfed)).await?)
    }
}
