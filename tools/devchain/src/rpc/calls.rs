//! `eth_call` and `eth_estimateGas`: execution without a signature and without traces.

use alloy_primitives::{Bytes, TxKind, U256};
use alloy_rpc_types_eth::TransactionRequest;
use alloy_sol_types::{Panic, Revert, SolError};
use revm::context::TxEnv;
use revm::context::result::{EVMError, ExecutionResult, HaltReason, InvalidTransaction};

use super::error::RpcError;
use crate::evm::{self, BlockContext, Failure};
use crate::limits::{CALL_GAS_MAX, TX_GAS_MAX};
use crate::node::Node;
use crate::state::Overlay;
use crate::store::{BlockRow, View};

const PLAIN_TRANSFER_GAS: u64 = 21_000;
const CALL_STIPEND: u64 = 2_300;
/// An estimate may be this much too high, in thousandths; geth's choice, to save executions.
const ESTIMATE_ERROR_PER_MILLE: u64 = 15;

/// The block that a call believes to be in.
pub(super) struct Place(BlockContext);

impl Place {
    pub(super) fn new(node: &Node, head: &BlockRow, pending: bool) -> Self {
        Self(if pending {
            node.next_context(&head.header, head.hash)
        } else {
            BlockContext::from_header(&head.header)
        })
    }
}

pub(super) fn call(
    node: &Node,
    view: View<'_>,
    place: &Place,
    request: TransactionRequest,
) -> Result<Bytes, RpcError> {
    let gas_max = CALL_GAS_MAX.min(place.0.gas_limit);
    let gas = request.gas.unwrap_or(gas_max).min(gas_max);
    let result = run(node, view, place, &message(request)?, gas)?;
    match result.map_err(|error| invalid(&error, gas))? {
        ExecutionResult::Success { output, .. } => Ok(output.into_data()),
        ExecutionResult::Revert { output, .. } => Err(reverted(output)),
        ExecutionResult::Halt { reason, .. } => Err(RpcError::server(halted(&reason))),
    }
}

/// geth's search: the least gas limit, within a small error, with which the message succeeds.
pub(super) fn estimate(
    node: &Node,
    view: View<'_>,
    place: &Place,
    request: TransactionRequest,
) -> Result<u64, RpcError> {
    let wanted = request.gas.filter(|gas| *gas >= PLAIN_TRANSFER_GAS);
    let message = message(request)?;
    let gas_max = wanted
        .unwrap_or(place.0.gas_limit)
        .min(TX_GAS_MAX)
        .min(place.0.gas_limit);
    let mut high = gas_max.min(affordable_gas(view, &message)?);
    // `None`: failed for a reason that more gas could cure.
    let succeeds = |gas: u64| match run(node, view, place, &message, gas)? {
        Ok(result) => Ok(Some(result)),
        Err(
            InvalidTransaction::CallGasCostMoreThanGasLimit { .. }
            | InvalidTransaction::GasFloorMoreThanGasLimit { .. },
        ) => Ok(None),
        Err(error) => Err(invalid(&error, gas)),
    };
    if is_plain_transfer(view, &message)?
        && succeeds(PLAIN_TRANSFER_GAS)?.is_some_and(|result| result.is_success())
    {
        return Ok(PLAIN_TRANSFER_GAS);
    }
    let too_little = || RpcError::server(format!("gas required exceeds allowance ({high})"));
    let gas = match succeeds(high)? {
        Some(ExecutionResult::Success { gas, .. }) => gas,
        Some(ExecutionResult::Revert { output, .. }) => return Err(reverted(output)),
        None
        | Some(ExecutionResult::Halt {
            reason: HaltReason::OutOfGas(_),
            ..
        }) => {
            return Err(too_little());
        }
        Some(ExecutionResult::Halt { reason, .. }) => {
            return Err(RpcError::server(halted(&reason)));
        }
    };
    let mut low = gas.tx_gas_used().saturating_sub(1);
    let optimistic = (gas.total_gas_spent().max(gas.floor_gas()) + CALL_STIPEND) * 64 / 63;
    let mut middle = optimistic;
    while low + 1 < high && (high - low) * 1000 / high >= ESTIMATE_ERROR_PER_MILLE {
        if middle <= low || middle >= high {
            // Skewed to the low side: most txs need little more than they use.
            middle = (low + (high - low) / 2).min(low.saturating_mul(2).max(low + 1));
        }
        if succeeds(middle)?.is_some_and(|result| result.is_success()) {
            high = middle;
        } else {
            low = middle;
        }
        middle = 0;
    }
    Ok(high)
}

fn is_plain_transfer(view: View<'_>, message: &TxEnv) -> Result<bool, RpcError> {
    let TxKind::Call(to) = message.kind else {
        return Ok(false);
    };
    let has_code = view.account(to)?.is_some_and(|account| account.has_code());
    Ok(message.data.is_empty() && !has_code)
}

/// How much gas the sender could pay at the price it names.
fn affordable_gas(view: View<'_>, message: &TxEnv) -> Result<u64, RpcError> {
    if message.gas_price == 0 {
        return Ok(u64::MAX);
    }
    let balance = view.account(message.caller)?.unwrap_or_default().balance;
    if message.value > balance {
        return Err(RpcError::server("insufficient funds for transfer"));
    }
    let gas = (balance - message.value) / U256::from(message.gas_price);
    Ok(u64::try_from(gas).unwrap_or(u64::MAX))
}

fn message(request: TransactionRequest) -> Result<TxEnv, RpcError> {
    let unsupported = |what: &str| RpcError::invalid_params(format!("invalid argument 0: {what}"));
    if request.blob_versioned_hashes.is_some() || request.authorization_list.is_some() {
        return Err(unsupported(
            "blob and set-code transactions are not supported",
        ));
    }
    if request.gas_price.is_some() && request.max_fee_per_gas.is_some() {
        return Err(unsupported(
            "both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified",
        ));
    }
    let mut message = TxEnv {
        caller: request.from.unwrap_or_default(),
        gas_price: request
            .max_fee_per_gas
            .or(request.gas_price)
            .unwrap_or_default(),
        kind: request.to.unwrap_or(TxKind::Create),
        value: request.value.unwrap_or_default(),
        data: request.input.into_input().unwrap_or_default(),
        nonce: 0,
        chain_id: request.chain_id,
        access_list: request.access_list.unwrap_or_default(),
        gas_priority_fee: request.max_priority_fee_per_gas,
        ..TxEnv::default()
    };
    // A tip without a fee cap pays nothing, like everything without a fee cap.
    if request.max_fee_per_gas.is_none() {
        message.gas_priority_fee = None;
    }
    message
        .derive_tx_type()
        .map_err(|error| unsupported(&error.to_string()))?;
    Ok(message)
}

/// The outer error is the node's, the inner one the message's.
fn run(
    node: &Node,
    view: View<'_>,
    place: &Place,
    message: &TxEnv,
    gas: u64,
) -> Result<Result<ExecutionResult, InvalidTransaction>, RpcError> {
    let message = TxEnv {
        gas_limit: gas,
        ..message.clone()
    };
    let failure: Failure =
        match evm::call(node.rules.chain_id, &place.0, Overlay::new(view), message) {
            Ok(result) => return Ok(Ok(result)),
            Err(failure) => failure,
        };
    match failure {
        EVMError::Transaction(error) => Ok(Err(error)),
        EVMError::Database(error) => Err(error.into()),
        EVMError::Header(_) | EVMError::Custom(_) | EVMError::CustomAny(_) => {
            Err(RpcError::server(failure.to_string()))
        }
    }
}

fn reverted(output: Bytes) -> RpcError {
    let reason = Revert::abi_decode(&output)
        .map(|revert| revert.reason)
        .or_else(|_| Panic::abi_decode(&output).map(|panic| panic.to_string()));
    let message = match reason {
        Ok(reason) => format!("execution reverted: {reason}"),
        Err(_) => "execution reverted".to_owned(),
    };
    RpcError::reverted(message, output)
}

/// With geth's text where it has one.
#[expect(clippy::wildcard_enum_match_arm, reason = "rare ones have revm's name")]
fn halted(reason: &HaltReason) -> String {
    match reason {
        HaltReason::OutOfGas(_) => "out of gas".to_owned(),
        HaltReason::InvalidFEOpcode => "invalid opcode: INVALID".to_owned(),
        HaltReason::OpcodeNotFound => "invalid opcode".to_owned(),
        HaltReason::InvalidJump => "invalid jump destination".to_owned(),
        HaltReason::StackUnderflow => "stack underflow".to_owned(),
        HaltReason::StackOverflow => "stack limit reached 1024".to_owned(),
        HaltReason::CreateCollision => "contract address collision".to_owned(),
        HaltReason::CreateContractSizeLimit => "max code size exceeded".to_owned(),
        other => format!("{other:?}"),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "rare ones have revm's text")]
fn invalid(error: &InvalidTransaction, gas: u64) -> RpcError {
    let text = match error {
        InvalidTransaction::LackOfFundForMaxFee { fee, balance } => {
            format!("insufficient funds for gas * price + value: have {balance} want {fee}")
        }
        InvalidTransaction::CallGasCostMoreThanGasLimit {
            initial_gas,
            gas_limit,
        } => {
            format!("intrinsic gas too low: have {gas_limit}, want {initial_gas}")
        }
        InvalidTransaction::GasPriceLessThanBasefee => {
            "max fee per gas less than block base fee".to_owned()
        }
        InvalidTransaction::PriorityFeeGreaterThanMaxFee => {
            "max priority fee per gas higher than max fee per gas".to_owned()
        }
        other => other.to_string(),
    };
    RpcError::server(format!("err: {text} (supplied gas {gas})"))
}
