//! A node that reports an older chain, or loses receipts.

use proof::audit::Expected;
use proof::{Outcome, ensure, eventually};
use rig::rpc_proxy::{CallFilter, Fault, Rule, View};
use serde_json::{Value, json};

use super::{Run, ScenarioResult};
use crate::faults::settings::Tuning;
use crate::faults::world::{SOON, World};

const BLOCKS: u64 = 10;

/// First the endpoint's view goes back by ten blocks and returns, as behind a bad load balancer. Then its heads are
/// current, but nonce queries are answered by an endpoint that is ten blocks behind.
pub(super) async fn old_nonce(run: &Run) -> Outcome<ScenarioResult> {
    let tuning = Tuning {
        endpoints: 2,
        ..Tuning::default()
    };
    let world = World::single(&run.name(), run.node_kind, tuning).await?;
    world.net.mine(BLOCKS + 2).await?; // the view needs ten blocks to hide
    let world = world.serve().await?;
    let load = world.load("old", 4, run.rest(60));
    world.promised_more(run.size(60)).await?;
    for proxy in &world.proxies[0] {
        proxy.show(View::Behind(BLOCKS));
    }
    let nonce_queries = wait_for_nonce_queries(&world, &[0, 1], 3).await;
    world.proxy(0).show(View::Live);
    nonce_queries?;
    world.promised_more(run.size(40)).await?;
    let silent = Rule::new(
        CallFilter::of("eth_getTransactionCount"),
        Fault::error("header not found"),
    );
    world.proxy(0).add(silent);
    wait_for_nonce_queries(&world, &[1], 3).await?;
    world.promised_more(run.size(40)).await?;
    load.stop().await?;
    world.proxy(0).heal();
    let counted = world.audit(&Expected::default()).await?;
    let lane = world.lane(0).await?;
    ensure(
        lane["gaps"].as_array().is_some_and(Vec::is_empty) && counted.no_ops == 0,
        format!("old nonces made gaps: {lane}"),
    )?;
    Ok(ScenarioResult {
        counted,
        facts: json!({ "oldNonces": nonce_calls(&world, &[1]) }),
    })
}

fn nonce_calls(world: &World, endpoints: &[usize]) -> u64 {
    let calls = |number: &usize| world.proxy(*number).calls_of("eth_getTransactionCount");
    endpoints.iter().map(calls).sum()
}

/// Waits for this many nonce queries.
async fn wait_for_nonce_queries(world: &World, endpoints: &[usize], times: u64) -> Outcome<()> {
    let goal = nonce_calls(world, endpoints) + times;
    eventually("old nonces are served", SOON, || async {
        Ok((nonce_calls(world, endpoints) >= goal).then_some(()))
    })
    .await
}

/// Reported receipts vanish before they are final, and return; others are late by several blocks. Nothing is
/// reorged out for that, and nothing is sent with another nonce.
pub(super) async fn receipt_gone(run: &Run) -> Outcome<ScenarioResult> {
    let tuning = Tuning {
        confirmations: 6,
        ..Tuning::default()
    };
    let world = World::single(&run.name(), run.node_kind, tuning).await?;
    let world = world.serve().await?;
    let load = world.load("gone", 4, run.rest(60));
    world.until_events("TxReceiptUpdated", run.size(60)).await?;
    let seen = world.events("TxReceiptUpdated").await?;
    let hashes: Vec<_> = seen.iter().filter_map(hash_in_event).collect();
    world.proxy(0).hide_receipts(hashes.iter().copied());
    // Some blocks later all receipts are hidden, also of later blocks.
    blocks_pass(&world, 3).await?;
    world.proxy(0).hide_all_receipts();
    blocks_pass(&world, 4).await?;
    world.proxy(0).show_receipts();
    load.stop().await?;
    let counted = world.audit(&Expected::default()).await?;
    let reorged = world.events("TxReorged").await?.len();
    ensure(
        reorged == 0,
        format!("{reorged} txs were reorged out because a receipt was missing"),
    )?;
    let reported = world.events("TxReceiptUpdated").await?.len();
    ensure(
        reported == counted.paid,
        format!("{reported} receipts were reported for {} txs", counted.paid),
    )?;
    Ok(ScenarioResult {
        counted,
        facts: json!({ "vanishedReceipts": hashes.len() }),
    })
}

fn hash_in_event(event: &Value) -> Option<alloy_primitives::B256> {
    event["data"]["txHash"].as_str()?.parse().ok()
}

async fn blocks_pass(world: &World, count: u64) -> Outcome<()> {
    let goal = world.net.chain.height().await? + count;
    eventually("blocks pass", SOON, || async {
        Ok((world.net.chain.height().await? >= goal).then_some(()))
    })
    .await
}
