//! Finds the tx that consumed a nonce, in final blocks.

use std::ops::Range;

use domain::lane::NonceConsumer;
use domain::{Address, Header, Nonce};
use engine::ports::{BlockTag, ChainError};
use serde_json::{Value, json};

use super::answers::{Block, Quantity};
use super::endpoint::Endpoint;
use super::endpoints::Endpoints;
use super::failure::{Failure, endpoints_failed};
use super::limits::{CONSUMER_BLOCKS_MAX, FULL_BLOCKS_BATCH_MAX};
use super::read::{block_or_absent, header, quantity};
use super::wire::Outcome;
use crate::classify::NodeErrorKind;

/// One endpoint that returns the tx is enough. That the tx cannot be found must come from two endpoints, or from
/// the only one, because a nonce may be abandoned for it.
pub(super) async fn find_consumer(
    endpoints: &Endpoints,
    account: Address,
    nonce: Nonce,
    up_to: Header,
) -> Result<NonceConsumer, ChainError> {
    let height = up_to.number;
    let mut failures = Vec::new();
    let mut unseen_by: Option<&str> = None;
    for endpoint in endpoints.in_order() {
        match (
            query_endpoint(endpoint, account, nonce, up_to).await,
            unseen_by,
        ) {
            (Ok(found @ NonceConsumer::Transaction { .. }), _)
            | (Ok(found @ NonceConsumer::NotConsumed), None) => {
                return Ok(found);
            }
            (Ok(NonceConsumer::Unattributed), Some(_)) => return Ok(NonceConsumer::Unattributed),
            (Ok(NonceConsumer::Unattributed), None) => unseen_by = Some(endpoint.name()),
            (Ok(NonceConsumer::NotConsumed), Some(other)) => {
                let name = endpoint.name();
                return Err(ChainError::Unusable(format!(
                    "{other} reports nonce {nonce} as consumed at height {height}, {name} as not consumed"
                )));
            }
            (Err(failure), _) if failure.is_wrong_chain() => {}
            (Err(failure), _) => failures.push((endpoint.name(), failure)),
        }
    }
    match unseen_by {
        Some(_) if failures.is_empty() => Ok(NonceConsumer::Unattributed),
        Some(_) | None => Err(endpoints_failed(&failures)),
    }
}

/// The consumer according to one endpoint, if it is on the followed branch.
async fn query_endpoint(
    endpoint: &Endpoint,
    account: Address,
    nonce: Nonce,
    up_to: Header,
) -> Result<NonceConsumer, Failure> {
    let found = header(endpoint, BlockTag::Number(up_to.number)).await?;
    if found.map(|found| found.hash) != Some(up_to.hash) {
        return Err(Failure::Malformed(
            "it is on another branch, or behind".to_owned(),
        ));
    }
    let up_to = up_to.number;
    match count_at(endpoint, account, up_to).await? {
        Ok(count) if count.0 <= nonce.0 => Ok(NonceConsumer::NotConsumed),
        Ok(_) => search_states(endpoint, account, nonce, up_to).await,
        Err(error) => {
            let heights = up_to.saturating_sub(CONSUMER_BLOCKS_MAX)..up_to.saturating_add(1);
            let found = scan_blocks(endpoint, account, nonce, heights, false).await?;
            found.ok_or(Failure::Node(error))
        }
    }
}

/// How many nonces are consumed at a height; an inner error if the node lacks that state.
async fn count_at(
    endpoint: &Endpoint,
    account: Address,
    height: u64,
) -> Result<Outcome<Quantity>, Failure> {
    let params = json!([account, quantity(height)]);
    match endpoint.query("eth_getTransactionCount", &params).await? {
        Err(error) if error.kind() == NodeErrorKind::RateLimited => Err(Failure::Node(error)),
        outcome => Ok(outcome),
    }
}

/// Finds the first height at which the nonce is consumed by binary search, and reads its block.
async fn search_states(
    endpoint: &Endpoint,
    account: Address,
    nonce: Nonce,
    up_to: u64,
) -> Result<NonceConsumer, Failure> {
    let mut consumed_at = up_to;
    let mut not_before = 0;
    let mut lacks_states = false;
    while not_before < consumed_at {
        let middle = not_before + (consumed_at - not_before) / 2;
        match count_at(endpoint, account, middle).await? {
            Ok(count) if count.0 > nonce.0 => consumed_at = middle,
            Ok(_) => {
                not_before = middle + 1;
                lacks_states = false;
            }
            // The node lacks the states of lower heights as well: continue above.
            Err(_) => {
                not_before = middle + 1;
                lacks_states = true;
            }
        }
    }
    let params = json!([quantity(consumed_at), true]);
    let block = block_or_absent(endpoint.query("eth_getBlockByNumber", &params).await?)?;
    let block = block.ok_or_else(missing_block)?;
    let mut all = block.transactions_of(account);
    if let Some(tx) = all.find(|tx| tx.nonce.0 == nonce.0) {
        return Ok(tx.to_consumer());
    }
    if lacks_states {
        let heights = consumed_at.saturating_sub(CONSUMER_BLOCKS_MAX)..consumed_at;
        let found = scan_blocks(endpoint, account, nonce, heights, true).await?;
        return Ok(found.unwrap_or(NonceConsumer::Unattributed));
    }
    // An authorization (EIP-7702) consumed it, which no tx of the account contains.
    Ok(NonceConsumer::Unattributed)
}

fn missing_block() -> Failure {
    Failure::Malformed("a block below its head is missing".to_owned())
}

/// For nodes without old states: reads the blocks, newest first, in which the account's nonces decrease. `None` if
/// the blocks contain no tx that decides.
async fn scan_blocks(
    endpoint: &Endpoint,
    account: Address,
    nonce: Nonce,
    heights: Range<u64>,
    mut is_consumed: bool,
) -> Result<Option<NonceConsumer>, Failure> {
    let mut above = heights.end;
    while above > heights.start {
        let from = above
            .saturating_sub(FULL_BLOCKS_BATCH_MAX)
            .max(heights.start);
        let calls: Vec<Value> = (from..above)
            .rev()
            .map(|height| json!([quantity(height), true]))
            .collect();
        let blocks: Vec<Option<Block>> = endpoint.call_many("eth_getBlockByNumber", &calls).await?;
        for block in blocks {
            let mut is_below = false;
            for tx in block.ok_or_else(missing_block)?.transactions_of(account) {
                let at = tx.nonce.0;
                if at == nonce.0 {
                    return Ok(Some(tx.to_consumer()));
                }
                is_consumed |= at > nonce.0;
                is_below |= at < nonce.0;
            }
            if is_below {
                let unseen = is_consumed.then_some(NonceConsumer::Unattributed);
                return Ok(Some(unseen.unwrap_or(NonceConsumer::NotConsumed)));
            }
        }
        above = from;
    }
    Ok(match (is_consumed, heights.start) {
        (true, _) => Some(NonceConsumer::Unattributed),
        (false, 0) => Some(NonceConsumer::NotConsumed),
        (false, _) => None,
    })
}
