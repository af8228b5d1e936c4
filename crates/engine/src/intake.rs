//! The door: what a request must fulfil before it reaches its lane, and where it goes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use domain::lane::Request;
use domain::{LaneKey, NodeName, Payload, Tx, TxType};
use metrics::counter;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;

use crate::core::Core;
use crate::gate::{PendingCreate, Routed};
use crate::node::{Accepted, NewTx, NonKeeper, Refusal};
use crate::ports::{Call, CallFailed, NewQueued, StoreError, TxRecord};
use crate::shard::Message;

/// How long a caller is held while the store is asked what became of its commit.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Accepts one request: durable when this returns `Ok`.
pub(crate) async fn create(core: &Core, new: NewTx) -> Result<Accepted, Refusal> {
    let result = accept(core, new).await;
    let word = match &result {
        Ok(accepted) if accepted.is_new => "new",
        Ok(_) => "existing",
        Err(_) => "refused",
    };
    counter!("lanekeeper_tx_create_total", "result" => word).increment(1);
    result
}

async fn accept(core: &Core, new: NewTx) -> Result<Accepted, Refusal> {
    if core.is_draining() {
        return Err(Refusal::Draining);
    }
    check(core, &new)?;
    let fingerprint = new.payload.fingerprint();
    let gas = match new.payload.gas {
        Some(gas) => gas,
        None => {
            // A repeat must get its original, even when the call would revert by now.
            if let Some(record) = known(core, &new).await? {
                return repeat(record.tx.clone(), &new, record);
            }
            match estimate(core, &new).await {
                Ok(gas) => gas,
                // Perhaps it was the same request, accepted meanwhile, that made the call fail.
                Err(refusal) => match known(core, &new).await? {
                    Some(record) => return repeat(record.tx.clone(), &new, record),
                    None => return Err(refusal),
                },
            }
        }
    };
    let id = core.ports.clock.tx_id();
    let request = Request {
        id,
        request_id: new.request_id.clone(),
        fingerprint,
        payload: new.payload.clone(),
        gas,
    };
    match route(core, new.lane, request.clone()).await? {
        Routed::Accepted(accepted) => Ok(*accepted),
        Routed::Known(tx) => {
            let record = read(core, &tx).await?;
            repeat(*tx, &new, record)
        }
        Routed::NotKeeper(node) => not_keeper(core, &new, request, node).await,
        Routed::Refused(refusal) => Err(refusal),
    }
}

/// Hands the request to its lane's shard and waits for the commit.
async fn route(core: &Core, lane: LaneKey, request: Request) -> Result<Routed, Refusal> {
    let unknown = Refusal::UnknownSigner(lane.chain_id, lane.signer);
    let place = core.lanes.get(&lane).ok_or(unknown)?;
    let _seat = Seat::take(&place.waiting, core.config.inbox / 2).ok_or(Refusal::Busy)?;
    let (answer, answered) = oneshot::channel();
    let create = PendingCreate {
        request,
        answer,
        tries: 0,
        maybe_stored: false,
    };
    match core.shards[place.shard].try_send(Message::Create { lane, create }) {
        Ok(()) => {}
        Err(TrySendError::Full(_)) => return Err(Refusal::Busy),
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
    let call = Call {
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
        Err(CallFailed::Reverted(reason)) => Err(Refusal::Reverted(reason)),
        Err(CallFailed::Underfunded(why)) => Err(Refusal::Underfunded(why)),
        Err(CallFailed::Refused(why)) => Err(Refusal::BadPayload(why)),
        Err(CallFailed::Chain(error)) => Err(Refusal::ChainUnavailable(error.to_string())),
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
    let record = core.ports.store.tx(tx.id).await.map_err(outcome_unknown)?;
    record.ok_or(Refusal::OutcomeUnknown)
}

/// The same key again: the original when the payload is the same, a refusal when not.
fn repeat(tx: Tx, new: &NewTx, record: TxRecord) -> Result<Accepted, Refusal> {
    if tx.fingerprint == new.payload.fingerprint() {
        Ok(Accepted {
            record,
            is_new: false,
        })
    } else {
        Err(Refusal::KeyReused(new.request_id.clone()))
    }
}

/// Another node keeps the lane: the request is left in the store for it, or refused.
async fn not_keeper(
    core: &Core,
    new: &NewTx,
    request: Request,
    node: NodeName,
) -> Result<Accepted, Refusal> {
    match core.config.non_keeper {
        NonKeeper::Reject => match known(core, new).await? {
            // A commit whose answer was lost may have stored it before the lane changed hands.
            Some(record) => repeat(record.tx.clone(), new, record),
            None => Err(Refusal::NotKeeper(node)),
        },
        NonKeeper::Queue => {
            let id = request.id;
            let queued = NewQueued {
                lane: new.lane,
                request,
                at: core.ports.clock.now(),
            };
            // From here on the request may be stored, whatever goes wrong.
            let answers = core
                .ports
                .store
                .queue(vec![queued])
                .await
                .map_err(outcome_unknown)?;
            let tx = answers.into_iter().next().ok_or(Refusal::OutcomeUnknown)?;
            let is_new = tx.id == id;
            let record = read(core, &tx).await?;
            repeat(tx, new, record).map(|accepted| Accepted { is_new, ..accepted })
        }
    }
}

fn outcome_unknown(error: StoreError) -> Refusal {
    tracing::warn!(%error, "a request may have been queued, and its answer was lost");
    Refusal::OutcomeUnknown
}

fn store_unavailable(error: StoreError) -> Refusal {
    Refusal::StoreUnavailable(error.to_string())
}
