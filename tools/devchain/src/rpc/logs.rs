//! Log queries. There is no table of logs: the bloom in a block's header shows whether it can contain a match, and only
//! then its receipts are read.

use alloy_primitives::{B256, U64};
use alloy_rpc_types_eth::{BlockNumberOrTag, Filter, FilterBlockOption, Log};

use super::blocks::number_of;
use super::error::RpcError;
use super::filters::FilterKind;
use super::params::{Params, invalid};
use super::{Answer, json, render};
use crate::limits::{FILTER_TERMS_MAX, LOG_BLOCKS_MAX, LOGS_MAX};
use crate::node::lock;
use crate::store::{BlockRow, View};
use crate::{Inner, error::StoreError};

pub(super) fn call(chain: &Inner, method: &str, params: &Params) -> Option<Answer> {
    Some(match method {
        "eth_getLogs" => get_logs(chain, params),
        "eth_newFilter" => {
            filter_param(params).and_then(|f| register_filter(chain, FilterKind::Logs(f.into())))
        }
        "eth_newBlockFilter" => register_filter(chain, FilterKind::Blocks),
        "eth_getFilterChanges" => filter_changes(chain, params),
        "eth_getFilterLogs" => filter_logs(chain, params),
        "eth_uninstallFilter" => params
            .number(0)
            .and_then(|id| json(&lock(&chain.filters).remove(id.unwrap_or(0)))),
        _ => return None,
    })
}

fn get_logs(chain: &Inner, params: &Params) -> Answer {
    params.at_most(1)?;
    let filter = filter_param(params)?;
    chain.node.readers.read(|view| json(&query(view, &filter)?))
}

fn filter_param(params: &Params) -> Result<Filter, RpcError> {
    let filter: Filter = params.required(0)?;
    let too_many = filter.address.len() > FILTER_TERMS_MAX
        || filter
            .topics
            .iter()
            .any(|topic| topic.len() > FILTER_TERMS_MAX);
    if too_many {
        return Err(invalid(
            0,
            format!("more than {FILTER_TERMS_MAX} addresses or topics"),
        ));
    }
    Ok(filter)
}

fn query(view: View<'_>, filter: &Filter) -> Result<Vec<Log>, RpcError> {
    let blocks = match filter.block_option {
        FilterBlockOption::AtBlockHash(hash) => {
            let block = view.block_by_hash(hash)?;
            vec![block.ok_or_else(|| RpcError::server("unknown block"))?]
        }
        FilterBlockOption::Range {
            from_block,
            to_block,
        } => {
            let latest = BlockNumberOrTag::Latest;
            let head = number_of(view, latest)?;
            let first = number_of(view, from_block.unwrap_or(latest))?;
            let last = number_of(view, to_block.unwrap_or(latest))?;
            if first > last {
                return Err(RpcError::invalid_params("invalid block range params"));
            }
            let last = last.min(head);
            if first > last {
                return Ok(Vec::new());
            }
            if last - first >= LOG_BLOCKS_MAX {
                let text = format!("block range is longer than {LOG_BLOCKS_MAX} blocks");
                return Err(RpcError::invalid_params(text));
            }
            view.blocks_with_logs(first, last)?
        }
    };
    let mut found = Vec::new();
    for block in &blocks {
        add_matches(view, block, filter, &mut found)?;
        if found.len() > LOGS_MAX {
            return Err(RpcError::too_many_logs(LOGS_MAX));
        }
    }
    Ok(found)
}

/// Adds the block's matching logs; stops early once there are too many for any answer.
fn add_matches(
    view: View<'_>,
    block: &BlockRow,
    filter: &Filter,
    found: &mut Vec<Log>,
) -> Result<(), StoreError> {
    if !filter.matches_bloom(block.header.logs_bloom) {
        return Ok(());
    }
    for tx in view.txs_with_logs(block)? {
        found.extend(render::logs(block, &tx).filter(|log| {
            filter.matches_address(log.address()) && filter.matches_topics(log.topics())
        }));
        if found.len() > LOGS_MAX {
            break;
        }
    }
    Ok(())
}

fn register_filter(chain: &Inner, kind: FilterKind) -> Answer {
    let last_id = chain
        .node
        .readers
        .read(|view| view.last_block_id().map_err(RpcError::from))?;
    let id = lock(&chain.filters).add(kind, last_id);
    let id = id.ok_or_else(|| RpcError::server("too many filters"))?;
    json(&U64::from(id))
}

/// Everything new since the last poll. Blocks of a reorg are new; removed ones are not reported.
fn filter_changes(chain: &Inner, params: &Params) -> Answer {
    params.at_most(1)?;
    let id = params.number(0)?.unwrap_or_default();
    let found = lock(&chain.filters).get(id);
    let (kind, seen) = found.ok_or_else(filter_not_found)?;
    let (answer, seen) = chain.node.readers.read(|view| {
        let blocks = view.blocks_made_after(seen, LOG_BLOCKS_MAX)?;
        match &kind {
            FilterKind::Blocks => {
                let seen = blocks.last().map_or(seen, |block| block.id);
                let hashes: Vec<B256> = blocks.iter().map(|block| block.hash).collect();
                Ok::<_, RpcError>((json(&hashes)?, seen))
            }
            FilterKind::Logs(filter) => {
                let (logs, seen) = new_logs(view, &blocks, filter, seen)?;
                Ok((json(&logs)?, seen))
            }
        }
    })?;
    lock(&chain.filters).advance(id, seen);
    Ok(answer)
}

/// The matches of whole blocks, as many as fit into an answer; the next poll continues from there.
fn new_logs(
    view: View<'_>,
    blocks: &[BlockRow],
    filter: &Filter,
    mut seen: u64,
) -> Result<(Vec<Log>, u64), RpcError> {
    let mut found = Vec::new();
    for block in blocks {
        let before = found.len();
        add_matches(view, block, filter, &mut found)?;
        if found.len() > LOGS_MAX {
            if before == 0 {
                return Err(RpcError::too_many_logs(LOGS_MAX)); // one block alone is too much
            }
            found.truncate(before);
            break;
        }
        seen = block.id;
    }
    Ok((found, seen))
}

fn filter_logs(chain: &Inner, params: &Params) -> Answer {
    params.at_most(1)?;
    let id = params.number(0)?.unwrap_or_default();
    let found = lock(&chain.filters).get(id);
    match found.ok_or_else(filter_not_found)? {
        (FilterKind::Logs(filter), _) => {
            chain.node.readers.read(|view| json(&query(view, &filter)?))
        }
        (FilterKind::Blocks, _) => Err(filter_not_found()),
    }
}

fn filter_not_found() -> RpcError {
    RpcError::server("filter not found")
}
