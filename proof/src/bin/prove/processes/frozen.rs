//! A keeper that freezes inside its transaction: its statement has locked the lane's row, and then both the backend
//! and the node are frozen until the lease ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::cluster::{Keeper, Signal, run_blocking, send};
use proof::load::Load;
use proof::{Outcome, ensure, eventually};
use rig::postgres::Database;

use crate::processes::{LANE, World, long_enough};

/// Blocks the gate after it has locked the lane's row: it cannot insert its attempts. Only briefly: the role's own
/// timeouts apply here too.
const HOLD: &str = "SET lock_timeout = 0; BEGIN; LOCK TABLE tx_attempt IN SHARE MODE; \
                    DO $$ BEGIN PERFORM pg_sleep(0.6); END $$; COMMIT";

/// A backend that waits inside the gate.
const HELD_UP: &str = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() \
                       AND wait_event_type = 'Lock' AND query LIKE '%lanekeeper_gate%' LIMIT 1";

pub(crate) async fn in_transaction(world: &World, load: &Load) -> Outcome<Duration> {
    let cluster = &world.cluster;
    let keeper = cluster.wait_keeper(0, LANE).await?;
    let node = &cluster.nodes[keeper.node];
    let backend = freeze_backend(&world.database).await?;
    node.signal(Signal::Stop).await?;
    let (from, began) = (load.len(), Instant::now());
    tokio::time::sleep(long_enough(world)).await;
    let held = still_held(world, &keeper).await;
    send(Signal::Continue, backend).await?;
    let taken = cluster
        .wait_accepted_with_token(load, from, LANE, keeper.token + 1)
        .await;
    // It must be resumed in any case.
    node.signal(Signal::Continue).await?;
    held?;
    Ok(taken?.answered_at.duration_since(began))
}

/// Freezes the backend in which a gate waits.
async fn freeze_backend(database: &Arc<Database>) -> Outcome<u32> {
    let what = "a gate is blocked in its transaction";
    eventually(what, Duration::from_secs(60), || async {
        let holding = Arc::clone(database);
        let hold = tokio::task::spawn_blocking(move || holding.exec(HOLD));
        let looking = Arc::clone(database);
        let found = run_blocking(move || {
            (0..50).find_map(|_| looking.query_value(HELD_UP)) // each query takes some milliseconds
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

/// While the transaction is open, no node can take over the lane: its row is locked.
async fn still_held(world: &World, keeper: &Keeper) -> Outcome<()> {
    let database = Arc::clone(&world.database);
    let signer = world.cluster.lanes[LANE]
        .trim_start_matches("0x")
        .to_lowercase();
    let token = run_blocking(move || {
        database.query_value(&format!(
            "SELECT fencing_token FROM signer_nonce_cursor JOIN lane USING (lane_id) \
             WHERE signer = '\\x{signer}'"
        ))
    })
    .await?;
    ensure(
        token == Some(keeper.token.to_string()),
        format!("the lane moved from {keeper:?} to token {token:?} while its row was locked"),
    )
}
