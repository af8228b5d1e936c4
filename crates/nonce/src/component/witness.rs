//! Whether the chain shows anything of a nonce.

use domain::lane::ChainQuery;
use domain::{B256, LaneKey, Nonce};
use engine::ports::{Chain, ChainError, Quorum};

/// Why a transaction at this nonce may be mined, or is: as two endpoints see it, where there are two. `None`
/// when they show nothing.
pub(crate) async fn why_it_may_be_mined(
    chain: &dyn Chain,
    lane: LaneKey,
    nonce: Nonce,
    tx_hash: Option<B256>,
) -> Result<Option<String>, ChainError> {
    let told = chain.account_nonces(lane.signer, ChainQuery::Pending, Quorum::Two);
    let highest = told.await?.highest();
    if highest.latest > nonce {
        return Ok(Some("the chain shows that it is consumed".into()));
    }
    if highest.pending > nonce {
        return Ok(Some("a transaction with it waits in a pool".into()));
    }
    let Some(tx_hash) = tx_hash else {
        return Ok(None);
    };
    // A pool may hold a transaction and not count it, because one before it is missing.
    if chain.knows_transaction(tx_hash, Quorum::Two).await? {
        return Ok(Some(format!("a node has its transaction {tx_hash}")));
    }
    let mined = chain.receipts(&[tx_hash], Quorum::Two).await?;
    Ok((!mined.is_empty()).then(|| format!("its transaction {tx_hash} is mined")))
}
