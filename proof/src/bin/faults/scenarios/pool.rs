//! Transactions that a node had and has no more.

use alloy_primitives::B256;
use proof::Outcome;
use proof::audit::Expected;
use serde_json::json;

use super::{Run, Shown};
use crate::settings::Tuning;
use crate::world::World;

/// All of a burst is at the node when the fault strikes.
const WIDE: Tuning = Tuning {
    lanes: 1,
    endpoints: 1,
    send_to: 1,
    confirmations: 2,
    state_timeout: "2s",
    mempool_depth: "200",
    resubmit: "interval = \"5s\"",
};

/// A node with a full pool restarts with its blocks and an empty pool; then again under load.
pub(super) async fn forgotten(run: &Run) -> Outcome<Shown> {
    let world = World::single(&run.name(), run.make, WIDE).await?;
    let world = world.serve().await?;
    world.pay("first", 5).await?;
    world.quiet().await?;
    world.net.hold_blocks().await?;
    let hashes = burst(&world, run.size(90)).await?;
    world.net.restart().await?; // it makes blocks again
    let mut forgotten = 0;
    for hash in &hashes {
        forgotten += usize::from(!world.net.has_mined(*hash).await?);
    }
    let load = world.load("load", 4, run.rest(50));
    world.promised_more(run.size(60)).await?;
    world.net.restart().await?;
    world.promised_more(run.size(60)).await?;
    load.stop().await?;
    let counted = world.audit(&Expected::default()).await?;
    Ok(Shown {
        counted,
        facts: json!({ "forgotten": forgotten }),
    })
}

/// The lowest, the highest and some in between vanish from the pool.
pub(super) async fn dropped(run: &Run) -> Outcome<Shown> {
    let world = World::single(&run.name(), run.make, WIDE).await?;
    let world = world.serve().await?;
    world.pay("first", 5).await?;
    world.quiet().await?;
    world.net.hold_blocks().await?;
    let hashes = burst(&world, run.size(90)).await?;
    let last = hashes.len() - 1;
    let chosen = [0, last / 3, last / 2, last].map(|at| hashes[at]);
    for hash in chosen {
        world.net.drop_transaction(hash).await?;
    }
    world.net.make_blocks().await?;
    let counted = world.audit(&Expected::default()).await?;
    Ok(Shown {
        counted,
        facts: json!({ "dropped": chosen.len() }),
    })
}

/// So many payments, all of them at the node and none in a block.
async fn burst(world: &World, count: usize) -> Outcome<Vec<B256>> {
    let txs = world.pay("burst", count).await?;
    let hashes = world.hashes(&txs).await?;
    world.net.until_known(&hashes).await?;
    Ok(hashes)
}
