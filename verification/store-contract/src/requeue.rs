//! Released nonces and added attempts: a tx outlives both.

use domain::{
    Attempt, AttemptKind, Event, EventKind, LaneImage, Nonce, SubState, Tx, TxState, Writes,
};
use engine::ports::{LaneWork, TxRecord};

use crate::Backend;
use crate::fixture::{AT, Fixture, Keeper, LEASE, SKEW, inserts, lane, node, updates};

pub async fn requeued_tx_is_unsigned_and_has_no_nonce(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let mut txs = fixture.accept(&mut keeper, 3).await;
    let waiting = fixture.tx(3);
    fixture.apply(&mut keeper, inserts([waiting.clone()])).await;
    let (mut tx, attempt) = txs.remove(0);
    requeue(&fixture, &mut keeper, &mut tx).await;

    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight, with_attempts(&txs));
    assert_eq!(image.held.as_slice(), std::slice::from_ref(&(1..4)));
    assert_eq!(image.backlog_from, Some(Nonce(3)));
    assert_eq!((image.open.queued, image.next_nonce), (1, Nonce(4)));
    assert_eq!(
        image.consumed_below,
        Nonce(0),
        "no tx of this lane consumed a nonce"
    );
    assert_eq!(queued(&fixture, &keeper).await, std::slice::from_ref(&tx));
    assert_eq!(backlog(&fixture, &keeper).await, [waiting]);
    let lanes = fixture.store.lanes(&[lane(1)]).await.expect("lanes");
    assert_eq!((lanes[0].in_flight, lanes[0].queued), (3, 1));
    assert_eq!(attempt.nonce, Nonce(0), "an attempt keeps its nonce");
    assert_found(&fixture, &tx, &[attempt]).await;
}

pub async fn requeued_tx_is_allocated_and_signed_again(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (mut tx, old) = fixture.accept(&mut keeper, 2).await.remove(0);
    requeue(&fixture, &mut keeper, &mut tx).await;

    allocate(&fixture, &mut keeper, &mut tx, 2).await;
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!((image.backlog_from, image.open.queued), (Some(Nonce(2)), 0));
    assert_eq!(image.held.as_slice(), std::slice::from_ref(&(1..3)));
    assert_eq!(image.in_flight.len(), 1, "only the other tx is in flight");
    assert_eq!(backlog(&fixture, &keeper).await, std::slice::from_ref(&tx));
    assert_eq!(queued(&fixture, &keeper).await, []);
    assert_found(&fixture, &tx, std::slice::from_ref(&old)).await;

    let new = fixture.sign(&mut tx);
    add_attempt(&fixture, &mut keeper, &tx, new.clone()).await;
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.backlog_from, None);
    assert_eq!(
        in_flight_at(&image, tx.nonce),
        Some((tx.clone(), vec![new.clone()]))
    );
    assert_eq!(backlog(&fixture, &keeper).await, []);
    assert_found(&fixture, &tx, &[old, new]).await;
}

pub async fn requeued_tx_may_be_allocated_and_signed_in_one_batch(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (mut tx, old) = fixture.accept(&mut keeper, 1).await.remove(0);
    requeue(&fixture, &mut keeper, &mut tx).await;
    tx.nonce = Some(Nonce(1));
    let new = fixture.sign(&mut tx);
    let writes = Writes {
        attempts: vec![new.clone()],
        queued_removed: vec![tx.id],
        ..updates([tx.clone()])
    };
    fixture.apply(&mut keeper, writes).await;
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight, [(tx.clone(), vec![new.clone()])]);
    assert_eq!((image.backlog_from, image.open.queued), (None, 0));
    assert_found(&fixture, &tx, &[old, new]).await;
}

pub async fn tx_may_change_its_nonce_in_one_batch(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (mut tx, old) = fixture.accept(&mut keeper, 1).await.remove(0);
    // A turn that releases, allocates and signs a tx is folded into one image: no queue row is ever written.
    tx.nonce = Some(Nonce(1));
    let new = fixture.sign(&mut tx);
    add_attempt(&fixture, &mut keeper, &tx, new.clone()).await;
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight, [(tx.clone(), vec![new.clone()])]);
    assert_eq!(image.held.as_slice(), std::slice::from_ref(&(1..2)));
    assert_found(&fixture, &tx, &[old, new]).await;
}

pub async fn stuck_tx_without_nonce_is_not_work(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (mut tx, attempt) = fixture.accept(&mut keeper, 1).await.remove(0);
    (tx.nonce, tx.tx_hash) = (None, None);
    tx.transition(TxState::Stuck, SubState::ForeignNonce, AT);
    fixture.apply(&mut keeper, updates([tx.clone()])).await;
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!((image.in_flight, image.held), (vec![], vec![]));
    assert_eq!((image.backlog_from, image.open.queued), (None, 0));
    assert_eq!(queued(&fixture, &keeper).await, []);
    assert_eq!(backlog(&fixture, &keeper).await, []);
    let lanes = fixture.store.lanes(&[lane(1)]).await.expect("lanes");
    assert_eq!((lanes[0].in_flight, lanes[0].queued), (0, 0));
    let work = fixture.store.lanes_with_work(&node("a")).await;
    assert_eq!(work.expect("work"), []);
    assert_found(&fixture, &tx, &[attempt]).await;
}

pub async fn tx_may_be_requeued_repeatedly(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (mut tx, first) = fixture.accept(&mut keeper, 1).await.remove(0);
    let mut attempts = vec![first];
    for nonce in 1..4 {
        requeue(&fixture, &mut keeper, &mut tx).await;
        assert_found(&fixture, &tx, &attempts).await;
        allocate(&fixture, &mut keeper, &mut tx, nonce).await;
        let new = fixture.sign(&mut tx);
        add_attempt(&fixture, &mut keeper, &tx, new.clone()).await;
        attempts.push(new.clone());
        assert_found(&fixture, &tx, &attempts).await;
        let image = fixture.image(keeper.key, keeper.lease_grant).await;
        assert_eq!(image.in_flight, [(tx.clone(), vec![new])]);
    }
}

pub async fn lane_with_only_requeued_txs_is_offered_to_other_nodes(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (mut tx, _) = fixture.accept(&mut keeper, 1).await.remove(0);
    requeue(&fixture, &mut keeper, &mut tx).await;
    backend.advance(LEASE + SKEW).await;
    let work = fixture
        .store
        .lanes_with_work(&node("b"))
        .await
        .expect("work");
    let waiting = LaneWork {
        lane: lane(1),
        has_queued: true,
    };
    assert_eq!(work, [waiting]);
    let next = fixture.keeper(&node("b"), lane(1)).await;
    let image = fixture.image(lane(1), next.lease_grant).await;
    assert_eq!((image.in_flight, image.held), (vec![], vec![]));
    assert_eq!((image.open.queued, image.next_nonce), (1, Nonce(1)));
    assert_eq!(queued(&fixture, &next).await, [tx]);
}

pub async fn attempts_at_one_nonce_are_loaded_oldest_first(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let mut txs = fixture.accept(&mut keeper, 2).await;
    let (mut tx, original) = txs.remove(0);
    // An endpoint accepted the original: the new attempt does not change that record.
    tx.sub_state = Some(SubState::Submitted);
    let taken = Writes {
        first_sent: vec![(original.hash, AT)],
        ..updates([tx.clone()])
    };
    fixture.apply(&mut keeper, taken).await;
    let original = Attempt {
        first_sent_at: Some(AT),
        ..original
    };
    let bump = Attempt {
        kind: AttemptKind::Bump,
        ..fixture.sign(&mut tx)
    };
    add_attempt(&fixture, &mut keeper, &tx, bump.clone()).await;

    let attempts = vec![original, bump];
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight.len(), 2);
    assert_eq!(
        in_flight_at(&image, tx.nonce),
        Some((tx.clone(), attempts.clone()))
    );
    assert_eq!((image.backlog_from, image.open.queued), (None, 0));
    assert_found(&fixture, &tx, &attempts).await;
}

pub async fn attempt_without_tx_update_leaves_the_tx_unchanged(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (tx, original) = fixture.accept(&mut keeper, 1).await.remove(0);
    let bump = Attempt {
        kind: AttemptKind::Bump,
        ..fixture.sign(&mut tx.clone())
    };
    let alone = Writes {
        attempts: vec![bump.clone()],
        ..Writes::default()
    };
    fixture.apply(&mut keeper, alone).await;
    let attempts = vec![original, bump];
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight, [(tx.clone(), attempts.clone())]);
    assert_found(&fixture, &tx, &attempts).await;
}

/// A foreign transaction consumed its nonce: the tx waits for another one.
async fn requeue(fixture: &Fixture, keeper: &mut Keeper, tx: &mut Tx) {
    let kind = EventKind::TxRequeued {
        nonce: tx.nonce.take().expect("it holds one"),
        foreign: None,
    };
    tx.tx_hash = None;
    tx.transition(TxState::Created, SubState::Queued, AT);
    let event = Event {
        seq: 0,
        at: AT,
        tx_id: Some(tx.id),
        kind,
    };
    let writes = Writes {
        events: vec![event],
        queued_added: vec![tx.id],
        ..updates([tx.clone()])
    };
    *tx = fixture.apply(keeper, writes).await.updates.remove(0);
}

/// The tx gets a nonce, and waits for its signature.
async fn allocate(fixture: &Fixture, keeper: &mut Keeper, tx: &mut Tx, nonce: u64) {
    tx.nonce = Some(Nonce(nonce));
    tx.transition(TxState::Allocated, SubState::Waiting, AT);
    let writes = Writes {
        queued_removed: vec![tx.id],
        ..updates([tx.clone()])
    };
    fixture.apply(keeper, writes).await;
}

/// A new attempt of a tx that the store knows, with its new image.
async fn add_attempt(fixture: &Fixture, keeper: &mut Keeper, tx: &Tx, attempt: Attempt) {
    let writes = Writes {
        attempts: vec![attempt],
        ..updates([tx.clone()])
    };
    fixture.apply(keeper, writes).await;
}

async fn queued(fixture: &Fixture, keeper: &Keeper) -> Vec<Tx> {
    let loaded = fixture.store.load_queued(keeper.lease_grant.lane, 9).await;
    loaded.expect("load_queued")
}

async fn backlog(fixture: &Fixture, keeper: &Keeper) -> Vec<Tx> {
    let lane = keeper.lease_grant.lane;
    let loaded = fixture.store.load_backlog(lane, Nonce(0), 9).await;
    loaded.expect("load_backlog")
}

/// The in-flight tx at a nonce, with its attempts.
fn in_flight_at(image: &LaneImage, nonce: Option<Nonce>) -> Option<(Tx, Vec<Attempt>)> {
    let at_nonce = |(tx, _): &&(Tx, Vec<Attempt>)| tx.nonce == nonce;
    image.in_flight.iter().find(at_nonce).cloned()
}

/// Readers find a tx by its id, its key and any hash, with the attempts of all its nonces.
async fn assert_found(fixture: &Fixture, tx: &Tx, attempts: &[Attempt]) {
    let record = Some(TxRecord {
        lane: lane(1),
        tx: tx.clone(),
        attempts: attempts.to_vec(),
        confirmations: vec![],
        lane_wait: None,
    });
    assert_eq!(fixture.store.tx(tx.id).await.expect("tx"), record);
    let by_key = fixture
        .store
        .tx_by_request(lane(1), &tx.request.request_id)
        .await;
    assert_eq!(by_key.expect("tx"), record);
    for attempt in attempts {
        let by_hash = fixture.store.tx_by_hash(attempt.hash).await;
        assert_eq!(by_hash.expect("tx"), record);
    }
}

fn with_attempts(txs: &[(Tx, Attempt)]) -> Vec<(Tx, Vec<Attempt>)> {
    let one = |(tx, attempt): &(Tx, Attempt)| (tx.clone(), vec![attempt.clone()]);
    txs.iter().map(one).collect()
}
