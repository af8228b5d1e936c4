//! Accounts, storage and execution at the head. Older states are not kept; a query for one is an error, never an
//! answer from another block.

use alloy_primitives::{Address, B256, Bytes, U64, U256, hex};
use alloy_rpc_types_eth::{BlockId, BlockNumberOrTag, TransactionRequest};
use serde_json::Value;

use super::blocks::find;
use super::error::RpcError;
use super::params::Params;
use super::{Answer, calls, json};
use crate::Inner;
use crate::store::{BlockRow, View};

pub(super) fn call(chain: &Inner, method: &str, params: &Params) -> Option<Answer> {
    Some(match method {
        "eth_getBalance" => at_head(chain, params, 1, |view, address| {
            json(&view.account(address)?.unwrap_or_default().balance)
        }),
        "eth_getCode" => at_head(chain, params, 1, |view, address| {
            let account = view.account(address)?.unwrap_or_default();
            let code = account
                .has_code()
                .then(|| view.code(account.code_hash))
                .transpose()?;
            json(&code.map_or(Bytes::new(), |code| code.original_bytes()))
        }),
        "eth_getStorageAt" => params.required::<U256>(1).and_then(|key| {
            at_head(chain, params, 2, |view, address| {
                json(&B256::from(view.slot(address, key)?.to_be_bytes()))
            })
        }),
        "eth_getTransactionCount" => transaction_count(chain, params),
        "eth_call" => simulate(chain, params, |chain, view, block, request| {
            json(&calls::call(&chain.node, view, &block, request)?)
        }),
        "eth_estimateGas" => simulate(chain, params, |chain, view, block, request| {
            json(&U64::from(calls::estimate(
                &chain.node,
                view,
                &block,
                request,
            )?))
        }),
        _ => return None,
    })
}

/// Reads something about the account in argument 0, at the block in argument `block_at`.
fn at_head(
    chain: &Inner,
    params: &Params,
    block_at: usize,
    read: impl FnOnce(View<'_>, Address) -> Answer,
) -> Answer {
    params.at_most(block_at + 1)?;
    let address = params.required(0)?;
    let id = params.block(block_at)?;
    chain.node.readers.read(|view| {
        head_state(view, id)?;
        read(view, address)
    })
}

fn transaction_count(chain: &Inner, params: &Params) -> Answer {
    params.at_most(2)?;
    let pending = if params.block(1)?.is_pending() {
        chain.node.pool().next_nonce(params.required(0)?)
    } else {
        None
    };
    match pending {
        Some(nonce) => json(&U64::from(nonce)),
        None => at_head(chain, params, 1, |view, address| {
            json(&U64::from(view.account(address)?.unwrap_or_default().nonce))
        }),
    }
}

fn simulate(
    chain: &Inner,
    params: &Params,
    run: impl FnOnce(&Inner, View<'_>, calls::Place, TransactionRequest) -> Answer,
) -> Answer {
    params.at_most(3)?;
    let request = params.required(0)?;
    let id = params.block(1)?;
    if params
        .optional::<Value>(2)?
        .is_some_and(|overrides| overrides != Value::Object(Default::default()))
    {
        return Err(RpcError::invalid_params(
            "invalid argument 2: state overrides are not supported",
        ));
    }
    chain.node.readers.read(|view| {
        let head = head_state(view, id)?;
        let place = calls::Place::new(&chain.node, &head, id.is_pending());
        run(chain, view, place, request)
    })
}

/// The head, if the query is for its state. The pending state counts as the head's: pooled txs are not executed
/// before their block.
fn head_state(view: View<'_>, id: BlockId) -> Result<BlockRow, RpcError> {
    let head = view.head()?;
    if matches!(id, BlockId::Number(BlockNumberOrTag::Pending)) {
        return Ok(head);
    }
    match find(view, id)? {
        None => Err(RpcError::server("header not found")),
        Some(block) if block.hash == head.hash => Ok(head),
        Some(block) => {
            let root = block.header.state_root;
            let hash = hex::encode(root);
            let text = format!("missing trie node {hash} (path ) state {root} is not available");
            Err(RpcError::server(text))
        }
    }
}
