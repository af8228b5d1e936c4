//! The one unfenced write (`lk_queue_2`): it meets the gate, and others like itself, at request ids.

use domain::{LaneId, Tx};
use engine::ports::{QueuedRequest, StoreError};

use super::lease::{insert_lanes, make_lanes};
use super::{Abort, Row, Server, Transaction};

impl Server {
    /// Puts requests into the store without nonce or event. What is known stays as it is.
    pub(in crate::store) async fn queue(
        &self,
        requests: Vec<QueuedRequest>,
    ) -> Result<Vec<Tx>, StoreError> {
        let mut transaction = self.begin("queue");
        let missing = transaction.read(|rows| {
            let keys = requests.iter().map(|new| new.lane);
            let missing = keys.filter(|key| rows.known(*key).is_none());
            missing.collect::<Vec<_>>()
        });
        let new_lanes = make_lanes(&mut transaction, missing).await?;
        let refused = transaction.read(|rows| requests.iter().find_map(|new| rows.takes_not(new)));
        if let Some(why) = refused {
            return Err(why);
        }
        transaction.step().await?;
        insert_keys(&mut transaction, &requests).await?;
        if let Some(taken) = transaction.read(|rows| rows.taken_id(&requests)) {
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
    // A lane that is made here has a higher number than any that is known.
    let number = |new: &QueuedRequest| -> (LaneId, _) {
        let known = transaction.read(|rows| rows.known(new.lane).map(|lane| lane.id));
        (known.unwrap_or(LaneId(i64::MAX)), new.lane)
    };
    let mut new: Vec<_> = requests.iter().map(|new| (number(new), new)).collect();
    new.sort_by(|(one, a), (other, b)| {
        let requests = || a.request.request_id.cmp(&b.request.request_id);
        one.cmp(other).then_with(requests)
    });
    for (_, new) in new {
        transaction.take(Row::Tx(new.request.id)).await?;
        let key = Row::AdmittedRequest(new.lane, new.request.request_id.clone());
        transaction.take(key).await?;
        transaction.step().await?;
    }
    Ok(())
}
