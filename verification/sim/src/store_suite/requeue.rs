//! Nonces that are given up, and attempts that are added: a tx outlives both.

use domain::{
    Attempt, AttemptKind, Event, EventKind, LaneImage, Nonce, SubState, Tx, TxState, Writes,
};
use engine::ports::{TxRecord, Work};

use super::Backend;
use super::kit::{AT, Keeper, Kit, LEASE, SKEW, inserts, lane, node, updates};

pub async fn a_requeued_tx_waits_unsigned_and_without_its_nonce(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let mut txs = kit.accept(&mut keeper, 3).await;
    let waiting = kit.tx(3);
    kit.apply(&mut keeper, inserts([waiting.clone()])).await;
    let (mut tx, attempt) = txs.remove(0);
    requeue(&kit, &mut keeper, &mut tx).await;

    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight, with_attempts(&txs));
    assert_eq!(image.held.as_slice(), std::slice::from_ref(&(1..4)));
    assert_eq!(image.backlog_from, Some(Nonce(3)));
    assert_eq!((image.queued, image.next_nonce), (1, Nonce(4)));
    assert_eq!(image.consumed_below, Nonce(0), "by none of ours");
    assert_eq!(queued(&kit, &keeper).await, std::slice::from_ref(&tx));
    assert_eq!(backlog(&kit, &keeper).await, [waiting]);
    let lanes = kit.store.lanes(&[lane(1)]).await.expect("lanes");
    assert_eq!((lanes[0].in_flight, lanes[0].queued), (3, 1));
    assert_eq!(
        attempt.nonce,
        Nonce(0),
        "it keeps the nonce it was made for"
    );
    assert_found(&kit, &tx, &[attempt]).await;
}

pub async fn a_requeued_tx_is_dealt_and_signed_anew(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (mut tx, old) = kit.accept(&mut keeper, 2).await.remove(0);
    requeue(&kit, &mut keeper, &mut tx).await;

    deal(&kit, &mut keeper, &mut tx, 2).await;
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!((image.backlog_from, image.queued), (Some(Nonce(2)), 0));
    assert_eq!(image.held.as_slice(), std::slice::from_ref(&(1..3)));
    assert_eq!(image.in_flight.len(), 1, "only its neighbour is out");
    assert_eq!(backlog(&kit, &keeper).await, std::slice::from_ref(&tx));
    assert_eq!(queued(&kit, &keeper).await, []);
    assert_found(&kit, &tx, std::slice::from_ref(&old)).await;

    let new = kit.sign(&mut tx);
    add_attempt(&kit, &mut keeper, &tx, new.clone()).await;
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.backlog_from, None);
    assert_eq!(out(&image, tx.nonce), Some((tx.clone(), vec![new.clone()])));
    assert_eq!(backlog(&kit, &keeper).await, []);
    assert_found(&kit, &tx, &[old, new]).await;
}

pub async fn a_requeued_tx_may_be_signed_by_the_batch_that_deals_it(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (mut tx, old) = kit.accept(&mut keeper, 1).await.remove(0);
    requeue(&kit, &mut keeper, &mut tx).await;
    tx.nonce = Some(Nonce(1));
    let new = kit.sign(&mut tx);
    let writes = Writes {
        attempts: vec![new.clone()],
        queued_removed: vec![tx.id],
        ..updates([tx.clone()])
    };
    kit.apply(&mut keeper, writes).await;
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight, [(tx.clone(), vec![new.clone()])]);
    assert_eq!((image.backlog_from, image.queued), (None, 0));
    assert_found(&kit, &tx, &[old, new]).await;
}

pub async fn a_tx_may_go_from_nonce_to_nonce_in_one_batch(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (mut tx, old) = kit.accept(&mut keeper, 1).await.remove(0);
    // A turn that gives it up, deals and signs it is folded to one image: no wake row is ever written.
    tx.nonce = Some(Nonce(1));
    let new = kit.sign(&mut tx);
    add_attempt(&kit, &mut keeper, &tx, new.clone()).await;
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight, [(tx.clone(), vec![new.clone()])]);
    assert_eq!(image.held.as_slice(), std::slice::from_ref(&(1..2)));
    assert_found(&kit, &tx, &[old, new]).await;
}

pub async fn a_tx_that_is_held_without_a_nonce_is_nobodys_work(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (mut tx, attempt) = kit.accept(&mut keeper, 1).await.remove(0);
    (tx.nonce, tx.tx_hash) = (None, None);
    tx.transition(TxState::Stuck, SubState::ForeignNonce, AT);
    kit.apply(&mut keeper, updates([tx.clone()])).await;
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!((image.in_flight, image.held), (vec![], vec![]));
    assert_eq!((image.backlog_from, image.queued), (None, 0));
    assert_eq!(queued(&kit, &keeper).await, []);
    assert_eq!(backlog(&kit, &keeper).await, []);
    let lanes = kit.store.lanes(&[lane(1)]).await.expect("lanes");
    assert_eq!((lanes[0].in_flight, lanes[0].queued), (0, 0));
    let work = kit.store.lanes_with_work(&node("a")).await;
    assert_eq!(work.expect("work"), []);
    assert_found(&kit, &tx, &[attempt]).await;
}

pub async fn a_tx_may_be_requeued_more_than_once(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (mut tx, first) = kit.accept(&mut keeper, 1).await.remove(0);
    let mut attempts = vec![first];
    for nonce in 1..4 {
        requeue(&kit, &mut keeper, &mut tx).await;
        assert_found(&kit, &tx, &attempts).await;
        deal(&kit, &mut keeper, &mut tx, nonce).await;
        let new = kit.sign(&mut tx);
        add_attempt(&kit, &mut keeper, &tx, new.clone()).await;
        attempts.push(new.clone());
        assert_found(&kit, &tx, &attempts).await;
        let image = kit.image(keeper.key, keeper.lease_grant).await;
        assert_eq!(image.in_flight, [(tx.clone(), vec![new])]);
    }
}

pub async fn a_lane_of_requeued_txs_is_work_for_whoever_comes_next(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (mut tx, _) = kit.accept(&mut keeper, 1).await.remove(0);
    requeue(&kit, &mut keeper, &mut tx).await;
    backend.advance(LEASE + SKEW).await;
    let work = kit.store.lanes_with_work(&node("b")).await.expect("work");
    let waiting = Work {
        lane: lane(1),
        has_queued: true,
    };
    assert_eq!(work, [waiting]);
    let next = kit.keeper(&node("b"), lane(1)).await;
    let image = kit.image(lane(1), next.lease_grant).await;
    assert_eq!((image.in_flight, image.held), (vec![], vec![]));
    assert_eq!((image.queued, image.next_nonce), (1, Nonce(1)));
    assert_eq!(queued(&kit, &next).await, [tx]);
}

pub async fn two_attempts_at_one_nonce_are_loaded_oldest_first(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let mut txs = kit.accept(&mut keeper, 2).await;
    let (mut tx, original) = txs.remove(0);
    // Out, and taken by a node: the new attempt does not change what was said of the old one.
    tx.sub_state = Some(SubState::Submitted);
    let taken = Writes {
        first_sent: vec![(original.hash, AT)],
        ..updates([tx.clone()])
    };
    kit.apply(&mut keeper, taken).await;
    let original = Attempt {
        first_sent_at: Some(AT),
        ..original
    };
    let bump = Attempt {
        kind: AttemptKind::Bump,
        ..kit.sign(&mut tx)
    };
    add_attempt(&kit, &mut keeper, &tx, bump.clone()).await;

    let attempts = vec![original, bump];
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight.len(), 2);
    assert_eq!(out(&image, tx.nonce), Some((tx.clone(), attempts.clone())));
    assert_eq!((image.backlog_from, image.queued), (None, 0));
    assert_found(&kit, &tx, &attempts).await;
}

pub async fn an_attempt_alone_leaves_its_tx_as_it_is(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (tx, original) = kit.accept(&mut keeper, 1).await.remove(0);
    let bump = Attempt {
        kind: AttemptKind::Bump,
        ..kit.sign(&mut tx.clone())
    };
    let alone = Writes {
        attempts: vec![bump.clone()],
        ..Writes::default()
    };
    kit.apply(&mut keeper, alone).await;
    let attempts = vec![original, bump];
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight, [(tx.clone(), attempts.clone())]);
    assert_found(&kit, &tx, &attempts).await;
}

/// Its nonce was consumed by somebody else: it waits for another one.
async fn requeue(kit: &Kit, keeper: &mut Keeper, tx: &mut Tx) {
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
    *tx = kit.apply(keeper, writes).await.updates.remove(0);
}

/// It gets a nonce, and waits for its signature.
async fn deal(kit: &Kit, keeper: &mut Keeper, tx: &mut Tx, nonce: u64) {
    tx.nonce = Some(Nonce(nonce));
    tx.transition(TxState::Allocated, SubState::Waiting, AT);
    let writes = Writes {
        queued_removed: vec![tx.id],
        ..updates([tx.clone()])
    };
    kit.apply(keeper, writes).await;
}

/// A new attempt of a tx that the store knows, with its new image.
async fn add_attempt(kit: &Kit, keeper: &mut Keeper, tx: &Tx, attempt: Attempt) {
    let writes = Writes {
        attempts: vec![attempt],
        ..updates([tx.clone()])
    };
    kit.apply(keeper, writes).await;
}

async fn queued(kit: &Kit, keeper: &Keeper) -> Vec<Tx> {
    let loaded = kit.store.load_queued(keeper.lease_grant.lane, 9).await;
    loaded.expect("load_queued")
}

async fn backlog(kit: &Kit, keeper: &Keeper) -> Vec<Tx> {
    let lane = keeper.lease_grant.lane;
    let loaded = kit.store.load_backlog(lane, Nonce(0), 9).await;
    loaded.expect("load_backlog")
}

/// What is out at a nonce.
fn out(image: &LaneImage, nonce: Option<Nonce>) -> Option<(Tx, Vec<Attempt>)> {
    let at_nonce = |(tx, _): &&(Tx, Vec<Attempt>)| tx.nonce == nonce;
    image.in_flight.iter().find(at_nonce).cloned()
}

/// Readers find a tx by its id, its key and any hash, with the attempts of all its nonces.
async fn assert_found(kit: &Kit, tx: &Tx, attempts: &[Attempt]) {
    let record = Some(TxRecord {
        lane: lane(1),
        tx: tx.clone(),
        attempts: attempts.to_vec(),
        confirmations: vec![],
    });
    assert_eq!(kit.store.tx(tx.id).await.expect("tx"), record);
    let by_key = kit.store.tx_by_request(lane(1), &tx.request_id).await;
    assert_eq!(by_key.expect("tx"), record);
    for attempt in attempts {
        let by_hash = kit.store.tx_by_hash(attempt.hash).await;
        assert_eq!(by_hash.expect("tx"), record);
    }
}

fn with_attempts(txs: &[(Tx, Attempt)]) -> Vec<(Tx, Vec<Attempt>)> {
    let one = |(tx, attempt): &(Tx, Attempt)| (tx.clone(), vec![attempt.clone()]);
    txs.iter().map(one).collect()
}
