//! Blocks, txs and receipts.

use alloy_consensus::Header;
use alloy_primitives::{B256, U64};
use alloy_rpc_types_eth::{BlockId, BlockNumberOrTag, BlockTransactions};
use serde_json::Value;

use super::error::RpcError;
use super::params::Params;
use super::{Answer, json, render};
use crate::store::{BlockRow, View};
use crate::{Inner, limits};

/// Depth of the `safe` and `finalized` blocks: one and two epochs, as anvil has it. Nothing makes
/// them so here, and a control call can reorganise deeper.
const SAFE_DEPTH: u64 = 32;
const FINALIZED_DEPTH: u64 = 64;

pub(super) fn call(chain: &Inner, method: &str, params: &Params) -> Option<Answer> {
    Some(match method {
        "eth_chainId" => json(&U64::from(chain.node.rules.chain_id)),
        "net_version" => json(&chain.node.rules.chain_id.to_string()),
        "net_listening" => json(&true),
        "eth_syncing" => json(&false),
        "eth_accounts" => json::<[Value; 0]>(&[]),
        "web3_clientVersion" => json(concat!("lanekeeper-devchain/", env!("CARGO_PKG_VERSION"))),
        "eth_blockNumber" => block_number(chain),
        "eth_getBlockByNumber" => params
            .required::<BlockNumberOrTag>(0)
            .and_then(|tag| block(chain, tag.into(), params)),
        "eth_getBlockByHash" => params
            .hash(0)
            .and_then(|hash| block(chain, hash.into(), params)),
        "eth_getBlockReceipts" => block_receipts(chain, params),
        "eth_getTransactionByHash" => transaction(chain, params),
        "eth_getTransactionReceipt" => receipt(chain, params),
        _ => return None,
    })
}

fn block_number(chain: &Inner) -> Answer {
    let number = chain
        .node
        .readers
        .read(|view| Ok::<_, RpcError>(view.head()?.header.number))?;
    json(&U64::from(number))
}

fn block(chain: &Inner, id: BlockId, params: &Params) -> Answer {
    params.at_most(2)?;
    let full = params.optional(1)?.unwrap_or(false);
    if id.is_pending() {
        return pending_block(chain, full);
    }
    chain.node.readers.read(|view| match find(view, id)? {
        None => json(&Value::Null),
        Some(row) => json(&render::block(view, &row, full)?),
    })
}

/// The block that would be mined next. It is not executed, so fields that depend on execution are those of its
/// parent, and it has no hash.
fn pending_block(chain: &Inner, full: bool) -> Answer {
    let head = chain
        .node
        .readers
        .read(|view| Ok::<_, RpcError>(view.head()?))?;
    let context = chain.node.next_context(&head.header, head.hash);
    let mut txs = chain
        .node
        .pool()
        .select(context.base_fee, context.gas_limit);
    txs.truncate(limits::POOL_SHOWN_MAX);
    let header = Header {
        parent_hash: head.hash,
        number: context.number,
        timestamp: context.timestamp,
        base_fee_per_gas: Some(context.base_fee),
        mix_hash: context.randao,
        gas_used: 0,
        ..head.header
    };
    let transactions = if full {
        BlockTransactions::Full(
            txs.iter()
                .map(|tx| render::pending_transaction(tx))
                .collect(),
        )
    } else {
        BlockTransactions::Hashes(txs.iter().map(|tx| tx.hash).collect())
    };
    let block = render::with_header(header, B256::ZERO, 0, transactions);
    let mut block = serde_json::to_value(block)
        .map_err(|error| RpcError::server(format!("answer cannot be written: {error}")))?;
    for unknown in ["hash", "nonce", "miner"] {
        block[unknown] = Value::Null;
    }
    json(&block)
}

fn block_receipts(chain: &Inner, params: &Params) -> Answer {
    params.at_most(1)?;
    let id: BlockId = params.required(0)?;
    chain.node.readers.read(|view| {
        let Some(row) = find(view, id)? else {
            return json(&Value::Null);
        };
        let txs = view.txs(&row)?;
        let receipts: Result<Vec<_>, _> = txs.iter().map(|tx| render::receipt(&row, tx)).collect();
        json(&receipts?)
    })
}

fn transaction(chain: &Inner, params: &Params) -> Answer {
    params.at_most(1)?;
    let hash = params.hash(0)?;
    // The pool first: a tx leaves it only after its block can be read.
    let pending = chain.node.pool().get(hash);
    let mined = chain
        .node
        .readers
        .read(|view| match view.tx_by_hash(hash)? {
            None => Ok::<_, RpcError>(None),
            Some((block, tx)) => Ok(Some(render::transaction(&block, &tx)?)),
        })?;
    match (mined, pending) {
        (Some(mined), _) => json(&mined),
        (None, Some(pending)) => json(&render::pending_transaction(&pending)),
        (None, None) => json(&Value::Null),
    }
}

fn receipt(chain: &Inner, params: &Params) -> Answer {
    params.at_most(1)?;
    let hash = params.hash(0)?;
    chain
        .node
        .readers
        .read(|view| match view.tx_by_hash(hash)? {
            None => json(&Value::Null),
            Some((block, tx)) => json(&render::receipt(&block, &tx)?),
        })
}

/// A block by hash (also one that a reorg has replaced), number or tag. `pending` is none.
pub(super) fn find(view: View<'_>, id: BlockId) -> Result<Option<BlockRow>, RpcError> {
    match id {
        BlockId::Hash(wanted) => {
            let row = view.block_by_hash(wanted.block_hash)?;
            let must_be_canonical = wanted.require_canonical == Some(true);
            Ok(row.filter(|row| row.canonical || !must_be_canonical))
        }
        BlockId::Number(BlockNumberOrTag::Latest) => Ok(Some(view.head()?)),
        BlockId::Number(BlockNumberOrTag::Pending) => Ok(None),
        BlockId::Number(tag) => Ok(view.block_by_number(number_of(view, tag)?)?),
    }
}

/// The block number of a tag. The pending block counts as the head.
pub(super) fn number_of(view: View<'_>, tag: BlockNumberOrTag) -> Result<u64, RpcError> {
    let head = || Ok::<_, RpcError>(view.head()?.header.number);
    match tag {
        BlockNumberOrTag::Number(number) => Ok(number),
        BlockNumberOrTag::Earliest => Ok(0),
        BlockNumberOrTag::Latest | BlockNumberOrTag::Pending => head(),
        BlockNumberOrTag::Safe => Ok(head()?.saturating_sub(SAFE_DEPTH)),
        BlockNumberOrTag::Finalized => Ok(head()?.saturating_sub(FINALIZED_DEPTH)),
    }
}
