//! Reads of blocks, receipts and nonces. An answer that does not match its request is a failure.

use std::collections::BTreeMap;

use domain::lane::{AccountNonces, Agreement, ChainQuery, EndpointNonces};
use domain::{Address, B256, Header, Inclusion, Nonce};
use engine::ports::{BlockTag, ChainError, HashFilter, Quorum};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::answers::{Block, Quantity, Receipt};
use super::endpoint::Endpoint;
use super::endpoints::Endpoints;
use super::failure::{Failure, endpoints_failed};
use super::limits::BATCH_MAX;
use super::wire::Outcome;

/// A number as JSON-RPC writes it.
pub(super) fn quantity(number: u64) -> String {
    format!("{number:#x}")
}

/// The newest block.
pub(super) async fn latest_block(endpoint: &Endpoint) -> Result<Option<Block>, Failure> {
    let params = json!(["latest", false]);
    block_or_absent(endpoint.query("eth_getBlockByNumber", &params).await?)
}

pub(super) async fn header(endpoint: &Endpoint, tag: BlockTag) -> Result<Option<Header>, Failure> {
    let block = block(endpoint, tag).await?;
    Ok(block.map(|block| block.header()))
}

/// A block, without its transactions.
pub(super) async fn block(endpoint: &Endpoint, tag: BlockTag) -> Result<Option<Block>, Failure> {
    let (method, which) = match tag {
        BlockTag::Latest => ("eth_getBlockByNumber", "latest".to_owned()),
        BlockTag::Safe => ("eth_getBlockByNumber", "safe".to_owned()),
        BlockTag::Finalized => ("eth_getBlockByNumber", "finalized".to_owned()),
        BlockTag::Number(number) => ("eth_getBlockByNumber", quantity(number)),
        BlockTag::Hash(hash) => ("eth_getBlockByHash", hash.to_string()),
    };
    let answer = block_or_absent(endpoint.query(method, &json!([which, false])).await?)?;
    let header = answer.as_ref().map(Block::header);
    let matches_request = header.is_none_or(|header| match tag {
        BlockTag::Latest | BlockTag::Safe | BlockTag::Finalized => true,
        BlockTag::Number(number) => header.number == number,
        BlockTag::Hash(hash) => header.hash == hash,
    });
    if !matches_request {
        return Err(other_block());
    }
    Ok(answer)
}

fn other_block() -> Failure {
    Failure::Malformed("it returned another block than the requested one".to_owned())
}

/// The block, or `None`: nodes report an unknown block as `null` or as an error.
pub(super) fn block_or_absent(answer: Outcome<Option<Block>>) -> Result<Option<Block>, Failure> {
    match answer {
        Ok(block) => Ok(block),
        Err(error) if error.is_unknown_block() => Ok(None),
        Err(error) => Err(Failure::Node(error)),
    }
}

/// The requests by which so many headers are read.
pub(super) fn header_requests(count: u64) -> usize {
    usize::try_from(count).map_or(usize::MAX, |count| count.div_ceil(BATCH_MAX))
}

pub(super) async fn headers(
    endpoint: &Endpoint,
    from: u64,
    count: u64,
) -> Result<Vec<Header>, Failure> {
    let end = from.saturating_add(count);
    let mut headers = Vec::new();
    let mut next = from;
    while next < end {
        let part: Vec<u64> = (next..end).take(BATCH_MAX).collect();
        next = next.saturating_add(part.len() as u64);
        let calls: Vec<Value> = part
            .iter()
            .map(|number| json!([quantity(*number), false]))
            .collect();
        let answers = endpoint.query_many("eth_getBlockByNumber", &calls).await?;
        for (number, answer) in part.iter().zip(answers) {
            let Some(block) = block_or_absent(answer)? else {
                return Ok(headers);
            };
            let header = block.header();
            if header.number != *number {
                return Err(other_block());
            }
            headers.push(header);
        }
    }
    Ok(headers)
}

pub(super) async fn block_receipts(
    endpoint: &Endpoint,
    block: B256,
    is_ours: HashFilter<'_>,
) -> Result<Option<Vec<Inclusion>>, Failure> {
    if endpoint.has_block_receipts() {
        let answer = endpoint
            .query("eth_getBlockReceipts", &json!([block]))
            .await?;
        match answer {
            Ok(receipts) => {
                let receipts: Option<Vec<Receipt>> = receipts;
                let in_block = receipts.map(|receipts| in_block(receipts, block));
                return Ok(in_block.transpose()?.map(|mut inclusions| {
                    inclusions.retain(|inclusion| is_ours(inclusion.tx_hash));
                    inclusions
                }));
            }
            Err(error) if error.is_missing_method() => endpoint.mark_block_receipts_unsupported(),
            Err(error) if error.is_unknown_block() => return Ok(None),
            Err(error) => return Err(Failure::Node(error)),
        }
    }
    let answer = endpoint
        .query("eth_getBlockByHash", &json!([block, false]))
        .await?;
    let Some(found) = block_or_absent(answer)? else {
        return Ok(None);
    };
    let hashes = found.hashes()?;
    let ours = hashes.iter().filter(|hash| is_ours(**hash));
    let calls: Vec<Value> = ours.map(|hash| json!([hash])).collect();
    let receipts: Vec<Option<Receipt>> = endpoint
        .call_many("eth_getTransactionReceipt", &calls)
        .await?;
    // A receipt that is not available yet must not count as absent from the block.
    let all: Option<Vec<Receipt>> = receipts.into_iter().collect();
    let all =
        all.ok_or_else(|| Failure::Malformed("receipts of the block are missing".to_owned()))?;
    in_block(all, block).map(Some)
}

/// Whether the node has a tx, in its pool or in a block.
pub(super) async fn knows_transaction(endpoint: &Endpoint, hash: B256) -> Result<bool, Failure> {
    let found: Option<IgnoredAny> = endpoint
        .call("eth_getTransactionByHash", &json!([hash]))
        .await?;
    Ok(found.is_some())
}

fn in_block(receipts: Vec<Receipt>, block: B256) -> Result<Vec<Inclusion>, Failure> {
    receipts
        .into_iter()
        .map(|receipt| receipt.inclusion_in(block))
        .collect()
}

/// Receipts by hash. A receipt that one endpoint lacks is requested from the others before it counts as absent.
pub(super) async fn receipts_from_endpoints(
    endpoints: &Endpoints,
    hashes: &[B256],
    quorum: Quorum,
) -> Result<Vec<Inclusion>, ChainError> {
    let mut found = BTreeMap::new();
    let mut missing = hashes.to_vec();
    let mut answered = 0_usize;
    let mut failures = Vec::new();
    for turn in endpoints.turns() {
        let endpoint = turn.endpoint;
        let requests = missing.len().div_ceil(endpoint.batch_max);
        let answer = turn.answer(requests, receipts(endpoint, &missing));
        match answer.await {
            Ok(inclusions) => {
                answered += 1;
                found.extend(inclusions.into_iter().map(|one| (one.tx_hash, one)));
                missing.retain(|hash| !found.contains_key(hash));
            }
            Err(failure) => failures.push((endpoint.name(), failure)),
        }
        if answered > 0 && missing.is_empty() {
            break;
        }
    }
    let wanted = match quorum {
        Quorum::Two if !missing.is_empty() => {
            let wrong = failures
                .iter()
                .filter(|(_, failure)| failure.is_wrong_chain());
            let serving = endpoints.in_order().len().saturating_sub(wrong.count());
            serving.clamp(1, 2)
        }
        Quorum::One | Quorum::Two => 1,
    };
    if answered < wanted {
        return Err(endpoints_failed(&failures));
    }
    Ok(hashes
        .iter()
        .filter_map(|hash| found.remove(hash))
        .collect())
}

async fn receipts(endpoint: &Endpoint, hashes: &[B256]) -> Result<Vec<Inclusion>, Failure> {
    let calls: Vec<Value> = hashes.iter().map(|hash| json!([hash])).collect();
    let receipts: Vec<Option<Receipt>> = endpoint
        .call_many("eth_getTransactionReceipt", &calls)
        .await?;
    let mut inclusions = Vec::new();
    for (hash, receipt) in hashes.iter().zip(receipts) {
        if let Some(receipt) = receipt {
            inclusions.extend(receipt.inclusion_of(*hash)?);
        }
    }
    Ok(inclusions)
}

/// The account's nonces from one endpoint or two, and from a third one where two contradict each other. If the quorum is
/// two and a second endpoint of this chain is configured, it must answer, unless all others are dead: then the answer is
/// marked as weaker.
pub(super) async fn nonces_from_endpoints(
    endpoints: &Endpoints,
    account: Address,
    query: ChainQuery,
    quorum: Quorum,
) -> Result<EndpointNonces, ChainError> {
    let is_only = endpoints.list().len() == 1;
    let mut found: Option<EndpointNonces> = None;
    // Endpoints of other chains cannot be part of the quorum.
    let mut is_alone = true;
    let mut are_others_dead = true;
    let mut failures = Vec::new();
    for turn in endpoints.turns() {
        let endpoint = turn.endpoint;
        let answer = turn.answer(1, account_nonces(endpoint, account, query));
        let answer = answer.await;
        endpoint.health.record_nonce_query(answer.is_ok());
        match (answer, &mut found) {
            (Ok(nonces), None) if is_only => {
                return Ok(EndpointNonces::new(nonces, None, Agreement::Quorum));
            }
            (Ok(nonces), None) if quorum == Quorum::One => {
                return Ok(EndpointNonces::new(nonces, None, Agreement::One));
            }
            (Ok(nonces), None) => found = Some(EndpointNonces::new(nonces, None, Agreement::One)),
            (Ok(nonces), Some(found)) if found.second.is_none() => {
                *found = EndpointNonces::new(found.first, Some(nonces), Agreement::Quorum);
                if !found.is_contradictory() {
                    return Ok(*found);
                }
            }
            (Ok(nonces), Some(found)) => {
                found.third = Some(nonces);
                return Ok(*found);
            }
            (Err(failure), _) => {
                is_alone &= failure.is_wrong_chain();
                are_others_dead &= failure.is_wrong_chain() || endpoints.is_dead(endpoint);
                failures.push((endpoint.name(), failure));
            }
        }
    }
    let agreement = match &found {
        Some(found) if found.is_complete() => Agreement::Quorum, // two, and no third answers
        Some(_) if is_alone => Agreement::Quorum,
        Some(_) if are_others_dead => Agreement::Living,
        Some(_) | None => return Err(endpoints_failed(&failures)),
    };
    let found = found.ok_or_else(|| endpoints_failed(&failures))?;
    Ok(EndpointNonces { agreement, ..found })
}

pub(super) async fn account_nonces(
    endpoint: &Endpoint,
    account: Address,
    query: ChainQuery,
) -> Result<AccountNonces, Failure> {
    let tags: &[&str] = match query {
        ChainQuery::Pending => &["latest", "pending"],
        ChainQuery::Latest | ChainQuery::Off => &["latest"],
    };
    let calls: Vec<Value> = tags.iter().map(|tag| json!([account, tag])).collect();
    let counts: Vec<Quantity> = endpoint
        .call_many("eth_getTransactionCount", &calls)
        .await?;
    // No account reaches such a nonce, and arithmetic on it could overflow.
    if counts.iter().any(|count| i64::try_from(count.0).is_err()) {
        return Err(Failure::Malformed(
            "an impossible transaction count".to_owned(),
        ));
    }
    let count = |index: usize| counts.get(index).map(|count| Nonce(count.0));
    let latest = count(0)
        .ok_or_else(|| Failure::Malformed("the transaction count is missing".to_owned()))?;
    // A pool that lags behind the node's blocks must not make a mined nonce look unused.
    let pending = count(1).unwrap_or(latest).max(latest);
    Ok(AccountNonces { latest, pending })
}
