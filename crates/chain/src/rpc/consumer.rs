//! Whose transaction consumed a nonce, in blocks that no fork takes back.

use std::ops::Range;

use domain::lane::NonceConsumer;
use domain::{Address, Header, Nonce};
use engine::ports::{BlockTag, ChainError};
use serde_json::{Value, json};

use super::answers::{Block, Quantity};
use super::endpoint::Endpoint;
use super::endpoints::Endpoints;
use super::failure::{Failure, all_failed};
use super::limits::{CONSUMER_BLOCKS_MAX, WHOLE_BLOCKS_AT_ONCE};
use super::read::{header, known, quantity};
use super::wire::Outcome;
use crate::classify::Meaning;

/// One endpoint that shows the transaction is enough. That it cannot be shown must be said by two
/// of them, or by the only one: a nonce may be given up for it.
pub(super) async fn find(
    endpoints: &Endpoints,
    account: Address,
    nonce: Nonce,
    up_to: Header,
) -> Result<NonceConsumer, ChainError> {
    let height = up_to.number;
    let mut failures = Vec::new();
    let mut unseen_by: Option<&str> = None;
    for endpoint in endpoints.in_order() {
        match (ask(endpoint, account, nonce, up_to).await, unseen_by) {
            (Ok(found @ NonceConsumer::By { .. }), _)
            | (Ok(found @ NonceConsumer::Nobody), None) => {
                return Ok(found);
            }
            (Ok(NonceConsumer::Unseen), Some(_)) => return Ok(NonceConsumer::Unseen),
            (Ok(NonceConsumer::Unseen), None) => unseen_by = Some(endpoint.name()),
            (Ok(NonceConsumer::Nobody), Some(other)) => {
                let name = endpoint.name();
                return Err(ChainError::Unusable(format!(
                    "{other} says that nonce {nonce} is consumed at height {height}, {name} says that it is not"
                )));
            }
            (Err(failure), _) if failure.is_wrong_chain() => {}
            (Err(failure), _) => failures.push((endpoint.name(), failure)),
        }
    }
    match unseen_by {
        Some(_) if failures.is_empty() => Ok(NonceConsumer::Unseen),
        Some(_) | None => Err(all_failed(&failures)),
    }
}

/// What one endpoint can tell, if its chain is the one that is followed.
async fn ask(
    endpoint: &Endpoint,
    account: Address,
    nonce: Nonce,
    up_to: Header,
) -> Result<NonceConsumer, Failure> {
    let there = header(endpoint, BlockTag::Number(up_to.number)).await?;
    if there.map(|there| there.hash) != Some(up_to.hash) {
        return Err(Failure::Malformed(
            "it is on another branch, or behind".to_owned(),
        ));
    }
    let up_to = up_to.number;
    match count_at(endpoint, account, up_to).await? {
        Ok(count) if count.0 <= nonce.0 => Ok(NonceConsumer::Nobody),
        Ok(_) => by_states(endpoint, account, nonce, up_to).await,
        Err(error) => {
            let heights = up_to.saturating_sub(CONSUMER_BLOCKS_MAX)..up_to.saturating_add(1);
            let found = by_blocks(endpoint, account, nonce, heights, false).await?;
            found.ok_or(Failure::Node(error))
        }
    }
}

/// How many nonces are consumed at a height; the inner error where the node has no such state.
async fn count_at(
    endpoint: &Endpoint,
    account: Address,
    height: u64,
) -> Result<Outcome<Quantity>, Failure> {
    let params = json!([account, quantity(height)]);
    match endpoint.ask("eth_getTransactionCount", &params).await? {
        Err(error) if error.complaint().meaning() == Meaning::Throttled => {
            Err(Failure::Node(error))
        }
        outcome => Ok(outcome),
    }
}

/// The first height at which the nonce is consumed is found by halves, and its block is read.
async fn by_states(
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
            // It has none of lower heights either: the search goes on above.
            Err(_) => {
                not_before = middle + 1;
                lacks_states = true;
            }
        }
    }
    let params = json!([quantity(consumed_at), true]);
    let block: Option<Block> = known(endpoint.ask("eth_getBlockByNumber", &params).await?)?;
    let missing = || Failure::Malformed("a block below its head is missing".to_owned());
    let block = block.ok_or_else(missing)?;
    let mut all = block.transactions_of(account);
    if let Some(tx) = all.find(|tx| tx.nonce() == nonce.0) {
        return Ok(tx.find_consumer());
    }
    if lacks_states {
        let heights = consumed_at.saturating_sub(CONSUMER_BLOCKS_MAX)..consumed_at;
        let found = by_blocks(endpoint, account, nonce, heights, true).await?;
        return Ok(found.unwrap_or(NonceConsumer::Unseen));
    }
    // Consumed by an authorization (EIP-7702), which no transaction of the account carries.
    Ok(NonceConsumer::Unseen)
}

/// Where a node has no states, the blocks themselves are read, the newest first: an account's nonces
/// fall on the way down. `None` when they say nothing.
async fn by_blocks(
    endpoint: &Endpoint,
    account: Address,
    nonce: Nonce,
    heights: Range<u64>,
    mut is_consumed: bool,
) -> Result<Option<NonceConsumer>, Failure> {
    let mut above = heights.end;
    while above > heights.start {
        let from = above
            .saturating_sub(WHOLE_BLOCKS_AT_ONCE)
            .max(heights.start);
        let calls: Vec<Value> = (from..above)
            .rev()
            .map(|height| json!([quantity(height), true]))
            .collect();
        let blocks: Vec<Option<Block>> = endpoint.call_many("eth_getBlockByNumber", &calls).await?;
        for block in blocks {
            let missing = || Failure::Malformed("a block below its head is missing".to_owned());
            let mut is_below = false;
            for tx in block.ok_or_else(missing)?.transactions_of(account) {
                let at = tx.nonce();
                if at == nonce.0 {
                    return Ok(Some(tx.find_consumer()));
                }
                is_consumed |= at > nonce.0;
                is_below |= at < nonce.0;
            }
            if is_below {
                let unseen = is_consumed.then_some(NonceConsumer::Unseen);
                return Ok(Some(unseen.unwrap_or(NonceConsumer::Nobody)));
            }
        }
        above = from;
    }
    Ok(match (is_consumed, heights.start) {
        (true, _) => Some(NonceConsumer::Unseen),
        (false, 0) => Some(NonceConsumer::Nobody),
        (false, _) => None,
    })
}
