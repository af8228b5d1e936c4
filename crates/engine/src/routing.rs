//! Where a request goes: to this node's own shard, or to the node that keeps its lane.
//!
//! What is remembered here saves questions and decides nothing. Requests for one node travel together:
//! whatever waits for it when a call is made goes along.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::{LaneKey, MonotonicTime, NodeName};
use metrics::counter;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::cluster::Peer;
use crate::core::Core;
use crate::node::{Accepted, NewTx, NonKeeper, Refusal};
use crate::ports::PeerError;

/// The most requests of one call to another node.
const FORWARD_MAX: usize = 256;
/// How many requests wait for another node at most; more are refused.
const FORWARD_QUEUE: usize = 4_096;
/// How many calls to another node are under way at once.
const FORWARD_CALLS: usize = 4;
/// How long another node may take at most; with short leases, as long as one lasts. A request whose answer does not
/// come is put into the store, where its key finds it if it was accepted after all.
const FORWARD_PATIENCE_MAX: Duration = Duration::from_secs(5);

/// How long a node that has no key for a lane is not asked about it.
const WITHOUT_KEY_FOR: Duration = Duration::from_secs(30);

/// Where a request for a lane goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// To this node's shard, which holds the lane or asks for it.
    Here,
    /// To another node.
    There(Peer),
    /// Nobody can be asked.
    Nowhere,
}

/// What another node said, or why it said nothing.
type Answer = Result<Result<Accepted, Refusal>, PeerError>;

/// A request on its way to another node.
struct Handed {
    request: NewTx,
    answer: oneshot::Sender<Answer>,
}

/// Which node keeps which lane, as far as is known, and the queues to other nodes.
#[derive(Default)]
pub(crate) struct Routes {
    keepers: Mutex<BTreeMap<LaneKey, Keeper>>,
    /// Nodes that have no key for a lane, and until when that is believed.
    without_key: Mutex<BTreeMap<(LaneKey, NodeName), MonotonicTime>>,
    queues: Mutex<BTreeMap<String, mpsc::Sender<Handed>>>,
}

struct Keeper {
    node: NodeName,
    until: MonotonicTime,
}

impl Routes {
    fn keepers(&self) -> MutexGuard<'_, BTreeMap<LaneKey, Keeper>> {
        self.keepers
            .lock()
            .expect("nothing panics while it holds this lock")
    }

    /// The store said who keeps a lane, and for how long.
    pub(crate) fn learn(&self, lane: LaneKey, node: NodeName, until: MonotonicTime) {
        self.keepers().insert(lane, Keeper { node, until });
    }

    /// What was known of a lane is not true any more.
    pub(crate) fn forget(&self, lane: LaneKey) {
        self.keepers().remove(&lane);
    }

    /// A node said that it has no key for this lane, or does not hear its chain.
    pub(crate) fn not_served(&self, lane: LaneKey, node: &NodeName, now: MonotonicTime) {
        let until = now.plus(WITHOUT_KEY_FOR);
        self.without_key().insert((lane, node.clone()), until);
    }

    fn without_key(&self) -> MutexGuard<'_, BTreeMap<(LaneKey, NodeName), MonotonicTime>> {
        self.without_key
            .lock()
            .expect("nothing panics while it holds this lock")
    }

    fn may_serve(&self, lane: LaneKey, node: &NodeName, now: MonotonicTime) -> bool {
        let without = self.without_key();
        let until = without.get(&(lane, node.clone()));
        until.is_none_or(|until| *until <= now)
    }

    /// Who keeps a lane, as far as is known.
    pub(crate) fn keeper(&self, lane: LaneKey, now: MonotonicTime) -> Option<NodeName> {
        let keepers = self.keepers();
        let keeper = keepers.get(&lane).filter(|keeper| keeper.until > now)?;
        Some(keeper.node.clone())
    }
}

/// Where a request for this lane goes by what is known: the keeper first, and where none is known, the
/// node that should be.
pub(crate) fn place(core: &Core, lane: LaneKey) -> Place {
    let is_leaving = core.is_draining();
    if core.config.non_keeper != NonKeeper::Forward && !is_leaving {
        return Place::Here;
    }
    place_by_keeper(core, lane)
}

/// The same where nothing else is done than going to the keeper.
pub(crate) fn place_by_keeper(core: &Core, lane: LaneKey) -> Place {
    let (me, now) = (&core.config.name, core.ports.clock.monotonic());
    let is_leaving = core.is_draining();
    if !is_leaving && core.leases.holds(lane) {
        return Place::Here;
    }
    match core.routes.keeper(lane, now) {
        // The others say so: the answer to an acquisition was lost, or the lane was dropped.
        Some(keeper) if keeper == *me && !is_leaving => return Place::Here,
        Some(keeper) if keeper != *me => {
            if let Some(peer) = core.cluster.peer(&keeper, now) {
                return Place::There(peer);
            }
        }
        Some(_) | None => {}
    }
    match successor(core, lane, now) {
        Some(node) if node == *me => Place::Here,
        Some(node) => core
            .cluster
            .peer(&node, now)
            .map_or(Place::Here, Place::There),
        None if is_leaving => Place::Nowhere,
        None => Place::Here,
    }
}

/// Whether this node neither keeps the lane nor would be of use to it.
pub(crate) fn is_better_elsewhere(core: &Core, lane: LaneKey) -> bool {
    let now = core.ports.clock.monotonic();
    !core.leases.holds(lane) && core.is_deaf(lane.chain_id, now)
}

/// Who should keep a lane from now on: this node only while it stays and hears its chain.
pub(crate) fn successor(core: &Core, lane: LaneKey, now: MonotonicTime) -> Option<NodeName> {
    let me = &core.config.name;
    let is_of_use = !core.is_draining() && !core.is_deaf(lane.chain_id, now);
    let may_keep = |node: &NodeName| {
        if node == me {
            is_of_use
        } else {
            core.routes.may_serve(lane, node, now)
        }
    };
    core.cluster
        .preferred(lane, me, may_keep, core.config.lease.duration, now)
}

/// Hands a request to another node, together with whatever else waits for it.
pub(crate) async fn forward(core: &Arc<Core>, peer: &Peer, request: NewTx) -> Answer {
    counter!("lanekeeper_forward_total", "to" => peer.node.0.clone()).increment(1);
    let (answer, answered) = oneshot::channel();
    let handed = Handed { request, answer };
    if queue_to(core, &peer.address).try_send(handed).is_err() {
        counter!("lanekeeper_forward_rejected_total").increment(1);
        return Ok(Err(Refusal::Busy));
    }
    // The forwarder answers every request that it took, or the node is ending.
    let ending = || Err(PeerError::Lost("this node is ending".into()));
    answered.await.unwrap_or_else(|_gone| ending())
}

/// The queue to a node; its task is started with the first request.
fn queue_to(core: &Arc<Core>, address: &str) -> mpsc::Sender<Handed> {
    let mut queues = core
        .routes
        .queues
        .lock()
        .expect("nothing panics while it holds this lock");
    if let Some(queue) = queues.get(address) {
        return queue.clone();
    }
    let (queue, waiting) = mpsc::channel(FORWARD_QUEUE);
    queues.insert(address.to_owned(), queue.clone());
    let (core_of_task, address) = (Arc::clone(core), address.to_owned());
    core.tasks.spawn("forward", async move {
        forward_all(core_of_task, address, waiting).await
    });
    queue
}

async fn forward_all(core: Arc<Core>, address: String, mut waiting: mpsc::Receiver<Handed>) {
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

async fn forward_batch(core: &Core, address: &str, batch: Vec<Handed>) {
    let (requests, askers): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .map(|handed| (handed.request, handed.answer))
        .unzip();
    let count = requests.len();
    let patience = core.config.lease.duration.min(FORWARD_PATIENCE_MAX);
    let result = tokio::select! {
        biased;
        result = core.ports.peers.forward(address, requests, patience) => result,
        () = core.ports.clock.sleep(patience) => {
            Err(PeerError::Lost("it did not answer in time".into()))
        }
    };
    let result = match result {
        Ok(answers) if answers.len() != count => Err(PeerError::Lost(format!(
            "{} answers to {count} requests",
            answers.len()
        ))),
        other => other,
    };
    match result {
        Ok(answers) => {
            for (asker, answer) in askers.into_iter().zip(answers) {
                asker.send(Ok(answer)).ok(); // whoever asked may have gone
            }
        }
        Err(error) => {
            tracing::warn!(%address, %error, requests = count, "requests could not be handed over");
            for asker in askers {
                asker.send(Err(error.clone())).ok(); // whoever asked may have gone
            }
        }
    }
}
