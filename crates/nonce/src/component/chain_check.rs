//! The chain check: does the chain show a transaction with a nonce?

use domain::lane::ChainQuery;
use domain::{B256, LaneKey, Nonce};
use engine::ports::{Chain, ChainError, Quorum};

/// Why a transaction with this nonce is mined or may be mined, as seen by two endpoints where there are two.
/// `None` when they show nothing.
pub(crate) async fn find_chain_evidence(
    chain: &dyn Chain,
    lane: LaneKey,
    nonce: Nonce,
    tx_hash: Option<B256>,
) -> Result<Option<String>, ChainError> {
    let nonces = chain.account_nonces(lane.signer, ChainQuery::Pending, Quorum::Two);
    let highest = nonces.await?.highest();
    if highest.latest > nonce {
        return Ok(Some("the chain has consumed this nonce".into()));
    }
    if highest.pending > nonce {
        return Ok(Some("a transaction with this nonce is pending".into()));
    }
    let Some(tx_hash) = tx_hash else {
        return Ok(None);
    };
    // A mempool may hold a transaction without counting it, because a lower nonce is missing.
    if chain.knows_transaction(tx_hash, Quorum::Two).await? {
        return Ok(Some(format!("a node knows transaction {tx_hash}")));
    }
    let mined = chain.receipts(&[tx_hash], Quorum::Two).await?;
    Ok((!mined.is_empty()).then(|| format!("transaction {tx_hash} is mined")))
}
