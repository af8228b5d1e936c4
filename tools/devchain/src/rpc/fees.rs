//! Fee suggestions and history.

use alloy_consensus::Transaction as _;
use alloy_primitives::{U64, U128};
use alloy_rpc_types_eth::{BlockId, BlockNumberOrTag, FeeHistory};

use super::blocks::find;
use super::error::RpcError;
use super::params::Params;
use super::{Answer, json, render};
use crate::Inner;
use crate::limits::{FEE_HISTORY_BLOCKS_MAX, FEE_PERCENTILES_MAX};
use crate::store::{BlockRow, View};

/// The tip that we suggest: always the same, so that tests see the same fees twice.
const SUGGESTED_TIP: u128 = 1_000_000_000;

pub(super) fn call(chain: &Inner, method: &str, params: &Params) -> Option<Answer> {
    Some(match method {
        "eth_gasPrice" => gas_price(chain),
        "eth_maxPriorityFeePerGas" => json(&U128::from(SUGGESTED_TIP)),
        "eth_blobBaseFee" => json(&U64::from(1)),
        "eth_feeHistory" => fee_history(chain, params),
        _ => return None,
    })
}

fn gas_price(chain: &Inner) -> Answer {
    let head = chain
        .node
        .readers
        .read(|view| Ok::<_, RpcError>(view.head()?))?;
    let base_fee = head.header.base_fee_per_gas.unwrap_or_default();
    json(&U128::from(SUGGESTED_TIP + u128::from(base_fee)))
}

fn fee_history(chain: &Inner, params: &Params) -> Answer {
    params.at_most(3)?;
    let count = params
        .number(0)?
        .unwrap_or_default()
        .min(FEE_HISTORY_BLOCKS_MAX);
    let newest: BlockNumberOrTag = params.required(1)?;
    let percentiles: Vec<f64> = params.optional(2)?.unwrap_or_default();
    check_percentiles(&percentiles)?;
    if count == 0 {
        return json(&FeeHistory::default());
    }
    chain.node.readers.read(|view| {
        // The pending block counts as the head: its fees are the last entry anyway.
        let newest = if newest.is_pending() {
            BlockNumberOrTag::Latest
        } else {
            newest
        };
        let found = find(view, BlockId::Number(newest))?;
        let newest = found.ok_or_else(|| RpcError::server("request beyond head block"))?;
        let oldest = newest.header.number.saturating_sub(count - 1);
        let mut history = FeeHistory {
            oldest_block: oldest,
            ..FeeHistory::default()
        };
        for number in oldest..=newest.header.number {
            let Some(block) = view.block_by_number(number)? else {
                break;
            };
            add_block(view, &block, &percentiles, &mut history)?;
        }
        let next = match view.block_by_number(newest.header.number + 1)? {
            Some(next) => next.header.base_fee_per_gas.unwrap_or_default(),
            None => chain.node.next_base_fee(&newest.header),
        };
        history.base_fee_per_gas.push(next.into());
        history.base_fee_per_blob_gas.push(1);
        json(&history)
    })
}

fn check_percentiles(percentiles: &[f64]) -> Result<(), RpcError> {
    if percentiles.len() > FEE_PERCENTILES_MAX {
        let text = format!("over the query limit {FEE_PERCENTILES_MAX}");
        return Err(RpcError::server(format!(
            "invalid reward percentile: {text}"
        )));
    }
    let in_range = percentiles
        .iter()
        .all(|percentile| (0.0..=100.0).contains(percentile));
    if !in_range || !percentiles.is_sorted() {
        return Err(RpcError::server("invalid reward percentile"));
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for display")]
fn add_block(
    view: View<'_>,
    block: &BlockRow,
    percentiles: &[f64],
    history: &mut FeeHistory,
) -> Result<(), RpcError> {
    let header = &block.header;
    history
        .base_fee_per_gas
        .push(header.base_fee_per_gas.unwrap_or_default().into());
    history
        .gas_used_ratio
        .push(header.gas_used as f64 / header.gas_limit as f64);
    history.base_fee_per_blob_gas.push(1);
    history.blob_gas_used_ratio.push(0.0);
    if !percentiles.is_empty() {
        let rewards = rewards(view, block, percentiles)?;
        history.reward.get_or_insert_default().push(rewards);
    }
    Ok(())
}

/// The tips at the given percentiles of the block's gas, cheapest first.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a percentile between 0 and 100 of a block's gas is a small non-negative number"
)]
fn rewards(view: View<'_>, block: &BlockRow, percentiles: &[f64]) -> Result<Vec<u128>, RpcError> {
    let base_fee = block.header.base_fee_per_gas.unwrap_or_default();
    let mut paid: Vec<(u128, u64)> = Vec::new();
    for tx in view.txs(block)? {
        let tip = render::envelope(&tx)?
            .effective_tip_per_gas(base_fee)
            .unwrap_or_default();
        paid.push((tip, tx.gas_used));
    }
    paid.sort_unstable();
    let mut txs = paid.iter();
    let (mut tip, mut gas) = txs.next().copied().unwrap_or_default();
    let rewards = percentiles.iter().map(|percentile| {
        let threshold = (block.header.gas_used as f64 * percentile / 100.0) as u64;
        while gas < threshold
            && let Some((next_tip, next_gas)) = txs.next()
        {
            tip = *next_tip;
            gas += next_gas;
        }
        tip
    });
    Ok(rewards.collect())
}
