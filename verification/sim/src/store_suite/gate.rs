//! The gate: every batch whole or not at all, each lane on its own, every count checked.

use alloy_primitives::{Address, B256, Bytes, U256};
use domain::{
    Attempt, AttemptKind, Fees, Inclusion, Nonce, Payload, SubState, Timestamp, Token, Tx, TxState,
    TxType, Writes,
};
use engine::ports::{CommitOutcome, Conflict};

use super::Backend;
use super::kit::{
    AT, Keeper, Kit, LEASE, SKEW, acceptance, accepted, inserts, lane, node, request_id, updates,
};

pub async fn what_was_applied_is_read_back_as_it_was(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (tx, attempt) = kit.accept(&mut keeper, 1).await.remove(0);
    let record = kit.store.tx(tx.id).await.expect("tx").expect("it is there");
    assert_eq!(
        (record.lane, record.tx, record.attempts),
        (lane(1), tx, vec![attempt])
    );
    assert_eq!(record.confirmations, []);
}

pub async fn every_field_of_a_tx_survives(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let full = Tx {
        nonce: Some(Nonce(7)),
        ..full_tx(&kit)
    };
    let empty_handed = Tx {
        payload: Payload {
            to: None,
            data: Bytes::from(vec![0; 70_000]),
            ..Payload::transfer(Address::ZERO, U256::ZERO)
        },
        gas: u64::MAX,
        sub_state: None,
        ..kit.tx_without_nonce()
    };
    kit.apply(&mut keeper, inserts([full.clone(), empty_handed.clone()]))
        .await;
    for tx in [full, empty_handed] {
        let record = kit.store.tx(tx.id).await.expect("tx").expect("it is there");
        assert_eq!(record.tx, tx);
    }
}

pub async fn every_state_and_sub_state_survives(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let mut txs = Vec::new();
    for state in TxState::ALL {
        let one = |sub| Tx {
            state,
            sub_state: Some(sub),
            ..kit.tx_without_nonce()
        };
        txs.extend(SubState::ALL.map(one));
    }
    kit.apply(&mut keeper, inserts(txs.clone())).await;
    for tx in txs {
        assert_eq!(
            kit.store
                .tx(tx.id)
                .await
                .expect("tx")
                .map(|record| record.tx),
            Some(tx)
        );
    }
}

pub async fn every_kind_of_attempt_survives_oldest_first(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let mut tx = kit.tx(0);
    let mut attempts: Vec<Attempt> = Vec::new();
    for kind in AttemptKind::ALL {
        attempts.push(Attempt {
            kind,
            gas: u64::MAX,
            ..kit.sign(&mut tx)
        });
    }
    attempts[0].fees = Fees::Legacy {
        gas_price: u128::MAX,
    };
    attempts[1].fees = Fees::Eip1559 {
        max_fee: u128::MAX,
        max_priority_fee: 0,
    };
    attempts[2].fees = Fees::Legacy { gas_price: 0 };
    attempts[3].raw = Bytes::from(vec![1; 70_000]);
    attempts[4].first_sent_at = Some(AT);
    // Stored against the order of their hashes, so that only the order of storing can explain it.
    attempts.reverse();
    let writes = Writes {
        inserts: vec![tx.clone()],
        attempts: attempts.clone(),
        ..Writes::default()
    };
    kit.apply(&mut keeper, writes).await;
    let record = kit.store.tx(tx.id).await.expect("tx").expect("it is there");
    assert_eq!(record.attempts, attempts);
}

pub async fn an_update_is_the_whole_new_image(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (tx, _) = kit.accept(&mut keeper, 1).await.remove(0);
    let full = full_tx(&kit);
    let grown = Tx {
        id: tx.id,
        request_id: tx.request_id.clone(),
        fingerprint: tx.fingerprint,
        payload: tx.payload.clone(),
        gas: tx.gas,
        created_at: tx.created_at,
        nonce: tx.nonce,
        ..full
    };
    let shrunk = Tx {
        nonce: None,
        ..tx.clone()
    };
    for image in [grown, tx, shrunk] {
        kit.apply(&mut keeper, updates([image.clone()])).await;
        let record = kit
            .store
            .tx(image.id)
            .await
            .expect("tx")
            .expect("it is there");
        assert_eq!(record.tx, image);
    }
}

pub async fn the_first_yes_of_a_node_is_kept_with_its_attempt(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let sent = kit.accept(&mut keeper, 2).await;
    let at = Timestamp(AT.0 + 5);
    let first_sent = vec![(sent[1].1.hash, at)];
    kit.apply(
        &mut keeper,
        Writes {
            first_sent,
            ..Writes::default()
        },
    )
    .await;
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    let seen: Vec<_> = image
        .in_flight
        .iter()
        .map(|(_, attempts)| attempts[0].first_sent_at)
        .collect();
    assert_eq!(seen, [None, Some(at)]);
}

pub async fn the_cursor_and_the_paused_flag_are_the_batchs(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    keeper.next_nonce = Nonce(41);
    for (paused, shown) in [
        (None, false),
        (Some(true), true),
        (None, true),
        (Some(false), false),
    ] {
        kit.apply(
            &mut keeper,
            Writes {
                paused,
                ..Writes::default()
            },
        )
        .await;
        let image = kit.image(keeper.key, keeper.lease_grant).await;
        assert_eq!(
            (image.next_nonce, image.paused),
            (Nonce(41), shown),
            "{paused:?}"
        );
    }
}

pub async fn a_nonce_of_another_tx_is_a_conflict_that_names_it(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let txs = kit.accept(&mut keeper, 2).await;
    let insert = inserts([kit.tx(2), kit.tx(1)]);
    let moved = Tx {
        nonce: Some(Nonce(1)),
        ..txs[0].0.clone()
    };
    let update = updates([moved]);
    for writes in [insert, update] {
        let outcome = refused(&kit, &keeper, writes).await;
        assert_eq!(outcome, Conflict::Nonce(Nonce(1)));
    }
}

pub async fn a_finished_tx_keeps_its_nonce_for_ever(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (mut tx, _) = kit.accept(&mut keeper, 1).await.remove(0);
    tx.transition(TxState::Confirmed, SubState::Mined, AT);
    kit.apply(&mut keeper, updates([tx])).await;
    let again = inserts([kit.tx(0)]);
    assert_eq!(
        refused(&kit, &keeper, again).await,
        Conflict::Nonce(Nonce(0))
    );
}

pub async fn attempts_stay_with_a_tx_that_gave_its_nonce_up(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (mut tx, first) = kit.accept(&mut keeper, 1).await.remove(0);
    (tx.nonce, tx.tx_hash) = (None, None);
    tx.transition(TxState::Created, SubState::Queued, AT);
    let requeue = Writes {
        queued_added: vec![tx.id],
        ..updates([tx.clone()])
    };
    kit.apply(&mut keeper, requeue).await;
    // Another tx takes the nonce, so that attempts of two txs lie at it.
    let (_, other) = {
        let mut other = kit.tx(0);
        let attempt = kit.sign(&mut other);
        let writes = Writes {
            attempts: vec![attempt.clone()],
            ..inserts([other.clone()])
        };
        kit.apply(&mut keeper, writes).await;
        (other, attempt)
    };
    tx.nonce = Some(Nonce(1));
    tx.transition(TxState::Allocated, SubState::Waiting, AT);
    let second = kit.sign(&mut tx);
    let again = Writes {
        queued_removed: vec![tx.id],
        attempts: vec![second.clone()],
        ..updates([tx.clone()])
    };
    kit.apply(&mut keeper, again).await;
    let attempts = vec![first.clone(), second];
    for hash in [first.hash, attempts[1].hash] {
        let record = kit.store.tx_by_hash(hash).await.expect("tx");
        let record = record.expect("it is there");
        assert_eq!((record.tx, record.attempts), (tx.clone(), attempts.clone()));
    }
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    let loaded: Vec<_> = image
        .in_flight
        .into_iter()
        .map(|(_, loaded)| loaded)
        .collect();
    assert_eq!(
        loaded,
        [vec![other], attempts[1..].to_vec()],
        "what was sent at a nonce that it gave up is its past"
    );
}

pub async fn a_nonce_that_was_given_up_can_be_dealt_again(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (tx, _) = kit.accept(&mut keeper, 1).await.remove(0);
    let given_up = Tx { nonce: None, ..tx };
    kit.apply(&mut keeper, updates([given_up])).await;
    let taken = kit.tx(0);
    kit.apply(&mut keeper, inserts([taken])).await;
}

pub async fn a_key_twice_in_one_batch_is_a_conflict_that_names_it(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let keeper = kit.keeper(&node("a"), lane(1)).await;
    let one = |nonce| Tx {
        request_id: request_id("same"),
        ..kit.tx(nonce)
    };
    let writes = inserts([one(0), one(1)]);
    assert_eq!(
        refused(&kit, &keeper, writes).await,
        Conflict::RequestId(request_id("same"))
    );
}

pub async fn a_row_that_is_not_there_fails_the_batch(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let mut other = kit.keeper(&node("a"), lane(2)).await;
    let (tx, attempt) = kit.accept(&mut keeper, 1).await.remove(0);
    let (of_other, attempt_of_other) = kit.accept(&mut other, 1).await.remove(0);
    let orphan = kit.sign(&mut kit.tx(1));
    let none = Writes::default;
    let cases = [
        (
            "update of no tx",
            Writes {
                updates: vec![kit.tx(5)],
                ..none()
            },
        ),
        (
            "update of another lane's tx",
            Writes {
                updates: vec![of_other],
                ..none()
            },
        ),
        (
            "attempt of no tx",
            Writes {
                attempts: vec![orphan.clone()],
                ..none()
            },
        ),
        (
            "attempt twice",
            Writes {
                attempts: vec![attempt],
                ..none()
            },
        ),
        (
            "first sent of no attempt",
            Writes {
                first_sent: vec![(orphan.hash, AT)],
                ..none()
            },
        ),
        (
            "first sent of another lane's attempt",
            Writes {
                first_sent: vec![(attempt_of_other.hash, AT)],
                ..none()
            },
        ),
        (
            "end of no waiting",
            Writes {
                queued_removed: vec![tx.id],
                ..none()
            },
        ),
    ];
    for (case, writes) in cases {
        let conflict = refused(&kit, &keeper, writes).await;
        assert!(
            matches!(conflict, Conflict::Rows(_)),
            "{case}: {conflict:?}"
        );
    }
}

pub async fn events_that_leave_a_hole_fail_the_batch(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (tx, _) = kit.accept(&mut keeper, 1).await.remove(0);
    for skewed in [keeper.event_seq, keeper.event_seq + 2] {
        let mut batch = kit.batch(
            &keeper,
            Writes {
                events: vec![accepted(&tx)],
                ..Writes::default()
            },
        );
        batch.writes.events[0].seq = skewed;
        let outcome = kit.commit(batch).await;
        assert!(
            matches!(outcome, CommitOutcome::Conflict(Conflict::Rows(_))),
            "{outcome:?}"
        );
    }
    kit.accept(&mut keeper, 1).await;
}

pub async fn one_lanes_trouble_never_fails_its_neighbours(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let fenced = kit.keeper(&node("a"), lane(1)).await;
    backend.advance(LEASE + SKEW).await;
    kit.keeper(&node("b"), lane(1)).await;
    let mut conflicting = kit.keeper(&node("a"), lane(2)).await;
    kit.accept(&mut conflicting, 1).await;
    let first = kit.keeper(&node("a"), lane(3)).await;
    let last = kit.keeper(&node("a"), lane(4)).await;
    let accept = |nonce| acceptance(kit.tx(nonce));
    let mut clash = accept(7);
    clash.inserts.push(kit.tx(0));
    let batches = vec![
        kit.batch(&first, accept(0)),
        kit.batch(&fenced, accept(0)),
        kit.batch(&conflicting, clash),
        kit.batch(&last, accept(0)),
    ];
    let expected = [
        CommitOutcome::Applied,
        CommitOutcome::Fenced,
        CommitOutcome::Conflict(Conflict::Nonce(Nonce(0))),
        CommitOutcome::Applied,
    ];
    assert_eq!(kit.store.commit(batches).await, expected);
    for keeper in [first, last] {
        assert_eq!(kit.image(keeper.key, keeper.lease_grant).await.event_seq, 1);
    }
    let untouched = kit.image(conflicting.key, conflicting.lease_grant).await;
    assert_eq!((untouched.next_nonce, untouched.event_seq), (Nonce(1), 1));
}

pub async fn an_empty_commit_is_answered(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    assert_eq!(kit.store.commit(Vec::new()).await, []);
}

pub async fn many_commits_at_once_are_all_answered(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keepers = Vec::new();
    for signer in 1..=20 {
        keepers.push(kit.keeper(&node("a"), lane(signer)).await);
    }
    for _ in 0..3 {
        let commits = keepers
            .iter()
            .map(|keeper| kit.commit(kit.batch(keeper, acceptance(kit.tx(keeper.next_nonce.0)))));
        for outcome in futures::future::join_all(commits).await {
            assert_eq!(outcome, CommitOutcome::Applied);
        }
        for keeper in &mut keepers {
            keeper.next_nonce = keeper.next_nonce.next();
            keeper.event_seq += 1;
            keeper.batch_seq += 1;
        }
    }
}

/// Commits what must be refused, and sees that the lane is as it was.
async fn refused(kit: &Kit, keeper: &Keeper, writes: Writes) -> Conflict {
    let before = kit.image(keeper.key, keeper.lease_grant).await;
    let mut batch = kit.batch(keeper, writes);
    batch.next_nonce = Nonce(77);
    let outcome = kit.commit(batch).await;
    let CommitOutcome::Conflict(conflict) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(
        kit.image(keeper.key, keeper.lease_grant).await,
        before,
        "{conflict:?}"
    );
    conflict
}

/// A tx with something in every field, at its widest.
fn full_tx(kit: &Kit) -> Tx {
    let payload = Payload {
        to: Some(Address::repeat_byte(3)),
        value: U256::MAX,
        data: Bytes::from_static(b"\x00\x01\xff"),
        gas: Some(u64::MAX),
        max_fee_per_gas: Some(u128::MAX),
        max_priority_fee_per_gas: Some(0),
        gas_price: Some(1),
        tx_type: Some(TxType::Legacy),
    };
    let inclusion = Inclusion {
        tx_hash: B256::repeat_byte(5),
        block_number: u64::MAX,
        block_hash: B256::repeat_byte(6),
        succeeded: true,
        gas_used: u64::MAX,
        effective_gas_price: u128::MAX,
        contract_address: Some(Address::repeat_byte(7)),
        revert_reason: Some("nicht genügend ✗".into()),
    };
    Tx {
        fingerprint: payload.fingerprint(),
        payload,
        state: TxState::Stuck,
        sub_state: Some(SubState::SigningFailed),
        reason: Some("reason, with 'quotes' and ümlauts".into()),
        tx_hash: Some(B256::repeat_byte(5)),
        inclusion: Some(inclusion),
        counted: Some(B256::repeat_byte(8)),
        token: Token(1 << 40),
        updated_at: Timestamp(AT.0 + 1),
        confirmed_at: Some(Timestamp(AT.0 + 2)),
        event_seqs: vec![1, 2, 300, 70_000, 1 << 40],
        ..kit.tx_without_nonce()
    }
}
