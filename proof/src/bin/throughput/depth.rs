//! How soon the depth of a node's pool is found when the txs come slowly at first: so many as every node
//! holds are out and taken before the others are posted, and no block comes that could make room.

use std::time::{Duration, Instant};

use proof::network::{Make, Network};
use proof::payers::Payers;
use proof::stats::ms;
use proof::{Outcome, Report, eventually};
use rig::postgres::Postgres;
use serde_json::json;

use crate::senders::{CLIENTS, network, start};

/// What every node holds for one account, and Lanekeeper begins with.
const FIRST: usize = 16;
/// How long is waited for the rest: with a block every few seconds nobody may have to wait for one.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// From the last accept until the node holds everything; `None` when it does not get it without a block.
pub(crate) async fn found_within(
    report: &mut Report,
    server: &Postgres,
    count: usize,
) -> Outcome<Option<Duration>> {
    let network = network(Make::ANVIL).await?;
    let database = server.database("depth");
    let solo = start(&network, &database, "depth".to_owned()).await?;
    let payers = Payers {
        api: &solo.node.api,
        ledger: &solo.ledger,
        lanes: &solo.lanes,
        clients: CLIENTS,
    };
    network.hold_blocks().await?;
    payers.post(FIRST).await?;
    holds(&network, &solo.lanes[0], FIRST).await?;
    payers.post(count).await?;
    let accepted = Instant::now();
    let found = holds(&network, &solo.lanes[0], FIRST + count).await;
    let took = found.is_ok().then(|| accepted.elapsed());
    let held = network.chain.pending_nonce(&solo.lanes[0]).await?;
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
