//! A request is queued at the moment in which the lane is released: no node keeps the lane, and
//! yet the request does not sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use domain::{LaneKey, LeaseGrant, SubState, Tx, TxState, Writes};
use engine::ports::{CommitOutcome, LaneBatch, Store as _};
use rig::postgres::shared;
use sim::rng::Rng;
use store::postgres::PostgresStore;

use crate::kit::{AT, Memory, WATCH_DEPTH, keep, migrated, new_lane, new_queued, node, open};
use crate::report::{figure, majors, size};

/// How many lanes do it at the same time.
const LANES: u64 = 8;
/// How often at most one of the two yields to the other.
const YIELDS_MAX: u64 = 60;

/// How often each of the two came first. The search for lanes with work finds the request either way.
#[derive(Default)]
struct Counts {
    queued_first: AtomicU64,
    released_first: AtomicU64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_queued_while_the_lane_is_released_never_sleeps() {
    let rounds = size(10_000, 400);
    for major in majors() {
        let database = migrated(&shared(major), "released").await;
        let keeper = open(database.url(), 9).await;
        let other = open(database.url(), 9).await;
        let counts = Arc::new(Counts::default());
        let mut lanes = Vec::new();
        for lane in 0..LANES {
            let race = Race {
                keeper: Arc::clone(&keeper),
                other: Arc::clone(&other),
                counts: Arc::clone(&counts),
                key: new_lane(),
                rng: Rng::new(lane),
            };
            lanes.push(tokio::spawn(async move { race.run(rounds / LANES).await }));
        }
        for lane in lanes {
            lane.await.expect("a lane ends in order");
        }
        let queued_first = counts.queued_first.load(Ordering::Relaxed);
        let released_first = counts.released_first.load(Ordering::Relaxed);
        assert_eq!(queued_first + released_first, rounds, "on {major}");
        assert!(queued_first > 0 && released_first > 0, "the two never met");
        for (count, which) in [(queued_first, "before"), (released_first, "after")] {
            let name = format!("{major}: queued while released, answered {which} the release");
            figure(&name, count);
        }
        let asleep = "SELECT count(*) FROM managed_tx WHERE lanekeeper_is_open(state)";
        assert_eq!(database.query_value(asleep).as_deref(), Some("0"));
    }
}

struct Race {
    keeper: Arc<PostgresStore>,
    other: Arc<PostgresStore>,
    counts: Arc<Counts>,
    key: LaneKey,
    rng: Rng,
}

impl Race {
    async fn run(self, rounds: u64) {
        for round in 0..rounds {
            let lease_grant = keep(&*self.keeper, &node("a"), &[self.key]).await[0];
            let request = format!("request-{round}");
            let (first, second) = (self.rng.below(YIELDS_MAX), self.rng.below(YIELDS_MAX));
            let is_queued = AtomicBool::new(false);
            let queue = async {
                yield_times(first).await;
                let queued = vec![new_queued(self.key, &request)];
                self.other.queue_requests(queued).await.expect("queue");
                is_queued.store(true, Ordering::Relaxed);
            };
            // As a keeper releases an idle lane: without another check.
            let leave = async {
                yield_times(second).await;
                let release = self.keeper.release(&node("a"), &[lease_grant]).await;
                release.expect("release");
                is_queued.load(Ordering::Relaxed)
            };
            let ((), was_queued) = futures::join!(queue, leave);
            self.find().await;
            let count = match was_queued {
                true => &self.counts.queued_first,
                false => &self.counts.released_first,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Another node searches for work, takes the lane and processes its waiting txs.
    async fn find(&self) {
        let survivor = node("b");
        let work = self.other.lanes_with_work(&survivor).await;
        let work = work.expect("lanes_with_work");
        let ours = work.iter().find(|work| work.lane == self.key);
        assert!(ours.is_some_and(|work| work.has_queued), "asleep: {work:?}");
        let lease_grant = keep(&*self.other, &survivor, &[self.key]).await[0];
        let waiting = self.other.load_queued(lease_grant.lane, 10).await;
        let waiting = waiting.expect("load_queued");
        assert_eq!(waiting.len(), 1);
        finish(&self.other, self.key, lease_grant, waiting).await;
        let release = self.other.release(&survivor, &[lease_grant]).await;
        release.expect("release");
    }
}

/// Ends what waits, so that the lane is idle again.
async fn finish(store: &PostgresStore, key: LaneKey, lease_grant: LeaseGrant, waiting: Vec<Tx>) {
    let image = store
        .load(key, lease_grant, WATCH_DEPTH)
        .await
        .expect("load");
    let image = image.expect("the right holds");
    let memory = Memory {
        batch_seq: image.batch_seq,
        ..Memory::new(key, lease_grant, &node("a"))
    };
    let queued_removed = waiting.iter().map(|tx| tx.id).collect();
    let end = |mut tx: Tx| {
        tx.transition(TxState::FailedFinal, SubState::Rejected, AT);
        tx
    };
    let batch: LaneBatch = memory.batch(Writes {
        updates: waiting.into_iter().map(end).collect(),
        queued_removed,
        ..Writes::default()
    });
    assert_eq!(
        store.commit(vec![batch.into()]).await,
        [CommitOutcome::Applied]
    );
}

async fn yield_times(count: u64) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}
