//! The queue: requests that a node stores for the lane's keeper, and how the keeper adopts them.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::{
    LastWrite, Nonce, RequestId, SubState, Token, Tx, TxHistory, TxId, TxRequest, TxState, Writes,
};
use engine::ports::{CommitOutcome, Conflict};

use crate::Backend;
use crate::fixture::{
    AT, Fixture, acceptance, accepted, first_events, inserts, lane, node, request_id,
};

pub async fn queued_request_has_no_nonce_and_no_event(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let new = fixture.new_queued(lane(1), "r1");
    let tx = fixture
        .store
        .queue_requests(vec![new.clone()])
        .await
        .expect("queue")
        .remove(0);
    let expected = Tx {
        id: new.request.id,
        request: TxRequest {
            request_id: new.request.request_id,
            fingerprint: new.request.fingerprint,
            payload: new.request.payload,
            gas: new.request.gas,
            created_at: new.at,
        },
        nonce: None,
        state: TxState::Created,
        sub_state: Some(SubState::Queued),
        reason: None,
        tx_hash: None,
        inclusion: None,
        counted: None,
        written: LastWrite {
            token: Token(0),
            at: new.at,
        },
        confirmed_at: None,
        history: TxHistory::default(),
    };
    assert_eq!(tx, expected);
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(
        (image.open.queued, image.event_seq, image.next_nonce),
        (1, 0, Nonce(0))
    );
    assert_eq!(
        fixture
            .store
            .load_queued(keeper.lease_grant.lane, 9)
            .await
            .expect("load"),
        [expected]
    );
    let all = first_events(9);
    assert_eq!(fixture.store.events(&all).await.expect("events").events, []);
}

pub async fn queueing_the_same_request_twice_changes_nothing(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let first = fixture
        .store
        .queue_requests(vec![fixture.new_queued(lane(1), "r1")])
        .await
        .expect("queue");
    let twice = vec![
        fixture.new_queued(lane(1), "r1"),
        fixture.new_queued(lane(1), "r1"),
    ];
    let again = fixture.store.queue_requests(twice).await.expect("queue");
    assert_eq!(
        again,
        [first[0].clone(), first[0].clone()],
        "the first one has the key"
    );
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    assert_eq!(
        fixture
            .image(keeper.key, keeper.lease_grant)
            .await
            .open
            .queued,
        1
    );
}

pub async fn concurrent_requests_with_one_key_make_one_tx(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    for round in 0..5 {
        // Two keys in opposite orders, as two nodes send them under load.
        let (one, other) = (format!("x{round}"), format!("y{round}"));
        let orders = [
            [&one, &other],
            [&other, &one],
            [&one, &other],
            [&other, &one],
        ];
        let tasks = orders.map(|keys| {
            let new = keys.map(|key| fixture.new_queued(lane(1), key));
            let store = Arc::clone(&fixture.store);
            tokio::spawn(async move { store.queue_requests(new.into()).await })
        });
        let mut named: BTreeMap<RequestId, TxId> = BTreeMap::new();
        for (task, keys) in tasks.into_iter().zip(orders) {
            let got = task.await.expect("no panic").expect("queue");
            for (tx, key) in got.iter().zip(keys) {
                assert_eq!(tx.request.request_id.as_str(), key, "in request order");
                let first = *named.entry(tx.request.request_id.clone()).or_insert(tx.id);
                assert_eq!(tx.id, first, "one key, one tx");
            }
        }
    }
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    assert_eq!(
        fixture
            .image(keeper.key, keeper.lease_grant)
            .await
            .open
            .queued,
        10
    );
}

pub async fn gate_and_queue_racing_with_one_key_make_one_tx(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    for round in 0..10_u64 {
        let key = format!("r{round}");
        let mut tx = fixture.tx(keeper.next_nonce.0);
        tx.request.request_id = request_id(key.clone());
        let batch = fixture.batch(&keeper, acceptance(tx.clone()));
        let (new, store) = (
            fixture.new_queued(lane(1), &key),
            Arc::clone(&fixture.store),
        );
        let queued_as = new.request.id;
        let queueing = tokio::spawn(async move { store.queue_requests(vec![new]).await });
        let outcome = fixture.commit(batch.clone()).await;
        let queued = queueing.await.expect("no panic").expect("queue").remove(0);
        if outcome == CommitOutcome::Applied {
            assert_eq!(queued.id, tx.id, "the queue returns the keeper's tx");
            keeper.follow(&batch);
        } else {
            let conflict = Conflict::RequestId(request_id(key));
            assert_eq!(outcome, CommitOutcome::Conflict(conflict));
            assert_eq!(queued.id, queued_as);
        }
    }
}

pub async fn idempotency_key_is_scoped_to_its_lane(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let requested: Vec<_> = [2, 1, 3]
        .map(|signer| fixture.new_queued(lane(signer), "same"))
        .into();
    let ids: Vec<_> = requested.iter().map(|new| new.request.id).collect();
    let got = fixture
        .store
        .queue_requests(requested)
        .await
        .expect("queue");
    assert_eq!(
        got.iter().map(|tx| tx.id).collect::<Vec<_>>(),
        ids,
        "in request order"
    );
}

pub async fn queueing_an_accepted_request_returns_its_tx(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (tx, _) = fixture.accept(&mut keeper, 1).await.remove(0);
    let new = fixture.new_queued(lane(1), tx.request.request_id.as_str());
    assert_eq!(
        fixture
            .store
            .queue_requests(vec![new])
            .await
            .expect("queue"),
        [tx]
    );
    assert_eq!(
        fixture
            .image(keeper.key, keeper.lease_grant)
            .await
            .open
            .queued,
        0,
        "it is not queued"
    );
}

pub async fn accepting_a_queued_request_is_a_conflict_with_its_key(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    fixture
        .store
        .queue_requests(vec![fixture.new_queued(lane(1), "r1")])
        .await
        .expect("queue");
    let mut tx = fixture.tx(0);
    tx.request.request_id = request_id("r1");
    let batch = fixture.batch(&keeper, inserts([tx]));
    let conflict = CommitOutcome::Conflict(Conflict::RequestId(request_id("r1")));
    assert_eq!(fixture.commit(batch).await, conflict);
    assert_eq!(
        fixture
            .image(keeper.key, keeper.lease_grant)
            .await
            .next_nonce,
        Nonce(0)
    );
}

pub async fn keeper_adopts_queued_txs(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let new = ["r1", "r2"].map(|request| fixture.new_queued(lane(1), request));
    fixture
        .store
        .queue_requests(new.into())
        .await
        .expect("queue");
    let mut tx = fixture
        .store
        .load_queued(keeper.lease_grant.lane, 1)
        .await
        .expect("load")
        .remove(0);
    assert_eq!(tx.request.request_id, request_id("r1"), "the oldest first");
    tx.nonce = Some(Nonce(0));
    tx.transition(TxState::Allocated, SubState::Waiting, AT);
    let adoption = Writes {
        queued_removed: vec![tx.id],
        events: vec![accepted(&tx)],
        updates: vec![tx],
        ..Writes::default()
    };
    let tx = fixture.apply(&mut keeper, adoption).await.updates.remove(0);
    let image = fixture.image(keeper.key, keeper.lease_grant).await;
    assert_eq!((image.open.queued, image.backlog_from), (1, Some(Nonce(0))));
    assert_eq!(
        fixture
            .store
            .load_backlog(keeper.lease_grant.lane, Nonce(0), 9)
            .await
            .expect("load"),
        [tx]
    );
    let left = fixture
        .store
        .load_queued(keeper.lease_grant.lane, 9)
        .await
        .expect("load");
    assert_eq!(
        left.iter()
            .map(|tx| tx.request.request_id.as_str())
            .collect::<Vec<_>>(),
        ["r2"]
    );
}

pub async fn queue_is_read_oldest_first_up_to_the_limit(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    let new: Vec<_> = (0..20)
        .map(|n| fixture.new_queued(lane(1), &format!("r{n}")))
        .collect();
    let ids: Vec<_> = new.iter().map(|new| new.request.id).collect();
    fixture
        .store
        .queue_requests(new.into_iter().rev().collect())
        .await
        .expect("queue");
    let read = fixture
        .store
        .load_queued(keeper.lease_grant.lane, 7)
        .await
        .expect("load");
    assert_eq!(read.iter().map(|tx| tx.id).collect::<Vec<_>>(), ids[..7]);
}

pub async fn requeued_tx_is_read_from_the_queue(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (mut tx, _) = fixture.accept(&mut keeper, 1).await.remove(0);
    (tx.nonce, tx.tx_hash) = (None, None);
    tx.transition(TxState::Created, SubState::Queued, AT);
    let requeue = Writes {
        queued_added: vec![tx.id],
        updates: vec![tx.clone()],
        ..Writes::default()
    };
    fixture.apply(&mut keeper, requeue).await;
    assert_eq!(
        fixture
            .store
            .load_queued(keeper.lease_grant.lane, 9)
            .await
            .expect("load"),
        [tx]
    );
}

pub async fn find_requests_answers_in_request_order(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    fixture.keeper(&node("a"), lane(2)).await;
    let (accepted, _) = fixture.accept(&mut keeper, 1).await.remove(0);
    let queued = fixture
        .store
        .queue_requests(vec![fixture.new_queued(lane(1), "q")])
        .await
        .expect("queue")
        .remove(0);
    let requested = [
        (lane(1), request_id("unknown")),
        (lane(1), request_id("q")),
        (lane(2), request_id("q")),
        (lane(3), request_id("q")), // no such lane
        (lane(1), accepted.request.request_id.clone()),
        (lane(1), request_id("q")),
    ];
    let found = fixture
        .store
        .find_requests(&requested)
        .await
        .expect("find_requests");
    let queued = Some(queued);
    assert_eq!(
        found,
        [None, queued.clone(), None, None, Some(accepted), queued]
    );
}
