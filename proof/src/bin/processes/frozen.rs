//! A keeper that stands still inside its transaction: its statement has locked the lane's row, and then
//! neither the database's process nor the node's moves until the lease is over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::cluster::{Keeper, Signal, aside, send};
use proof::load::Load;
use proof::{Outcome, demand, eventually};
use rig::postgres::Database;

use crate::{LANE, World, long_enough};

/// Holds the gate up after it has locked the lane's row: it cannot insert its attempts. Not for long: the
/// role's own limits hold for us too.
const HOLD: &str = "SET lock_timeout = 0; BEGIN; LOCK TABLE tx_attempt IN SHARE MODE; \
                    DO $$ BEGIN PERFORM pg_sleep(0.6); END $$; COMMIT";

/// A process of the database that waits inside a gate.
const HELD_UP: &str = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() \
                       AND wait_event_type = 'Lock' AND query LIKE '%lk_gate%' LIMIT 1";

pub(crate) async fn in_transaction(world: &World, load: &Load) -> Outcome<Duration> {
    let cluster = &world.cluster;
    let keeper = cluster.some_keeper(0, LANE).await?;
    let node = &cluster.nodes[keeper.node];
    let backend = freeze_backend(&world.database).await?;
    node.signal(Signal::Stop).await?;
    let (from, began) = (load.len(), Instant::now());
    tokio::time::sleep(long_enough(world)).await;
    let held = still_held(world, &keeper).await;
    send(Signal::Continue, backend).await?;
    let taken = cluster
        .accepted_under(load, from, LANE, keeper.token + 1)
        .await;
    // Whatever happened, it must not stay frozen.
    node.signal(Signal::Continue).await?;
    held?;
    Ok(taken?.answered.duration_since(began))
}

/// Stops the process of the database in which a gate waits for its last rows.
async fn freeze_backend(database: &Arc<Database>) -> Outcome<u32> {
    let what = "a gate stands still in its transaction";
    eventually(what, Duration::from_secs(60), || async {
        let holding = Arc::clone(database);
        let hold = tokio::task::spawn_blocking(move || holding.exec(HOLD));
        let looking = Arc::clone(database);
        let found = aside(move || {
            (0..50).find_map(|_| looking.ask(HELD_UP)) // each look takes some milliseconds
        })
        .await?;
        let pid = match found {
            Some(pid) => {
                let pid: u32 = pid.parse()?;
                send(Signal::Stop, pid).await?;
                Some(pid)
            }
            None => None,
        };
        hold.await?;
        Ok(pid)
    })
    .await
}

/// As long as the transaction stands, nobody can take the lane over: its row is locked.
async fn still_held(world: &World, keeper: &Keeper) -> Outcome<()> {
    let database = Arc::clone(&world.database);
    let signer = world.cluster.lanes[LANE]
        .trim_start_matches("0x")
        .to_lowercase();
    let token = aside(move || {
        database.ask(&format!(
            "SELECT fencing_token FROM signer_nonce_cursor JOIN lane USING (lane_id) \
             WHERE signer = '\\x{signer}'"
        ))
    })
    .await?;
    demand(
        token == Some(keeper.token.to_string()),
        format!("the lane went from {keeper:?} to token {token:?} while its row was locked"),
    )
}
