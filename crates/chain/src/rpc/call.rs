//! Dry runs: gas estimates, and the revert reason of a mined tx.

use alloy_primitives::U256;
use domain::Inclusion;
use engine::ports::{CallError, CallRequest};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::answers::{MinedTx, Quantity};
use super::endpoint::{CallKind, Endpoint};
use super::endpoints::Endpoints;
use super::failure::{Failure, endpoints_failed};
use super::read::quantity;
use super::revert;
use super::wire::{NodeError, Outcome};
use crate::classify::NodeErrorKind;

/// An estimate that admits the call is final. One that refuses it is confirmed by a second endpoint where another one
/// answers in time: a single endpoint that is wrong must not refuse what the others would take.
pub(super) async fn estimate_from_endpoints(
    endpoints: &Endpoints,
    call: &CallRequest,
) -> Result<u64, CallError> {
    let is_admitted = |gas: u64| call.gas_max.is_none_or(|most| gas <= most);
    let mut failures = Vec::new();
    let mut refusal: Option<Result<u64, CallError>> = None;
    for turn in endpoints.turns_for(CallKind::DryRun) {
        let turn = match &refusal {
            None => Some(turn),
            Some(_) => turn.to_confirm(),
        };
        let Some(turn) = turn else {
            break; // those after it are no better
        };
        match turn.answer(1, estimate_gas(turn.endpoint, call)).await {
            Ok(Ok(gas)) if is_admitted(gas) => return Ok(gas),
            Ok(answer) => match refusal.take() {
                None => refusal = Some(answer),
                Some(first) => return clearer_refusal(first, answer),
            },
            Err(failure) => failures.push((turn.endpoint.name(), failure)),
        }
    }
    refusal.unwrap_or_else(|| Err(endpoints_failed(&failures).into()))
}

/// Of two answers that both refuse a call: the lower estimate, and rather a reason than an unknown text.
fn clearer_refusal(
    one: Result<u64, CallError>,
    other: Result<u64, CallError>,
) -> Result<u64, CallError> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok(one.min(other)),
        (Ok(_) | Err(CallError::Refused(_)), Err(clear)) => Err(clear),
        (refusal, _) => refusal,
    }
}

/// The inner result is an answer; after a failure of this endpoint another one may be queried.
async fn estimate_gas(
    endpoint: &Endpoint,
    call: &CallRequest,
) -> Result<Result<u64, CallError>, Failure> {
    match query_estimate(endpoint, &json!([message(call, call.value)])).await? {
        Ok(gas) => Ok(Ok(gas)),
        Err(error) => match classify_error(error)? {
            CallError::Underfunded(why) => estimate_as_funded(endpoint, call, why).await,
            refusal @ (CallError::Reverted(_) | CallError::Refused(_) | CallError::Chain(_)) => {
                Ok(Err(refusal))
            }
        },
    }
}

/// The gas that a call needs whose account cannot pay its value. An estimate does not decide about money: that takes the
/// balance of a block, and what is open.
async fn estimate_as_funded(
    endpoint: &Endpoint,
    call: &CallRequest,
    why: String,
) -> Result<Result<u64, CallError>, Failure> {
    let balance = call.value.saturating_add(U256::from(u128::MAX));
    let overrides = json!({ call.from.to_string(): { "balance": balance } });
    let funded = json!([message(call, call.value), "latest", overrides]);
    match query_estimate(endpoint, &funded).await? {
        Ok(gas) => return Ok(Ok(gas)),
        Err(error) => {
            if let Some(reason) = revert::revert_reason(&error) {
                return Ok(Err(CallError::Reverted(reason)));
            }
        }
    }
    // Not every node can override the state. What a transfer costs does not depend on its value.
    if call.to.is_some() && call.data.is_empty() {
        let without_value = json!([message(call, U256::ZERO)]);
        if let Ok(gas) = query_estimate(endpoint, &without_value).await? {
            return Ok(Ok(gas));
        }
    }
    Ok(Err(CallError::Underfunded(why)))
}

async fn query_estimate(endpoint: &Endpoint, params: &Value) -> Result<Outcome<u64>, Failure> {
    let answer = endpoint
        .query::<Quantity>("eth_estimateGas", params)
        .await?;
    Ok(answer.map(|gas| gas.0))
}

fn message(call: &CallRequest, value: U256) -> Value {
    let mut message = json!({ "from": call.from, "value": value, "data": call.data });
    if let Some(to) = call.to {
        message["to"] = json!(to);
    }
    message
}

/// Distinguishes an error of the call from a failure of the node. An unknown text counts as one of the call where a second
/// endpoint refuses it as well.
fn classify_error(error: NodeError) -> Result<CallError, Failure> {
    // JSON-RPC's own codes for "internal error", "no such method" and "limit exceeded".
    const NODE_FAILURE_CODES: [i64; 3] = [-32603, -32601, -32005];
    if let Some(reason) = revert::revert_reason(&error) {
        return Ok(CallError::Reverted(reason));
    }
    let kind = error.kind();
    if kind == NodeErrorKind::InsufficientFunds {
        return Ok(CallError::Underfunded(error.message));
    }
    let is_node_failure = matches!(kind, NodeErrorKind::NotReady | NodeErrorKind::RateLimited)
        || NODE_FAILURE_CODES.contains(&error.code);
    if is_node_failure {
        return Err(Failure::Node(error));
    }
    Ok(CallError::Refused(error.message))
}

/// The most requests that [`revert_reason`] makes.
pub(super) const REVERT_REASON_REQUESTS: usize = 3;

/// Executes the mined tx again, first on the state after its block, which includes all txs before it, then on the
/// state before the block. Both are approximations, so a successful run proves nothing.
pub(super) async fn revert_reason(
    endpoint: &Endpoint,
    inclusion: &Inclusion,
) -> Result<Option<String>, Failure> {
    let found: Option<MinedTx> = endpoint
        .call("eth_getTransactionByHash", &json!([inclusion.tx_hash]))
        .await?;
    let Some(tx) = found else { return Ok(None) };
    let mut message = json!({
        "from": tx.from, "value": tx.value, "data": tx.input, "gas": quantity(tx.gas.0),
    });
    if let Some(to) = tx.to {
        message["to"] = json!(to);
    }
    let number = inclusion.block_number;
    for block in [number, number.saturating_sub(1)] {
        let answer = endpoint
            .query::<IgnoredAny>("eth_call", &json!([message, quantity(block)]))
            .await?;
        if let Err(error) = answer
            && let Some(reason) = revert::revert_reason(&error)
        {
            return Ok(Some(reason));
        }
    }
    let is_out_of_gas = inclusion.gas_used >= tx.gas.0;
    Ok(is_out_of_gas.then(|| "all gas was used".to_owned()))
}
