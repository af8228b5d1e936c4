//! Commits whose answer is lost: whatever became of them, each request ends with one tx.

use std::time::{Duration, Instant};

use domain::{GrantId, History, LeaseGrant, Writes};
use engine::ports::{CommitOutcome, LaneBatch, RegrantOutcome, Store as _};
use rig::postgres::{Database, shared};
use rig::proxy::{AfterLoss, TcpProxy};
use sim::rng::Rng;
use store::postgres::PostgresStore;

use crate::kit::{
    Memory, acceptance, keep, migrated, new_grant, new_lane, node, open, present_history,
};
use crate::report::{figure, majors, size};

/// The text that every call of the gate contains.
const GATE: &str = "lanekeeper_gate";
/// Anything that does not hang takes less.
const WITHIN: Duration = Duration::from_secs(30);

/// Most commits take less, and none takes much more.
const DROPPED_AFTER_MAX_US: u64 = 4_000;

#[derive(Default)]
struct Counts {
    lost: u64,
    landed: u64,
    not_landed: u64,
    certainly_nothing: u64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_lost_lands_once_or_is_sent_again() {
    let rounds = size(1_000, 60);
    for major in majors() {
        let database = migrated(&shared(major), "lost_answers").await;
        let mut world = World::new(&database, major.into()).await;
        let mut request = 0;
        while world.counts.lost < rounds {
            let writes = acceptance(
                &format!("request-{request}"),
                world.memory.next_nonce,
                world.memory.lease_grant.token,
            );
            world.commit_somehow(writes).await;
            request += 1;
        }
        assert_eq!(
            database.query_value(EXACTLY_ONCE).as_deref(),
            Some("t"),
            "on {major}"
        );
        let txs = database.query_value("SELECT count(*) FROM managed_tx");
        assert_eq!(txs, Some(request.to_string()), "on {major}");
        let Counts {
            lost,
            landed,
            not_landed,
            certainly_nothing,
        } = world.counts;
        assert!(landed > 0 && not_landed > 0, "only one half was tried");
        figure(&format!("{major}: lost answers"), lost);
        figure(
            &format!("{major}: lost answers of commits that landed"),
            landed,
        );
        figure(
            &format!("{major}: lost answers of commits that did not"),
            not_landed,
        );
        figure(
            &format!("{major}: refused before anything happened"),
            certainly_nothing,
        );
    }
}

/// Every request once, nonces and events without hole, one attempt per tx.
const EXACTLY_ONCE: &str = "SELECT \
       (SELECT count(*) = count(DISTINCT request_id) AND count(*) = count(DISTINCT nonce) \
               AND max(nonce) + 1 = count(*) AND min(nonce) = 0 FROM managed_tx) \
       AND (SELECT count(*) FROM tx_attempt) = (SELECT count(*) FROM managed_tx) \
       AND (SELECT count(*) FROM lane_event) = (SELECT count(*) FROM managed_tx) \
       AND (SELECT event_seq = batch_seq AND batch_seq = next_nonce FROM signer_nonce_cursor) \
       AND (SELECT next_nonce FROM signer_nonce_cursor) = (SELECT count(*) FROM managed_tx)";

struct World {
    proxy: TcpProxy,
    /// Through the proxy.
    node: std::sync::Arc<PostgresStore>,
    /// Past it.
    direct: std::sync::Arc<PostgresStore>,
    memory: Memory,
    history: History,
    rng: Rng,
    counts: Counts,
}

impl World {
    async fn new(database: &Database, seed: u64) -> Self {
        let proxy = TcpProxy::in_front_of(database.server().port());
        let direct = open(database.url(), 5).await;
        let key = new_lane();
        let lease_grant = keep(&*direct, &node("a"), &[key]).await[0];
        Self {
            // One connection for writes: the one that was just used.
            node: open(&database.url_through(proxy.port()), 3).await,
            memory: Memory::new(key, lease_grant, &node("a")),
            history: present_history(&*direct).await,
            rng: Rng::new(seed),
            counts: Counts::default(),
            proxy,
            direct,
        }
    }

    /// Commits with bad luck, as often as it takes.
    async fn commit_somehow(&mut self, writes: Writes) {
        loop {
            let batch = self.memory.batch(writes.clone());
            match self.commit_unluckily(batch.clone()).await {
                Some(CommitOutcome::Applied) => return self.memory.follow(&batch),
                // Nothing has happened: the same batch under the same right is still the next one.
                Some(CommitOutcome::NotApplied(_)) => self.counts.certainly_nothing += 1,
                Some(CommitOutcome::Unknown(_) | CommitOutcome::Locked) | None => {
                    self.counts.lost += 1;
                    if self.resolve(&batch).await {
                        return self.memory.follow(&batch);
                    }
                }
                Some(outcome @ (CommitOutcome::Fenced | CommitOutcome::Conflict(_))) => {
                    panic!("nobody else writes here: {outcome:?}")
                }
            }
        }
    }

    /// `None`: the caller was cancelled.
    async fn commit_unluckily(&self, batch: LaneBatch) -> Option<CommitOutcome> {
        // A connection is there, so that bad luck meets the commit and not the way to it.
        self.node
            .mark_reconciled(batch.lease_grant, self.history)
            .await
            .expect("settle");
        let commit = self.node.commit(vec![batch.into()]);
        let outcomes = match self.rng.below(5) {
            0 => {
                self.proxy.lose_answer_to(GATE, AfterLoss::Cut);
                commit.await
            }
            1 => {
                self.proxy.lose_request(GATE);
                commit.await
            }
            2 => {
                let bytes = usize::try_from(self.rng.below(120)).expect("few bytes");
                self.proxy.cut_after(bytes);
                commit.await
            }
            // Its caller is gone, at any moment of it.
            _ => tokio::select! {
                biased;
                outcomes = commit => outcomes,
                () = pass_time(Duration::from_micros(self.rng.below(DROPPED_AFTER_MAX_US))) => {
                    return None;
                }
            },
        };
        self.proxy.heal();
        Some(outcomes.into_iter().next().expect("one batch, one outcome"))
    }

    /// Has the lane granted anew, until the answer is clean. Whether the batch landed.
    async fn resolve(&mut self, batch: &LaneBatch) -> bool {
        let grant = new_grant();
        let (lease_grant, landed) = tokio::time::timeout(WITHIN, self.regranted(grant))
            .await
            .expect("a batch ends, and the lane can be granted anew");
        self.memory.lease_grant = lease_grant;
        let before = batch.batch_seq_before;
        assert!(
            (before..=before + 1).contains(&landed),
            "{landed} batches after {before}"
        );
        if landed == before {
            self.counts.not_landed += 1;
        } else {
            self.counts.landed += 1;
        }
        landed > before
    }

    async fn regranted(&self, grant: GrantId) -> (LeaseGrant, u64) {
        loop {
            // The row may still be locked: then it is requested again.
            match self.direct.regrant(self.memory.lease_grant, grant).await {
                Ok(RegrantOutcome::Held {
                    lease_grant,
                    batch_seq,
                }) => return (lease_grant, batch_seq),
                Ok(RegrantOutcome::Fenced) => panic!("no other node takes the lane"),
                Err(_) => {}
            }
        }
    }
}

/// Until this much time is over, without leaving the others alone: timers are too coarse for this.
async fn pass_time(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        tokio::task::yield_now().await;
    }
}
