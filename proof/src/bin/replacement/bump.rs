//! A tx that waits is bumped: the new attempt is mined, or the old one after all.

use alloy_primitives::B256;
use proof::solo::Solo;
use proof::stage::{Stage, hash_of};
use proof::{Outcome, demand, eventually};
use rig::rpc_proxy::{Calls, Fault, RpcProxy, Rule};
use serde_json::{Value, json};

use crate::{LANE, WITHIN, bumping, fees_of};

/// Nodes take no replacement that raises a fee field by less.
const RAISE_PERCENT_MIN: u128 = 10;

/// A payment that waits in the node's pool: its tx, and the hash of its first attempt.
async fn waiting(stage: &Stage, solo: &Solo) -> Outcome<(String, B256)> {
    let tx_id = solo.pay(LANE, "waits", &[]).await?;
    let old = eventually("the node holds the payment", WITHIN, || async {
        let tx = solo.tx(&tx_id).await?;
        if tx["txHash"].is_null() {
            return Ok(None);
        }
        let hash = hash_of(&tx["txHash"])?;
        Ok(stage.transaction(hash)?.map(|_| hash))
    });
    let old = old.await?;
    Ok((tx_id, old))
}

/// Until a bump of it was handed over; gives its hash.
async fn bumped(solo: &Solo, tx_id: &str) -> Outcome<B256> {
    let newest = |tx: &Value| {
        tx["attempts"]
            .as_array()
            .and_then(|all| all.last().cloned())
    };
    let tx = solo.until(tx_id, "a bump is out", WITHIN, |tx| {
        newest(tx).is_some_and(|a| a["kind"] == "bump" && a["firstSentAt"].is_string())
    });
    let tx = tx.await?;
    are_raised(&tx)?;
    hash_of(&newest(&tx).ok_or("it has attempts")?["txHash"])
}

/// Both fee fields of each attempt are up by as much as nodes ask for.
fn are_raised(tx: &Value) -> Outcome<()> {
    let attempts = tx["attempts"].as_array().ok_or("no attempts")?;
    for pair in attempts.windows(2) {
        for field in ["maxFeePerGas", "maxPriorityFeePerGas"] {
            let fee =
                |a: &Value| -> Outcome<u128> { Ok(a[field].as_str().ok_or("no fee")?.parse()?) };
            let (before, after) = (fee(&pair[0])?, fee(&pair[1])?);
            demand(
                after * 100 >= before * (100 + RAISE_PERCENT_MIN),
                format!("{field} goes from {before} to {after}"),
            )?;
        }
    }
    Ok(())
}

/// Makes blocks until it is confirmed, and says by which hash.
async fn confirmed(stage: &Stage, solo: &Solo, tx_id: &str) -> Outcome<(B256, Value)> {
    stage.mine(2)?;
    let tx = solo.until(tx_id, "it is confirmed", WITHIN, |tx| {
        tx["state"] == "CONFIRMED"
    });
    let tx = tx.await?;
    let hash = hash_of(&tx["txHash"])?;
    let receipt = hash_of(&tx["receipt"]["txHash"])?;
    demand(
        receipt == hash && stage.mined_in(hash)?.is_some(),
        format!("its hash and its receipt differ from the chain: {tx}"),
    )?;
    Ok((hash, tx))
}

/// The node takes the bump in the place of the old one, and mines it.
pub(crate) async fn new_is_mined(stage: &Stage) -> Outcome<(Solo, Value)> {
    let solo = bumping(stage, "new-is-mined", stage.url(), "").await?;
    let (tx_id, old) = waiting(stage, &solo).await?;
    let new = bumped(&solo, &tx_id).await?;
    demand(
        stage.transaction(new)?.is_some() && stage.transaction(old)?.is_none(),
        "the node does not hold the new one in the place of the old one",
    )?;
    let (hash, tx) = confirmed(stage, &solo, &tx_id).await?;
    demand(hash != old, format!("the old one was mined: {tx}"))?;
    Ok((solo, json!({ "attempts": fees_of(&tx) })))
}

/// The bump never reaches the node, which says that it has it: the old one is mined.
pub(crate) async fn new_is_held_back(stage: &Stage) -> Outcome<(Solo, Value)> {
    let proxy = RpcProxy::in_front_of(stage.url(), 1);
    let solo = bumping(stage, "new-is-held-back", &proxy.url(), "").await?;
    let (tx_id, old) = waiting(stage, &solo).await?;
    let nonce = solo.tx(&tx_id).await?["nonce"].as_u64();
    let nonce = nonce.ok_or("it is out, so it has a nonce")?;
    proxy.add(Rule::new(Calls::sends().with_nonce(nonce), Fault::Pretend));
    let new = bumped(&solo, &tx_id).await?;
    demand(stage.transaction(new)?.is_none(), "the node has it")?;
    let (hash, tx) = confirmed(stage, &solo, &tx_id).await?;
    demand(hash == old, format!("another than the old one: {tx}"))?;
    demand(proxy.faults() > 0, "nothing was held back")?;
    Ok((solo, json!({ "attempts": fees_of(&tx) })))
}

/// The node had the bump and lost it, and somebody handed the old one in again.
pub(crate) async fn new_is_dropped(stage: &Stage) -> Outcome<(Solo, Value)> {
    let solo = bumping(stage, "new-is-dropped", stage.url(), "").await?;
    let (tx_id, old) = waiting(stage, &solo).await?;
    let raw = stage.raw(old)?;
    let new = bumped(&solo, &tx_id).await?;
    stage.drop_transaction(new)?;
    stage.send_raw(&raw)?;
    let (hash, tx) = confirmed(stage, &solo, &tx_id).await?;
    demand(hash == old, format!("another than the old one: {tx}"))?;
    Ok((solo, json!({ "attempts": fees_of(&tx) })))
}
