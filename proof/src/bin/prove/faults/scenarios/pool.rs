//! Transactions that vanish from a node's pool.

use alloy_primitives::B256;
use proof::Outcome;
use proof::audit::Expected;
use serde_json::json;

use super::{Run, ScenarioResult};
use crate::faults::settings::Tuning;
use crate::faults::world::World;

/// A node with a full pool restarts with its blocks and an empty pool; then again under load.
pub(super) async fn forgotten(run: &Run) -> Outcome<ScenarioResult> {
    let world = World::single(&run.name(), run.node_kind, Tuning::deep()).await?;
    let world = world.serve().await?;
    world.pay("first", 5).await?;
    world.quiet().await?;
    world.net.stop_mining().await?;
    let hashes = burst(&world, run.size(90)).await?;
    world.net.restart().await?; // it mines again
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
    Ok(ScenarioResult {
        counted,
        facts: json!({ "forgotten": forgotten }),
    })
}

/// The lowest, the highest and some middle ones vanish from the pool.
pub(super) async fn dropped(run: &Run) -> Outcome<ScenarioResult> {
    let world = World::single(&run.name(), run.node_kind, Tuning::deep()).await?;
    let world = world.serve().await?;
    world.pay("first", 5).await?;
    world.quiet().await?;
    world.net.stop_mining().await?;
    let hashes = burst(&world, run.size(90)).await?;
    let last = hashes.len() - 1;
    let chosen = [0, last / 3, last / 2, last].map(|at| hashes[at]);
    for hash in chosen {
        world.net.drop_transaction(hash).await?;
    }
    world.net.resume_mining().await?;
    let counted = world.audit(&Expected::default()).await?;
    Ok(ScenarioResult {
        counted,
        facts: json!({ "dropped": chosen.len() }),
    })
}

/// Pays; all transactions are at the node and none is mined.
async fn burst(world: &World, count: usize) -> Outcome<Vec<B256>> {
    let txs = world.pay("burst", count).await?;
    let hashes = world.hashes(&txs).await?;
    world.net.wait_until_known(&hashes).await?;
    Ok(hashes)
}
