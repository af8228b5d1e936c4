//! Dry runs: gas estimates, and the revert reason of a mined tx.

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
use crate::classify::NodeErrorKind;

/// The inner result is final; after a failure of this endpoint another one may be queried.
pub(super) async fn estimate_gas(
    endpoint: &Endpoint,
    call: &CallRequest,
) -> Result<Result<u64, CallError>, Failure> {
    let mut message = json!({ "from": call.from, "value": call.value, "data": call.data });
    if let Some(to) = call.to {
        message["to"] = json!(to);
    }
    match endpoint
        .query::<Quantity>("eth_estimateGas", &json!([message]))
        .await?
    {
        Ok(gas) => Ok(Ok(gas.0)),
        Err(error) => classify_error(error).map(Err),
    }
}

/// Distinguishes an error of the call from a failure of the node.
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
