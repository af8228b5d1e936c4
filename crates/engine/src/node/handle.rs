//! The interface of a running node to its adapters.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use domain::{B256, ChainId, LaneKey, NodeName, RequestId, TxId};
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use tokio::sync::{SemaphorePermit, oneshot, watch};

use super::types::{AcceptedTx, ChainStatus, LaneStatus, NewTx, Readiness, WaitFor};
use crate::core::{ChainState, Core};
use crate::forwarding::receive_forwarded;
use crate::intake::{self, RequestSource};
use crate::node::Refusal;
use crate::ownership;
use crate::ports::{
    EventFilter, EventPage, EventRecord, LaneRecord, Member, StoreError, TxFilter, TxPage, TxRecord,
};
use crate::shard::{Inspection, Message};

/// How often a waiter reads its tx without a wakeup, in case one was lost: an ownership change between two looks at it,
/// or a keeper that ended before its events were in the feed.
const WAIT_REREAD_PERIOD: Duration = Duration::from_secs(15);
/// How long a waiter pauses when too many reads wait already.
const WAIT_BUSY_PAUSE: Duration = Duration::from_millis(500);

/// A running node. Cheap to clone.
#[derive(Clone)]
pub struct NodeHandle {
    pub(crate) core: Arc<Core>,
}

impl NodeHandle {
    /// The node's name.
    pub fn name(&self) -> &NodeName {
        &self.core.config.name
    }

    /// The only chain, when there is just one: requests may leave `chainId` out.
    pub fn only_chain(&self) -> Option<ChainId> {
        let mut ids = self.core.chains.keys();
        ids.next().filter(|_| ids.next().is_none()).copied()
    }

    /// Accepts one request: durable when this returns `Ok`.
    pub fn create(&self, request: NewTx) -> BoxFuture<'_, Result<AcceptedTx, Refusal>> {
        intake::create_tx(&self.core, request, RequestSource::Client).boxed()
    }

    /// Accepts many, each on its own; answers in the order given. The requests of a lane get their nonces in that
    /// order, and of equal request ids the first one wins.
    pub fn create_many(
        &self,
        requests: Vec<NewTx>,
    ) -> BoxFuture<'_, Vec<Result<AcceptedTx, Refusal>>> {
        intake::create_batch(&self.core, requests).boxed()
    }

    /// Accepts requests that another node forwarded, each on its own; answers in the order given, and before the
    /// sender's patience is over. They are not forwarded again: where another node keeps the lane, its name is the
    /// answer.
    pub fn create_forwarded(
        &self,
        requests: Vec<NewTx>,
        patience: Duration,
    ) -> BoxFuture<'_, Vec<Result<AcceptedTx, Refusal>>> {
        receive_forwarded(&self.core, requests, patience).boxed()
    }

    /// Another node notifies: these lanes were released, or requests were queued for them; without lanes: it started.
    pub fn receive_notification(&self, lanes: Vec<LaneKey>) -> BoxFuture<'_, ()> {
        async move {
            if lanes.is_empty() {
                ownership::send_heartbeat(&self.core).await.ok(); // the next heartbeat sees it too
            }
            for lane in lanes {
                self.core.routes.forget_keeper(lane);
                let has_queued = true; // where nothing is queued it costs one read
                let wake = Message::Wake { lane, has_queued };
                self.core.send_to_shard(lane, wake).await;
            }
        }
        .boxed()
    }

    /// Waits until a tx got that far, is terminal or STUCK, or the timeout expires; returns the tx as it is then.
    /// `Refusal::Busy` when too many wait already, or their reads take longer than the timeout.
    pub fn wait(
        &self,
        id: TxId,
        until: WaitFor,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Option<TxRecord>, Refusal>> {
        self.wait_until(id, timeout, move |record| until.is_reached(record))
            .boxed()
    }

    pub(crate) async fn wait_until(
        &self,
        id: TxId,
        timeout: Duration,
        is_reached: impl Fn(&TxRecord) -> bool + Send,
    ) -> Result<Option<TxRecord>, Refusal> {
        let clock = &self.core.ports.clock;
        let customers = &self.core.customers;
        let waiting = customers.waiters.register(id, self.core.config.waiters);
        let waiting = waiting.ok_or(Refusal::Busy)?;
        let deadline = clock.monotonic().plus(timeout);
        loop {
            // Registered before the read, so that no change falls between the two.
            let notified = waiting.wakeup.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            let left = deadline.since(clock.monotonic());
            let Some(permit) = self.waiter_permit(left.max(WAIT_BUSY_PAUSE)).await else {
                return Err(Refusal::Busy);
            };
            let read = customers.store.tx(id).await;
            drop(permit);
            let left = deadline.since(clock.monotonic());
            let pause = match read {
                Ok(None) => return Ok(None),
                Ok(Some(record)) if is_reached(&record) || left.is_zero() => {
                    return Ok(Some(record));
                }
                Ok(Some(record)) => {
                    waiting.set_lane(record.lane);
                    WAIT_REREAD_PERIOD
                }
                Err(StoreError::Busy(_)) if !left.is_zero() => WAIT_BUSY_PAUSE,
                Err(error) => return Err(error.into()),
            };
            tokio::select! {
                biased;
                () = &mut notified => {}
                () = clock.sleep(left.min(pause)) => {}
            }
        }
    }

    /// A permit to read for one waiter; `None` when other waiters' reads take too long.
    async fn waiter_permit(&self, patience: Duration) -> Option<SemaphorePermit<'_>> {
        let reads = &self.core.customers.waiters.reads;
        if let Ok(permit) = reads.try_acquire() {
            return Some(permit);
        }
        tokio::select! {
            biased;
            permit = reads.acquire() => permit.ok(),
            () = self.core.ports.clock.sleep(patience) => None,
        }
    }

    /// A tx by its id.
    pub async fn tx(&self, id: TxId) -> Result<Option<TxRecord>, StoreError> {
        let customers = &self.core.customers;
        customers.read(customers.store.tx(id)).await
    }

    /// A tx by its idempotency key.
    pub async fn tx_by_request(
        &self,
        lane: LaneKey,
        request_id: &RequestId,
    ) -> Result<Option<TxRecord>, StoreError> {
        let customers = &self.core.customers;
        customers
            .read(customers.store.tx_by_request(lane, request_id))
            .await
    }

    /// A tx by the hash of any of its attempts.
    pub async fn tx_by_hash(&self, hash: B256) -> Result<Option<TxRecord>, StoreError> {
        let customers = &self.core.customers;
        customers.read(customers.store.tx_by_hash(hash)).await
    }

    /// A page of txs.
    pub async fn txs(&self, filter: &TxFilter) -> Result<TxPage, StoreError> {
        let customers = &self.core.customers;
        customers.read(customers.store.txs(filter)).await
    }

    /// The events of one tx.
    pub async fn tx_events(&self, id: TxId) -> Result<Option<Vec<EventRecord>>, StoreError> {
        let customers = &self.core.customers;
        customers.read(customers.store.tx_events(id)).await
    }

    /// A page of the feed.
    pub async fn events(&self, filter: &EventFilter) -> Result<EventPage, StoreError> {
        let customers = &self.core.customers;
        customers.read(customers.store.events(filter)).await
    }

    /// A wakeup for readers of the feed. It carries no data and may be spurious: readers read again, and also do
    /// so periodically.
    pub fn event_wakeup(&self) -> watch::Receiver<u64> {
        self.core.feed.subscribe()
    }

    /// Configured signers, each on its chains, in the order of their keys: the first `limit` behind `after`.
    pub async fn lanes(
        &self,
        after: Option<LaneKey>,
        limit: usize,
    ) -> Result<Vec<LaneStatus>, StoreError> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let entries = self.core.lanes.entries.range((from, Bound::Unbounded));
        let keys: Vec<LaneKey> = entries.map(|(key, _)| *key).take(limit).collect();
        self.lane_statuses(&keys).await
    }

    /// One lane; `None` when it is not configured.
    pub async fn lane(&self, key: LaneKey) -> Result<Option<LaneStatus>, StoreError> {
        if !self.core.lanes.contains(key) {
            return Ok(None);
        }
        Ok(self.lane_statuses(&[key]).await?.pop())
    }

    async fn lane_statuses(&self, keys: &[LaneKey]) -> Result<Vec<LaneStatus>, StoreError> {
        let customers = &self.core.customers;
        // Both under one place of a reader: an inspection takes the time of a shard, which payments need.
        let read = customers.read(async {
            let known = customers.store.lanes(keys).await?;
            let kept = keys.iter().filter(|key| self.core.leases.holds(**key));
            Ok((known, inspect_lanes(&self.core, kept.copied()).await))
        });
        let (mut known, mut inspections) = read.await?;
        let status = |key: &LaneKey| {
            let inspection = inspections.remove(key).unwrap_or_default();
            let at = known.iter().position(|record| record.key == *key);
            let record = at.map_or_else(|| LaneRecord::unused(*key), |at| known.swap_remove(at));
            // Its keeper knows more than the row.
            let written = record
                .wait
                .as_ref()
                .filter(|_| !self.core.leases.holds(*key));
            let written = written.map(|wait| wait.reason.clone());
            let waiting_for = record.halted.clone().or(inspection.waiting_for);
            LaneStatus {
                waiting_for: waiting_for.or(written),
                record,
                chain_nonces: inspection.chain_nonces,
                gaps: inspection.gaps,
            }
        };
        Ok(keys.iter().map(status).collect())
    }

    /// Checks that chain and signer of a lane are configured.
    pub fn check_configured(&self, lane: LaneKey) -> Result<(), Refusal> {
        self.core.check_configured(lane)
    }

    /// An operator accepts the lost commits of a halted lane: it continues from what store and chain have. Durable when
    /// this returns `Ok(true)`.
    ///
    /// `Ok(false)`, and nothing has changed, where the store has not halted the lane: what this node knows of it may be
    /// the only evidence of a loss that is still to be found, and a lane that its memory alone holds back goes on by
    /// itself when the chain's answers are credible.
    pub async fn accept_loss(&self, lane: LaneKey, reason: &str) -> Result<bool, Refusal> {
        self.core.check_configured(lane)?;
        let accepted = self.core.ports.store.accept_loss(lane).await;
        let was_halted = accepted.map_err(Refusal::of_write)?;
        if was_halted {
            tracing::warn!(%lane, reason, "an operator has accepted the lost commits of the lane");
            self.core
                .send_to_shard(lane, Message::Resume { lane })
                .await;
        }
        Ok(was_halted)
    }

    /// The nodes of the cluster.
    pub async fn members(&self) -> Result<Vec<Member>, StoreError> {
        let customers = &self.core.customers;
        customers.read(customers.store.members()).await
    }

    /// A store that answers reads but takes no writes is of no use.
    fn check_store_writes(&self) -> Result<(), String> {
        let silence = self.core.heartbeat_age();
        if silence > self.core.config.lease.duration.saturating_mul(2) {
            let seconds = silence.as_secs();
            return Err(format!("the store has taken no write for {seconds} s"));
        }
        Ok(())
    }

    /// Whether the node releases its lanes in order to stop.
    pub fn is_draining(&self) -> bool {
        self.core.is_draining()
    }

    /// Whether this node should get requests.
    pub async fn readiness(&self) -> Readiness {
        let store = self.core.ports.store.members().await;
        let store = store.map(drop).map_err(|error| error.to_string());
        let status = |(chain_id, chain_state): (&ChainId, &ChainState)| {
            let view = chain_state.view.get();
            ChainStatus {
                chain_id: *chain_id,
                head: view.and_then(|view| Some(view.headers.tip()?.number)),
                endpoints: chain_state.chain.endpoints(),
            }
        };
        Readiness {
            store: self.check_store_writes().and(store),
            draining: self.core.is_draining(),
            chains: self.core.chains.iter().map(status).collect(),
        }
    }
}

/// What the shards know of these lanes. A lane is left out where its shard has no room for the question, or ends: creates
/// need the room, and the store's row shows the lane as well.
pub(super) async fn inspect_lanes(
    core: &Core,
    lanes: impl IntoIterator<Item = LaneKey>,
) -> BTreeMap<LaneKey, Inspection> {
    let mut by_shard: BTreeMap<usize, Vec<LaneKey>> = BTreeMap::new();
    for lane in lanes {
        if let Some(entry) = core.lanes.entries.get(&lane) {
            by_shard.entry(entry.shard).or_default().push(lane);
        }
    }
    let questions = by_shard.into_iter().map(|(shard, lanes)| async move {
        let (answer, answered) = oneshot::channel();
        let question = Message::Inspect {
            lanes: lanes.clone(),
            answer,
        };
        // Without room the answer's sender is dropped, and nothing is answered.
        core.lanes.shards[shard].try_send(question).ok();
        let inspections = answered.await.unwrap_or_default();
        lanes.into_iter().zip(inspections)
    });
    join_all(questions).await.into_iter().flatten().collect()
}
