//! Finds the txs that consumed nonces, in final blocks.

use std::ops::Range;

use domain::lane::{ConsumedNonce, NonceConsumer, agree_on_consumers};
use domain::{Address, Header, Nonce};
use engine::ports::{BlockTag, ChainError};
use serde_json::{Value, json};

use super::answers::{Block, Quantity, SenderTx};
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
            query_endpoint(endpoint, account, nonce, up_to)
                .await
                .map(|found| found.of(nonce)),
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

/// The txs that consumed the lowest of these nonces. Two endpoints must show them, or the only one. An endpoint without the
/// old states cannot find them; what another one has found it confirms by hash.
pub(super) async fn find_consumers(
    endpoints: &Endpoints,
    account: Address,
    nonces: Range<u64>,
    up_to: Header,
) -> Result<Vec<ConsumedNonce>, ChainError> {
    let list = endpoints.in_order();
    let needed = list.len().min(2);
    let (mut answers, mut failures) = (Vec::new(), Vec::new());
    let mut blind = Vec::new();
    for endpoint in list {
        match query_consumed(endpoint, account, &nonces, up_to).await {
            Ok(answer) => {
                if is_unseen(&answer) {
                    blind.push((answers.len(), endpoint));
                }
                answers.push(answer);
            }
            Err(failure) if failure.is_wrong_chain() => {}
            Err(failure) => failures.push((endpoint.name(), failure)),
        }
        // A third endpoint is read only where two do not show the same.
        match agree_on_consumers(&answers, needed) {
            Ok(agreed) if agreed.iter().all(|one| one.transaction.is_some()) => return Ok(agreed),
            Ok(_) | Err(_) => {}
        }
    }
    if answers.len() < needed && !failures.is_empty() {
        return Err(endpoints_failed(&failures));
    }
    let shown = answers.iter().find(|answer| !is_unseen(answer));
    let shown = shown.filter(|shown| !shown.is_empty()).cloned();
    for (index, endpoint) in blind {
        let Some(shown) = &shown else { break };
        let confirmed = confirm_by_hash(endpoint, account, shown, up_to.number).await;
        let confirmed = confirmed.ok().filter(|confirmed| !confirmed.is_empty());
        if let (Some(answer), Some(confirmed)) = (answers.get_mut(index), confirmed) {
            *answer = confirmed;
        }
    }
    agree_on_consumers(&answers, needed).map_err(|why| ChainError::Unusable(why.to_string()))
}

/// Whether the endpoint shows that the lowest nonce is consumed, and not by what.
fn is_unseen(answer: &[ConsumedNonce]) -> bool {
    answer.first().is_some_and(|one| one.transaction.is_none())
}

/// As many of these txs as the endpoint has in blocks too, with the same effect.
async fn confirm_by_hash(
    endpoint: &Endpoint,
    account: Address,
    shown: &[ConsumedNonce],
    up_to: u64,
) -> Result<Vec<ConsumedNonce>, Failure> {
    let shown: Vec<_> = shown
        .iter()
        .map_while(|one| Some((one, one.transaction.as_ref()?)))
        .collect();
    let calls: Vec<Value> = shown.iter().map(|(_, tx)| json!([tx.hash])).collect();
    let known: Vec<Option<SenderTx>> = endpoint
        .call_many("eth_getTransactionByHash", &calls)
        .await?;
    let pairs = shown.iter().zip(known);
    let confirmed = pairs.map_while(|((one, _), known)| {
        let known = known.filter(|known| known.is_mined(account, up_to))?;
        Some(known.into_consumed_nonce()).filter(|known| known == *one)
    });
    Ok(confirmed.collect())
}

/// The txs of one block, from the lowest of these nonces on, according to one endpoint.
async fn query_consumed(
    endpoint: &Endpoint,
    account: Address,
    nonces: &Range<u64>,
    up_to: Header,
) -> Result<Vec<ConsumedNonce>, Failure> {
    let first = Nonce(nonces.start);
    let unseen = ConsumedNonce {
        nonce: first,
        transaction: None,
    };
    Ok(
        match query_endpoint(endpoint, account, first, up_to).await? {
            Consumers::NotConsumed => Vec::new(),
            Consumers::Unattributed => vec![unseen],
            Consumers::Transactions(mut txs) => {
                txs.sort_by_key(|tx| tx.nonce.0);
                let consumed = txs.into_iter().map(SenderTx::into_consumed_nonce);
                let wanted = consumed.filter(|one| nonces.contains(&one.nonce.0));
                let in_order = wanted.zip(nonces.clone());
                let in_order = in_order.take_while(|(one, nonce)| one.nonce.0 == *nonce);
                in_order.map(|(one, _)| one).collect()
            }
        },
    )
}

/// What one endpoint shows of a consumed nonce.
enum Consumers {
    NotConsumed,
    /// It is consumed; the endpoint cannot show by which tx.
    Unattributed,
    /// The account's txs in the block in which it was consumed; one of them consumed it.
    Transactions(Vec<SenderTx>),
}

impl Consumers {
    /// The tx at this nonce.
    fn of(self, nonce: Nonce) -> NonceConsumer {
        match self {
            Self::NotConsumed => NonceConsumer::NotConsumed,
            Self::Unattributed => NonceConsumer::Unattributed,
            Self::Transactions(txs) => {
                let mut txs = txs.iter();
                let tx = txs.find(|tx| tx.nonce.0 == nonce.0);
                tx.map_or(NonceConsumer::Unattributed, SenderTx::to_consumer)
            }
        }
    }
}

/// What consumed a nonce according to one endpoint, if it is on the followed branch.
async fn query_endpoint(
    endpoint: &Endpoint,
    account: Address,
    nonce: Nonce,
    up_to: Header,
) -> Result<Consumers, Failure> {
    let found = header(endpoint, BlockTag::Number(up_to.number)).await?;
    if found.map(|found| found.hash) != Some(up_to.hash) {
        return Err(Failure::Malformed(
            "it is on another branch, or behind".to_owned(),
        ));
    }
    let up_to = up_to.number;
    match count_at(endpoint, account, up_to).await? {
        Ok(count) if count.0 <= nonce.0 => Ok(Consumers::NotConsumed),
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
) -> Result<Consumers, Failure> {
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
    let all: Vec<SenderTx> = block.transactions_of(account).collect();
    if all.iter().any(|tx| tx.nonce.0 == nonce.0) {
        return Ok(Consumers::Transactions(all));
    }
    if lacks_states {
        let heights = consumed_at.saturating_sub(CONSUMER_BLOCKS_MAX)..consumed_at;
        let found = scan_blocks(endpoint, account, nonce, heights, true).await?;
        return Ok(found.unwrap_or(Consumers::Unattributed));
    }
    // An authorization (EIP-7702) consumed it, which no tx of the account contains.
    Ok(Consumers::Unattributed)
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
) -> Result<Option<Consumers>, Failure> {
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
            let block = block.ok_or_else(missing_block)?;
            let all: Vec<SenderTx> = block.transactions_of(account).collect();
            if all.iter().any(|tx| tx.nonce.0 == nonce.0) {
                return Ok(Some(Consumers::Transactions(all)));
            }
            is_consumed |= all.iter().any(|tx| tx.nonce.0 > nonce.0);
            if all.iter().any(|tx| tx.nonce.0 < nonce.0) {
                let unseen = is_consumed.then_some(Consumers::Unattributed);
                return Ok(Some(unseen.unwrap_or(Consumers::NotConsumed)));
            }
        }
        above = from;
    }
    Ok(match (is_consumed, heights.start) {
        (true, _) => Some(Consumers::Unattributed),
        (false, 0) => Some(Consumers::NotConsumed),
        (false, _) => None,
    })
}
