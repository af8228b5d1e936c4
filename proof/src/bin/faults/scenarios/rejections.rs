//! Bytes that nodes refuse for good.

use proof::audit::Expected;
use proof::{Outcome, demand};
use rig::proxy::Then;
use rig::rpc_proxy::{Calls, Fault, Rule};
use serde_json::json;

use super::{Run, Shown};
use crate::settings::Tuning;
use crate::world::{World, hash_of, nonce_of};

/// What every client says when it will never take the bytes.
const REJECTION: &str = "oversized data";

/// How many are under way at once.
const PIPELINED: usize = 100;

/// One of 100 that are sent in one go is refused for good by every endpoint. It fails, a no-op takes its
/// nonce, and the others are paid.
pub(super) async fn in_the_middle(run: &Run) -> Outcome<Shown> {
    let tuning = Tuning {
        endpoints: 2,
        mempool_depth: "200",
        ..Tuning::default()
    };
    let world = World::single(&run.name(), run.make, tuning).await?;
    let world = world.serve().await?;
    world.pay("first", 5).await?;
    world.quiet().await?;
    // Held, so that the hash is known before it is sent.
    for proxy in &world.proxies[0] {
        let hold = Fault::Status {
            code: 503,
            retry_after: None,
        };
        proxy.add(Rule::new(Calls::sends(), hold));
    }
    let ours = world.pay("pipelined", PIPELINED).await?;
    let chosen = world.tx(&ours[PIPELINED / 2]["txId"]).await?;
    let (hash, nonce) = (hash_of(&chosen)?, nonce_of(&chosen)?);
    let mut others = world.hashes(&ours).await?;
    others.remove(PIPELINED / 2);
    world.net.hold_blocks().await?;
    for proxy in &world.proxies[0] {
        proxy.heal();
        proxy.add(Rule::new(
            Calls::sends().with_tx(hash),
            Fault::error(REJECTION),
        ));
    }
    // All of them are out before there is a block.
    world.net.until_known(&others).await?;
    world.net.make_blocks().await?;
    let id = chosen["txId"].as_str().unwrap_or_default().to_owned();
    let expected = Expected {
        rejected: vec![id],
        ..Expected::default()
    };
    let counted = world.audit(&expected).await?;
    let rejected = world.tx(&chosen["txId"]).await?;
    let is_told = rejected["reason"]
        .as_str()
        .is_some_and(|reason| reason.contains(REJECTION));
    demand(
        is_told && rejected["nonce"].as_u64() == Some(nonce),
        format!("its reason or its nonce is not told: {rejected}"),
    )?;
    Ok(Shown {
        counted,
        facts: json!({ "pipelined": PIPELINED, "rejectedAt": nonce }),
    })
}

/// The first endpoint refuses every envelope for good. The second takes it, and loses half of its answers.
/// Nobody may conclude that nothing was taken.
pub(super) async fn and_taken(run: &Run) -> Outcome<Shown> {
    let tuning = Tuning {
        endpoints: 2,
        send_to: 2,
        ..Tuning::default()
    };
    let world = World::single(&run.name(), run.make, tuning).await?;
    let world = world.serve().await?;
    world
        .proxy(0)
        .add(Rule::new(Calls::sends(), Fault::error(REJECTION)));
    let lose = Fault::LoseAnswer(Then::Cut);
    world
        .proxy(1)
        .add(Rule::new(Calls::sends(), lose).chance(0.5));
    let load = world.load("taken", 4, run.rest(60));
    world.promised_more(run.size(120)).await?;
    load.stop().await?;
    let counted = world.audit(&Expected::default()).await?;
    let facts = json!({
        "rejectedSends": world.proxy(0).faults(),
        "lostRequests": world.proxy(1).faults(),
    });
    demand(
        world.proxy(0).faults() > 0 && world.proxy(1).faults() > 0 && counted.no_ops == 0,
        format!("no-ops against payments that were taken, or no fault: {facts}, {counted:?}"),
    )?;
    Ok(Shown { counted, facts })
}
