//! The fence: from the moment a lane changes hands, nothing of its former keeper passes.

use domain::{LeaseGrant, Nonce, Token, Tx, Writes};
use engine::ports::{CommitOutcome, LaneRecord, TxRecord};

use super::Backend;
use super::kit::{
    AT, Keeper, Kit, LEASE, SKEW, acceptance, accepted, first_events, inserts, lane, node, updates,
};

pub async fn an_old_token_writes_nothing_of_any_kind(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let world = World::new(&kit).await;
    backend.advance(LEASE + SKEW).await;
    let present = kit.keeper(&node("b"), lane(1)).await;
    let forged = LeaseGrant {
        grant: present.lease_grant.grant,
        ..world.keeper.lease_grant
    };
    world
        .refuses(&kit, &world.keeper, &present, "old token")
        .await;
    let forged = Keeper {
        lease_grant: forged,
        ..world.keeper.clone()
    };
    world
        .refuses(&kit, &forged, &present, "old token with the present grant")
        .await;
}

pub async fn an_old_grant_writes_nothing_of_any_kind(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let world = World::new(&kit).await;
    let present = kit.keeper(&node("a"), lane(1)).await;
    assert_eq!(present.lease_grant.token, world.keeper.lease_grant.token);
    world
        .refuses(
            &kit,
            &world.keeper,
            &present,
            "old grant under the same token",
        )
        .await;
}

pub async fn memory_that_knows_other_events_writes_nothing_of_any_kind(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let world = World::new(&kit).await;
    for event_seq in [world.keeper.event_seq - 1, world.keeper.event_seq + 1] {
        // A store that lost commits in a failover knows fewer events than its keeper.
        let amnesiac = Keeper {
            event_seq,
            ..world.keeper.clone()
        };
        world
            .refuses(&kit, &amnesiac, &world.keeper, "other event number")
            .await;
    }
}

pub async fn memory_that_knows_other_batches_writes_nothing_of_any_kind(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let world = World::new(&kit).await;
    for batch_seq in [world.keeper.batch_seq - 1, world.keeper.batch_seq + 1] {
        // Also when what was lost told no event.
        let amnesiac = Keeper {
            batch_seq,
            ..world.keeper.clone()
        };
        world
            .refuses(&kit, &amnesiac, &world.keeper, "other batch number")
            .await;
    }
}

pub async fn every_batch_counts_also_one_without_events(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    assert_eq!(keeper.batch_seq, 0);
    for batches in 1..=3 {
        let stale = kit.batch(&keeper, Writes::default());
        kit.apply(&mut keeper, Writes::default()).await;
        let image = kit.image(keeper.key, keeper.lease_grant).await;
        assert_eq!((image.batch_seq, image.event_seq), (batches, 0));
        assert_eq!(kit.commit(stale).await, CommitOutcome::Fenced, "once only");
    }
}

pub async fn a_lane_that_does_not_exist_is_fenced(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    keeper.lease_grant.lane.0 += 1_000;
    let batch = kit.batch(&keeper, Writes::default());
    assert_eq!(kit.commit(batch).await, CommitOutcome::Fenced);
}

pub async fn of_two_batches_of_one_memory_only_one_lands(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let keeper = kit.keeper(&node("a"), lane(1)).await;
    let one = kit.batch(&keeper, acceptance(kit.tx(0)));
    let other = kit.batch(&keeper, acceptance(kit.tx(1)));
    let (one, other) = futures::join!(kit.commit(one), kit.commit(other));
    let landed = [&one, &other].map(|outcome| *outcome == CommitOutcome::Applied);
    assert_ne!(landed[0], landed[1], "{one:?}, {other:?}");
    // The other may have met the row while it was still locked.
    let left = if landed[0] { other } else { one };
    assert!(
        [CommitOutcome::Fenced, CommitOutcome::Locked].contains(&left),
        "{left:?}"
    );
    assert_eq!(kit.image(keeper.key, keeper.lease_grant).await.event_seq, 1);
}

pub async fn the_new_keeper_goes_on_where_the_old_one_stopped(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut old = kit.keeper(&node("a"), lane(1)).await;
    kit.accept(&mut old, 3).await;
    backend.advance(LEASE + SKEW).await;
    let mut new = kit.keeper(&node("b"), lane(1)).await;
    assert_eq!(
        (new.next_nonce, new.event_seq, new.batch_seq),
        (Nonce(3), 3, old.batch_seq)
    );
    kit.accept(&mut new, 2).await;
    let image = kit.image(new.key, new.lease_grant).await;
    assert_eq!((image.in_flight.len(), image.event_seq), (5, 5));
}

/// A lane with one row of each sort, so that every kind of write has something to hit.
struct World {
    keeper: Keeper,
    sent: Tx,
    waiting: Tx,
    hash: domain::B256,
}

/// Everything that a write could have changed.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    image: domain::LaneImage,
    txs: Vec<TxRecord>,
    queued: Vec<Tx>,
    events: usize,
    lanes: Vec<LaneRecord>,
}

impl World {
    async fn new(kit: &Kit) -> Self {
        let mut keeper = kit.keeper(&node("a"), lane(1)).await;
        let (sent, attempt) = kit.accept(&mut keeper, 1).await.remove(0);
        let waiting = kit.tx_without_nonce();
        let writes = Writes {
            inserts: vec![waiting.clone()],
            queued_added: vec![waiting.id],
            events: vec![accepted(&waiting)],
            ..Writes::default()
        };
        let waiting = kit.apply(&mut keeper, writes).await.inserts.remove(0);
        Self {
            keeper,
            sent,
            waiting,
            hash: attempt.hash,
        }
    }

    /// One batch per kind of write, each of which would be fine under the right fence.
    fn every_kind(&self, kit: &Kit) -> Vec<(&'static str, Writes)> {
        let changed = Tx {
            reason: Some("changed".into()),
            token: Token(9),
            ..self.sent.clone()
        };
        let mut signed = self.sent.clone();
        let attempt = kit.sign(&mut signed);
        let mut kinds: Vec<(&'static str, Writes)> = vec![
            ("cursor", Writes::default()),
            ("insert", inserts([kit.tx(1)])),
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
        kind("wake added", &|writes| {
            writes.queued_added.push(self.sent.id)
        });
        kind("wake done", &|writes| {
            writes.queued_removed.push(self.waiting.id)
        });
        kind("paused", &|writes| writes.paused = Some(true));
        kinds
    }

    /// Tries every kind of write as `stale`, and looks through the eyes of `present`.
    async fn refuses(&self, kit: &Kit, stale: &Keeper, present: &Keeper, why: &str) {
        let before = self.seen(kit, present).await;
        for (kind, writes) in self.every_kind(kit) {
            let mut batch = kit.batch(stale, writes);
            batch.next_nonce = Nonce(77);
            assert_eq!(
                kit.commit(batch).await,
                CommitOutcome::Fenced,
                "{kind} by {why}"
            );
            assert_eq!(self.seen(kit, present).await, before, "{kind} by {why}");
        }
    }

    async fn seen(&self, kit: &Kit, present: &Keeper) -> Seen {
        let mut txs = Vec::new();
        for id in [self.sent.id, self.waiting.id] {
            txs.push(kit.store.tx(id).await.expect("tx").expect("it is there"));
        }
        let all = first_events(1_000);
        Seen {
            image: kit.image(present.key, present.lease_grant).await,
            txs,
            queued: kit
                .store
                .load_queued(present.lease_grant.lane, 10)
                .await
                .expect("load_queued"),
            events: kit.store.events(&all).await.expect("events").events.len(),
            lanes: kit.store.lanes(&[present.key]).await.expect("lanes"),
        }
    }
}
