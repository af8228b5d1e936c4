//! The gate: every batch is applied completely or not at all, each lane independently, with checked row counts.

use alloy_primitives::{Address, B256, Bytes, U256};
use domain::{
    Attempt, AttemptKind, Fees, Inclusion, LastWrite, Nonce, Payload, SubState, Timestamp, Token,
    Tx, TxHistory, TxRequest, TxState, TxType, Writes,
};
use engine::ports::{CommitOutcome, Conflict};

use crate::Backend;
use crate::fixture::{
    AT, Fixture, Keeper, LEASE, SKEW, acceptance, accepted, inserts, lane, node, request_id,
    updates,
};

pub async fn applied_writes_are_read_back_unchanged(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (tx, attempt) = fixture.accept(&mut keeper, 1).await.remove(0);
    let record = fixture
        .store
        .tx(tx.id)
        .await
        .expect("tx")
        .expect("it is there");
    assert_eq!(
        (record.lane, record.tx, record.attempts),
        (lane(1), tx, vec![attempt])
    );
    assert_eq!(record.confirmations, []);
}

pub async fn every_tx_field_round_trips(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let full = Tx {
        nonce: Some(Nonce(7)),
        ..full_tx(&fixture)
    };
    let mut empty_handed = fixture.tx_without_nonce();
    empty_handed.request.payload = Payload {
        to: None,
        data: Bytes::from(vec![0; 70_000]),
        ..Payload::transfer(Address::ZERO, U256::ZERO)
    };
    empty_handed.request.gas = u64::MAX;
    empty_handed.sub_state = None;
    fixture
        .apply(&mut keeper, inserts([full.clone(), empty_handed.clone()]))
        .await;
    for tx in [full, empty_handed] {
        let record = fixture
            .store
            .tx(tx.id)
            .await
            .expect("tx")
            .expect("it is there");
        assert_eq!(record.tx, tx);
    }
}

pub async fn every_state_and_sub_state_round_trips(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let mut txs = Vec::new();
    for state in TxState::ALL {
        let one = |sub| Tx {
            state,
            sub_state: Some(sub),
            ..fixture.tx_without_nonce()
        };
        txs.extend(SubState::ALL.map(one));
    }
    fixture.apply(&mut keeper, inserts(txs.clone())).await;
    for tx in txs {
        assert_eq!(
            fixture
                .store
                .tx(tx.id)
                .await
                .expect("tx")
                .map(|record| record.tx),
            Some(tx)
        );
    }
}

pub async fn attempts_of_every_kind_are_read_oldest_first(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let mut tx = fixture.tx(0);
    let mut attempts: Vec<Attempt> = Vec::new();
    for kind in AttemptKind::ALL {
        attempts.push(Attempt {
            kind,
            gas: u64::MAX,
            ..fixture.sign(&mut tx)
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
    // Stored against the order of their hashes, so that the result can only be the insertion order.
    attempts.reverse();
    let writes = Writes {
        inserts: vec![tx.clone()],
        attempts: attempts.clone(),
        ..Writes::default()
    };
    fixture.apply(&mut keeper, writes).await;
    let record = fixture
        .store
        .tx(tx.id)
        .await
        .expect("tx")
        .expect("it is there");
    assert_eq!(record.attempts, attempts);
}

pub async fn update_replaces_the_whole_row(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (tx, _) = fixture.accept(&mut keeper, 1).await.remove(0);
    let full = full_tx(&fixture);
    let grown = Tx {
        id: tx.id,
        request: TxRequest {
            request_id: tx.request.request_id.clone(),
            fingerprint: tx.request.fingerprint,
            payload: tx.request.payload.clone(),
            gas: tx.request.gas,
            created_at: tx.request.created_at,
        },
        nonce: tx.nonce,
        ..full
    };
    let shrunk = Tx {
        nonce: None,
        ..tx.clone()
    };
    for image in [grown, tx, shrunk] {
        fixture.apply(&mut keeper, updates([image.clone()])).await;
        let record = fixture
            .store
            .tx(image.id)
            .await
            .expect("tx")
            .expect("it is there");
        assert_eq!(record.tx, image);
    }
}

pub async fn first_acceptance_by_an_endpoint_is_kept_with_its_attempt(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let sent = fixture.accept(&mut keeper, 2).await;
    let at = Timestamp(AT.0 + 5);
    let first_sent = vec![(sent[1].1.hash, at)];
    fixture
        .apply(
            &mut keeper,
            Writes {
                first_sent,
                ..Writes::default()
            },
        )
        .await;
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    let seen: Vec<_> = image
        .in_flight
        .iter()
        .map(|(_, attempts)| attempts[0].first_sent_at)
        .collect();
    assert_eq!(seen, [None, Some(at)]);
}

pub async fn batch_sets_nonce_cursor_and_paused_flag(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    keeper.next_nonce = Nonce(41);
    for (paused, shown) in [
        (None, false),
        (Some(true), true),
        (None, true),
        (Some(false), false),
    ] {
        fixture
            .apply(
                &mut keeper,
                Writes {
                    paused,
                    ..Writes::default()
                },
            )
            .await;
        let image = fixture.image(keeper.key, keeper.lease_grant).await;
        assert_eq!(
            (image.next_nonce, image.paused),
            (Nonce(41), shown),
            "{paused:?}"
        );
    }
}

pub async fn nonce_of_another_tx_is_a_conflict_that_names_it(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let txs = fixture.accept(&mut keeper, 2).await;
    let insert = inserts([fixture.tx(2), fixture.tx(1)]);
    let moved = Tx {
        nonce: Some(Nonce(1)),
        ..txs[0].0.clone()
    };
    let update = updates([moved]);
    for writes in [insert, update] {
        let outcome = refused(&fixture, &keeper, writes).await;
        assert_eq!(outcome, Conflict::Nonce(Nonce(1)));
    }
}

pub async fn finished_tx_keeps_its_nonce(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (mut tx, _) = fixture.accept(&mut keeper, 1).await.remove(0);
    tx.transition(TxState::Confirmed, SubState::Mined, AT);
    fixture.apply(&mut keeper, updates([tx])).await;
    let again = inserts([fixture.tx(0)]);
    assert_eq!(
        refused(&fixture, &keeper, again).await,
        Conflict::Nonce(Nonce(0))
    );
}

pub async fn attempts_stay_with_a_tx_that_released_its_nonce(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (mut tx, first) = fixture.accept(&mut keeper, 1).await.remove(0);
    (tx.nonce, tx.tx_hash) = (None, None);
    tx.transition(TxState::Created, SubState::Queued, AT);
    let requeue = Writes {
        queued_added: vec![tx.id],
        ..updates([tx.clone()])
    };
    fixture.apply(&mut keeper, requeue).await;
    // Another tx takes the nonce, so that there are attempts of two txs at it.
    let (_, other) = {
        let mut other = fixture.tx(0);
        let attempt = fixture.sign(&mut other);
        let writes = Writes {
            attempts: vec![attempt.clone()],
            ..inserts([other.clone()])
        };
        fixture.apply(&mut keeper, writes).await;
        (other, attempt)
    };
    tx.nonce = Some(Nonce(1));
    tx.transition(TxState::Allocated, SubState::Waiting, AT);
    let second = fixture.sign(&mut tx);
    let again = Writes {
        queued_removed: vec![tx.id],
        attempts: vec![second.clone()],
        ..updates([tx.clone()])
    };
    fixture.apply(&mut keeper, again).await;
    let attempts = vec![first.clone(), second];
    for hash in [first.hash, attempts[1].hash] {
        let record = fixture.store.tx_by_hash(hash).await.expect("tx");
        let record = record.expect("it is there");
        assert_eq!((record.tx, record.attempts), (tx.clone(), attempts.clone()));
    }
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    let loaded: Vec<_> = image
        .in_flight
        .into_iter()
        .map(|(_, loaded)| loaded)
        .collect();
    assert_eq!(
        loaded,
        [vec![other], attempts[1..].to_vec()],
        "attempts at a released nonce are its history only"
    );
}

pub async fn released_nonce_can_be_allocated_again(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (tx, _) = fixture.accept(&mut keeper, 1).await.remove(0);
    let released = Tx { nonce: None, ..tx };
    fixture.apply(&mut keeper, updates([released])).await;
    let taken = fixture.tx(0);
    fixture.apply(&mut keeper, inserts([taken])).await;
}

pub async fn duplicate_idempotency_key_in_one_batch_is_a_conflict(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    let one = |nonce| {
        let mut tx = fixture.tx(nonce);
        tx.request.request_id = request_id("same");
        tx
    };
    let writes = inserts([one(0), one(1)]);
    assert_eq!(
        refused(&fixture, &keeper, writes).await,
        Conflict::RequestId(request_id("same"))
    );
}

pub async fn update_of_missing_row_fails_the_batch(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let mut other = fixture.keeper(&node("a"), lane(2)).await;
    let (tx, attempt) = fixture.accept(&mut keeper, 1).await.remove(0);
    let (of_other, attempt_of_other) = fixture.accept(&mut other, 1).await.remove(0);
    let orphan = fixture.sign(&mut fixture.tx(1));
    let none = Writes::default;
    let cases = [
        (
            "update of an unknown tx",
            Writes {
                updates: vec![fixture.tx(5)],
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
            "attempt of an unknown tx",
            Writes {
                attempts: vec![orphan.clone()],
                ..none()
            },
        ),
        (
            "duplicate attempt",
            Writes {
                attempts: vec![attempt],
                ..none()
            },
        ),
        (
            "first sent of an unknown attempt",
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
            "removal of an unknown queue row",
            Writes {
                queued_removed: vec![tx.id],
                ..none()
            },
        ),
    ];
    for (case, writes) in cases {
        let conflict = refused(&fixture, &keeper, writes).await;
        assert!(
            matches!(conflict, Conflict::Rows(_)),
            "{case}: {conflict:?}"
        );
    }
}

pub async fn gap_in_event_numbers_fails_the_batch(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (tx, _) = fixture.accept(&mut keeper, 1).await.remove(0);
    for skewed in [keeper.event_seq, keeper.event_seq + 2] {
        let mut batch = fixture.batch(
            &keeper,
            Writes {
                events: vec![accepted(&tx)],
                ..Writes::default()
            },
        );
        batch.writes.events[0].seq = skewed;
        let outcome = fixture.commit(batch).await;
        assert!(
            matches!(outcome, CommitOutcome::Conflict(Conflict::Rows(_))),
            "{outcome:?}"
        );
    }
    fixture.accept(&mut keeper, 1).await;
}

pub async fn failing_batch_does_not_fail_other_lanes(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let fenced = fixture.keeper(&node("a"), lane(1)).await;
    backend.advance(LEASE + SKEW).await;
    fixture.keeper(&node("b"), lane(1)).await;
    let mut conflicting = fixture.keeper(&node("a"), lane(2)).await;
    fixture.accept(&mut conflicting, 1).await;
    let first = fixture.keeper(&node("a"), lane(3)).await;
    let last = fixture.keeper(&node("a"), lane(4)).await;
    let accept = |nonce| acceptance(fixture.tx(nonce));
    let mut clash = accept(7);
    clash.inserts.push(fixture.tx(0));
    let batches = vec![
        fixture.batch(&first, accept(0)).into(),
        fixture.batch(&fenced, accept(0)).into(),
        fixture.batch(&conflicting, clash).into(),
        fixture.batch(&last, accept(0)).into(),
    ];
    let expected = [
        CommitOutcome::Applied,
        CommitOutcome::Fenced,
        CommitOutcome::Conflict(Conflict::Nonce(Nonce(0))),
        CommitOutcome::Applied,
    ];
    assert_eq!(fixture.store.commit(batches).await, expected);
    for keeper in [first, last] {
        assert_eq!(
            fixture
                .image(keeper.key, keeper.lease_grant)
                .await
                .event_seq,
            1
        );
    }
    let untouched = fixture
        .image(conflicting.key, conflicting.lease_grant)
        .await;
    assert_eq!((untouched.next_nonce, untouched.event_seq), (Nonce(1), 1));
}

pub async fn empty_commit_returns_no_outcomes(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    assert_eq!(fixture.store.commit(Vec::new()).await, []);
}

pub async fn concurrent_commits_all_return_outcomes(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keepers = Vec::new();
    for signer in 1..=20 {
        keepers.push(fixture.keeper(&node("a"), lane(signer)).await);
    }
    for _ in 0..3 {
        let commits = keepers.iter().map(|keeper| {
            fixture.commit(fixture.batch(keeper, acceptance(fixture.tx(keeper.next_nonce.0))))
        });
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

/// Commits writes that must be refused, and checks that the lane is unchanged.
async fn refused(fixture: &Fixture, keeper: &Keeper, writes: Writes) -> Conflict {
    let before = fixture.image(keeper.key, keeper.lease_grant).await;
    let mut batch = fixture.batch(keeper, writes);
    batch.next_nonce = Nonce(77);
    let outcome = fixture.commit(batch).await;
    let CommitOutcome::Conflict(conflict) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(
        fixture.image(keeper.key, keeper.lease_grant).await,
        before,
        "{conflict:?}"
    );
    conflict
}

/// A tx with a value in every field, at its widest.
fn full_tx(fixture: &Fixture) -> Tx {
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
    let base = fixture.tx_without_nonce();
    Tx {
        request: TxRequest {
            fingerprint: payload.fingerprint(),
            payload,
            ..base.request
        },
        state: TxState::Stuck,
        sub_state: Some(SubState::SigningFailed),
        reason: Some("reason, with 'quotes' and ümlauts".into()),
        tx_hash: Some(B256::repeat_byte(5)),
        inclusion: Some(inclusion),
        counted: Some(B256::repeat_byte(8)),
        written: LastWrite {
            token: Token(1 << 40),
            at: Timestamp(AT.0 + 1),
        },
        confirmed_at: Some(Timestamp(AT.0 + 2)),
        history: TxHistory {
            event_seqs: vec![1, 2, 300, 70_000, 1 << 40],
            resubmits: 3,
        },
        ..base
    }
}
