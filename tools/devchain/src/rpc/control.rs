//! Control calls under anvil's names: time, accounts and forks on demand. A real node has none of
//! these; only tests and people at a keyboard use them.

use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::{B256, U64};
use serde_json::{Value, json as value};

use super::error::RpcError;
use super::params::{Params, decode_hex, invalid};
use super::{Answer, json};
use crate::Inner;
use crate::limits::{BASE_FEE_MAX, MINE_BLOCKS_MAX, UNDO_BLOCKS};
use crate::miner::{ControlCommand, Mining, ReorgCommand};
use crate::transaction::{SignedTx, UnrecoveredTx};

pub(super) fn call(chain: &Inner, method: &str, params: &Params) -> Option<Answer> {
    Some(match method {
        // One block, with what is executable; also when there is nothing.
        "evm_mine" => run_command(chain, ControlCommand::Mine { blocks: 1 }).and(json("0x0")),
        "anvil_mine" | "hardhat_mine" => mine(chain, params),
        "evm_setAutomine" | "anvil_setAutomine" => set_automine(chain, params),
        "evm_setIntervalMining" | "anvil_setIntervalMining" => set_interval(chain, params),
        "anvil_reorg" => reorg(chain, params),
        "anvil_rollback" => rollback(chain, params),
        "anvil_dropTransaction" => drop_transaction(chain, params),
        "anvil_dropAllTransactions" => {
            chain.node.pool().clear();
            json(&Value::Null)
        }
        "anvil_setBalance" | "hardhat_setBalance" => set_balance(chain, params),
        "anvil_setNonce" | "hardhat_setNonce" => set_nonce(chain, params),
        "anvil_setNextBlockBaseFeePerGas" | "hardhat_setNextBlockBaseFeePerGas" => {
            set_base_fee(chain, params)
        }
        "anvil_nodeInfo" => node_info(chain),
        _ => return None,
    })
}

fn run_command(chain: &Inner, command: ControlCommand) -> Answer {
    chain.miner.run_command(command)?;
    json(&Value::Null)
}

fn required_number(params: &Params, index: usize) -> Result<u64, RpcError> {
    params.required::<U64>(index).map(|number| number.to())
}

/// `anvil_mine(count = 1)`. A second argument, the time between the blocks, is not supported.
fn mine(chain: &Inner, params: &Params) -> Answer {
    params.at_most(1)?;
    let blocks = params.number(0)?.unwrap_or(1);
    if blocks > MINE_BLOCKS_MAX {
        return Err(invalid(0, format!("more than {MINE_BLOCKS_MAX} blocks")));
    }
    run_command(chain, ControlCommand::Mine { blocks })
}

/// `true`: at once. `false`: only on demand.
fn set_automine(chain: &Inner, params: &Params) -> Answer {
    params.at_most(1)?;
    let on = params.required(0)?;
    run_command(
        chain,
        ControlCommand::SetMining(if on { Mining::Instant } else { Mining::Manual }),
    )
}

/// In seconds, as anvil counts; 0 turns mining off.
fn set_interval(chain: &Inner, params: &Params) -> Answer {
    params.at_most(1)?;
    let mining = match required_number(params, 0)? {
        0 => Mining::Manual,
        seconds => Mining::Interval(Duration::from_secs(seconds)),
    };
    run_command(chain, ControlCommand::SetMining(mining))
}

/// `anvil_reorg(depth, [[tx, offset], ...] = [], dropOrphaned = false)`: replaces the last `depth`
/// blocks by as many new ones. `tx` is a raw tx, or the hash of one that is in the pool or on the
/// chain; it is placed in the new block at `offset` (0 is the oldest). The new blocks contain nothing
/// else. **The txs of the replaced blocks return to the pool** and are mined again by the usual
/// rules, after the new blocks; `dropOrphaned` drops them. (anvil itself always drops them.)
fn reorg(chain: &Inner, params: &Params) -> Answer {
    params.at_most(3)?;
    let depth = required_number(params, 0)?;
    let pairs: Vec<(Value, U64)> = params.optional(1)?.unwrap_or_default();
    let drop_orphans = params.optional(2)?.unwrap_or(false);
    let mut replacement = vec![Vec::new(); usize::try_from(depth.min(UNDO_BLOCKS)).unwrap_or(0)];
    for (tx, offset) in pairs {
        let block = usize::try_from(offset.to::<u64>()).ok();
        let block = block.and_then(|offset| replacement.get_mut(offset));
        let block = block.ok_or_else(|| invalid(1, format!("no new block at offset {offset}")))?;
        block.push(Arc::new(listed_tx(chain, &tx)?));
    }
    run_command(
        chain,
        ControlCommand::Reorg(ReorgCommand {
            depth,
            replacement,
            drop_orphans,
        }),
    )
}

/// `anvil_rollback(depth = 1, dropOrphaned = false)`: removes the last blocks without a replacement.
/// Their txs return to the pool, so instant mining mines them again at once, unless they are dropped.
fn rollback(chain: &Inner, params: &Params) -> Answer {
    params.at_most(2)?;
    let depth = params.number(0)?.unwrap_or(1);
    let drop_orphans = params.optional(1)?.unwrap_or(false);
    run_command(
        chain,
        ControlCommand::Reorg(ReorgCommand {
            depth,
            replacement: Vec::new(),
            drop_orphans,
        }),
    )
}

fn listed_tx(chain: &Inner, tx: &Value) -> Result<SignedTx, RpcError> {
    let raw = decode_hex(tx).map_err(|error| invalid(1, error))?;
    if let Ok(hash) = B256::try_from(raw.as_ref()) {
        return known_tx(chain, hash);
    }
    Ok(UnrecoveredTx::decode(&raw)?.recover(&chain.node.rules)?)
}

fn known_tx(chain: &Inner, hash: B256) -> Result<SignedTx, RpcError> {
    let pooled = chain.node.pool().get(hash);
    if let Some(tx) = pooled {
        let (envelope, sender, size) = (tx.envelope.clone(), tx.sender, tx.size);
        return Ok(SignedTx {
            hash,
            sender,
            envelope,
            size,
        });
    }
    let mined = chain
        .node
        .readers
        .read(|view| view.tx_by_hash(hash).map_err(RpcError::from))?;
    let (_, tx) = mined.ok_or_else(|| invalid(1, format!("tx {hash} is not known")))?;
    Ok(SignedTx::from_stored(&tx.raw, tx.sender)?)
}

/// The hash, or null when the pool does not have it.
fn drop_transaction(chain: &Inner, params: &Params) -> Answer {
    params.at_most(1)?;
    let hash = params.hash(0)?;
    let removed = chain.node.pool().remove(hash);
    json(&removed.map(|tx| tx.hash))
}

fn set_balance(chain: &Inner, params: &Params) -> Answer {
    params.at_most(2)?;
    run_command(
        chain,
        ControlCommand::SetBalance(params.required(0)?, params.required(1)?),
    )
}

fn set_nonce(chain: &Inner, params: &Params) -> Answer {
    params.at_most(2)?;
    run_command(
        chain,
        ControlCommand::SetNonce(params.required(0)?, required_number(params, 1)?),
    )
}

/// For one block; the usual rule continues from it.
fn set_base_fee(chain: &Inner, params: &Params) -> Answer {
    params.at_most(1)?;
    let base_fee = required_number(params, 0)?;
    if base_fee > BASE_FEE_MAX {
        return Err(invalid(0, format!("more than {BASE_FEE_MAX} wei")));
    }
    chain.node.set_base_fee(base_fee);
    chain.miner.notify_pool_changed(); // a lower one may make txs executable
    json(&Value::Null)
}

fn node_info(chain: &Inner) -> Answer {
    let head = chain
        .node
        .readers
        .read(|view| view.head().map_err(RpcError::from))?;
    json(&value!({
        "currentBlockNumber": U64::from(head.header.number),
        "currentBlockTimestamp": head.header.timestamp,
        "currentBlockHash": head.hash,
        "hardFork": "osaka",
        "environment": {
            "baseFee": U64::from(chain.node.next_base_fee(&head.header)),
            "chainId": chain.node.rules.chain_id,
            "gasLimit": U64::from(chain.node.rules.block_gas_limit),
        },
    }))
}
