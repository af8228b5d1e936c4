//! One lane's rows are held for long: the other lanes keep their leases, and go on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::lease::LeaseRequest;
use domain::{LaneKey, LeaseGrant};
use engine::ports::{
    AcquireOutcome, CommitOutcome, LaneBatch, RegrantOutcome, RenewOutcome, Store as _,
};
use rig::postgres::{Database, shared};
use store::postgres::PostgresStore;

use crate::kit::{Memory, acceptance, keep, migrated, new_grant, new_lane, node, open};
use crate::report::{figure, majors, size};
use crate::turns::Session;

const LANES: usize = 100;
/// Shorter than the row is held: a lease that is not renewed meanwhile expires.
const LEASE: Duration = Duration::from_secs(2);
/// A statement that waits for the row takes as long as its lock timeout, and nothing else does.
const AT_ONCE: Duration = Duration::from_millis(450);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_locked_for_long_delays_one_lane_only() {
    let held_for = Duration::from_millis(size(5_000, 3_200));
    for major in majors() {
        let database = migrated(&shared(major), "held_row").await;
        let mut world = World::new(&database).await;
        let holder = Session::open(database.url()).await;
        let lane = world.lease_grants[0].lane.0;
        let rows = format!(
            "BEGIN; SELECT FROM signer_lease WHERE lane_id = {lane} FOR UPDATE; \
             SELECT FROM signer_nonce_cursor WHERE lane_id = {lane} FOR UPDATE"
        );
        holder
            .client
            .batch_execute(&rows)
            .await
            .expect("they are free");

        // The keeper of the held lane waits for it: apart from all others.
        let of_held = {
            let (store, lease_grant) = (Arc::clone(&world.store), world.lease_grants[0]);
            let batch = accept(&world.lanes[0]);
            assert_eq!(
                store.commit(vec![batch.into()]).await,
                [CommitOutcome::Locked]
            );
            tokio::spawn(async move { wait_until_regranted(&store, lease_grant).await })
        };
        let (rounds, slowest) = world.commit_for(held_for).await;
        assert!(
            slowest < AT_ONCE,
            "others waited for {slowest:?} on {major}"
        );
        assert!(!of_held.is_finished(), "the row was not held");
        world.contend().await;

        holder
            .client
            .batch_execute("ROLLBACK")
            .await
            .expect("a rollback");
        world.lanes[0].lease_grant = of_held.await.expect("it ends in order");
        let renewed = world
            .store
            .renew(&world.lease_request, &world.lease_grants)
            .await;
        let renewed = renewed.expect("renew");
        assert!(
            renewed
                .iter()
                .all(|renewal| *renewal == RenewOutcome::Renewed),
            "{renewed:?}"
        );
        let batch = accept(&world.lanes[0]);
        assert_eq!(
            world.store.commit(vec![batch.into()]).await,
            [CommitOutcome::Applied]
        );
        figure(
            &format!("{major}: rounds of renewals while a row was held"),
            rounds,
        );
        let ms = u64::try_from(slowest.as_millis()).expect("soon");
        figure(
            &format!("{major}: slowest renewal or commit of another lane, in ms"),
            ms,
        );
    }
}

/// A node that keeps many lanes, the first of which has a locked row.
struct World {
    store: Arc<PostgresStore>,
    lease_request: LeaseRequest,
    lease_grants: Vec<LeaseGrant>,
    lanes: Vec<Memory>,
}

impl World {
    async fn new(database: &Database) -> Self {
        let store = open(database.url(), 9).await;
        let keys: Vec<LaneKey> = (0..LANES).map(|_| new_lane()).collect();
        let lease_request = LeaseRequest {
            duration: LEASE,
            skew: Duration::from_millis(200),
            ..node("a")
        };
        let lease_grants = keep(&*store, &lease_request, &keys).await;
        let lanes = keys.iter().zip(&lease_grants);
        let lanes = lanes.map(|(key, lease_grant)| Memory::new(*key, *lease_grant, &lease_request));
        Self {
            lanes: lanes.collect(),
            store,
            lease_request,
            lease_grants,
        }
    }

    /// Renews all and commits for one of the others, again and again: how often, and how long the
    /// slowest took.
    async fn commit_for(&mut self, time: Duration) -> (u64, Duration) {
        let (mut slowest, began) = (Duration::ZERO, Instant::now());
        let others = (1..LANES).cycle();
        for (round, n) in (0..).zip(others) {
            if began.elapsed() >= time {
                return (round, slowest);
            }
            let requested = Instant::now();
            let renewals = self
                .store
                .renew(&self.lease_request, &self.lease_grants)
                .await;
            slowest = slowest.max(requested.elapsed());
            let renewals = renewals.expect("renew");
            assert_eq!(renewals[0], RenewOutcome::Busy);
            let mut of_others = renewals[1..].iter();
            assert!(
                of_others.all(|renewal| *renewal == RenewOutcome::Renewed),
                "{renewals:?}"
            );

            let batch = accept(&self.lanes[n]);
            let requested = Instant::now();
            let outcome = self.store.commit(vec![batch.clone().into()]).await;
            slowest = slowest.max(requested.elapsed());
            assert_eq!(outcome, [CommitOutcome::Applied]);
            self.lanes[n].follow(&batch);
        }
        unreachable!("it goes on until the time is over")
    }

    /// Another node requests all of them: the others are kept, and the locked one cannot be taken.
    async fn contend(&self) {
        let requested: Vec<_> = self
            .lanes
            .iter()
            .map(|lane| (lane.key, new_grant()))
            .collect();
        let answers = self
            .store
            .acquire(&node("b"), &requested)
            .await
            .expect("acquire");
        for (n, answer) in answers.iter().enumerate() {
            let is_right = match answer {
                AcquireOutcome::NotKeeper { .. } => n > 0,
                AcquireOutcome::Busy => n == 0,
                AcquireOutcome::Granted { .. } | AcquireOutcome::Halted(_) => false,
            };
            assert!(is_right, "lane {n}: {answer:?}");
        }
    }
}

fn accept(lane: &Memory) -> LaneBatch {
    let nonce = lane.next_nonce;
    lane.batch(acceptance(
        &format!("request-{nonce}"),
        nonce,
        lane.lease_grant.token,
    ))
}

/// Requests a new grant until the row is unlocked.
async fn wait_until_regranted(store: &PostgresStore, lease_grant: LeaseGrant) -> LeaseGrant {
    let grant = new_grant();
    loop {
        match store.regrant(lease_grant, grant).await {
            Ok(RegrantOutcome::Held { lease_grant, .. }) => return lease_grant,
            Ok(RegrantOutcome::Fenced) => panic!("no other node could take the lane"),
            Err(_) => {} // its row is still locked
        }
    }
}
