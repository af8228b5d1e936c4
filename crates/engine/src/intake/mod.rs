//! The ingress: checks a request, and routes it to the keeper of its lane or into the store's queue.

mod batch;
mod checks;
mod lane_call;

use std::sync::Arc;

use domain::lane::AdmittedRequest;
use domain::{NodeName, TxId};
use metrics::counter;

use crate::cluster::Peer;
use crate::core::Core;
use crate::forwarding;
use crate::node::{AcceptedTx, NewTx, NonKeeper, Refusal};
use crate::ports::{PeerError, QueuedRequest, TxRecord};
use crate::routing::{self, Route};
use crate::shard::ShardOutcome;
use checks::{
    GasDecision, answer_repeat, check_admission, check_execution, confirm_refusal,
    determine_gas_limit, find_by_request_id, read_stored_tx, refuse_unless_known,
};
use lane_call::call_lane;

pub(crate) use batch::create_batch;
pub(crate) use checks::LOOKUPS_MAX;

/// How often a request is rerouted before it is queued in the store.
const ROUTE_TRIES_MAX: u32 = 4;

/// Where a request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestSource {
    Client,
    /// Another node of the cluster: the request is not forwarded again.
    Peer,
}

/// Accepts one request: durable when this returns `Ok`.
pub(crate) async fn create_tx(
    core: &Arc<Core>,
    new: NewTx,
    source: RequestSource,
) -> Result<AcceptedTx, Refusal> {
    let admission = admit_request(core, new, source).await;
    create_admitted(core, admission, source).await
}

/// What its admission makes of a request.
enum Admission {
    /// It is ready to be routed, with this gas limit.
    Admitted { new: Box<NewTx>, gas: u64 },
    /// It was accepted before.
    Existing(Box<AcceptedTx>),
}

/// Routes a request that was admitted, and counts the result.
async fn create_admitted(
    core: &Arc<Core>,
    admission: Result<Admission, Refusal>,
    source: RequestSource,
) -> Result<AcceptedTx, Refusal> {
    let result = match admission {
        Ok(Admission::Admitted { new, gas }) => route_request(core, *new, gas, source).await,
        Ok(Admission::Existing(accepted)) => Ok(*accepted),
        Err(refusal) => Err(refusal),
    };
    if source == RequestSource::Client {
        let label = match &result {
            Ok(accepted) if accepted.is_new => "new",
            Ok(_) => "existing",
            Err(_) => "refused",
        };
        counter!("lanekeeper_tx_create_total", "result" => label).increment(1);
    }
    result
}

/// Applies the admission rules, and estimates gas where the request names none.
async fn admit_request(
    core: &Core,
    new: NewTx,
    source: RequestSource,
) -> Result<Admission, Refusal> {
    let existing = |accepted| Admission::Existing(Box::new(accepted));
    if source == RequestSource::Peer && core.is_draining() {
        return Err(Refusal::Draining);
    }
    if let Err(refusal) = check_admission(core, &new) {
        return refuse_unless_known(core, &new, refusal).await.map(existing);
    }
    // Before it is routed: a chain that answers slowly must not hold up requests that are forwarded with this one.
    let gas = match determine_gas_limit(core, &new).await? {
        GasDecision::Limit(gas) => gas,
        GasDecision::Existing(record) => return answer_repeat(*record, &new).map(existing),
    };
    if let Err(refusal) = check_execution(core, &new, gas) {
        if let Some(record) = find_by_request_id(core, &new).await? {
            return answer_repeat(record, &new).map(existing);
        }
        confirm_refusal(core, &new, gas, refusal).await?;
    }
    let new = Box::new(new);
    Ok(Admission::Admitted { new, gas })
}

/// Brings an admitted request to its lane. A request that goes to this node's shard, or to another node, is in that
/// queue when this has been polled once: requests that are polled in an order keep it. What a halted lane or a node that
/// stops refuses may have been accepted before.
async fn route_request(
    core: &Arc<Core>,
    new: NewTx,
    gas: u64,
    source: RequestSource,
) -> Result<AcceptedTx, Refusal> {
    let mut request = RoutedRequest {
        id: core.ports.clock.tx_id(),
        new: NewTx {
            estimated_gas: Some(gas),
            ..new
        },
        gas,
        maybe_stored: false,
    };
    match find_lane(core, &mut request, source).await {
        Err(refusal) if source == RequestSource::Client && refusal.needs_look_up() => {
            refuse_unless_known(core, &request.new, refusal).await
        }
        answer => answer,
    }
}

/// Tries one route after the other, and at last the store's queue.
async fn find_lane(
    core: &Arc<Core>,
    request: &mut RoutedRequest,
    source: RequestSource,
) -> Result<AcceptedTx, Refusal> {
    let mut tries = 0;
    loop {
        let route = match source {
            RequestSource::Client => routing::choose_route(core, request.new.lane),
            RequestSource::Peer if routing::is_useless_for_lane(core, request.new.lane) => {
                let why = "for a whole lease this node could not reach the chain, or got no answer to its sends";
                return Err(request.refusal(Refusal::ChainUnavailable(why.to_owned())));
            }
            RequestSource::Peer => Route::Local,
        };
        let outcome = match route {
            Route::Local => create_locally(core, request, source).await?,
            Route::Peer(peer) => create_at_peer(core, request, &peer).await?,
            Route::Unavailable => return Err(request.refusal(Refusal::Draining)),
        };
        tries += 1;
        match outcome {
            RouteOutcome::Accepted(accepted) => {
                let (tx, trace) = (&accepted.record.tx, &request.new.origin.trace);
                let lane = request.new.lane;
                tracing::debug!(%lane, tx = %tx.id, token = %tx.written.token, ?trace, "request accepted");
                return Ok(*accepted);
            }
            RouteOutcome::Reroute if tries < ROUTE_TRIES_MAX => {}
            RouteOutcome::Reroute | RouteOutcome::Queue => {
                return queue_in_store(core, request).await;
            }
        }
    }
}

/// An admitted request on its way to its lane.
struct RoutedRequest {
    id: TxId,
    new: NewTx,
    /// The gas limit: named by the caller, or estimated.
    gas: u64,
    /// Whether a node that gave no certain answer may have stored it.
    maybe_stored: bool,
}

/// How far a request got.
enum RouteOutcome {
    /// It is durable.
    Accepted(Box<AcceptedTx>),
    /// Not there. The routes are updated: the next choice may differ.
    Reroute,
    /// No node can take it now: it is queued in the store for the next keeper.
    Queue,
}

impl RoutedRequest {
    /// The refusal for the caller: it must not claim that nothing was stored where that is uncertain.
    fn refusal(&self, why: Refusal) -> Refusal {
        if self.maybe_stored {
            Refusal::OutcomeUnknown
        } else {
            why
        }
    }

    fn answer_existing(&self, record: TxRecord) -> Result<RouteOutcome, Refusal> {
        let accepted = answer_repeat(record, &self.new)?;
        Ok(RouteOutcome::Accepted(Box::new(accepted)))
    }

    fn admitted_request(&self) -> AdmittedRequest {
        AdmittedRequest {
            id: self.id,
            request_id: self.new.request_id.clone(),
            fingerprint: self.new.payload.fingerprint(),
            payload: self.new.payload.clone(),
            gas: self.gas,
        }
    }
}

/// Creates the tx through this node's own shard.
async fn create_locally(
    core: &Core,
    request: &mut RoutedRequest,
    source: RequestSource,
) -> Result<RouteOutcome, Refusal> {
    let outcome = call_lane(core, request.new.lane, request.admitted_request()).await;
    match outcome.map_err(|refusal| request.refusal(refusal))? {
        ShardOutcome::Accepted(accepted) => Ok(RouteOutcome::Accepted(accepted)),
        ShardOutcome::Existing(id) => request.answer_existing(read_stored_tx(core, id).await?),
        ShardOutcome::Refused(refusal) => Err(request.refusal(refusal)),
        ShardOutcome::Released if source == RequestSource::Peer => {
            Err(request.refusal(Refusal::Draining))
        }
        ShardOutcome::Released => Ok(RouteOutcome::Reroute),
        ShardOutcome::NotKeeper {
            keeper,
            maybe_stored,
        } => {
            request.maybe_stored |= maybe_stored;
            on_not_keeper(core, request, keeper, source).await
        }
    }
}

/// Another node keeps the lane: the request is forwarded to it, queued in the store for it, or refused.
async fn on_not_keeper(
    core: &Core,
    request: &RoutedRequest,
    keeper: NodeName,
    source: RequestSource,
) -> Result<RouteOutcome, Refusal> {
    let now = core.ports.clock.monotonic();
    match core.config.non_keeper {
        NonKeeper::Forward | NonKeeper::Queue if source == RequestSource::Peer => {
            Err(request.refusal(Refusal::NotKeeper(keeper)))
        }
        NonKeeper::Forward if core.cluster.reachable_peer(&keeper, now).is_some() => {
            Ok(RouteOutcome::Reroute)
        }
        NonKeeper::Forward | NonKeeper::Queue => Ok(RouteOutcome::Queue),
        NonKeeper::Reject => match find_by_request_id(core, &request.new)
            .await
            .map_err(|refusal| request.refusal(refusal))?
        {
            // A commit with an unknown outcome may have stored it before the takeover.
            Some(record) => request.answer_existing(record),
            None => Err(request.refusal(Refusal::NotKeeper(keeper))),
        },
    }
}

/// Forwards the request to another node.
async fn create_at_peer(
    core: &Arc<Core>,
    request: &mut RoutedRequest,
    peer: &Peer,
) -> Result<RouteOutcome, Refusal> {
    let lane = request.new.lane;
    let answer = forwarding::forward_to_peer(core, peer, request.new.clone()).await;
    if answer.is_ok() {
        core.cluster.mark_reached(&peer.node);
    }
    let now = core.ports.clock.monotonic();
    let suspect_peer = || {
        core.routes.forget_keeper(lane);
        core.cluster.mark_suspect(&peer.node, now);
    };
    match answer {
        Ok(Ok(accepted)) => Ok(RouteOutcome::Accepted(Box::new(accepted))),
        Ok(Err(Refusal::NotKeeper(keeper))) => {
            let is_reachable =
                keeper == core.config.name || core.cluster.reachable_peer(&keeper, now).is_some();
            let until = now.plus(core.config.lease.renew_interval);
            core.routes.record_keeper(lane, keeper, until);
            Ok(if is_reachable {
                RouteOutcome::Reroute
            } else {
                RouteOutcome::Queue
            })
        }
        Ok(Err(Refusal::Draining)) | Err(PeerError::NotReached(_)) => {
            suspect_peer();
            Ok(RouteOutcome::Reroute)
        }
        // The peer has no key for this lane, or cannot reach its chain; it may serve other lanes all the same.
        Ok(Err(
            Refusal::UnknownSigner(..) | Refusal::UnknownChain(_) | Refusal::ChainUnavailable(_),
        )) => {
            core.routes.forget_keeper(lane);
            core.routes.record_not_served(lane, &peer.node, now);
            Ok(RouteOutcome::Reroute)
        }
        // It may be stored: queueing finds it by its request id if it is, and stores it if it is not.
        Ok(Err(Refusal::OutcomeUnknown)) => {
            request.maybe_stored = true;
            Ok(RouteOutcome::Queue)
        }
        Ok(Err(refusal)) => Err(request.refusal(refusal)),
        Err(PeerError::Lost(_)) => {
            suspect_peer();
            request.maybe_stored = true;
            Ok(RouteOutcome::Queue)
        }
    }
}

/// Queues the request in the store, where the lane's keeper finds it.
async fn queue_in_store(core: &Core, request: &RoutedRequest) -> Result<AcceptedTx, Refusal> {
    let queued = QueuedRequest {
        lane: request.new.lane,
        request: request.admitted_request(),
        at: core.ports.clock.now(),
    };
    counter!("lanekeeper_tx_queued_total").increment(1);
    // From here on the request may be stored, whatever fails.
    let stored = core.ports.store.queue_requests(vec![queued]).await;
    let tx = stored
        .map_err(|error| request.refusal(Refusal::of_write(error)))?
        .into_iter()
        .next()
        .ok_or(Refusal::OutcomeUnknown)?;
    let is_new = tx.id == request.id;
    let record = read_stored_tx(core, tx.id).await?;
    answer_repeat(record, &request.new).map(|accepted| AcceptedTx { is_new, ..accepted })
}
