//! What intake checks and looks up before a request is routed. The rules themselves are in `domain::admission`.

use domain::admission::{self, AdmissionError};
use domain::lane::BalanceCheck;
use domain::{FeeQuote, LaneKey, Payload, TxId};
use tokio::sync::SemaphorePermit;

use crate::core::{ChainState, Core};
use crate::head_limits::head_limits;
use crate::node::{AcceptedTx, NewTx, Refusal, Simulate};
use crate::ports::{CallError, CallRequest, TxRecord};
use crate::shard::lookup_refusal;

/// Checks a request against the configuration and the admission rules.
pub(super) fn check_admission(core: &Core, new: &NewTx) -> Result<(), Refusal> {
    let NewTx { lane, payload, .. } = new;
    let Some(chain_state) = core.chains.get(&lane.chain_id) else {
        return Err(Refusal::UnknownChain(lane.chain_id));
    };
    let Some(entry) = core.lanes.entries.get(lane) else {
        return Err(Refusal::UnknownSigner(lane.chain_id, lane.signer));
    };
    let takes_reservations = entry.reservations.is_some();
    admission::check_request_kind(*lane, takes_reservations, &new.request_id, payload)
        .and_then(|()| admission::check_fees(lane.chain_id, &chain_state.rules.lane.fee, payload))
        .map_err(refusal_of)
}

/// Checks that the chain can execute a request with this gas limit. Without a view of the chain the configured limits and
/// the rules of every chain hold, and the lane finds out the rest.
pub(super) fn check_execution(core: &Core, new: &NewTx, gas: u64) -> Result<(), AdmissionError> {
    let NewTx { lane, payload, .. } = new;
    let chain_state = core.chain(lane.chain_id);
    let is_reservation = core.reservations(*lane).is_some();
    if is_reservation {
        return Ok(()); // nothing is sent from here
    }
    check_quote(chain_state, known_quote(chain_state), (*lane, payload, gas))
}

/// Has a refusal that stems from the followed head confirmed by what a second endpoint shows.
pub(super) async fn confirm_refusal(
    core: &Core,
    new: &NewTx,
    gas: u64,
    refusal: AdmissionError,
) -> Result<(), Refusal> {
    let NewTx { lane, payload, .. } = new;
    let chain_state = core.chain(lane.chain_id);
    let quote = known_quote(chain_state);
    let limits = match refusal.stems_from_head() {
        true => head_limits(core, lane.chain_id).await,
        false => None,
    };
    let Some(relaxed) = limits.map(|limits| limits.relax(quote)) else {
        return Err(refusal_of(refusal));
    };
    check_quote(chain_state, relaxed, (*lane, payload, gas)).map_err(refusal_of)?;
    tracing::warn!(%lane, %refusal, "the followed head refuses a request that another endpoint's head admits; it is admitted");
    Ok(())
}

fn check_quote(
    chain_state: &ChainState,
    quote: FeeQuote,
    (lane, payload, gas): (LaneKey, &Payload, u64),
) -> Result<(), AdmissionError> {
    let (fee, tx_gas_cap) = (&chain_state.rules.lane.fee, chain_state.rules.tx_gas_cap);
    admission::check_execution(lane.chain_id, fee, tx_gas_cap, quote, (payload, gas))
}

fn known_quote(chain_state: &ChainState) -> FeeQuote {
    let view = chain_state.view.get();
    view.map_or(FeeQuote::LEAST, |view| view.fee)
}

fn refusal_of(error: AdmissionError) -> Refusal {
    let why = error.to_string();
    match error {
        AdmissionError::FeeAboveCap { .. }
        | AdmissionError::ReservationsOnly(_)
        | AdmissionError::ReservedRequestId => Refusal::BadPayload(why),
        AdmissionError::Underfunded(_) => Refusal::Underfunded(why),
        AdmissionError::LegacyOnly(_) => Refusal::TypeNotSupported(why),
        AdmissionError::GasAboveLimit { .. } => Refusal::GasAboveLimit(why),
        AdmissionError::GasTooLow { .. } => Refusal::GasTooLow(why),
        AdmissionError::FeeTooLow { .. } | AdmissionError::TipBelowFloor { .. } => {
            Refusal::FeeBelowFloor(why)
        }
    }
}

/// A request that is not admitted now may have been accepted before: then it has its original answer.
pub(super) async fn refuse_unless_known(
    core: &Core,
    new: &NewTx,
    refusal: Refusal,
) -> Result<AcceptedTx, Refusal> {
    match find_by_request_id(core, new).await? {
        Some(record) => answer_repeat(record, new),
        None => Err(refusal),
    }
}

pub(super) enum GasDecision {
    Limit(u64),
    /// The request was accepted before: no gas limit is needed.
    Existing(Box<TxRecord>),
}

/// The gas limit: named by the caller, or estimated before any nonce is allocated. The call is simulated as
/// `admission.simulate` says.
pub(super) async fn determine_gas_limit(core: &Core, new: &NewTx) -> Result<GasDecision, Refusal> {
    let is_reservation = core.reservations(new.lane).is_some();
    match (new.estimated_gas.or(new.payload.gas), core.config.simulate) {
        // Another node of the cluster has admitted it, or nothing is sent from here.
        (Some(gas), _) if new.estimated_gas.is_some() || is_reservation => {
            return Ok(GasDecision::Limit(gas));
        }
        (Some(gas), Simulate::Auto | Simulate::Never) => return Ok(GasDecision::Limit(gas)),
        (Some(_), Simulate::Always) | (None, _) => {}
    }
    // A repeat must get its original tx, even when the call would revert by now.
    if let Some(record) = find_by_request_id(core, new).await? {
        return Ok(GasDecision::Existing(Box::new(record)));
    }
    match simulate_call(core, new).await {
        Ok(gas) => Ok(GasDecision::Limit(gas)),
        // The same request, accepted meanwhile, may be what made the call fail.
        Err(refusal) => match find_by_request_id(core, new).await? {
            Some(record) => Ok(GasDecision::Existing(Box::new(record))),
            None => Err(refusal),
        },
    }
}

/// Simulates the call before any nonce is allocated, so that a call that reverts consumes none. Returns its gas limit.
async fn simulate_call(core: &Core, new: &NewTx) -> Result<u64, Refusal> {
    if core.config.simulate == Simulate::Never {
        let why = "gas is missing, and nothing is estimated here (admission.simulate is \"never\"): name it in the payload";
        return Err(Refusal::BadPayload(why.to_owned()));
    }
    let chain_state = &core.chains[&new.lane.chain_id];
    let Payload {
        to, value, data, ..
    } = &new.payload;
    let rules = &chain_state.rules;
    let gas_max = admission::gas_max(rules.tx_gas_cap, known_quote(chain_state));
    let call = CallRequest {
        from: new.lane.signer,
        to: *to,
        value: *value,
        data: data.clone(),
        gas_max: new.payload.gas.into_iter().chain(gas_max).min(),
    };
    match chain_state.chain.estimate_gas(&call).await {
        Ok(least) => match new.payload.gas {
            Some(gas) if gas < least => Err(refusal_of(AdmissionError::GasTooLow { gas, least })),
            Some(gas) => Ok(gas),
            None => Ok(admission::gas_limit(
                least,
                rules.gas_margin_percent,
                gas_max,
            )),
        },
        Err(CallError::Reverted(reason)) => Err(Refusal::Reverted(reason)),
        Err(CallError::Underfunded(why)) => Err(match rules.lane.balance {
            BalanceCheck::Check => Refusal::Underfunded(why),
            BalanceCheck::Off => Refusal::BadPayload(format!(
                "gas cannot be estimated while the account lacks the value of the call ({why}): name it in the payload"
            )),
        }),
        Err(CallError::Refused(why)) => Err(Refusal::BadPayload(why)),
        Err(CallError::Chain(error)) => Err(Refusal::ChainUnavailable(error.to_string())),
    }
}

/// How many requests are looked up at once. The store's connections for this serve the opening of lanes as well: a flood
/// of requests must leave it one. Each of the others waits with its caller, of which there is a bounded number.
pub(crate) const LOOKUPS_MAX: usize = 1;

async fn wait_for_lookup(core: &Core) -> Result<SemaphorePermit<'_>, Refusal> {
    let permit = core.lanes.lookups.acquire().await;
    permit.map_err(|_closed| Refusal::OutcomeUnknown)
}

pub(super) async fn find_by_request_id(
    core: &Core,
    new: &NewTx,
) -> Result<Option<TxRecord>, Refusal> {
    let _permit = wait_for_lookup(core).await?;
    let found = core.ports.store.tx_by_request(new.lane, &new.request_id);
    found.await.map_err(|error| lookup_refusal(&error))
}

/// Reads a tx that is known to be stored.
pub(super) async fn read_stored_tx(core: &Core, id: TxId) -> Result<TxRecord, Refusal> {
    let _permit = wait_for_lookup(core).await?;
    let record = core.ports.store.tx(id).await.map_err(Refusal::of_write)?;
    record.ok_or(Refusal::OutcomeUnknown)
}

/// The answer to a repeated request id: the original tx when the payload is the same, a refusal otherwise.
pub(super) fn answer_repeat(record: TxRecord, new: &NewTx) -> Result<AcceptedTx, Refusal> {
    if record.tx.request.fingerprint == new.payload.fingerprint() {
        Ok(AcceptedTx {
            record,
            is_new: false,
        })
    } else {
        Err(Refusal::KeyReused(new.request_id.clone()))
    }
}
