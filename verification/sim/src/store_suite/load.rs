//! What a keeper reads after its grant.

use domain::{
    Attempt, AttemptKind, B256, FinalTx, Inclusion, LaneImage, Nonce, SubState, Tx, TxState, Writes,
};

use super::Backend;
use super::kit::{AT, Keeper, Kit, LEASE, SKEW, WATCH_DEPTH, inserts, lane, node, updates};

pub async fn a_new_lane_is_empty(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let keeper = kit.keeper(&node("a"), lane(1)).await;
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
        queued: 0,
        finals: Vec::new(),
    };
    assert_eq!(kit.image(lane(1), keeper.lease_grant).await, expected);
}

pub async fn only_the_present_right_reads_the_lane(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let first = kit.keeper(&node("a"), lane(1)).await;
    let second = kit.keeper(&node("a"), lane(1)).await;
    assert_eq!(
        kit.store
            .load(lane(1), first.lease_grant, WATCH_DEPTH)
            .await,
        Ok(None),
        "old grant"
    );
    backend.advance(LEASE + SKEW).await;
    kit.keeper(&node("b"), lane(1)).await;
    assert_eq!(
        kit.store
            .load(lane(1), second.lease_grant, WATCH_DEPTH)
            .await,
        Ok(None),
        "old token"
    );
}

pub async fn what_is_out_comes_in_nonce_order_with_its_attempts(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let mut expected = Vec::new();
    for nonce in [2, 0, 1] {
        let mut tx = kit.tx(nonce);
        let original = kit.sign(&mut tx);
        let bump = Attempt {
            kind: AttemptKind::Bump,
            ..kit.sign(&mut tx)
        };
        let first = Writes {
            inserts: vec![tx.clone()],
            attempts: vec![original.clone()],
            ..Writes::default()
        };
        kit.apply(&mut keeper, first).await;
        let second = Writes {
            attempts: vec![bump.clone()],
            ..Writes::default()
        };
        kit.apply(&mut keeper, second).await;
        expected.push((tx, vec![original, bump]));
    }
    expected.sort_by_key(|(tx, _)| tx.nonce);
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight, expected);
    assert_eq!(image.backlog_from, None);
}

pub async fn what_waits_for_its_signature_is_backlog(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    kit.accept(&mut keeper, 2).await;
    let waiting: Vec<Tx> = (2..30).map(|nonce| kit.tx(nonce)).collect();
    let backwards: Vec<Tx> = waiting.iter().rev().cloned().collect();
    kit.apply(&mut keeper, inserts(backwards)).await;
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(
        (image.backlog_from, image.in_flight.len()),
        (Some(Nonce(2)), 2)
    );

    let lane_id = keeper.lease_grant.lane;
    let backlog = |from, limit| kit.store.load_backlog(lane_id, Nonce(from), limit);
    assert_eq!(backlog(0, 5).await.expect("load"), waiting[..5]);
    assert_eq!(backlog(7, 1_000).await.expect("load"), waiting[5..]);
    assert_eq!(backlog(30, 5).await.expect("load"), []);
    assert_eq!(backlog(u64::MAX, 5).await.expect("load"), []);

    let mut first = waiting[0].clone();
    let attempt = kit.sign(&mut first);
    let signing = Writes {
        attempts: vec![attempt],
        updates: vec![first],
        ..Writes::default()
    };
    kit.apply(&mut keeper, signing).await;
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(
        (image.backlog_from, image.in_flight.len()),
        (Some(Nonce(3)), 3)
    );
    assert_eq!(backlog(0, 1).await.expect("load"), waiting[1..2]);
}

pub async fn held_nonces_are_ranges_of_what_is_open(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let mut txs: Vec<Tx> = kit
        .accept(&mut keeper, 6)
        .await
        .into_iter()
        .map(|(tx, _)| tx)
        .collect();
    let unsigned = [6, 7, 12, 20].map(|nonce| kit.tx(nonce));
    kit.apply(&mut keeper, inserts(unsigned)).await;
    assert_eq!(
        kit.image(keeper.key, keeper.lease_grant).await.held,
        [0..8, 12..13, 20..21]
    );

    finish(&kit, &mut keeper, &mut txs[0]).await;
    finish(&kit, &mut keeper, &mut txs[3]).await;
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.held, [1..3, 4..8, 12..13, 20..21]);
    assert_eq!(image.consumed_below, Nonce(4));
}

pub async fn consumed_nonces_end_below_the_highest_finished_one(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let mut txs: Vec<Tx> = kit
        .accept(&mut keeper, 3)
        .await
        .into_iter()
        .map(|(tx, _)| tx)
        .collect();
    assert_eq!(
        kit.image(keeper.key, keeper.lease_grant)
            .await
            .consumed_below,
        Nonce(0)
    );
    finish(&kit, &mut keeper, &mut txs[0]).await;
    assert_eq!(
        kit.image(keeper.key, keeper.lease_grant)
            .await
            .consumed_below,
        Nonce(1)
    );

    // Ended without its nonce: that one was never consumed.
    txs[2].nonce = None;
    finish(&kit, &mut keeper, &mut txs[2]).await;
    assert_eq!(
        kit.image(keeper.key, keeper.lease_grant)
            .await
            .consumed_below,
        Nonce(1)
    );

    finish(&kit, &mut keeper, &mut txs[1]).await;
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!((image.consumed_below, image.held), (Nonce(2), vec![]));
    assert_eq!((image.in_flight, image.next_nonce), (vec![], Nonce(3)));
}

pub async fn finals_are_loaded_as_deep_as_they_are_watched(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let accepted = kit.accept(&mut keeper, 4).await;
    let mut expected = Vec::new();
    let blocks = [100, 200, 200 + WATCH_DEPTH];
    for ((mut tx, attempt), block_number) in accepted.into_iter().zip(blocks) {
        let mined = inclusion(&attempt, block_number);
        expected.push(FinalTx {
            id: tx.id,
            block_number,
            block_hash: mined.block_hash,
        });
        tx.inclusion = Some(mined);
        finish(&kit, &mut keeper, &mut tx).await;
    }
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(
        image.finals,
        expected[1..],
        "the first lies too deep, the last is open"
    );
}

pub async fn what_a_fork_reopens_is_loaded_again(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (mut tx, attempt) = kit.accept(&mut keeper, 1).await.remove(0);
    finish(&kit, &mut keeper, &mut tx).await;
    tx.transition(TxState::Tracking, SubState::Reorged, AT);
    kit.apply(&mut keeper, updates([tx.clone()])).await;
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight, [(tx, vec![attempt])]);
    assert_eq!(image.consumed_below, Nonce(0));
}

pub async fn finished_txs_below_the_floor_change_nothing(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let mut txs = kit.accept(&mut keeper, 5).await;
    for (n, (tx, attempt)) in txs.iter_mut().take(3).enumerate() {
        tx.inclusion = Some(inclusion(attempt, 100 + n as u64));
        finish(&kit, &mut keeper, tx).await;
    }
    let mut waiting = kit.tx(5);
    kit.apply(&mut keeper, inserts([waiting.clone()])).await;
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight, with_attempts(&txs[3..]));
    assert_eq!(image.held.as_slice(), std::slice::from_ref(&(3..6)));
    assert_eq!(image.consumed_below, Nonce(3));
    assert_eq!(image.backlog_from, Some(Nonce(5)));
    assert_eq!(image.finals.len(), 3, "they are watched all the same");
    let backlog = kit
        .store
        .load_backlog(keeper.lease_grant.lane, Nonce(0), 9)
        .await;
    assert_eq!(backlog.expect("load"), std::slice::from_ref(&waiting));

    // Everything is finished: the floor is the cursor.
    for (tx, attempt) in &mut txs[3..] {
        tx.inclusion = Some(inclusion(attempt, 110));
        finish(&kit, &mut keeper, tx).await;
    }
    waiting.nonce = None;
    finish(&kit, &mut keeper, &mut waiting).await;
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!((image.in_flight, image.held), (vec![], vec![]));
    assert_eq!(
        (image.next_nonce, image.consumed_below),
        (Nonce(6), Nonce(5))
    );

    // A fork takes the oldest back: the floor falls to it.
    let (tx, _) = &mut txs[0];
    tx.inclusion = None;
    tx.transition(TxState::Tracking, SubState::Reorged, AT);
    kit.apply(&mut keeper, updates([tx.clone()])).await;
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(image.in_flight, with_attempts(&txs[..1]));
    assert_eq!(image.held.as_slice(), std::slice::from_ref(&(0..1)));
    assert_eq!(image.consumed_below, Nonce(5));
}

pub async fn a_lane_reads_nothing_of_its_neighbours(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut other = kit.keeper(&node("a"), lane(1)).await;
    kit.accept(&mut other, 3).await;
    let waiting = kit.tx(3);
    kit.apply(&mut other, inserts([waiting])).await;
    kit.store
        .queue(vec![kit.new_queued(lane(1), "r1")])
        .await
        .expect("queue");
    let keeper = kit.keeper(&node("a"), lane(2)).await;
    let image = kit.image(lane(2), keeper.lease_grant).await;
    assert_eq!(
        (image.in_flight, image.held, image.queued),
        (vec![], vec![], 0)
    );
    assert_eq!(
        kit.store.load_queued(keeper.lease_grant.lane, 9).await,
        Ok(vec![])
    );
    assert_eq!(
        kit.store
            .load_backlog(keeper.lease_grant.lane, Nonce(0), 9)
            .await,
        Ok(vec![])
    );
}

fn with_attempts(txs: &[(Tx, Attempt)]) -> Vec<(Tx, Vec<Attempt>)> {
    let one = |(tx, attempt): &(Tx, Attempt)| (tx.clone(), vec![attempt.clone()]);
    txs.iter().map(one).collect()
}

async fn finish(kit: &Kit, keeper: &mut Keeper, tx: &mut Tx) {
    tx.state = TxState::Confirmed;
    tx.confirmed_at = Some(AT);
    kit.apply(keeper, updates([tx.clone()])).await;
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
