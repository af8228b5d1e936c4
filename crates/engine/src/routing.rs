//! Routing: a request goes to this node's own shard, or to the node that keeps its lane.
//!
//! Known keepers save round trips and decide nothing: the lease does. Requests for one node are batched:
//! a call carries all that are queued when it is made.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{LaneKey, MonotonicTime, NodeName};
use metrics::counter;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::cluster::Peer;
use crate::core::{Core, lock};
use crate::node::{AcceptedTx, NewTx, NonKeeper, Refusal};
use crate::ports::PeerError;

/// The most requests of one call to another node.
const FORWARD_MAX: usize = 256;
/// How many requests wait for another node at most; more are refused.
const FORWARD_QUEUE: usize = 4_096;
/// How many calls to another node are in flight at once.
const FORWARD_CALLS: usize = 4;
/// How long another node may take at most; with short leases, as long as one lasts. A request without an answer is
/// queued in the store, where its request id finds it if it was accepted after all.
const FORWARD_PATIENCE_MAX: Duration = Duration::from_secs(5);

/// For how long a node that does not serve a lane gets none of its requests.
const NOT_SERVED_FOR: Duration = Duration::from_secs(30);

/// Where a request for a lane goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// This node's shard, which keeps the lane or acquires it.
    Local,
    Peer(Peer),
    /// This node drains, and no other node can be reached.
    Unavailable,
}

/// The answer of another node, or why there is none.
type PeerAnswer = Result<Result<AcceptedTx, Refusal>, PeerError>;

struct ForwardedRequest {
    request: NewTx,
    answer: oneshot::Sender<PeerAnswer>,
}

/// The known keepers of lanes, and the queues to other nodes.
#[derive(Default)]
pub(crate) struct Routes {
    keepers: Mutex<BTreeMap<LaneKey, KnownKeeper>>,
    /// Nodes that do not serve a lane, and until when that is assumed.
    not_served: Mutex<BTreeMap<(LaneKey, NodeName), MonotonicTime>>,
    queues: Mutex<BTreeMap<String, mpsc::Sender<ForwardedRequest>>>,
}

struct KnownKeeper {
    node: NodeName,
    until: MonotonicTime,
}

impl Routes {
    /// Records the keeper of a lane, as the store or another node named it.
    pub(crate) fn record_keeper(&self, lane: LaneKey, node: NodeName, until: MonotonicTime) {
        lock(&self.keepers).insert(lane, KnownKeeper { node, until });
    }

    pub(crate) fn forget_keeper(&self, lane: LaneKey) {
        lock(&self.keepers).remove(&lane);
    }

    /// Records that a node has no key for this lane, or cannot reach its chain.
    pub(crate) fn record_not_served(&self, lane: LaneKey, node: &NodeName, now: MonotonicTime) {
        let until = now.plus(NOT_SERVED_FOR);
        lock(&self.not_served).insert((lane, node.clone()), until);
    }

    fn may_serve(&self, lane: LaneKey, node: &NodeName, now: MonotonicTime) -> bool {
        let not_served = lock(&self.not_served);
        let until = not_served.get(&(lane, node.clone()));
        until.is_none_or(|until| *until <= now)
    }

    pub(crate) fn known_keeper(&self, lane: LaneKey, now: MonotonicTime) -> Option<NodeName> {
        let keepers = lock(&self.keepers);
        let keeper = keepers.get(&lane).filter(|keeper| keeper.until > now)?;
        Some(keeper.node.clone())
    }
}

/// Chooses the route of a request: the known keeper first, and where none is known, the preferred one.
pub(crate) fn choose_route(core: &Core, lane: LaneKey) -> Route {
    if core.config.non_keeper != NonKeeper::Forward && !core.is_draining() {
        return Route::Local;
    }
    choose_keeper_route(core, lane)
}

/// The same whatever the configuration says about requests for lanes of other keepers.
pub(crate) fn choose_keeper_route(core: &Core, lane: LaneKey) -> Route {
    let (me, now) = (&core.config.name, core.ports.clock.monotonic());
    let is_draining = core.is_draining();
    if !is_draining && core.leases.holds(lane) {
        return Route::Local;
    }
    match core.routes.known_keeper(lane, now) {
        // Other nodes named this one: the answer to its acquisition was lost, or it dropped the lane.
        Some(keeper) if keeper == *me && !is_draining => return Route::Local,
        Some(keeper) if keeper != *me => {
            if let Some(peer) = core.cluster.reachable_peer(&keeper, now) {
                return Route::Peer(peer);
            }
        }
        Some(_) | None => {}
    }
    match choose_successor(core, lane, now) {
        Some(node) if node == *me => Route::Local,
        Some(node) => core
            .cluster
            .reachable_peer(&node, now)
            .map_or(Route::Local, Route::Peer),
        None if is_draining => Route::Unavailable,
        None => Route::Local,
    }
}

/// Whether this node neither keeps the lane nor reaches its chain.
pub(crate) fn is_useless_for_lane(core: &Core, lane: LaneKey) -> bool {
    let now = core.ports.clock.monotonic();
    !core.leases.holds(lane) && core.is_chain_unreachable(lane.chain_id, now)
}

/// Chooses the next keeper of a lane: this node only while it does not drain and reaches the lane's chain.
pub(crate) fn choose_successor(core: &Core, lane: LaneKey, now: MonotonicTime) -> Option<NodeName> {
    let me = &core.config.name;
    let can_keep = !core.is_draining() && !core.is_chain_unreachable(lane.chain_id, now);
    let may_keep = |node: &NodeName| {
        if node == me {
            can_keep
        } else {
            core.routes.may_serve(lane, node, now)
        }
    };
    core.cluster
        .preferred_keeper(lane, me, may_keep, core.config.lease.duration, now)
}

/// Forwards a request to another node, in one call with others that are queued for it.
pub(crate) async fn forward_to_peer(core: &Arc<Core>, peer: &Peer, request: NewTx) -> PeerAnswer {
    counter!("lanekeeper_forward_total", "to" => peer.node.0.clone()).increment(1);
    let (answer, answered) = oneshot::channel();
    let forwarded = ForwardedRequest { request, answer };
    if forward_queue(core, &peer.address)
        .try_send(forwarded)
        .is_err()
    {
        counter!("lanekeeper_forward_rejected_total").increment(1);
        return Ok(Err(Refusal::Busy));
    }
    // The forwarder answers every queued request, or the node is ending.
    let ending = || Err(PeerError::Lost("this node is ending".into()));
    answered.await.unwrap_or_else(|_gone| ending())
}

/// The queue to a node; its forwarder is started with the first request.
fn forward_queue(core: &Arc<Core>, address: &str) -> mpsc::Sender<ForwardedRequest> {
    let mut queues = lock(&core.routes.queues);
    if let Some(queue) = queues.get(address) {
        return queue.clone();
    }
    let (queue, waiting) = mpsc::channel(FORWARD_QUEUE);
    queues.insert(address.to_owned(), queue.clone());
    let forwarder = run_forwarder(Arc::clone(core), address.to_owned(), waiting);
    core.tasks.spawn("forward", forwarder);
    queue
}

async fn run_forwarder(
    core: Arc<Core>,
    address: String,
    mut waiting: mpsc::Receiver<ForwardedRequest>,
) {
    let calls = Arc::new(Semaphore::new(FORWARD_CALLS));
    let mut batch = Vec::with_capacity(FORWARD_MAX);
    loop {
        let call = Arc::clone(&calls)
            .acquire_owned()
            .await
            .expect("this semaphore is never closed");
        if waiting.recv_many(&mut batch, FORWARD_MAX).await == 0 {
            return;
        }
        let (core_of_task, address) = (Arc::clone(&core), address.clone());
        let batch = std::mem::take(&mut batch);
        core.tasks.spawn("forward call", async move {
            forward_batch(&core_of_task, &address, batch).await;
            drop(call);
        });
    }
}

async fn forward_batch(core: &Core, address: &str, batch: Vec<ForwardedRequest>) {
    let (requests, replies): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .map(|forwarded| (forwarded.request, forwarded.answer))
        .unzip();
    let count = requests.len();
    let patience = core.config.lease.duration.min(FORWARD_PATIENCE_MAX);
    let result = tokio::select! {
        biased;
        result = core.ports.peers.forward(address, requests, patience) => result,
        () = core.ports.clock.sleep(patience) => {
            Err(PeerError::Lost("no answer in time".into()))
        }
    };
    let result = result.and_then(|answers| match answers.len() {
        answered if answered == count => Ok(answers),
        answered => Err(PeerError::Lost(format!(
            "{answered} answers to {count} requests"
        ))),
    });
    let answers: Vec<PeerAnswer> = match result {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(error) => {
            tracing::warn!(%address, %error, requests = count, "requests could not be forwarded");
            vec![Err(error); count]
        }
    };
    for (reply, answer) in replies.into_iter().zip(answers) {
        reply.send(answer).ok(); // the caller may have gone
    }
}
