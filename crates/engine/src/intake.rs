//! The door: what a request must fulfil before it reaches its lane, and where it goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use domain::lane::AdmittedRequest;
use domain::mutation::{self, Mutation};
use domain::{LaneKey, NodeName, Payload, Tx, TxId, TxType};
use metrics::counter;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;

use crate::cluster::Peer;
use crate::core::Core;
use crate::gate::{PendingCreate, Routed};
use crate::node::{Accepted, NewTx, NonKeeper, Refusal};
use crate::ports::{CallError, CallRequest, PeerError, QueuedRequest, StoreError, TxRecord};
use crate::reservations;
use crate::routing::{self, Place};
use crate::shard::Message;

/// How long a caller is held while the store is asked what became of its commit.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// How often a request is sent on by what is known of its lane before it is left in the store.
const ROUTE_TRIES_MAX: u32 = 4;

/// How a request came here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// From its caller.
    First,
    /// From another node: it is not handed on again.
    Last,
}

/// Accepts one request: durable when this returns `Ok`.
pub(crate) async fn create(core: &Arc<Core>, new: NewTx, hop: Hop) -> Result<Accepted, Refusal> {
    let result = accept(core, new, hop).await;
    if hop == Hop::First {
        let word = match &result {
            Ok(accepted) if accepted.is_new => "new",
            Ok(_) => "existing",
            Err(_) => "refused",
        };
        counter!("lanekeeper_tx_create_total", "result" => word).increment(1);
    }
    result
}

async fn accept(core: &Arc<Core>, new: NewTx, hop: Hop) -> Result<Accepted, Refusal> {
    if hop == Hop::Last && core.is_draining() {
        return Err(Refusal::Draining);
    }
    check(core, &new)?;
    // Before it goes anywhere: what waits for a chain must not hold up the requests that travel with it.
    let gas = match gas(core, &new).await? {
        Gas::Limit(gas) => gas,
        Gas::Known(record) => return repeat(record.tx.clone(), &new, *record),
    };
    let mut errand = Errand {
        id: core.ports.clock.tx_id(),
        new: NewTx {
            estimated_gas: Some(gas),
            ..new
        },
        gas,
        maybe_stored: false,
    };
    let mut tries = 0;
    loop {
        let place = match hop {
            Hop::First => routing::place(core, errand.new.lane),
            Hop::Last if routing::is_better_elsewhere(core, errand.new.lane) => {
                let why = "this node has heard nothing of the chain for a lease".to_owned();
                return Err(errand.refused(Refusal::ChainUnavailable(why)));
            }
            Hop::Last => Place::Here,
        };
        let went = match place {
            Place::Here => here(core, &mut errand, hop).await?,
            Place::There(peer) => there(core, &mut errand, &peer).await?,
            Place::Nowhere => return Err(errand.refused(Refusal::Draining)),
        };
        tries += 1;
        match went {
            Went::Done(accepted) => {
                let (tx, trace) = (&accepted.record.tx, &errand.new.origin.trace);
                let lane = errand.new.lane;
                tracing::debug!(%lane, tx = %tx.id, token = %tx.token, ?trace, "a request is accepted");
                return Ok(*accepted);
            }
            Went::Elsewhere if tries < ROUTE_TRIES_MAX => {}
            Went::Elsewhere | Went::ToTheStore => return queue(core, &errand).await,
        }
    }
}

/// A request on its way.
struct Errand {
    id: TxId,
    new: NewTx,
    /// The gas limit: asked for, or estimated.
    gas: u64,
    /// Whether a node whose answer was lost may have stored it.
    maybe_stored: bool,
}

/// How far a request got.
enum Went {
    /// It is durable.
    Done(Box<Accepted>),
    /// Not there; what was learned on the way tells where to go next.
    Elsewhere,
    /// No node can take it now: it is left in the store for the next keeper.
    ToTheStore,
}

impl Errand {
    fn refused(&self, why: Refusal) -> Refusal {
        if self.maybe_stored {
            Refusal::OutcomeUnknown
        } else {
            why
        }
    }

    fn known(&self, tx: Tx, record: TxRecord) -> Result<Went, Refusal> {
        repeat(tx, &self.new, record).map(|accepted| Went::Done(Box::new(accepted)))
    }

    fn request(&self) -> AdmittedRequest {
        AdmittedRequest {
            id: self.id,
            request_id: self.new.request_id.clone(),
            fingerprint: self.new.payload.fingerprint(),
            payload: self.new.payload.clone(),
            gas: self.gas,
        }
    }
}

/// Through this node's own shard.
async fn here(core: &Core, errand: &mut Errand, hop: Hop) -> Result<Went, Refusal> {
    let routed = route(core, errand.new.lane, errand.request()).await;
    match routed.map_err(|refusal| errand.refused(refusal))? {
        Routed::Accepted(accepted) => Ok(Went::Done(accepted)),
        Routed::Known(tx) => {
            let record = read(core, &tx).await?;
            errand.known(*tx, record)
        }
        Routed::Refused(refusal) => Err(errand.refused(refusal)),
        Routed::Released if hop == Hop::Last => Err(errand.refused(Refusal::Draining)),
        Routed::Released => Ok(Went::Elsewhere),
        Routed::NotKeeper {
            keeper,
            maybe_stored,
        } => {
            errand.maybe_stored |= maybe_stored;
            not_keeper(core, errand, keeper, hop).await
        }
    }
}

/// Another node keeps the lane: the request goes there, is left in the store for it, or is refused.
async fn not_keeper(
    core: &Core,
    errand: &Errand,
    keeper: NodeName,
    hop: Hop,
) -> Result<Went, Refusal> {
    let now = core.ports.clock.monotonic();
    match core.config.non_keeper {
        NonKeeper::Forward | NonKeeper::Queue if hop == Hop::Last => {
            Err(errand.refused(Refusal::NotKeeper(keeper)))
        }
        NonKeeper::Forward if core.cluster.peer(&keeper, now).is_some() => Ok(Went::Elsewhere),
        NonKeeper::Forward | NonKeeper::Queue => Ok(Went::ToTheStore),
        NonKeeper::Reject => match known(core, &errand.new)
            .await
            .map_err(|refusal| errand.refused(refusal))?
        {
            // A commit whose answer was lost may have stored it before the lane changed hands.
            Some(record) => errand.known(record.tx.clone(), record),
            None => Err(errand.refused(Refusal::NotKeeper(keeper))),
        },
    }
}

/// Through another node.
async fn there(core: &Arc<Core>, errand: &mut Errand, peer: &Peer) -> Result<Went, Refusal> {
    let lane = errand.new.lane;
    let suspect = || {
        core.routes.forget(lane);
        core.cluster
            .suspect(&peer.node, core.ports.clock.monotonic());
    };
    let answer = routing::forward(core, peer, errand.new.clone()).await;
    if answer.is_ok() {
        core.cluster.reached(&peer.node);
    }
    match answer {
        Ok(Ok(accepted)) => Ok(Went::Done(Box::new(accepted))),
        // It says who is.
        Ok(Err(Refusal::NotKeeper(keeper))) => {
            let now = core.ports.clock.monotonic();
            let can_be_asked =
                keeper == core.config.name || core.cluster.peer(&keeper, now).is_some();
            let until = now.plus(core.config.lease.renew_interval);
            core.routes.learn(lane, keeper, until);
            Ok(if can_be_asked {
                Went::Elsewhere
            } else {
                Went::ToTheStore
            })
        }
        Ok(Err(Refusal::Draining)) => {
            suspect();
            Ok(Went::Elsewhere)
        }
        // It has no key for this lane, or does not hear its chain; other lanes are its business all the same.
        Ok(Err(
            Refusal::UnknownSigner(..) | Refusal::UnknownChain(_) | Refusal::ChainUnavailable(_),
        )) => {
            core.routes.forget(lane);
            core.routes
                .not_served(lane, &peer.node, core.ports.clock.monotonic());
            Ok(Went::Elsewhere)
        }
        // It may be stored. Putting it into the store finds it if it is, and is harmless if it is not.
        Ok(Err(Refusal::OutcomeUnknown)) => {
            errand.maybe_stored = true;
            Ok(Went::ToTheStore)
        }
        Ok(Err(refusal)) => Err(errand.refused(refusal)),
        Err(PeerError::NotReached(_)) => {
            suspect();
            Ok(Went::Elsewhere)
        }
        Err(PeerError::Lost(_)) => {
            suspect();
            errand.maybe_stored = true;
            Ok(Went::ToTheStore)
        }
    }
}

enum Gas {
    Limit(u64),
    Known(Box<TxRecord>),
}

/// The gas limit: asked for, or estimated before any nonce is given.
async fn gas(core: &Core, new: &NewTx) -> Result<Gas, Refusal> {
    if let Some(gas) = new.payload.gas.or(new.estimated_gas) {
        return Ok(Gas::Limit(gas));
    }
    // A repeat must get its original, even when the call would revert by now.
    if let Some(record) = known(core, new).await? {
        return Ok(Gas::Known(Box::new(record)));
    }
    match estimate(core, new).await {
        Ok(gas) => Ok(Gas::Limit(gas)),
        // Perhaps it was the same request, accepted meanwhile, that made the call fail.
        Err(refusal) => match known(core, new).await? {
            Some(record) => Ok(Gas::Known(Box::new(record))),
            None => Err(refusal),
        },
    }
}

/// Leaves the request in the store, where the lane's keeper finds it.
async fn queue(core: &Core, errand: &Errand) -> Result<Accepted, Refusal> {
    let queued = QueuedRequest {
        lane: errand.new.lane,
        request: errand.request(),
        at: core.ports.clock.now(),
    };
    counter!("lanekeeper_tx_queued_total").increment(1);
    // From here on the request may be stored, whatever goes wrong.
    let answers = core.ports.store.queue(vec![queued]).await;
    let tx = answers
        .map_err(|error| errand.refused(not_queued(error)))?
        .into_iter()
        .next()
        .ok_or(Refusal::OutcomeUnknown)?;
    let is_new = tx.id == errand.id;
    let record = read(core, &tx).await?;
    repeat(tx, &errand.new, record).map(|accepted| Accepted { is_new, ..accepted })
}

/// Hands the request to its lane's shard and waits for the commit.
async fn route(core: &Core, lane: LaneKey, request: AdmittedRequest) -> Result<Routed, Refusal> {
    let unknown = Refusal::UnknownSigner(lane.chain_id, lane.signer);
    let place = core.lanes.get(&lane).ok_or(unknown)?;
    let full = || {
        counter!("lanekeeper_inbox_rejected_total").increment(1);
        Refusal::Busy
    };
    let _seat = Seat::take(&place.waiting, core.config.inbox / 2).ok_or_else(full)?;
    let (answer, answered) = oneshot::channel();
    let create = PendingCreate {
        request,
        answer,
        tries: 0,
        is_repeat: false,
        maybe_stored: false,
    };
    match core.shards[place.shard].try_send(Message::Create { lane, create }) {
        Ok(()) => {}
        Err(TrySendError::Full(_)) => return Err(full()),
        Err(TrySendError::Closed(_)) => return Err(Refusal::Draining),
    }
    tokio::select! {
        biased;
        routed = answered => routed.map_err(|_gone| Refusal::OutcomeUnknown),
        () = core.ports.clock.sleep(ANSWER_DEADLINE) => Err(Refusal::OutcomeUnknown),
    }
}

/// A place among those who wait for one lane. A hot lane takes at most half of its shard's inbox, so
/// that the others still get in.
struct Seat<'a>(&'a AtomicUsize);

impl<'a> Seat<'a> {
    fn take(waiting: &'a AtomicUsize, max: usize) -> Option<Self> {
        let seat = Self(waiting);
        let before = waiting.fetch_add(1, Ordering::Relaxed);
        (before < max.max(1)).then_some(seat) // a seat that is not given is given back by its drop
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the configuration and the payload itself already tell.
fn check(core: &Core, new: &NewTx) -> Result<(), Refusal> {
    let NewTx { lane, payload, .. } = new;
    let Some(part) = core.chains.get(&lane.chain_id) else {
        return Err(Refusal::UnknownChain(lane.chain_id));
    };
    if !core.lanes.contains_key(lane) {
        return Err(Refusal::UnknownSigner(lane.chain_id, lane.signer));
    }
    reservations::check(core.lanes[lane].lent, new)?;
    let wants_1559 = payload.max_fee_per_gas.is_some()
        || payload.max_priority_fee_per_gas.is_some()
        || payload.tx_type == Some(TxType::Eip1559);
    if part.rules.lane.fee.legacy && wants_1559 {
        return Err(Refusal::BadPayload(format!(
            "chain {} takes legacy transactions only: leave out type, maxFeePerGas and \
             maxPriorityFeePerGas, or use gasPrice",
            lane.chain_id
        )));
    }
    let offered = payload.max_fee_per_gas.or(payload.gas_price);
    if offered.is_some_and(|wei| wei > part.rules.lane.fee.cap) {
        return Err(Refusal::BadPayload(format!(
            "the fee is above the cap of chain {} ({} wei per gas)",
            lane.chain_id, part.rules.lane.fee.cap
        )));
    }
    Ok(())
}

/// Tries the call out before any nonce is given, so that a call that reverts costs none.
async fn estimate(core: &Core, new: &NewTx) -> Result<u64, Refusal> {
    let part = &core.chains[&new.lane.chain_id];
    let Payload {
        to, value, data, ..
    } = &new.payload;
    let call = CallRequest {
        from: new.lane.signer,
        to: *to,
        value: *value,
        data: data.clone(),
    };
    match part.chain.estimate_gas(&call).await {
        Ok(gas) => {
            let margin = u128::from(gas) * u128::from(part.rules.gas_margin_percent) / 100;
            let is_plain = gas <= 21_000;
            // A plain transfer always costs the same: no margin, so that whole balances can move.
            Ok(if is_plain {
                gas
            } else {
                u64::try_from(margin).unwrap_or(u64::MAX).max(gas)
            })
        }
        Err(CallError::Reverted(reason)) => Err(Refusal::Reverted(reason)),
        Err(CallError::Underfunded(why)) => Err(Refusal::Underfunded(why)),
        Err(CallError::Refused(why)) => Err(Refusal::BadPayload(why)),
        Err(CallError::Chain(error)) => Err(Refusal::ChainUnavailable(error.to_string())),
    }
}

async fn known(core: &Core, new: &NewTx) -> Result<Option<TxRecord>, Refusal> {
    let found = core
        .ports
        .store
        .tx_by_request(new.lane, &new.request_id)
        .await;
    found.map_err(store_unavailable)
}

/// A tx that is known to be stored.
async fn read(core: &Core, tx: &Tx) -> Result<TxRecord, Refusal> {
    let record = core.ports.store.tx(tx.id).await.map_err(not_queued)?;
    record.ok_or(Refusal::OutcomeUnknown)
}

/// The same key again: the original when the payload is the same, a refusal when not.
fn repeat(tx: Tx, new: &NewTx, record: TxRecord) -> Result<Accepted, Refusal> {
    let is_same = tx.fingerprint == new.payload.fingerprint();
    if is_same || mutation::is_on(Mutation::ForgetFingerprint) {
        Ok(Accepted {
            record,
            is_new: false,
        })
    } else {
        Err(Refusal::KeyReused(new.request_id.clone()))
    }
}

/// Why a request is not in the queue, or perhaps is.
fn not_queued(error: StoreError) -> Refusal {
    match error {
        StoreError::Halted(reason) => Refusal::Halted(reason),
        StoreError::Unsettled(_) => store_unavailable(error),
        StoreError::Unavailable(_) | StoreError::Corrupt(_) | StoreError::Invalid(_) => {
            tracing::warn!(%error, "a request may have been queued, and its answer was lost");
            Refusal::OutcomeUnknown
        }
    }
}

fn store_unavailable(error: StoreError) -> Refusal {
    Refusal::StoreUnavailable(error.to_string())
}
