//! How soon the mempool depth is found when txs arrive slowly at first: the number that every node holds is in
//! flight before the rest is posted, and no block makes room.

use std::time::{Duration, Instant};

use proof::network::{Network, NodeKind};
use proof::payers::Payers;
use proof::stats::ms;
use proof::{Outcome, Report, eventually};
use rig::postgres::Postgres;
use serde_json::json;

use crate::throughput::senders::{CLIENTS, network, start};

/// The depth that every node has for one account, and Lanekeeper's first assumption.
const FIRST: usize = 16;
/// Shorter than a block time of a few seconds: a block must not be needed.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// Time from the last accept until the node holds everything; `None` if it does not without a block.
pub(crate) async fn found_within(
    report: &mut Report,
    server: &Postgres,
    count: usize,
) -> Outcome<Option<Duration>> {
    let network = network(NodeKind::ANVIL).await?;
    let database = server.database("depth");
    let single_node = start(&network, &database, "depth".to_owned()).await?;
    let payers = Payers {
        api: &single_node.node.api,
        ledger: &single_node.ledger,
        lanes: &single_node.lanes,
        clients: CLIENTS,
    };
    network.stop_mining().await?;
    payers.post(FIRST).await?;
    holds(&network, &single_node.lanes[0], FIRST).await?;
    payers.post(count).await?;
    let accepted = Instant::now();
    let found = holds(&network, &single_node.lanes[0], FIRST + count).await;
    let took = found.is_ok().then(|| accepted.elapsed());
    let held = network.chain.pending_nonce(&single_node.lanes[0]).await?;
    report.fact(
        "depth",
        json!({"first": FIRST, "then": count, "heldAtLast": held, "foundMs": took.map(ms)}),
    );
    Ok(took)
}

async fn holds(network: &Network, account: &str, count: usize) -> Outcome<()> {
    let what = format!("the node holds {count}");
    eventually(&what, GIVE_UP_AFTER, || async {
        let pending = network.chain.pending_nonce(account).await?;
        Ok((pending >= count as u64).then_some(()))
    })
    .await
}
