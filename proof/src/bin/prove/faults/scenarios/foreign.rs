//! A foreign program sends from the lane's account.

use alloy_primitives::{Address, B256};
use proof::audit::Expected;
use proof::network::{Network, NodeKind};
use proof::transfer::{Fee, transfer_for};
use proof::{Outcome, ensure, eventually};
use rig::rpc_proxy::{CallFilter, Fault, Rule};
use serde_json::json;

use super::{Run, ScenarioResult};
use crate::faults::settings::Tuning;
use crate::faults::world::{SOON, World, nonce_of};

/// Blocks until a foreign transaction is final: 12 on top of it, whatever the chain's own depth.
const FINAL_BLOCKS: u64 = 16;

/// The account of the lane.
const ACCOUNT: u32 = 0;

/// The txs have nonces and are signed, but their sends are lost; meanwhile foreign transactions use three of the
/// nonces.
pub(super) async fn consumed_before_send(run: &Run) -> Outcome<ScenarioResult> {
    let world = World::single(&run.name(), run.node_kind, Tuning::deep()).await?;
    let world = world.serve().await?;
    world.pay("first", 10).await?;
    world.quiet().await?;
    let fault = Fault::Status {
        code: 503,
        retry_after: None,
    };
    let held = world.proxy(0).add(Rule::new(CallFilter::sends(), fault));
    let ours = world.pay("ours", run.size(60)).await?;
    let mut foreign = Vec::new();
    for tx in &ours[..3] {
        foreign.push(send_foreign(&world.net, nonce_of(tx)?).await?);
    }
    until_mined(&world.net, &foreign).await?;
    // The rest is sent between two blocks.
    world.net.stop_mining().await?;
    world.proxy(0).remove(held);
    world
        .net
        .wait_until_known(&world.hashes(&ours[3..]).await?)
        .await?;
    world.net.resume_mining().await?;
    finish(&world, foreign).await
}

/// The txs are in the pool; foreign transactions outbid the lowest and a middle one, and are mined instead.
pub(super) async fn outbid_after_send(run: &Run) -> Outcome<ScenarioResult> {
    let world = World::single(&run.name(), run.node_kind, Tuning::deep()).await?;
    let world = world.serve().await?;
    world.pay("first", 10).await?;
    world.quiet().await?;
    world.net.stop_mining().await?;
    let ours = world.pay("ours", run.size(60)).await?;
    world
        .net
        .wait_until_known(&world.hashes(&ours).await?)
        .await?;
    let mut foreign = Vec::new();
    for at in [0, ours.len() / 2] {
        foreign.push(send_foreign(&world.net, nonce_of(&ours[at])?).await?);
    }
    world.net.resume_mining().await?;
    until_mined(&world.net, &foreign).await?;
    finish(&world, foreign).await
}

/// A foreign transaction waits at the next nonce. It is never outbid, although bumps are enabled; the tx continues
/// when the foreign one is mined, or at once when it is dropped.
pub(super) async fn pending_at_next_nonce(run: &Run) -> Outcome<ScenarioResult> {
    let tuning = Tuning {
        // Otherwise the lane would see it and skip the nonce: here it must collide.
        state_timeout: "60s",
        resubmit: "interval = \"2s\"\npolicy = \"bump\"",
        ..Tuning::deep()
    };
    let world = World::single(&run.name(), run.node_kind, tuning).await?;
    let world = world.serve().await?;
    world.pay("first", 10).await?;
    world.quiet().await?;
    world.net.stop_mining().await?;
    let other = collide_with_foreign(&world, "mined").await?;
    world.net.resume_mining().await?;
    until_mined(&world.net, &[other]).await?;
    world.net.mine(FINAL_BLOCKS).await?;
    world.until_events("TxRequeued", 1).await?;
    world.quiet().await?;
    let may_vanish = run.node_kind != NodeKind::GANACHE;
    if may_vanish {
        world.net.stop_mining().await?;
        let other = collide_with_foreign(&world, "gone").await?;
        world.net.drop_transaction(other).await?;
        world.net.resume_mining().await?;
    }
    let expected = Expected {
        foreign: vec![other],
        ..Expected::default()
    };
    let counted = world.audit(&expected).await?;
    let reported = world.events("LaneForeignPending").await?.len();
    ensure(
        reported == 1 + usize::from(may_vanish),
        format!("{reported} LaneForeignPending"),
    )?;
    Ok(ScenarioResult {
        counted,
        facts: json!({ "met": reported, "vanished": may_vanish }),
    })
}

/// Sends a foreign transaction at the next nonce and pays: the first tx collides with it, is resubmitted
/// repeatedly, and never with a higher fee.
async fn collide_with_foreign(world: &World, name: &str) -> Outcome<B256> {
    let reported = world.events("LaneForeignPending").await?.len();
    let nonce = world.net.chain.nonce(&world.lanes[0]).await?;
    let other = send_foreign(&world.net, nonce).await?;
    let ours = world.pay(name, 5).await?;
    ensure(
        nonce_of(&ours[0])? == nonce,
        format!("the lane skipped nonce {nonce}: {}", ours[0]),
    )?;
    world
        .until_events("LaneForeignPending", reported + 1)
        .await?;
    let id = &ours[0]["txId"];
    eventually("it was sent again three times", SOON, || async {
        let again = world.events("TxResubmitted").await?;
        let of_it = again.iter().filter(|event| event["txId"] == *id);
        Ok((of_it.count() >= 3).then_some(()))
    })
    .await?;
    let tx = world.tx(id).await?;
    ensure(
        tx["waitingFor"] == "foreignTransaction"
            && tx["attempts"].as_array().map(Vec::len) == Some(1),
        format!("it does not wait, or bids against the other: {tx}"),
    )?;
    ensure(
        world.net.knows_transaction(other).await?,
        "the foreign transaction is not in the pool any more",
    )?;
    Ok(other)
}

async fn send_foreign(net: &Network, nonce: u64) -> Outcome<B256> {
    let recipient = Address::repeat_byte(0xf0);
    let other = transfer_for(ACCOUNT, nonce, recipient, Fee::OUTBIDS)?;
    net.send_raw(&other.raw).await?;
    Ok(other.hash)
}

async fn until_mined(net: &Network, hashes: &[B256]) -> Outcome<()> {
    for hash in hashes {
        eventually("the foreign transaction is mined", SOON, || async {
            Ok(net.has_mined(*hash).await?.then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Mines until it is final, and checks that each consumed nonce is reported and its tx has another one.
async fn finish(world: &World, foreign: Vec<B256>) -> Outcome<ScenarioResult> {
    let taken = foreign.len();
    eventually("all consumed nonces are reported", SOON, || async {
        world.net.mine(1).await?;
        let reported = world.events("LaneForeignNonce").await?.len();
        Ok((reported >= taken).then_some(()))
    })
    .await?;
    let expected = Expected {
        foreign,
        ..Expected::default()
    };
    let counted = world.audit(&expected).await?;
    for kind in ["LaneForeignNonce", "TxRequeued"] {
        let reported = world.events(kind).await?.len();
        ensure(
            reported == taken,
            format!("{reported} {kind} for {taken} nonces"),
        )?;
    }
    Ok(ScenarioResult {
        counted,
        facts: json!({ "requeued": taken }),
    })
}
