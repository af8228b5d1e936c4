//! The queue (`lanekeeper_queue`), which is not fenced: it contends with the gate, and with itself, for request ids.

use domain::{LaneId, Tx};
use engine::ports::{QueuedRequest, StoreError};

use super::lease::{insert_lanes, make_lanes};
use super::{Abort, Row, Server, Transaction};

impl Server {
    /// Queues requests without nonce or event. Known requests stay unchanged.
    pub(in crate::store) async fn queue_requests(
        &self,
        requests: Vec<QueuedRequest>,
    ) -> Result<Vec<Tx>, StoreError> {
        let mut transaction = self.begin("queue");
        let missing = transaction.read(|rows| {
            let keys = requests.iter().map(|new| new.lane);
            let missing = keys.filter(|key| rows.lane_by_key(*key).is_none());
            missing.collect::<Vec<_>>()
        });
        let new_lanes = make_lanes(&mut transaction, missing).await?;
        let refused =
            transaction.read(|rows| requests.iter().find_map(|new| rows.queue_refusal(new)));
        if let Some(why) = refused {
            return Err(why);
        }
        transaction.step().await?;
        insert_keys(&mut transaction, &requests).await?;
        if let Some(taken) = transaction.read(|rows| rows.conflicting_tx_id(&requests)) {
            return Err(StoreError::Invalid(format!("tx id {taken} is taken")));
        }
        let written = transaction.commit(|store, rows| {
            insert_lanes(rows, &new_lanes);
            let queued = requests.into_iter();
            queued
                .map(|request| store.queue_one(rows, request))
                .collect()
        });
        Ok(written.await?)
    }
}

/// Inserts by lane and request id, as the gate does.
async fn insert_keys(
    transaction: &mut Transaction,
    requests: &[QueuedRequest],
) -> Result<(), Abort> {
    // A lane that is created here has a higher number than any known one.
    let number = |new: &QueuedRequest| -> (LaneId, _) {
        let known = transaction.read(|rows| rows.lane_by_key(new.lane).map(|lane| lane.id));
        (known.unwrap_or(LaneId(i64::MAX)), new.lane)
    };
    let mut new: Vec<_> = requests.iter().map(|new| (number(new), new)).collect();
    new.sort_by(|(one, a), (other, b)| {
        let requests = || a.request.request_id.cmp(&b.request.request_id);
        one.cmp(other).then_with(requests)
    });
    for (_, new) in new {
        transaction.lock(Row::Tx(new.request.id)).await?;
        let key = Row::RequestKey(new.lane, new.request.request_id.clone());
        transaction.lock(key).await?;
        transaction.step().await?;
    }
    Ok(())
}
