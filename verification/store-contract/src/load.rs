//! The image that a keeper loads after its grant.

use domain::lane::{MinedRows, OpenCost, OpenSummary, UNRECORDED_PREFIX};
use domain::{
    Attempt, AttemptKind, B256, FinalTx, Inclusion, LaneImage, Nonce, RequestId, SubState, Tx,
    TxState, U256, Writes,
};
use engine::ports::{CommitOutcome, LaneBatch};

use crate::Backend;
use crate::fixture::{AT, Fixture, Keeper, LEASE, SKEW, WATCH_DEPTH, inserts, lane, node, updates};

pub async fn new_lane_is_empty(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    let expected = LaneImage {
        key: lane(1),
        lease_grant: keeper.lease_grant,
        next_nonce: Nonce(0),
        event_seq: 0,
        batch_seq: 0,
        paused: false,
        in_flight: Vec::new(),
        backlog_from: None,
        held: Vec::new(),
        consumed_below: Nonce(0),
        open: OpenSummary::default(),
        mined: MinedRows::default(),
    };
    assert_eq!(fixture.image(lane(1), keeper.lease_grant).await, expected);
}

pub async fn transactions_that_no_tx_recorded_are_loaded_by_request_id(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let named = |name: &str| {
        let mut tx = fixture.tx_without_nonce();
        tx.request.request_id = RequestId::parse(name).expect("a valid request id");
        tx
    };
    let names = ["1", "12", "3"].map(|nonce| format!("{UNRECORDED_PREFIX}{nonce}"));
    let rows = names.each_ref().map(|name| named(name));
    let others = [
        named("lanekeeper-unrecorded"),
        named("lanekeeper-unrecordee"),
        named("zebra"),
    ];
    let stored = fixture
        .apply(
            &mut keeper,
            inserts(rows.into_iter().chain(others).collect::<Vec<Tx>>()),
        )
        .await;
    let image = fixture.image(lane(1), keeper.lease_grant).await;
    assert_eq!(image.mined.unrecorded, stored.inserts[..3]);
    let other_lane = fixture.keeper(&node("a"), lane(2)).await;
    let image = fixture.image(lane(2), other_lane.lease_grant).await;
    assert_eq!(image.mined.unrecorded, []);
}

/// The next keeper must know it without reading the txs that wait in the store.
pub async fn cost_of_open_txs_is_that_of_the_last_batch(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let cost = |wei: u64| OpenCost {
        wei: U256::from(wei) << 100,
        unpriced_gas: 21_000,
    };
    let batch = |keeper: &Keeper, open_cost: OpenCost, tx: Tx| LaneBatch {
        open_cost,
        ..fixture.batch(keeper, inserts([tx]))
    };
    let first = fixture.tx(0);
    let applied = batch(&keeper, cost(7), first.clone());
    assert_eq!(
        fixture.commit(applied.clone()).await,
        CommitOutcome::Applied
    );
    keeper.follow(&applied);
    let twice = Tx {
        id: fixture.tx(1).id,
        nonce: Some(Nonce(1)),
        ..first
    };
    let outcome = fixture.commit(batch(&keeper, cost(8), twice)).await;
    assert!(matches!(outcome, CommitOutcome::Conflict(_)), "{outcome:?}");
    backend.advance(LEASE + SKEW).await;
    let next = fixture.keeper(&node("b"), lane(1)).await;
    let fenced = batch(&keeper, cost(9), fixture.tx(2));
    assert_eq!(fixture.commit(fenced).await, CommitOutcome::Fenced);
    let image = fixture.image(lane(1), next.lease_grant).await;
    assert_eq!(image.open.cost, cost(7));
}

pub async fn only_the_current_grant_loads_the_lane(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let first = fixture.keeper(&node("a"), lane(1)).await;
    let second = fixture.keeper(&node("a"), lane(1)).await;
    assert_eq!(
        fixture
            .store
            .load(lane(1), first.lease_grant, WATCH_DEPTH)
            .await,
        Ok(None),
        "stale grant"
    );
    backend.advance(LEASE + SKEW).await;
    fixture.keeper(&node("b"), lane(1)).await;
    assert_eq!(
        fixture
            .store
            .load(lane(1), second.lease_grant, WATCH_DEPTH)
            .await,
        Ok(None),
        "stale token"
    );
}

pub async fn in_flight_txs_are_loaded_in_nonce_order_with_attempts(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let mut expected = Vec::new();
    for nonce in [2, 0, 1] {
        let mut tx = fixture.tx(nonce);
        let original = fixture.sign(&mut tx);
        let bump = Attempt {
            kind: AttemptKind::Bump,
            ..fixture.sign(&mut tx)
        };
        let first = Writes {
            inserts: vec![tx.clone()],
            attempts: vec![original.clone()],
            ..Writes::default()
        };
        fixture.apply(&mut keeper, first).await;
        let second = Writes {
            attempts: vec![bump.clone()],
            ..Writes::default()
        };
        fixture.apply(&mut keeper, second).await;
        expected.push((tx, vec![original, bump]));
    }
    expected.sort_by_key(|(tx, _)| tx.nonce);
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight, expected);
    assert_eq!(image.backlog_from, None);
}

pub async fn unsigned_allocated_txs_are_the_backlog(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    fixture.accept(&mut keeper, 2).await;
    let waiting: Vec<Tx> = (2..30).map(|nonce| fixture.tx(nonce)).collect();
    let backwards: Vec<Tx> = waiting.iter().rev().cloned().collect();
    fixture.apply(&mut keeper, inserts(backwards)).await;
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(
        (image.backlog_from, image.in_flight.len()),
        (Some(Nonce(2)), 2)
    );

    let lane_id = keeper.lease_grant.lane;
    let backlog = |from, limit| fixture.store.load_backlog(lane_id, Nonce(from), limit);
    assert_eq!(backlog(0, 5).await.expect("load"), waiting[..5]);
    assert_eq!(backlog(7, 1_000).await.expect("load"), waiting[5..]);
    assert_eq!(backlog(30, 5).await.expect("load"), []);
    assert_eq!(backlog(u64::MAX, 5).await.expect("load"), []);

    let mut first = waiting[0].clone();
    let attempt = fixture.sign(&mut first);
    let signing = Writes {
        attempts: vec![attempt],
        updates: vec![first],
        ..Writes::default()
    };
    fixture.apply(&mut keeper, signing).await;
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(
        (image.backlog_from, image.in_flight.len()),
        (Some(Nonce(3)), 3)
    );
    assert_eq!(backlog(0, 1).await.expect("load"), waiting[1..2]);
}

pub async fn held_nonces_are_ranges_of_open_txs(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let mut txs: Vec<Tx> = fixture
        .accept(&mut keeper, 6)
        .await
        .into_iter()
        .map(|(tx, _)| tx)
        .collect();
    let unsigned = [6, 7, 12, 20].map(|nonce| fixture.tx(nonce));
    fixture.apply(&mut keeper, inserts(unsigned)).await;
    assert_eq!(
        fixture.image(keeper.key, keeper.lease_grant).await.held,
        [0..8, 12..13, 20..21]
    );

    finish(&fixture, &mut keeper, &mut txs[0]).await;
    finish(&fixture, &mut keeper, &mut txs[3]).await;
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.held, [1..3, 4..8, 12..13, 20..21]);
    assert_eq!(image.consumed_below, Nonce(4));
}

pub async fn consumed_below_follows_the_highest_finished_nonce(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let mut txs: Vec<Tx> = fixture
        .accept(&mut keeper, 3)
        .await
        .into_iter()
        .map(|(tx, _)| tx)
        .collect();
    assert_eq!(
        fixture
            .image(keeper.key, keeper.lease_grant)
            .await
            .consumed_below,
        Nonce(0)
    );
    finish(&fixture, &mut keeper, &mut txs[0]).await;
    assert_eq!(
        fixture
            .image(keeper.key, keeper.lease_grant)
            .await
            .consumed_below,
        Nonce(1)
    );

    // It ended without its nonce, which was therefore never consumed.
    txs[2].nonce = None;
    finish(&fixture, &mut keeper, &mut txs[2]).await;
    assert_eq!(
        fixture
            .image(keeper.key, keeper.lease_grant)
            .await
            .consumed_below,
        Nonce(1)
    );

    finish(&fixture, &mut keeper, &mut txs[1]).await;
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!((image.consumed_below, image.held), (Nonce(2), vec![]));
    assert_eq!((image.in_flight, image.next_nonce), (vec![], Nonce(3)));
}

pub async fn finals_are_loaded_within_the_watched_depth(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let accepted = fixture.accept(&mut keeper, 4).await;
    let mut expected = Vec::new();
    let blocks = [100, 200, 200 + WATCH_DEPTH];
    for ((mut tx, attempt), block_number) in accepted.into_iter().zip(blocks) {
        let mined = inclusion(&attempt, block_number);
        expected.push(FinalTx {
            id: tx.id,
            nonce: attempt.nonce,
            block_number,
            block_hash: mined.block_hash,
        });
        tx.inclusion = Some(mined);
        finish(&fixture, &mut keeper, &mut tx).await;
    }
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(
        image.mined.finals,
        expected[1..],
        "the first is too deep, the last is open"
    );
}

pub async fn reorged_tx_is_loaded_again(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (mut tx, attempt) = fixture.accept(&mut keeper, 1).await.remove(0);
    finish(&fixture, &mut keeper, &mut tx).await;
    tx.transition(TxState::Tracking, SubState::Reorged, AT);
    fixture.apply(&mut keeper, updates([tx.clone()])).await;
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight, [(tx, vec![attempt])]);
    assert_eq!(image.consumed_below, Nonce(0));
}

pub async fn finished_txs_below_the_floor_do_not_affect_the_image(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let mut txs = fixture.accept(&mut keeper, 5).await;
    for (n, (tx, attempt)) in txs.iter_mut().take(3).enumerate() {
        tx.inclusion = Some(inclusion(attempt, 100 + n as u64));
        finish(&fixture, &mut keeper, tx).await;
    }
    let mut waiting = fixture.tx(5);
    fixture.apply(&mut keeper, inserts([waiting.clone()])).await;
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight, with_attempts(&txs[3..]));
    assert_eq!(image.held.as_slice(), std::slice::from_ref(&(3..6)));
    assert_eq!(image.consumed_below, Nonce(3));
    assert_eq!(image.backlog_from, Some(Nonce(5)));
    assert_eq!(image.mined.finals.len(), 3, "they are still watched");
    let backlog = fixture
        .store
        .load_backlog(keeper.lease_grant.lane, Nonce(0), 9)
        .await;
    assert_eq!(backlog.expect("load"), std::slice::from_ref(&waiting));

    // Everything is finished: the floor is the cursor.
    for (tx, attempt) in &mut txs[3..] {
        tx.inclusion = Some(inclusion(attempt, 110));
        finish(&fixture, &mut keeper, tx).await;
    }
    waiting.nonce = None;
    finish(&fixture, &mut keeper, &mut waiting).await;
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!((image.in_flight, image.held), (vec![], vec![]));
    assert_eq!(
        (image.next_nonce, image.consumed_below),
        (Nonce(6), Nonce(5))
    );

    // A reorg reopens the oldest tx: the floor falls to it.
    let (tx, _) = &mut txs[0];
    tx.inclusion = None;
    tx.transition(TxState::Tracking, SubState::Reorged, AT);
    fixture.apply(&mut keeper, updates([tx.clone()])).await;
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight, with_attempts(&txs[..1]));
    assert_eq!(image.held.as_slice(), std::slice::from_ref(&(0..1)));
    assert_eq!(image.consumed_below, Nonce(5));
}

pub async fn lane_loads_no_rows_of_other_lanes(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut other = fixture.keeper(&node("a"), lane(1)).await;
    fixture.accept(&mut other, 3).await;
    let waiting = fixture.tx(3);
    fixture.apply(&mut other, inserts([waiting])).await;
    fixture
        .store
        .queue_requests(vec![fixture.new_queued(lane(1), "r1")])
        .await
        .expect("queue");
    let keeper = fixture.keeper(&node("a"), lane(2)).await;
    let image = fixture.image(lane(2), keeper.lease_grant).await;
    assert_eq!(
        (image.in_flight, image.held, image.open.queued),
        (vec![], vec![], 0)
    );
    assert_eq!(
        fixture.store.load_queued(keeper.lease_grant.lane, 9).await,
        Ok(vec![])
    );
    assert_eq!(
        fixture
            .store
            .load_backlog(keeper.lease_grant.lane, Nonce(0), 9)
            .await,
        Ok(vec![])
    );
}

fn with_attempts(txs: &[(Tx, Attempt)]) -> Vec<(Tx, Vec<Attempt>)> {
    let one = |(tx, attempt): &(Tx, Attempt)| (tx.clone(), vec![attempt.clone()]);
    txs.iter().map(one).collect()
}

async fn finish(fixture: &Fixture, keeper: &mut Keeper, tx: &mut Tx) {
    tx.state = TxState::Confirmed;
    tx.confirmed_at = Some(AT);
    fixture.apply(keeper, updates([tx.clone()])).await;
}

fn inclusion(attempt: &Attempt, block_number: u64) -> Inclusion {
    Inclusion {
        tx_hash: attempt.hash,
        block_number,
        block_hash: B256::left_padding_from(&block_number.to_be_bytes()),
        succeeded: true,
        gas_used: 21_000,
        effective_gas_price: 7,
        contract_address: None,
        revert_reason: None,
    }
}
