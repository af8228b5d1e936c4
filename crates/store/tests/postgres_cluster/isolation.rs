//! Reads of customers do not delay the engine's, and a lane opens however many txs it has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::Nonce;
use engine::ports::{AcquireOutcome, EventFilter, RenewOutcome, Store, StoreError};
use futures::future::join_all;
use rig::postgres::{majors, shared};
use store::postgres::migrate;

use crate::kit::{LEASE, World, accept, commit, grant, keeper, lane, node, open};

/// More than may wait.
const FLOOD: usize = 1_500;

#[tokio::test]
async fn flood_of_customer_reads_does_not_delay_the_engine() {
    let world = World::new().await;
    let request = node("a");
    let keeper = keeper(&*world.store, &request, lane(1)).await;
    commit(&*world.store, &accept(&keeper, 3)).await;
    let customers = Arc::clone(&world.store).for_customers();
    // Every read of events waits for this lock.
    let other = world.client().await;
    other
        .batch_execute("BEGIN; LOCK TABLE event_feed IN ACCESS EXCLUSIVE MODE")
        .await
        .expect("lock");
    let flood = (0..FLOOD).map(|_| {
        let customers = Arc::clone(&customers);
        tokio::spawn(async move { customers.events(&EventFilter::default()).await })
    });
    let flood: Vec<_> = flood.collect();
    crate::kit::wait_until_blocked(&world).await;
    let began = Instant::now();
    let image = world.store.load(lane(1), keeper.lease_grant, 64).await;
    assert_eq!(image.expect("load").expect("it is ours").in_flight.len(), 3);
    world.store.members().await.expect("members");
    world.store.lanes_with_work(&request).await.expect("work");
    let queued = world.store.load_queued(keeper.lease_grant.lane, 10).await;
    assert_eq!(queued, Ok(Vec::new()));
    let renewed = world.store.renew(&request, &[keeper.lease_grant]).await;
    assert_eq!(renewed, Ok(vec![RenewOutcome::Renewed]));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");

    other.batch_execute("COMMIT").await.expect("commit");
    let answers = join_all(flood).await.into_iter();
    let answers: Vec<_> = answers.map(|answer| answer.expect("no panic")).collect();
    let busy = |answer: &&Result<_, _>| matches!(answer, Err(StoreError::Busy(_)));
    assert!(answers.iter().any(|answer| answer.is_ok()));
    assert!(
        answers.iter().filter(busy).count() > FLOOD / 10,
        "those beyond the bound are refused at once"
    );
}

/// Txs of the large lane: mined and not final, each with its attempt.
const UNFINAL: u64 = 300_000;
const SHORT_LEASE: Duration = Duration::from_secs(2);
const SHORT_RENEWAL: Duration = Duration::from_millis(600);

#[tokio::test(flavor = "multi_thread")]
async fn lane_with_300_000_unfinal_txs_opens_with_a_lease_of_two_seconds() {
    let database = shared(majors()[0]).database("large_lane");
    // Filling it takes longer than the short timeouts allow.
    let long = LEASE * 60;
    migrate(database.url(), None, long).await.expect("migrate");
    let key = lane(1);
    open(database.url(), long)
        .await
        .acquire(&node("before"), &[(key, grant())])
        .await
        .expect("acquire");
    database.exec(&fill());
    migrate(database.url(), None, SHORT_LEASE)
        .await
        .expect("migrate");
    let store = open(database.url(), SHORT_LEASE).await;
    let request = engine::ports::LeaseRequest {
        duration: SHORT_LEASE,
        silent: vec![node("before").incarnation],
        ..node("a")
    };
    let answers = store.acquire(&request, &[(key, grant())]).await;
    let Some(AcquireOutcome::Granted { lease_grant, .. }) = answers.expect("acquire").pop() else {
        panic!("nothing else holds the lane");
    };
    let began = Instant::now();
    let renewals = async {
        loop {
            tokio::time::sleep(SHORT_RENEWAL).await;
            let renewed = store.renew(&request, &[lease_grant]).await;
            assert_eq!(renewed, Ok(vec![RenewOutcome::Renewed]));
        }
    };
    let image = tokio::select! {
        image = store.load(key, lease_grant, 64) => image,
        () = renewals => unreachable!("they do not end"),
    };
    let image = image.expect("load").expect("it is ours");
    let took = began.elapsed();
    assert!(
        took > SHORT_RENEWAL,
        "too quick to need a renewal: {took:?}"
    );
    assert_eq!(image.in_flight.len() as u64, UNFINAL);
    let held: u64 = image.held.iter().map(|run| run.end - run.start).sum();
    assert_eq!(held, UNFINAL + 5);
    assert_eq!(image.backlog_from, Some(Nonce(UNFINAL + 1)));
    assert_eq!(image.consumed_below, Nonce(1));
    let in_order = image.in_flight.iter().zip(1..);
    for ((tx, attempts), nonce) in in_order {
        assert_eq!((tx.nonce, attempts.len()), (Some(Nonce(nonce)), 1));
    }
}

/// One final tx, the mined ones, and five that wait for their signature.
fn fill() -> String {
    let (last, all) = (UNFINAL + 1, UNFINAL + 6);
    format!(
        "UPDATE signer_nonce_cursor SET next_nonce = {all}, floor_nonce = 1, busy = true;
         INSERT INTO managed_tx
           (lane_id, created_at, gas, tx_id, request_id, fingerprint, value, data, state, signed,
            nonce, token, updated_at, tx_hash, event_seqs, inclusion)
         SELECT (SELECT lane_id FROM lane), n, 21000, lpad(to_hex(n + 1), 32, '0')::uuid, 'r' || n, sha256('x'), '', '',
                CASE WHEN n = 0 THEN 3 WHEN n < {last} THEN 2 ELSE 1 END, n < {last}, n, 1, n,
                CASE WHEN n < {last} THEN sha256(('tx' || n)::bytea) END, '\\x01',
                CASE WHEN n < {last} THEN '\\x01'::bytea || sha256(('tx' || n)::bytea)
                  || sha256('block') || int8send(7) || decode(repeat('00', 24), 'hex') END
         FROM generate_series(0, {all} - 1) AS n;
         INSERT INTO tx_attempt (lane_id, nonce, gas, signed_at, tx_id, kind, hash, fees, raw)
         SELECT lane_id, nonce, 21000, 0, tx_id, 0, tx_hash, '\\x0001', decode(repeat('ab', 110), 'hex')
         FROM managed_tx WHERE signed;
         ANALYZE managed_tx, tx_attempt"
    )
}
