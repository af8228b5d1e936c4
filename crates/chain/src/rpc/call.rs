//! Trying calls out: estimates, and what made a mined transaction revert.

use domain::Inclusion;
use engine::ports::{CallError, CallRequest};
use serde::de::IgnoredAny;
use serde_json::json;

use super::answers::{MinedTx, Quantity};
use super::endpoint::Endpoint;
use super::failure::Failure;
use super::read::quantity;
use super::revert;
use super::wire::NodeError;
use crate::classify::Meaning;

/// The inner result is final; a failure is one of this endpoint, and another may be asked.
pub(super) async fn estimate_gas(
    endpoint: &Endpoint,
    call: &CallRequest,
) -> Result<Result<u64, CallError>, Failure> {
    let mut message = json!({ "from": call.from, "value": call.value, "data": call.data });
    if let Some(to) = call.to {
        message["to"] = json!(to);
    }
    match endpoint
        .ask::<Quantity>("eth_estimateGas", &json!([message]))
        .await?
    {
        Ok(gas) => Ok(Ok(gas.0)),
        Err(error) => refused(error).map(Err),
    }
}

/// Whether an error lies in the call or in the node.
fn refused(error: NodeError) -> Result<CallError, Failure> {
    // JSON-RPC's own codes for "internal error", "no such method" and "limit exceeded".
    const CODES_OF_THE_NODE: [i64; 3] = [-32603, -32601, -32005];
    if let Some(reason) = revert::reason(&error) {
        return Ok(CallError::Reverted(reason));
    }
    match error.complaint().meaning() {
        Meaning::Funds => Ok(CallError::Underfunded(error.message)),
        Meaning::NotReady | Meaning::Throttled => Err(Failure::Node(error)),
        Meaning::Known
        | Meaning::NonceUsed
        | Meaning::ReplacementTooCheap
        | Meaning::BelowMinimum
        | Meaning::BelowBaseFee
        | Meaning::PoolFull
        | Meaning::AccountLimit
        | Meaning::TooFarAhead
        | Meaning::Delegated
        | Meaning::TypeConflict
        | Meaning::Gas
        | Meaning::Shape
        | Meaning::Identity
        | Meaning::NodePolicy
        | Meaning::Executed
        | Meaning::Forwarded
        | Meaning::Unknown => {
            if CODES_OF_THE_NODE.contains(&error.code) {
                return Err(Failure::Node(error));
            }
            Ok(CallError::Refused(error.message))
        }
    }
}

/// Runs the mined transaction again. First on the state after its block, which has everything
/// that ran before it, then on the state before the block. Both are approximations, so that a run
/// that succeeds proves nothing.
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
            .ask::<IgnoredAny>("eth_call", &json!([message, quantity(block)]))
            .await?;
        if let Err(error) = answer
            && let Some(reason) = revert::reason(&error)
        {
            return Ok(Some(reason));
        }
    }
    let burnt = inclusion.gas_used >= tx.gas.0;
    Ok(burnt.then(|| "all gas was used".to_owned()))
}
