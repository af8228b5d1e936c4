//! The feed across lanes (`lanekeeper_feed`): positions are assigned under the lock of one row, so a later one never
//! becomes visible before an earlier one.

use domain::LaneId;
use engine::ports::StoreError;

use super::{Row, Server};

impl Server {
    pub(in crate::store) async fn extend_feed(&self, lanes: &[LaneId]) -> Result<(), StoreError> {
        let mut transaction = self.begin("feed");
        // Without the lock first: a sweep mostly finds nothing to do.
        let mut lanes = lanes.to_vec();
        if lanes.is_empty() {
            let unfed = transaction.read(|rows| rows.missing_from_feed(&[]));
            lanes.extend(unfed.into_iter().map(|(lane, _)| lane));
        }
        if lanes.is_empty() {
            return Ok(());
        }
        transaction.step().await?;
        transaction.lock(Row::FeedHead).await?;
        // The next statement reads everything committed by now.
        let unfed = transaction.read(|rows| rows.missing_from_feed(&lanes));
        transaction.step().await?;
        Ok(transaction
            .commit(|_, rows| rows.append_to_feed(&unfed))
            .await?)
    }
}
