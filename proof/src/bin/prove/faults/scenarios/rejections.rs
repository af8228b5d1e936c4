//! Transactions that nodes reject permanently.

use proof::audit::Expected;
use proof::{Outcome, ensure};
use rig::proxy::AfterLoss;
use rig::rpc_proxy::{CallFilter, Fault, Rule};
use serde_json::json;

use super::{Run, ScenarioResult};
use crate::faults::settings::Tuning;
use crate::faults::world::{World, hash_of, nonce_of};

/// An error that means permanent rejection on every client.
const REJECTION: &str = "oversized data";

const PIPELINED: usize = 100;

/// One of 100 pipelined txs is rejected permanently by every endpoint. It fails, a filler consumes its nonce, and
/// the others are paid.
pub(super) async fn in_the_middle(run: &Run) -> Outcome<ScenarioResult> {
    let tuning = Tuning {
        endpoints: 2,
        mempool_depth: "200",
        ..Tuning::default()
    };
    let world = World::single(&run.name(), run.node_kind, tuning).await?;
    let world = world.serve().await?;
    world.pay("first", 5).await?;
    world.quiet().await?;
    // Held, so that the hash is known before the send.
    for proxy in &world.proxies[0] {
        let hold = Fault::Status {
            code: 503,
            retry_after: None,
        };
        proxy.add(Rule::new(CallFilter::sends(), hold));
    }
    let ours = world.pay("pipelined", PIPELINED).await?;
    let chosen = world.tx(&ours[PIPELINED / 2]["txId"]).await?;
    let (hash, nonce) = (hash_of(&chosen)?, nonce_of(&chosen)?);
    let mut others = world.hashes(&ours).await?;
    others.remove(PIPELINED / 2);
    world.net.stop_mining().await?;
    for proxy in &world.proxies[0] {
        proxy.heal();
        proxy.add(Rule::new(
            CallFilter::sends().with_tx(hash),
            Fault::error(REJECTION),
        ));
    }
    // All are in flight before a block is mined.
    world.net.wait_until_known(&others).await?;
    world.net.resume_mining().await?;
    let id = chosen["txId"].as_str().unwrap_or_default().to_owned();
    let expected = Expected {
        rejected: vec![id],
        ..Expected::default()
    };
    let counted = world.audit(&expected).await?;
    let rejected = world.tx(&chosen["txId"]).await?;
    let is_reported = rejected["reason"]
        .as_str()
        .is_some_and(|reason| reason.contains(REJECTION));
    ensure(
        is_reported && rejected["nonce"].as_u64() == Some(nonce),
        format!("reason or nonce is not reported: {rejected}"),
    )?;
    Ok(ScenarioResult {
        counted,
        facts: json!({ "pipelined": PIPELINED, "rejectedAt": nonce }),
    })
}

/// The first endpoint rejects every envelope permanently. The second accepts it and loses half of its responses:
/// the outcome is unknown and must not count as rejected.
pub(super) async fn and_taken(run: &Run) -> Outcome<ScenarioResult> {
    let tuning = Tuning {
        endpoints: 2,
        send_to: 2,
        ..Tuning::default()
    };
    let world = World::single(&run.name(), run.node_kind, tuning).await?;
    let world = world.serve().await?;
    world
        .proxy(0)
        .add(Rule::new(CallFilter::sends(), Fault::error(REJECTION)));
    let lose = Fault::LoseAnswer(AfterLoss::Cut);
    world
        .proxy(1)
        .add(Rule::new(CallFilter::sends(), lose).chance(0.5));
    let load = world.load("taken", 4, run.rest(60));
    world.promised_more(run.size(120)).await?;
    load.stop().await?;
    let counted = world.audit(&Expected::default()).await?;
    let facts = json!({
        "rejectedSends": world.proxy(0).faults(),
        "lostRequests": world.proxy(1).faults(),
    });
    ensure(
        world.proxy(0).faults() > 0 && world.proxy(1).faults() > 0 && counted.no_ops == 0,
        format!("no-ops against payments that were taken, or no fault: {facts}, {counted:?}"),
    )?;
    Ok(ScenarioResult { counted, facts })
}
