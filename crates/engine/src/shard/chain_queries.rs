//! Queries of the chain on behalf of a lane. Answers come back as inputs with its epoch.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use domain::headers::is_linked;
use domain::lane::{BELOW_VIEW_MAX, ChainQuery, NonceConsumer, Receipt};
use domain::{B256, ChainId, Header, Input, LaneKey, Nonce};

use super::effects::read_until_answered;
use crate::core::Core;
use crate::ports::{ChainError, Quorum};

/// Queries the account's nonces until the chain answers: without them a lane allocates no nonce. Where no second
/// endpoint answers, the answer of one is used, and the lane knows that it is weaker.
pub(super) async fn query_chain_nonces(
    core: Arc<Core>,
    lane: LaneKey,
    twice: bool,
    taken: Option<(Nonce, B256)>,
) -> Vec<Input> {
    let chain_state = core.chain(lane.chain_id);
    // A query of two endpoints is about their mempools, whatever the lane's own setting is.
    let query = match twice {
        true => ChainQuery::Pending,
        false => chain_state.rules.lane.nonce.chain_query,
    };
    let mut quorum = if twice { Quorum::Two } else { Quorum::One };
    let mut tries = 0;
    let nonces = loop {
        match chain_state
            .chain
            .account_nonces(lane.signer, query, quorum)
            .await
        {
            Ok(nonces) => break nonces,
            Err(error) => {
                tracing::warn!(%lane, %error, "the account's nonce could not be read from the chain; retrying");
                if quorum == Quorum::Two {
                    quorum = Quorum::One;
                } else {
                    core.back_off(&mut tries).await;
                }
            }
        }
    };
    // An endpoint that has the transaction and does not count it says nothing about its mempool.
    let counts_pool = match taken.filter(|(nonce, _)| nonces.first.pending <= *nonce) {
        Some((_, hash)) => {
            let has = chain_state.chain.knows_transaction(hash, Quorum::One).await;
            !has.unwrap_or(false)
        }
        None => true,
    };
    vec![Input::AccountNonces {
        nonces,
        counts_pool,
    }]
}

/// Finds the transaction that consumed a nonce of the lane. Where no endpoint shows it, the absence of all our
/// receipts at two endpoints (or the only one) decides.
pub(super) async fn find_consumer(
    core: Arc<Core>,
    lane: LaneKey,
    nonce: Nonce,
    up_to: Header,
    hashes: Vec<B256>,
) -> Vec<Input> {
    let chain = &core.chain(lane.chain_id).chain;
    let found = async {
        let by = chain.find_consumer(lane.signer, nonce, up_to).await?;
        let receipts = match by {
            NonceConsumer::NotConsumed => Vec::new(),
            // An endpoint that shows another transaction must not have ours either.
            NonceConsumer::Unattributed | NonceConsumer::Transaction { .. } => {
                receipts_with_proof(&core, lane, &hashes, Quorum::Two).await?
            }
        };
        Ok::<_, ChainError>((by, receipts))
    };
    let mut inputs = Vec::new();
    let by = match found.await {
        Ok((by, receipts)) if receipts.is_empty() => Some(by),
        Ok((_, receipts)) => {
            inputs.push(Input::Receipts(receipts));
            None
        }
        Err(error) => {
            tracing::warn!(%lane, %nonce, %error, "a nonce is consumed, and its transaction could not be found");
            None
        }
    };
    let is_named = match by.and_then(NonceConsumer::hash) {
        Some(hash) => is_named(&core, lane, hash).await,
        None => false,
    };
    inputs.push(Input::Consumed {
        nonce,
        up_to: up_to.number,
        by,
        hashes,
        is_named,
    });
    inputs
}

/// Finds the transactions that consumed nonces which no tx holds. Failures are not retried here: the lane queries again.
pub(super) async fn attribute_nonces(
    core: Arc<Core>,
    lane: LaneKey,
    nonces: Range<u64>,
    up_to: Header,
) -> Vec<Input> {
    let chain = &core.chain(lane.chain_id).chain;
    let (first, last) = (nonces.start, nonces.end.saturating_sub(1));
    let found = match chain.find_consumers(lane.signer, nonces, up_to).await {
        Ok(found) => Some(found),
        Err(error) => {
            tracing::warn!(%lane, first, last, %error, "nonces are consumed, and their transactions could not be read");
            None
        }
    };
    vec![Input::NoncesAttributed {
        up_to: up_to.number,
        found,
    }]
}

/// Whether a transaction at a reserved nonce is an attempt of a stored tx already: a second row with its hash would
/// conflict at every retry.
async fn is_named(core: &Core, lane: LaneKey, hash: B256) -> bool {
    if core.reservations(lane).is_none() {
        return false;
    }
    let found = read_until_answered(core, lane, || core.ports.store.tx_by_hash(hash));
    found.await.is_some()
}

/// Fetches receipts by hash, with proof for blocks that are older than the view. Failures are not retried here: the
/// lane fetches again while it lacks them.
pub(super) async fn fetch_receipts(
    core: Arc<Core>,
    lane: LaneKey,
    hashes: Vec<B256>,
) -> Vec<Input> {
    let workers = &core.chain(lane.chain_id).receipt_workers;
    let _worker = workers
        .acquire()
        .await
        .expect("this semaphore is never closed");
    let (result, inputs) = match receipts_with_proof(&core, lane, &hashes, Quorum::One).await {
        Ok(receipts) if receipts.is_empty() => ("miss", Vec::new()),
        Ok(receipts) => ("hit", vec![Input::Receipts(receipts)]),
        Err(error) => {
            tracing::warn!(%lane, %error, "receipts could not be read from the chain");
            ("error", Vec::new())
        }
    };
    metrics::counter!("lanekeeper_receipt_check_total", "result" => result).increment(1);
    inputs
}

/// Fetches the headers at these heights below the view, proved by parent links to its oldest header: an endpoint on
/// another branch proves nothing. The lane fetches again what is missing.
pub(super) async fn fetch_headers(core: Arc<Core>, lane: LaneKey, heights: Vec<u64>) -> Vec<Input> {
    let mut headers = match heights.iter().min() {
        Some(lowest) => headers_below_view(&core, lane.chain_id, *lowest).await,
        None => Vec::new(),
    };
    headers.retain(|header| heights.contains(&header.number));
    vec![Input::OldHeaders(headers)]
}

/// The headers from this height, or the lowest that is checked, up to the oldest of the view, with parent links to it;
/// none where they could not be read.
pub(crate) async fn headers_below_view(core: &Core, chain: ChainId, lowest: u64) -> Vec<Header> {
    let chain_state = core.chain(chain);
    let Some(base) = chain_state.view.base() else {
        return Vec::new();
    };
    let lowest = lowest.max(base.number.saturating_sub(BELOW_VIEW_MAX));
    let count = base.number.saturating_sub(lowest).saturating_add(1);
    match chain_state.chain.headers(lowest, count).await {
        Ok(branch) if is_linked(&branch) && branch.last() == Some(&base) => return branch,
        Ok(_) => tracing::warn!(%chain, "headers below the view do not link to it"),
        Err(error) => tracing::warn!(%chain, %error, "headers below the view could not be read"),
    }
    Vec::new()
}

async fn receipts_with_proof(
    core: &Core,
    lane: LaneKey,
    hashes: &[B256],
    quorum: Quorum,
) -> Result<Vec<Receipt>, ChainError> {
    let chain_state = core.chain(lane.chain_id);
    let finality = chain_state.rules.lane.confirmations.finality;
    let base = chain_state.view.base().map(|header| header.number);
    let inclusions = chain_state.chain.receipts(hashes, quorum).await?;
    let numbers = inclusions.iter().map(|mined| mined.block_number);
    let old = numbers.filter(|number| base.is_some_and(|base| *number < base));
    let mut headers: BTreeMap<u64, Header> = BTreeMap::new();
    for range in merge_proofs(old.collect(), finality.proof_headers()) {
        let count = range.end.saturating_sub(range.start);
        let read = chain_state.chain.headers(range.start, count).await?;
        headers.extend(read.into_iter().map(|header| (header.number, header)));
    }
    let proof = |number: u64| {
        let end = number.saturating_add(finality.proof_headers());
        headers.range(number..end).map(|(_, header)| *header)
    };
    let with_proof = inclusions.into_iter().map(|inclusion| Receipt {
        above: proof(inclusion.block_number).collect(),
        inclusion,
    });
    Ok(with_proof.collect())
}

/// The ranges of headers that prove blocks final, each by so many headers. Blocks that are close to each other share a
/// range: a chain with several blocks a second would cost a call for nearly each receipt.
fn merge_proofs(blocks: BTreeSet<u64>, headers_each: u64) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for number in blocks {
        let end = number.saturating_add(headers_each);
        match ranges.last_mut() {
            Some(last) if number <= last.end => last.end = end,
            Some(_) | None => ranges.push(number..end),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_of_neighbouring_blocks_share_a_range() {
        let blocks = BTreeSet::from([5, 6, 9, 20, 23, 40]);
        assert_eq!(merge_proofs(blocks, 3), [5..12, 20..26, 40..43]);
        assert_eq!(merge_proofs(BTreeSet::new(), 3), []);
    }
}
