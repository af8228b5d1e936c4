//! A waiting tx is bumped: the new attempt is mined, or the old one.

use alloy_primitives::B256;
use proof::manual_chain::{ManualChain, hash_of};
use proof::single_node::SingleNode;
use proof::{Outcome, ensure, eventually};
use rig::rpc_proxy::{CallFilter, Fault, RpcProxy, Rule};
use serde_json::{Value, json};

use crate::replacement::{LANE, WITHIN, bumping, fees_of};

/// Nodes refuse a replacement that raises a fee field by less.
const RAISE_PERCENT_MIN: u128 = 10;

/// A payment in the node's pool: its tx, and the hash of the first attempt.
async fn waiting(manual_chain: &ManualChain, single_node: &SingleNode) -> Outcome<(String, B256)> {
    let tx_id = single_node.pay(LANE, "waits", &[]).await?;
    let old = eventually("the node holds the payment", WITHIN, || async {
        let tx = single_node.tx(&tx_id).await?;
        if tx["txHash"].is_null() {
            return Ok(None);
        }
        let hash = hash_of(&tx["txHash"])?;
        Ok(manual_chain.transaction(hash)?.map(|_| hash))
    });
    let old = old.await?;
    Ok((tx_id, old))
}

/// Waits for a bump; returns its hash.
async fn bumped(single_node: &SingleNode, tx_id: &str) -> Outcome<B256> {
    let newest = |tx: &Value| {
        tx["attempts"]
            .as_array()
            .and_then(|all| all.last().cloned())
    };
    let tx = single_node.until(tx_id, "a bump is out", WITHIN, |tx| {
        newest(tx).is_some_and(|a| a["kind"] == "bump" && a["firstSentAt"].is_string())
    });
    let tx = tx.await?;
    are_raised(&tx)?;
    hash_of(&newest(&tx).ok_or("it has attempts")?["txHash"])
}

/// Both fee fields of each attempt are raised by the percentage that nodes require.
fn are_raised(tx: &Value) -> Outcome<()> {
    let attempts = tx["attempts"].as_array().ok_or("no attempts")?;
    for pair in attempts.windows(2) {
        for field in ["maxFeePerGas", "maxPriorityFeePerGas"] {
            let fee =
                |a: &Value| -> Outcome<u128> { Ok(a[field].as_str().ok_or("no fee")?.parse()?) };
            let (before, after) = (fee(&pair[0])?, fee(&pair[1])?);
            ensure(
                after * 100 >= before * (100 + RAISE_PERCENT_MIN),
                format!("{field} goes from {before} to {after}"),
            )?;
        }
    }
    Ok(())
}

/// Mines until it is confirmed, and returns the mined hash.
async fn confirmed(
    manual_chain: &ManualChain,
    single_node: &SingleNode,
    tx_id: &str,
) -> Outcome<(B256, Value)> {
    manual_chain.mine(2)?;
    let tx = single_node.until(tx_id, "it is confirmed", WITHIN, |tx| {
        tx["state"] == "CONFIRMED"
    });
    let tx = tx.await?;
    let hash = hash_of(&tx["txHash"])?;
    let receipt = hash_of(&tx["receipt"]["txHash"])?;
    ensure(
        receipt == hash && manual_chain.mined_in(hash)?.is_some(),
        format!("its hash and its receipt differ from the chain: {tx}"),
    )?;
    Ok((hash, tx))
}

/// The node replaces the old attempt by the bump, and mines it.
pub(crate) async fn new_is_mined(manual_chain: &ManualChain) -> Outcome<(SingleNode, Value)> {
    let single_node = bumping(manual_chain, "new-is-mined", manual_chain.url(), "").await?;
    let (tx_id, old) = waiting(manual_chain, &single_node).await?;
    let new = bumped(&single_node, &tx_id).await?;
    ensure(
        manual_chain.transaction(new)?.is_some() && manual_chain.transaction(old)?.is_none(),
        "the node does not hold the new one in the place of the old one",
    )?;
    let (hash, tx) = confirmed(manual_chain, &single_node, &tx_id).await?;
    ensure(hash != old, format!("the old one was mined: {tx}"))?;
    Ok((single_node, json!({ "attempts": fees_of(&tx) })))
}

/// The bump does not reach the node, although the proxy accepts it: the old attempt is mined.
pub(crate) async fn new_is_held_back(manual_chain: &ManualChain) -> Outcome<(SingleNode, Value)> {
    let proxy = RpcProxy::in_front_of(manual_chain.url(), 1);
    let single_node = bumping(manual_chain, "new-is-held-back", &proxy.url(), "").await?;
    let (tx_id, old) = waiting(manual_chain, &single_node).await?;
    let nonce = single_node.tx(&tx_id).await?["nonce"].as_u64();
    let nonce = nonce.ok_or("it is out, so it has a nonce")?;
    proxy.add(Rule::new(
        CallFilter::sends().with_nonce(nonce),
        Fault::Pretend,
    ));
    let new = bumped(&single_node, &tx_id).await?;
    ensure(manual_chain.transaction(new)?.is_none(), "the node has it")?;
    let (hash, tx) = confirmed(manual_chain, &single_node, &tx_id).await?;
    ensure(hash == old, format!("another than the old one: {tx}"))?;
    ensure(proxy.faults() > 0, "nothing was held back")?;
    Ok((single_node, json!({ "attempts": fees_of(&tx) })))
}

/// The node drops the bump, and the old attempt is sent again.
pub(crate) async fn new_is_dropped(manual_chain: &ManualChain) -> Outcome<(SingleNode, Value)> {
    let single_node = bumping(manual_chain, "new-is-dropped", manual_chain.url(), "").await?;
    let (tx_id, old) = waiting(manual_chain, &single_node).await?;
    let raw = manual_chain.raw(old)?;
    let new = bumped(&single_node, &tx_id).await?;
    manual_chain.drop_transaction(new)?;
    manual_chain.send_raw(&raw)?;
    let (hash, tx) = confirmed(manual_chain, &single_node, &tx_id).await?;
    ensure(hash == old, format!("another than the old one: {tx}"))?;
    Ok((single_node, json!({ "attempts": fees_of(&tx) })))
}
