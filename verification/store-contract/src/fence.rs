//! The fence: after an ownership change, no write of the previous keeper is applied.

use domain::{LastWrite, LeaseGrant, Nonce, Token, Tx, Writes};
use engine::ports::{CommitOutcome, LaneRecord, TxRecord};

use crate::Backend;
use crate::fixture::{
    AT, Fixture, Keeper, LEASE, SKEW, acceptance, accepted, first_events, inserts, lane, node,
    updates,
};

pub async fn stale_token_writes_nothing(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let sample = SampleLane::new(&fixture).await;
    backend.advance(LEASE + SKEW).await;
    let present = fixture.keeper(&node("b"), lane(1)).await;
    let forged = LeaseGrant {
        grant: present.lease_grant.grant,
        ..sample.keeper.lease_grant
    };
    sample
        .assert_refused(&fixture, &sample.keeper, &present, "stale token")
        .await;
    let forged = Keeper {
        lease_grant: forged,
        ..sample.keeper.clone()
    };
    sample
        .assert_refused(
            &fixture,
            &forged,
            &present,
            "stale token with the current grant",
        )
        .await;
}

pub async fn stale_grant_writes_nothing(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let sample = SampleLane::new(&fixture).await;
    let present = fixture.keeper(&node("a"), lane(1)).await;
    assert_eq!(present.lease_grant.token, sample.keeper.lease_grant.token);
    sample
        .assert_refused(
            &fixture,
            &sample.keeper,
            &present,
            "stale grant under the current token",
        )
        .await;
}

pub async fn wrong_event_seq_writes_nothing(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let sample = SampleLane::new(&fixture).await;
    for event_seq in [sample.keeper.event_seq - 1, sample.keeper.event_seq + 1] {
        // A store that lost commits in a failover knows fewer events than its keeper.
        let stale_memory = Keeper {
            event_seq,
            ..sample.keeper.clone()
        };
        sample
            .assert_refused(
                &fixture,
                &stale_memory,
                &sample.keeper,
                "wrong event number",
            )
            .await;
    }
}

pub async fn wrong_batch_seq_writes_nothing(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let sample = SampleLane::new(&fixture).await;
    for batch_seq in [sample.keeper.batch_seq - 1, sample.keeper.batch_seq + 1] {
        // Also when the lost batch had no event.
        let stale_memory = Keeper {
            batch_seq,
            ..sample.keeper.clone()
        };
        sample
            .assert_refused(
                &fixture,
                &stale_memory,
                &sample.keeper,
                "wrong batch number",
            )
            .await;
    }
}

pub async fn batch_without_events_advances_batch_seq(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    assert_eq!(keeper.batch_seq, 0);
    for batches in 1..=3 {
        let stale = fixture.batch(&keeper, Writes::default());
        fixture.apply(&mut keeper, Writes::default()).await;
        let image = fixture.image(keeper.key, keeper.lease_grant).await;
        assert_eq!((image.batch_seq, image.event_seq), (batches, 0));
        assert_eq!(
            fixture.commit(stale).await,
            CommitOutcome::Fenced,
            "once only"
        );
    }
}

pub async fn batch_of_unknown_lane_is_fenced(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    keeper.lease_grant.lane.0 += 1_000;
    let batch = fixture.batch(&keeper, Writes::default());
    assert_eq!(fixture.commit(batch).await, CommitOutcome::Fenced);
}

pub async fn only_one_of_two_concurrent_batches_of_a_keeper_is_applied(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    let one = fixture.batch(&keeper, acceptance(fixture.tx(0)));
    let other = fixture.batch(&keeper, acceptance(fixture.tx(1)));
    let (one, other) = futures::join!(fixture.commit(one), fixture.commit(other));
    let landed = [&one, &other].map(|outcome| *outcome == CommitOutcome::Applied);
    assert_ne!(landed[0], landed[1], "{one:?}, {other:?}");
    // The other batch may have met the row while it was locked.
    let left = if landed[0] { other } else { one };
    assert!(
        [CommitOutcome::Fenced, CommitOutcome::Locked].contains(&left),
        "{left:?}"
    );
    assert_eq!(
        fixture
            .image(keeper.key, keeper.lease_grant)
            .await
            .event_seq,
        1
    );
}

pub async fn new_keeper_continues_where_the_previous_one_stopped(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut old = fixture.keeper(&node("a"), lane(1)).await;
    fixture.accept(&mut old, 3).await;
    backend.advance(LEASE + SKEW).await;
    let mut new = fixture.keeper(&node("b"), lane(1)).await;
    assert_eq!(
        (new.next_nonce, new.event_seq, new.batch_seq),
        (Nonce(3), 3, old.batch_seq)
    );
    fixture.accept(&mut new, 2).await;
    let image = fixture.image(new.key, new.lease_grant).await;
    assert_eq!((image.in_flight.len(), image.event_seq), (5, 5));
}

/// A lane with one row of each kind, so that every kind of write has a row to hit.
struct SampleLane {
    keeper: Keeper,
    sent: Tx,
    waiting: Tx,
    hash: domain::B256,
}

/// The state that a write could have changed.
#[derive(Debug, PartialEq, Eq)]
struct StoredState {
    image: domain::LaneImage,
    txs: Vec<TxRecord>,
    queued: Vec<Tx>,
    events: usize,
    lanes: Vec<LaneRecord>,
}

impl SampleLane {
    async fn new(fixture: &Fixture) -> Self {
        let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
        let (sent, attempt) = fixture.accept(&mut keeper, 1).await.remove(0);
        let waiting = fixture.tx_without_nonce();
        let writes = Writes {
            inserts: vec![waiting.clone()],
            queued_added: vec![waiting.id],
            events: vec![accepted(&waiting)],
            ..Writes::default()
        };
        let waiting = fixture.apply(&mut keeper, writes).await.inserts.remove(0);
        Self {
            keeper,
            sent,
            waiting,
            hash: attempt.hash,
        }
    }

    /// One batch per kind of write, each of which is valid under the current fence.
    fn every_kind(&self, fixture: &Fixture) -> Vec<(&'static str, Writes)> {
        let changed = Tx {
            reason: Some("changed".into()),
            written: LastWrite {
                token: Token(9),
                ..self.sent.written
            },
            ..self.sent.clone()
        };
        let mut signed = self.sent.clone();
        let attempt = fixture.sign(&mut signed);
        let mut kinds: Vec<(&'static str, Writes)> = vec![
            ("cursor", Writes::default()),
            ("insert", inserts([fixture.tx(1)])),
            ("update", updates([changed])),
        ];
        let mut kind = |name, fill: &dyn Fn(&mut Writes)| {
            let mut writes = Writes::default();
            fill(&mut writes);
            kinds.push((name, writes));
        };
        kind("attempt", &|writes| writes.attempts.push(attempt.clone()));
        kind("first sent", &|writes| {
            writes.first_sent.push((self.hash, AT))
        });
        kind("event", &|writes| writes.events.push(accepted(&self.sent)));
        kind("queued added", &|writes| {
            writes.queued_added.push(self.sent.id)
        });
        kind("queued removed", &|writes| {
            writes.queued_removed.push(self.waiting.id)
        });
        kind("paused", &|writes| writes.paused = Some(true));
        kinds
    }

    /// Tries every kind of write as `stale`, and compares the state that `present` reads.
    async fn assert_refused(&self, fixture: &Fixture, stale: &Keeper, present: &Keeper, why: &str) {
        let before = self.read_state(fixture, present).await;
        for (kind, writes) in self.every_kind(fixture) {
            let mut batch = fixture.batch(stale, writes);
            batch.next_nonce = Nonce(77);
            assert_eq!(
                fixture.commit(batch).await,
                CommitOutcome::Fenced,
                "{kind} by {why}"
            );
            assert_eq!(
                self.read_state(fixture, present).await,
                before,
                "{kind} by {why}"
            );
        }
    }

    async fn read_state(&self, fixture: &Fixture, present: &Keeper) -> StoredState {
        let mut txs = Vec::new();
        for id in [self.sent.id, self.waiting.id] {
            txs.push(
                fixture
                    .store
                    .tx(id)
                    .await
                    .expect("tx")
                    .expect("it is there"),
            );
        }
        let all = first_events(1_000);
        StoredState {
            image: fixture.image(present.key, present.lease_grant).await,
            txs,
            queued: fixture
                .store
                .load_queued(present.lease_grant.lane, 10)
                .await
                .expect("load_queued"),
            events: fixture
                .store
                .events(&all)
                .await
                .expect("events")
                .events
                .len(),
            lanes: fixture.store.lanes(&[present.key]).await.expect("lanes"),
        }
    }
}
