//! The cost of an accepted tx: rows, index entries and bytes of WAL.

use std::sync::Arc;

use engine::ports::{CommitOutcome, Store as _};
use rig::postgres::{Postgres, majors};

use crate::kit::{World, accept, keepers, lane, node, wait_until};

/// Turns that are measured.
const TURNS: u64 = 4;

/// The size of an index without entries: its first page.
const EMPTY_INDEX: u64 = 8_192;

#[tokio::test]
async fn accepted_tx_stays_within_its_budget() {
    // Images of whole pages come with checkpoints, and the background writes into the WAL, too.
    let settings = [
        ("full_page_writes", "off"),
        ("autovacuum", "off"),
        ("checkpoint_timeout", "1h"),
        ("fsync", "off"),
    ];
    let postgres = Postgres::start_with(majors()[0], &settings);
    // Lanes, accepts of each in one turn, and the most that one accept may write.
    for (lanes, accepts, wal_max) in [
        (1, 100, 1_500),
        (20, 5, 1_500),
        (50, 2, 1_500),
        (100, 1, 1_700),
    ] {
        let world = World::on(postgres.database("budget")).await;
        let keys: Vec<_> = (1..=lanes).map(lane).collect();
        let mut keepers = keepers(&*world.store, &node("a"), &keys).await;
        let mut wal = 0;
        // The first turn makes its pages and plans.
        for turn in 0..=TURNS {
            let batches: Vec<_> = keepers.iter().map(|k| accept(k, accepts)).collect();
            let before = wal_bytes(&world);
            let outcomes = world
                .store
                .commit(batches.iter().cloned().map(Arc::new).collect())
                .await;
            assert!(outcomes.iter().all(|o| *o == CommitOutcome::Applied));
            if turn > 0 {
                wal += wal_bytes(&world) - before;
            }
            for (keeper, batch) in keepers.iter_mut().zip(&batches) {
                keeper.follow(batch);
            }
        }
        let per_tx = wal / (TURNS * lanes * accepts);
        assert!(
            per_tx <= wal_max,
            "{lanes} lanes, {accepts} each: {per_tx} bytes"
        );
        assert!(per_tx > 0 && wal > 0);
        eprintln!("{lanes} lanes, {accepts} accepts each: {per_tx} bytes of WAL per accept");

        let txs = (TURNS + 1) * lanes * accepts;
        let rows = "SELECT sum(n_tup_ins) FROM pg_stat_user_tables \
                    WHERE relname IN ('managed_tx', 'tx_attempt', 'lane_event')";
        let turns = (TURNS + 1) * lanes;
        wait_until("the statistics are reported", || {
            world.count(rows) >= 2 * txs + turns
        })
        .await;
        assert_eq!(world.count(rows), 2 * txs + turns, "rows");
        assert!(2 * txs + turns <= 3 * txs);
        let unused = world.count("SELECT pg_relation_size('managed_tx_without_nonce')");
        assert_eq!(unused, EMPTY_INDEX, "they have their nonces");
    }
    let indexes = "SELECT count(*) FROM pg_indexes WHERE tablename IN ('managed_tx', 'tx_attempt') \
                   AND indexname <> 'managed_tx_without_nonce'";
    let world = World::on(postgres.database("indexes")).await;
    assert_eq!(world.count(indexes), 5, "and one of the event row");
}

fn wal_bytes(world: &World) -> u64 {
    world.count("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
}
