//! What the outside can ask of a running node.

use std::sync::Arc;
use std::time::Duration;

use domain::lane::AccountNonces;
use domain::{
    B256, ChainId, LaneKey, NodeName, Nonce, Payload, RequestId, SubState, TxId, TxState,
};
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

use crate::core::Core;
use crate::intake::{self, Hop};
use crate::node::Refusal;
use crate::ownership;
use crate::ports::{
    EventFilter, EventPage, EventRecord, LaneRecord, Member, StoreError, TxFilter, TxPage, TxRecord,
};
use crate::shard::{Inspection, Message};

/// How often a waiter looks by itself: the bell of a tx that another node keeps does not ring here.
const WAIT_PERIOD: Duration = Duration::from_secs(1);

/// Who asked, and under which trace; kept when a request is handed to another node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The name of the caller's key, where keys are used.
    pub caller: Option<String>,
    /// The caller's trace or request id.
    pub trace: Option<String>,
}

/// A request as it comes through the door.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTx {
    /// From which account, on which chain.
    pub lane: LaneKey,
    /// The key of the business.
    pub request_id: RequestId,
    /// What to send.
    pub payload: Payload,
    /// The gas limit that the first node found by trying the call out, for the one that it is handed to.
    #[serde(default)]
    pub estimated_gas: Option<u64>,
    /// Who asked.
    #[serde(default)]
    pub origin: Origin,
}

/// A request that is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The tx: nonce and hash are there when it got them at once.
    pub record: TxRecord,
    /// Whether this request made it, or it was there before.
    pub is_new: bool,
}

/// How long a caller wants to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitFor {
    /// Until it is durable.
    Accepted,
    /// Until a node has its bytes.
    Submitted,
    /// Until it is in a block.
    Mined,
    /// Until it is final.
    Confirmed,
}

/// Why a lane does not move at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingFor(pub String);

/// A lane as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneStatus {
    /// What the store knows.
    pub record: LaneRecord,
    /// What the chain last said, when this node keeps the lane and has asked.
    pub chain_nonces: Option<AccountNonces>,
    /// Nonces that the chain waits for and nobody holds, when this node keeps the lane.
    pub gaps: Vec<Nonce>,
    /// Why it does not move.
    pub waiting_for: Option<WaitingFor>,
}

/// A chain's endpoints as people see them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainStatus {
    /// Which chain.
    pub chain_id: ChainId,
    /// Height of the newest followed block.
    pub head: Option<u64>,
    /// The endpoints, and whether each answers.
    pub endpoints: Vec<(String, bool)>,
}

/// Whether a load balancer should send requests here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// The store answers.
    pub store: Result<(), String>,
    /// On its way out.
    pub draining: bool,
    /// For people; does not decide.
    pub chains: Vec<ChainStatus>,
}

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
    pub async fn create(&self, request: NewTx) -> Result<Accepted, Refusal> {
        intake::create(&self.core, request, Hop::First).await
    }

    /// Accepts many, each on its own; answers in the order given.
    pub async fn create_many(&self, requests: Vec<NewTx>) -> Vec<Result<Accepted, Refusal>> {
        join_all(requests.into_iter().map(|request| self.create(request))).await
    }

    /// Takes requests that another node handed over, each on its own; answers in the order given. They
    /// are not handed on: where another node keeps the lane, its name is the answer.
    pub async fn create_forwarded(&self, requests: Vec<NewTx>) -> Vec<Result<Accepted, Refusal>> {
        let create = |request| intake::create(&self.core, request, Hop::Last);
        join_all(requests.into_iter().map(create)).await
    }

    /// Another node rings: these lanes are free, or something was queued for them; without lanes: it came.
    pub async fn receive_notification(&self, lanes: Vec<LaneKey>) {
        if lanes.is_empty() {
            ownership::beat(&self.core).await.ok(); // the next one sees it too
        }
        for lane in lanes {
            self.core.routes.forget(lane);
            let has_queued = true; // or not: looking costs one read
            let wake = Message::Wake { lane, has_queued };
            self.core.tell_shard(lane, wake).await;
        }
    }

    /// Waits until a tx got that far, is terminal or STUCK, or time is up; then the tx as it is.
    /// `Refusal::Busy` when too many wait already.
    pub async fn wait(
        &self,
        id: TxId,
        until: WaitFor,
        timeout: Duration,
    ) -> Result<Option<TxRecord>, Refusal> {
        self.wait_until(id, timeout, |record| until.is_reached(record))
            .await
    }

    pub(crate) async fn wait_until(
        &self,
        id: TxId,
        timeout: Duration,
        is_reached: impl Fn(&TxRecord) -> bool,
    ) -> Result<Option<TxRecord>, Refusal> {
        let clock = &self.core.ports.clock;
        let waiters = &self.core.waiters;
        let waiting = waiters
            .enter(id, self.core.config.waiters)
            .ok_or(Refusal::Busy)?;
        let deadline = clock.monotonic().plus(timeout);
        loop {
            // Enlisted before the read, so that no change falls between the two.
            let rung = waiting.bell.notified();
            tokio::pin!(rung);
            rung.as_mut().enable();
            let found = self.core.ports.store.tx(id).await;
            let record = found.map_err(|error| Refusal::StoreUnavailable(error.to_string()))?;
            let Some(record) = record else {
                return Ok(None);
            };
            let left = deadline.since(clock.monotonic());
            if is_reached(&record) || left.is_zero() {
                return Ok(Some(record));
            }
            tokio::select! {
                biased;
                () = &mut rung => {}
                () = clock.sleep(left.min(WAIT_PERIOD)) => {}
            }
        }
    }

    /// A tx by its id.
    pub async fn tx(&self, id: TxId) -> Result<Option<TxRecord>, StoreError> {
        self.core.ports.store.tx(id).await
    }

    /// A tx by the key of the business.
    pub async fn tx_by_request(
        &self,
        lane: LaneKey,
        request_id: &RequestId,
    ) -> Result<Option<TxRecord>, StoreError> {
        self.core.ports.store.tx_by_request(lane, request_id).await
    }

    /// A tx by the hash of any of its attempts.
    pub async fn tx_by_hash(&self, hash: B256) -> Result<Option<TxRecord>, StoreError> {
        self.core.ports.store.tx_by_hash(hash).await
    }

    /// A page of txs.
    pub async fn txs(&self, filter: &TxFilter) -> Result<TxPage, StoreError> {
        self.core.ports.store.txs(filter).await
    }

    /// The events of one tx.
    pub async fn tx_events(&self, id: TxId) -> Result<Option<Vec<EventRecord>>, StoreError> {
        self.core.ports.store.tx_events(id).await
    }

    /// A page of the feed.
    pub async fn events(&self, filter: &EventFilter) -> Result<EventPage, StoreError> {
        self.core.ports.store.events(filter).await
    }

    /// A bell that rings when this node has written events. It may ring for nothing and carries no
    /// data: readers re-read, and also do so on a period.
    pub fn event_wakeup(&self) -> watch::Receiver<u64> {
        self.core.event_wakeup.subscribe()
    }

    /// Every configured signer on every chain.
    pub async fn lanes(&self) -> Result<Vec<LaneStatus>, StoreError> {
        let keys: Vec<LaneKey> = self.core.lanes.keys().copied().collect();
        self.statuses(&keys).await
    }

    /// One lane; `None` when it is not configured.
    pub async fn lane(&self, key: LaneKey) -> Result<Option<LaneStatus>, StoreError> {
        if !self.core.lanes.contains_key(&key) {
            return Ok(None);
        }
        Ok(self.statuses(&[key]).await?.pop())
    }

    async fn statuses(&self, keys: &[LaneKey]) -> Result<Vec<LaneStatus>, StoreError> {
        let mut known = self.core.ports.store.lanes(keys).await?;
        let inspections = join_all(keys.iter().map(|key| self.inspect(*key))).await;
        let status = |(key, inspection): (&LaneKey, Inspection)| {
            let at = known.iter().position(|record| record.key == *key);
            let record = at.map_or_else(|| LaneRecord::unused(*key), |at| known.swap_remove(at));
            let waiting_for = record.halted.clone().or(inspection.waiting_for);
            LaneStatus {
                record,
                chain_nonces: inspection.chain_nonces,
                gaps: inspection.gaps,
                waiting_for: waiting_for.map(WaitingFor),
            }
        };
        Ok(keys.iter().zip(inspections).map(status).collect())
    }

    pub(super) async fn inspect(&self, lane: LaneKey) -> Inspection {
        let (answer, answered) = oneshot::channel();
        self.core
            .tell_shard(lane, Message::Inspect { lane, answer })
            .await;
        answered.await.unwrap_or_default() // the node is ending: nothing is known
    }

    /// An operator accepts what a lane has lost: it goes on from what store and chain say. Durable when
    /// this returns `Ok`.
    pub async fn accept_loss(&self, lane: LaneKey, reason: &str) -> Result<(), Refusal> {
        if !self.core.lanes.contains_key(&lane) {
            return Err(Refusal::UnknownSigner(lane.chain_id, lane.signer));
        }
        // First: an opening in between must not halt it again.
        self.core.forget_remembered(lane);
        let was_halted = self.core.ports.store.accept_loss(lane).await;
        let was_halted =
            was_halted.map_err(|error| Refusal::StoreUnavailable(error.to_string()))?;
        tracing::warn!(%lane, reason, was_halted, "an operator has accepted what the lane has lost");
        self.core.tell_shard(lane, Message::Resume { lane }).await;
        Ok(())
    }

    /// The nodes of the cluster.
    pub async fn members(&self) -> Result<Vec<Member>, StoreError> {
        self.core.ports.store.members().await
    }

    /// A store that reads but does not write is of no use.
    fn takes_writes(&self) -> Result<(), String> {
        let silence = self.core.since_heartbeat();
        if silence > self.core.config.lease.duration.saturating_mul(2) {
            return Err(format!(
                "the store has taken no write for {} s",
                silence.as_secs()
            ));
        }
        Ok(())
    }

    /// Whether requests should come here.
    pub async fn readiness(&self) -> Readiness {
        let store = self.core.ports.store.members().await;
        let chains = self.core.chains.iter().map(|(chain_id, part)| ChainStatus {
            chain_id: *chain_id,
            head: part
                .view
                .get()
                .and_then(|view| Some(view.headers.tip()?.number)),
            endpoints: part.chain.endpoints(),
        });
        Readiness {
            store: self
                .takes_writes()
                .and(store.map(drop).map_err(|error| error.to_string())),
            draining: self.core.is_draining(),
            chains: chains.collect(),
        }
    }
}

impl WaitFor {
    /// Whether a tx got this far, or will get no farther.
    fn is_reached(self, record: &TxRecord) -> bool {
        let tx = &record.tx;
        if tx.state.is_terminal() || tx.state == TxState::Stuck {
            return true;
        }
        match self {
            Self::Accepted => true,
            Self::Submitted => {
                tx.inclusion.is_some() || matches!(tx.sub_state, Some(SubState::Submitted))
            }
            Self::Mined => tx.inclusion.is_some(),
            Self::Confirmed => false,
        }
    }
}
