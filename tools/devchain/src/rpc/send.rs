//! `eth_sendRawTransaction`, for many at once: the pool is locked once for the whole run.

use alloy_primitives::B256;

use super::error::RpcError;
use super::params::Params;
use super::{Answer, json};
use crate::Inner;
use crate::node::Node;
use crate::pool::Refusal;
use crate::transaction::{SignedTx, UnrecoveredTx};

pub(super) const METHOD: &str = "eth_sendRawTransaction";

/// Answers in order. A hash means that the tx is in the pool; it is not on disk, and a restart drops it.
pub(super) fn send_raw<'a>(chain: &Inner, calls: impl Iterator<Item = &'a Params>) -> Vec<Answer> {
    let decoded: Vec<Result<UnrecoveredTx, RpcError>> = calls.map(decode).collect();
    let known = known_hashes(&chain.node, &decoded);
    // Outside the lock: recovering the senders is nearly all of the work.
    let recovered: Vec<Result<SignedTx, RpcError>> = decoded
        .into_iter()
        .zip(known)
        .map(|(tx, known)| match tx {
            Ok(_) if known => Err(Refusal::AlreadyKnown.into()),
            Ok(tx) => Ok(tx.recover(&chain.node.rules)?),
            Err(error) => Err(error),
        })
        .collect();
    let added = add_all(&chain.node, recovered);
    if added.iter().any(Result::is_ok) {
        chain.miner.notify_pool_changed();
    }
    added.into_iter().map(|added| json(&added?)).collect()
}

fn decode(params: &Params) -> Result<UnrecoveredTx, RpcError> {
    params.at_most(1)?;
    Ok(UnrecoveredTx::decode(&params.bytes(0)?)?)
}

fn known_hashes(node: &Node, txs: &[Result<UnrecoveredTx, RpcError>]) -> Vec<bool> {
    let hashes: Vec<Option<B256>> = txs
        .iter()
        .map(|tx| tx.as_ref().ok().map(UnrecoveredTx::hash))
        .collect();
    let pool = node.pool();
    hashes
        .iter()
        .map(|hash| hash.is_some_and(|hash| pool.contains(hash)))
        .collect()
}

fn add_all(node: &Node, txs: Vec<Result<SignedTx, RpcError>>) -> Vec<Result<B256, RpcError>> {
    let mut pool = node.pool();
    txs.into_iter()
        .map(|tx| {
            let tx = tx?;
            let hash = tx.hash;
            pool.add(tx, |sender| node.readers.read(|view| view.account(sender)))??;
            Ok(hash)
        })
        .collect()
}
