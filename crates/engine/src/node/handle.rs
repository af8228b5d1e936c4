//! What the outside can ask of a running node.

use std::time::Duration;

use domain::lane::ChainNonces;
use domain::{B256, LaneKey, NodeName, Nonce, Payload, RequestId, TxId};
use tokio::sync::watch;

use crate::node::Refusal;
use crate::ports::{
    EventFilter, EventPage, EventRecord, LaneRecord, Member, StoreError, TxFilter, TxPage, TxRecord,
};

/// A request as it comes through the door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTx {
    /// From which account, on which chain.
    pub lane: LaneKey,
    /// The key of the business.
    pub request_id: RequestId,
    /// What to send.
    pub payload: Payload,
}

/// A request that is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub chain_nonces: Option<ChainNonces>,
    /// Nonces that the chain waits for and nobody holds, when this node keeps the lane.
    pub gaps: Vec<Nonce>,
    /// Why it does not move.
    pub waiting_for: Option<WaitingFor>,
}

/// A chain's endpoints as people see them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainStatus {
    /// Which chain.
    pub chain_id: domain::ChainId,
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
pub struct NodeHandle {}

impl NodeHandle {
    /// The node's name.
    pub fn name(&self) -> &NodeName { unimplemented!() }
    /// The only chain, when there is just one: requests may leave `chainId` out.
    pub fn only_chain(&self) -> Option<domain::ChainId> { unimplemented!() }
    /// Accepts one request: durable when this returns `Ok`.
    pub async fn create(&self, request: NewTx) -> Result<Accepted, Refusal> { unimplemented!() }
    /// Accepts many, each on its own; answers in the order given.
    pub async fn create_many(&self, requests: Vec<NewTx>) -> Vec<Result<Accepted, Refusal>> { unimplemented!() }
    /// Waits until a tx got that far, is terminal or STUCK, or time is up; then the tx as it is.
    /// `Refusal::Busy` when too many wait already.
    pub async fn wait(&self, id: TxId, until: WaitFor, timeout: Duration) -> Result<Option<TxRecord>, Refusal> { unimplemented!() }
    /// A tx by its id.
    pub async fn tx(&self, id: TxId) -> Result<Option<TxRecord>, StoreError> { unimplemented!() }
    /// A tx by the key of the business.
    pub async fn tx_by_request(&self, lane: LaneKey, request_id: &RequestId) -> Result<Option<TxRecord>, StoreError> { unimplemented!() }
    /// A tx by the hash of any of its attempts.
    pub async fn tx_by_hash(&self, hash: B256) -> Result<Option<TxRecord>, StoreError> { unimplemented!() }
    /// A page of txs.
    pub async fn txs(&self, filter: &TxFilter) -> Result<TxPage, StoreError> { unimplemented!() }
    /// The events of one tx.
    pub async fn tx_events(&self, id: TxId) -> Result<Option<Vec<EventRecord>>, StoreError> { unimplemented!() }
    /// A page of the feed.
    pub async fn events(&self, filter: &EventFilter) -> Result<EventPage, StoreError> { unimplemented!() }
    /// A bell that rings when this node has written events. It may ring for nothing and carries no
    /// data: readers re-read, and also do so on a period.
    pub fn event_bell(&self) -> watch::Receiver<u64> { unimplemented!() }
    /// Every configured signer on every chain.
    pub async fn lanes(&self) -> Result<Vec<LaneStatus>, StoreError> { unimplemented!() }
    /// One lane; `None` when it is not configured.
    pub async fn lane(&self, key: LaneKey) -> Result<Option<LaneStatus>, StoreError> { unimplemented!() }
    /// The nodes of the cluster.
    pub async fn members(&self) -> Result<Vec<Member>, StoreError> { unimplemented!() }
    /// Whether requests should come here.
    pub async fn readiness(&self) -> Readiness { unimplemented!() }
}
