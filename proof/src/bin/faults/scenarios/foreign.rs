//! Another program sends from our account.

use alloy_primitives::{Address, B256};
use proof::audit::Expected;
use proof::network::{Make, Network};
use proof::transfer::{Fee, transfer_for};
use proof::{Outcome, demand, eventually};
use rig::rpc_proxy::{Calls, Fault, Rule};
use serde_json::json;

use super::{Run, Shown};
use crate::settings::Tuning;
use crate::world::{SOON, World, nonce_of};

/// Blocks that make a foreign transaction final for us: proof takes 12 on top of it, whatever the
/// chain's own depth.
const FINAL_BLOCKS: u64 = 16;

/// The account of the lane.
const ACCOUNT: u32 = 0;

const WIDE: Tuning = Tuning {
    lanes: 1,
    endpoints: 1,
    send_to: 1,
    confirmations: 2,
    state_timeout: "2s",
    mempool_depth: "200",
    resubmit: "interval = \"5s\"",
};

/// Ours have nonces and are signed, and their sends get nowhere; meanwhile others use three of them.
pub(super) async fn before(run: &Run) -> Outcome<Shown> {
    let world = World::single(&run.name(), run.make, WIDE).await?;
    let world = world.serve().await?;
    world.pay("first", 10).await?;
    world.quiet().await?;
    let fault = Fault::Status {
        code: 503,
        retry_after: None,
    };
    let held = world.proxy(0).add(Rule::new(Calls::sends(), fault));
    let ours = world.pay("ours", run.size(60)).await?;
    let mut foreign = Vec::new();
    for tx in &ours[..3] {
        foreign.push(sent(&world.net, nonce_of(tx)?).await?);
    }
    until_mined(&world.net, &foreign).await?;
    // The rest of ours leaves between two blocks.
    world.net.hold_blocks().await?;
    world.proxy(0).remove(held);
    world
        .net
        .until_known(&world.hashes(&ours[3..]).await?)
        .await?;
    world.net.make_blocks().await?;
    finish(&world, foreign).await
}

/// Ours are in the pool; others outbid the lowest and one in the middle, and are mined in their place.
pub(super) async fn after(run: &Run) -> Outcome<Shown> {
    let world = World::single(&run.name(), run.make, WIDE).await?;
    let world = world.serve().await?;
    world.pay("first", 10).await?;
    world.quiet().await?;
    world.net.hold_blocks().await?;
    let ours = world.pay("ours", run.size(60)).await?;
    world.net.until_known(&world.hashes(&ours).await?).await?;
    let mut foreign = Vec::new();
    for at in [0, ours.len() / 2] {
        foreign.push(sent(&world.net, nonce_of(&ours[at])?).await?);
    }
    world.net.make_blocks().await?;
    until_mined(&world.net, &foreign).await?;
    finish(&world, foreign).await
}

/// Another's transaction waits at the nonce that we deal next. It is never outbid, although the policy is
/// to bump; ours goes on when the other is mined, and, where it can be dropped, at once when it is gone.
pub(super) async fn pending(run: &Run) -> Outcome<Shown> {
    let tuning = Tuning {
        // Otherwise the lane would see it and go around: here it must meet it.
        state_timeout: "60s",
        resubmit: "interval = \"2s\"\npolicy = \"bump\"",
        ..WIDE
    };
    let world = World::single(&run.name(), run.make, tuning).await?;
    let world = world.serve().await?;
    world.pay("first", 10).await?;
    world.quiet().await?;
    world.net.hold_blocks().await?;
    let other = met(&world, "mined").await?;
    world.net.make_blocks().await?;
    until_mined(&world.net, &[other]).await?;
    world.net.mine(FINAL_BLOCKS).await?;
    world.until_events("TxRequeued", 1).await?;
    world.quiet().await?;
    let may_vanish = run.make != Make::GANACHE;
    if may_vanish {
        world.net.hold_blocks().await?;
        let other = met(&world, "gone").await?;
        world.net.drop_transaction(other).await?;
        world.net.make_blocks().await?;
    }
    let expected = Expected {
        foreign: vec![other],
        ..Expected::default()
    };
    let counted = world.audit(&expected).await?;
    let told = world.events("LaneForeignPending").await?.len();
    demand(
        told == 1 + usize::from(may_vanish),
        format!("{told} LaneForeignPending"),
    )?;
    Ok(Shown {
        counted,
        facts: json!({ "met": told, "vanished": may_vanish }),
    })
}

/// Puts a foreign transaction at the next nonce and pays: the first of ours meets it, is sent again and
/// again, and never with more money.
async fn met(world: &World, name: &str) -> Outcome<B256> {
    let told = world.events("LaneForeignPending").await?.len();
    let nonce = world.net.chain.nonce(&world.lanes[0]).await?;
    let other = sent(&world.net, nonce).await?;
    let ours = world.pay(name, 5).await?;
    demand(
        nonce_of(&ours[0])? == nonce,
        format!("the lane went around nonce {nonce}: {}", ours[0]),
    )?;
    world.until_events("LaneForeignPending", told + 1).await?;
    let id = &ours[0]["txId"];
    eventually("it was sent again three times", SOON, || async {
        let again = world.events("TxResubmitted").await?;
        let of_it = again.iter().filter(|event| event["txId"] == *id);
        Ok((of_it.count() >= 3).then_some(()))
    })
    .await?;
    let met = world.tx(id).await?;
    demand(
        met["waitingFor"] == "foreignTransaction"
            && met["attempts"].as_array().map(Vec::len) == Some(1),
        format!("it does not wait, or bids against the other: {met}"),
    )?;
    demand(
        world.net.knows(other).await?,
        "the foreign transaction is not in the pool any more",
    )?;
    Ok(other)
}

async fn sent(net: &Network, nonce: u64) -> Outcome<B256> {
    let nobody = Address::repeat_byte(0xf0);
    let other = transfer_for(ACCOUNT, nonce, nobody, Fee::OUTBIDS)?;
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

/// Lets the proof come, and sees that each nonce that was taken is told and its tx has another one.
async fn finish(world: &World, foreign: Vec<B256>) -> Outcome<Shown> {
    let taken = foreign.len();
    eventually("all taken nonces are told", SOON, || async {
        world.net.mine(1).await?;
        let told = world.events("LaneForeignNonce").await?.len();
        Ok((told >= taken).then_some(()))
    })
    .await?;
    let expected = Expected {
        foreign,
        ..Expected::default()
    };
    let counted = world.audit(&expected).await?;
    for kind in ["LaneForeignNonce", "TxRequeued"] {
        let told = world.events(kind).await?.len();
        demand(told == taken, format!("{told} {kind} for {taken} nonces"))?;
    }
    Ok(Shown {
        counted,
        facts: json!({ "requeued": taken }),
    })
}
