//! A hundred lanes in one turn: one commit, and no lane waits for another's trouble.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{LaneId, LaneKey, Token};
use engine::ports::{CommitOutcome, Conflict, LaneBatch, Store as _};
use rig::postgres::shared;
use tokio_postgres::types::Type;

use crate::kit::{
    Memory, acceptance, keep, migrated, new_lane, new_queued, node, node_that_misses, open,
    request_id,
};
use crate::report::{figure, majors};
use crate::turns::Session;

const LANES: usize = 100;
/// A statement that waits for the row takes as long as its lock timeout, and nothing else does.
const AT_ONCE: Duration = Duration::from_millis(450);

#[tokio::test]
async fn hundred_lanes_are_one_commit() {
    for major in majors() {
        let database = migrated(&shared(major), "one_commit").await;
        let store = open(database.url(), 9).await;
        let keys: Vec<LaneKey> = (0..LANES).map(|_| new_lane()).collect();
        let batches = batches(&keep(&*store, &node("a"), &keys).await, &keys);
        let outcomes = store
            .commit(batches.into_iter().map(Arc::new).collect())
            .await;
        assert!(
            outcomes
                .iter()
                .all(|outcome| *outcome == CommitOutcome::Applied)
        );
        let count = |sql: &str| {
            let count = database.query_value(sql).expect("a count");
            count.parse::<u64>().expect("a number")
        };
        assert_eq!(count("SELECT count(*) FROM managed_tx"), LANES as u64);
        // Every row names the transaction that wrote it.
        let commits = count(
            "SELECT count(DISTINCT by) FROM ( \
               SELECT xmin::text AS by FROM managed_tx UNION ALL SELECT xmin::text FROM tx_attempt \
               UNION ALL SELECT xmin::text FROM signer_nonce_cursor \
               UNION ALL SELECT xmin::text FROM lane_event) AS written",
        );
        figure(
            &format!("{major}: commits of 100 lanes with one tx each"),
            commits,
        );
        assert_eq!(commits, 1, "on {major}");
    }
}

#[tokio::test]
async fn free_lanes_do_not_wait_for_locked_lanes() {
    const FENCED: usize = 10;
    const CONFLICTING: usize = 20;
    const LOCKED: usize = 30;
    for major in majors() {
        let database = migrated(&shared(major), "ninety_seven").await;
        let store = open(database.url(), 9).await;
        let keys: Vec<LaneKey> = (0..LANES).map(|_| new_lane()).collect();
        let lease_grants = keep(&*store, &node("a"), &keys).await;
        let batches = batches(&lease_grants, &keys);
        keep(&*store, &node_that_misses("b", &["a"]), &[keys[FENCED]]).await;
        let queued = vec![new_queued(keys[CONFLICTING], "one")];
        store.queue_requests(queued).await.expect("queue");
        let holder = Session::open(database.url()).await;
        let row = format!(
            "BEGIN; SELECT FROM signer_nonce_cursor WHERE lane_id = {} FOR UPDATE",
            lease_grants[LOCKED].lane.0
        );
        holder.client.batch_execute(&row).await.expect("it is free");

        // Answered while the row is held: a caller that waits for it runs into its timeout.
        let requested = Instant::now();
        let outcomes = store
            .commit(batches.iter().cloned().map(Arc::new).collect())
            .await;
        let took = requested.elapsed();
        assert!(took < AT_ONCE, "somebody waited: {took:?} on {major}");
        let trouble = |n: usize| outcomes[n].clone();
        let of_good = outcomes
            .iter()
            .filter(|outcome| **outcome == CommitOutcome::Applied);
        assert_eq!(of_good.count(), 97, "{outcomes:?}");
        assert_eq!(trouble(FENCED), CommitOutcome::Fenced);
        let conflict = Conflict::RequestId(request_id("one"));
        assert_eq!(trouble(CONFLICTING), CommitOutcome::Conflict(conflict));
        assert_eq!(trouble(LOCKED), CommitOutcome::Locked);
        let watcher = Session::open(database.url()).await;
        let bad = [FENCED, CONFLICTING, LOCKED].map(|n| lease_grants[n].lane);
        assert_eq!(slipped_in(&watcher, &batches, &bad).await, 0);
        holder
            .client
            .batch_execute("ROLLBACK")
            .await
            .expect("a rollback");
        // Nothing was wrong with the locked one, and it is as it was.
        let again = store.commit(vec![batches[LOCKED].clone().into()]).await;
        assert_eq!(again, [CommitOutcome::Applied]);
        figure(
            &format!("{major}: lanes applied beside a fenced, a locked and a conflicting one"),
            97,
        );
    }
}

/// One accepted tx for each lane, all with the same request id.
fn batches(lease_grants: &[domain::LeaseGrant], keys: &[LaneKey]) -> Vec<LaneBatch> {
    let lease_request = node("a");
    let lanes = keys.iter().zip(lease_grants);
    let batch = |(key, lease_grant): (&LaneKey, &domain::LeaseGrant)| {
        let memory = Memory::new(*key, *lease_grant, &lease_request);
        memory.batch(acceptance("one", memory.next_nonce, Token(1)))
    };
    lanes.map(batch).collect()
}

/// How many rows of these lanes' batches are there.
async fn slipped_in(watcher: &Session, batches: &[LaneBatch], lanes: &[LaneId]) -> i64 {
    let ids: Vec<i64> = lanes.iter().map(|lane| lane.0).collect();
    let bad = batches
        .iter()
        .filter(|batch| lanes.contains(&batch.lease_grant.lane));
    let txs: Vec<uuid::Uuid> = bad.map(|batch| batch.writes.inserts[0].id.0).collect();
    let sql = "SELECT (SELECT count(*) FROM managed_tx WHERE tx_id = ANY ($2)) \
         + (SELECT count(*) FROM tx_attempt WHERE lane_id = ANY ($1)) \
         + (SELECT count(*) FROM lane_event WHERE lane_id = ANY ($1)) \
         + (SELECT sum(batch_seq + next_nonce + event_seq)::bigint FROM signer_nonce_cursor \
            WHERE lane_id = ANY ($1))";
    let params = [(&ids as _, Type::INT8_ARRAY), (&txs as _, Type::UUID_ARRAY)];
    let row = watcher.client.query_typed_one(sql, &params).await;
    row.expect("a look").get(0)
}
