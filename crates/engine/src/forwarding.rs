//! Forwarding: requests on their way to the node that keeps their lane, and their reception there.
//!
//! Requests for one node are batched: a call carries all that are queued when it is made. The lane is the unit of failure
//! here too: one whose requests are not answered promptly has calls of its own until they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::LaneKey;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use metrics::counter;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::cluster::Peer;
use crate::core::{Core, lock};
use crate::intake::{self, RequestSource};
use crate::node::{AcceptedTx, NewTx, Refusal};
use crate::ports::PeerError;

/// The most requests of one call to another node.
const FORWARD_MAX: usize = 256;
/// How many requests wait for another node at most; more are refused.
const FORWARD_QUEUE: usize = 4_096;
/// How many calls to another node, not counting overdue ones, are in flight at once.
const FORWARD_CALLS: usize = 4;
/// How long another node may take at most; with short leases, as long as one lasts. A request without an answer is
/// queued in the store, where its request id finds it if it was accepted after all.
const FORWARD_PATIENCE_MAX: Duration = Duration::from_secs(5);
/// How much longer than the first of a call its other requests may take: more than a commit under load.
const PROMPT: Duration = Duration::from_secs(1);

/// The answer of another node, or why there is none.
type PeerAnswer = Result<Result<AcceptedTx, Refusal>, PeerError>;

struct ForwardedRequest {
    request: NewTx,
    answer: oneshot::Sender<PeerAnswer>,
}

/// The way to another node: by its address, and by the lane where that has calls of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    address: String,
    slow_lane: Option<LaneKey>,
}

/// The queues to other nodes.
#[derive(Default)]
pub(crate) struct Forwarding {
    queues: Mutex<BTreeMap<Way, mpsc::Sender<ForwardedRequest>>>,
}

/// Forwards a request to another node, in one call with others that are queued for it.
pub(crate) async fn forward_to_peer(core: &Arc<Core>, peer: &Peer, request: NewTx) -> PeerAnswer {
    counter!("lanekeeper_forward_total", "to" => peer.node.0.clone()).increment(1);
    let (answer, answered) = oneshot::channel();
    let queue = choose_queue(core, &peer.address, request.lane);
    let forwarded = ForwardedRequest { request, answer };
    if queue.try_send(forwarded).is_err() {
        counter!("lanekeeper_forward_rejected_total").increment(1);
        return Ok(Err(Refusal::Busy));
    }
    // The forwarder answers every queued request, or the node is ending.
    let ending = || Err(PeerError::Lost("this node is ending".into()));
    answered.await.unwrap_or_else(|_gone| ending())
}

/// The queue to a node: the lane's own one, or that of all lanes, whose forwarder is started with the first request.
fn choose_queue(core: &Arc<Core>, address: &str, lane: LaneKey) -> mpsc::Sender<ForwardedRequest> {
    let mut way = Way {
        address: address.to_owned(),
        slow_lane: Some(lane),
    };
    let mut queues = lock(&core.routes.forwarding.queues);
    if let Some(queue) = queues.get(&way) {
        return queue.clone();
    }
    way.slow_lane = None;
    let queue = queues.entry(way.clone());
    queue.or_insert_with(|| start_forwarder(core, way)).clone()
}

fn start_forwarder(core: &Arc<Core>, way: Way) -> mpsc::Sender<ForwardedRequest> {
    let (queue, waiting) = mpsc::channel(FORWARD_QUEUE);
    let forwarder = run_forwarder(Arc::clone(core), way, waiting);
    core.tasks.spawn("forward", forwarder);
    queue
}

async fn run_forwarder(core: Arc<Core>, way: Way, mut waiting: mpsc::Receiver<ForwardedRequest>) {
    let is_shared = way.slow_lane.is_none();
    let calls = Arc::new(Semaphore::new(if is_shared { FORWARD_CALLS } else { 1 }));
    let mut batch = Vec::with_capacity(FORWARD_MAX);
    loop {
        let permit = Arc::clone(&calls)
            .acquire_owned()
            .await
            .expect("this semaphore is never closed");
        if waiting.recv_many(&mut batch, FORWARD_MAX).await == 0 {
            return;
        }
        let (core_of_task, way, batch) =
            (Arc::clone(&core), way.clone(), std::mem::take(&mut batch));
        core.tasks.spawn("forward call", async move {
            let call = forward_batch(&core_of_task, &way, batch);
            tokio::pin!(call);
            if is_shared {
                tokio::select! {
                    biased;
                    () = &mut call => return,
                    () = core_of_task.ports.clock.sleep(PROMPT) => {}
                }
                drop(permit); // the requests behind an overdue call go on
                call.await;
            } else {
                call.await;
                drop(permit);
            }
        });
    }
}

async fn forward_batch(core: &Arc<Core>, way: &Way, batch: Vec<ForwardedRequest>) {
    let lanes: Vec<LaneKey> = batch
        .iter()
        .map(|forwarded| forwarded.request.lane)
        .collect();
    let (requests, replies): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .map(|forwarded| (forwarded.request, forwarded.answer))
        .unzip();
    let count = requests.len();
    let (address, clock) = (&way.address, &core.ports.clock);
    let sent_at = clock.monotonic();
    let patience = core.config.lease.duration.min(FORWARD_PATIENCE_MAX);
    let result = tokio::select! {
        biased;
        result = core.ports.peers.forward(address, requests, patience) => result,
        () = clock.sleep(patience) => Err(PeerError::Lost("no answer in time".into())),
    };
    let result = result.and_then(|answers| match answers.len() {
        answered if answered == count => Ok(answers),
        answered => Err(PeerError::Lost(format!(
            "{answered} answers to {count} requests"
        ))),
    });
    let answers: Vec<PeerAnswer> = match result {
        Ok(answers) => {
            let is_prompt = clock.monotonic().since(sent_at) < PROMPT;
            separate_slow_lanes(core, way, lanes.iter().zip(&answers), is_prompt);
            answers.into_iter().map(Ok).collect()
        }
        Err(error) => {
            tracing::warn!(%address, %error, requests = count, "requests could not be forwarded");
            vec![Err(error); count]
        }
    };
    for (reply, answer) in replies.into_iter().zip(answers) {
        reply.send(answer).ok(); // the caller may have gone
    }
}

/// Gives lanes whose requests were not finished in time calls of their own, and takes those back that are prompt again.
fn separate_slow_lanes<'a>(
    core: &Arc<Core>,
    way: &Way,
    answers: impl Iterator<Item = (&'a LaneKey, &'a Result<AcceptedTx, Refusal>)>,
    is_prompt: bool,
) {
    let unfinished = answers.filter(|(_, answer)| matches!(answer, Err(Refusal::OutcomeUnknown)));
    let unfinished: BTreeSet<LaneKey> = unfinished.map(|(lane, _)| *lane).collect();
    let mut queues = lock(&core.routes.forwarding.queues);
    if way.slow_lane.is_some() && is_prompt && unfinished.is_empty() {
        queues.remove(way); // its forwarder ends when it has sent what is queued
    }
    for lane in unfinished {
        let own = Way {
            slow_lane: Some(lane),
            ..way.clone()
        };
        let queue = queues.entry(own.clone());
        queue.or_insert_with(|| start_forwarder(core, own));
    }
}

/// Accepts requests that another node forwarded, each on its own; answers in the order given. What is not finished
/// shortly after the first, or when the sender is about to give up, is unknown: its sender finds it by its request id.
pub(crate) async fn receive_forwarded(
    core: &Arc<Core>,
    requests: Vec<NewTx>,
    patience: Duration,
) -> Vec<Result<AcceptedTx, Refusal>> {
    let clock = &core.ports.clock;
    let mut answers = vec![Err(Refusal::OutcomeUnknown); requests.len()];
    let create = |(index, request)| async move {
        let answer = intake::create_tx(core, request, RequestSource::Peer).await;
        (index, answer)
    };
    let mut pending: FuturesUnordered<_> = requests.into_iter().enumerate().map(create).collect();
    // A tenth of the patience is left for the answer's way back.
    let mut until = clock.monotonic().plus(patience.saturating_mul(9) / 10);
    let mut is_first = true;
    loop {
        let left = until.since(clock.monotonic());
        tokio::select! {
            biased;
            next = pending.next() => match next {
                Some((index, answer)) => answers[index] = answer,
                None => return answers,
            },
            () = clock.sleep(left) => return answers,
        }
        if std::mem::take(&mut is_first) {
            until = until.min(clock.monotonic().plus(PROMPT));
        }
    }
}
