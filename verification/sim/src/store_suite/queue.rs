//! The one unfenced write, and how a keeper adopts what was queued.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::{Nonce, RequestId, SubState, Token, Tx, TxId, TxState, Writes};
use engine::ports::{CommitOutcome, Conflict};

use super::Backend;
use super::kit::{AT, Kit, acceptance, accepted, first_events, inserts, lane, node, request_id};

pub async fn a_queued_request_waits_without_nonce_or_event(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let new = kit.new_queued(lane(1), "r1");
    let tx = kit
        .store
        .queue(vec![new.clone()])
        .await
        .expect("queue")
        .remove(0);
    let expected = Tx {
        id: new.request.id,
        request_id: new.request.request_id,
        fingerprint: new.request.fingerprint,
        payload: new.request.payload,
        gas: new.request.gas,
        created_at: new.at,
        nonce: None,
        state: TxState::Created,
        sub_state: Some(SubState::Queued),
        reason: None,
        tx_hash: None,
        inclusion: None,
        counted: None,
        token: Token(0),
        updated_at: new.at,
        confirmed_at: None,
        event_seqs: Vec::new(),
    };
    assert_eq!(tx, expected);
    let keeper = kit.keeper(&node("a"), lane(1)).await;
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!(
        (image.queued, image.event_seq, image.next_nonce),
        (1, 0, Nonce(0))
    );
    assert_eq!(
        kit.store
            .load_queued(keeper.lease_grant.lane, 9)
            .await
            .expect("load"),
        [expected]
    );
    let all = first_events(9);
    assert_eq!(kit.store.events(&all).await.expect("events").events, []);
}

pub async fn queueing_again_changes_nothing(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let first = kit
        .store
        .queue(vec![kit.new_queued(lane(1), "r1")])
        .await
        .expect("queue");
    let twice = vec![kit.new_queued(lane(1), "r1"), kit.new_queued(lane(1), "r1")];
    let again = kit.store.queue(twice).await.expect("queue");
    assert_eq!(
        again,
        [first[0].clone(), first[0].clone()],
        "the first one has the key"
    );
    let keeper = kit.keeper(&node("a"), lane(1)).await;
    assert_eq!(kit.image(keeper.key, keeper.lease_grant).await.queued, 1);
}

pub async fn one_key_from_many_tasks_at_once_is_one_tx(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    for round in 0..5 {
        // Two keys in opposite orders, as two nodes under load would bring them.
        let (one, other) = (format!("x{round}"), format!("y{round}"));
        let orders = [
            [&one, &other],
            [&other, &one],
            [&one, &other],
            [&other, &one],
        ];
        let tasks = orders.map(|keys| {
            let new = keys.map(|key| kit.new_queued(lane(1), key));
            let store = Arc::clone(&kit.store);
            tokio::spawn(async move { store.queue(new.into()).await })
        });
        let mut named: BTreeMap<RequestId, TxId> = BTreeMap::new();
        for (task, keys) in tasks.into_iter().zip(orders) {
            let got = task.await.expect("no panic").expect("queue");
            for (tx, key) in got.iter().zip(keys) {
                assert_eq!(tx.request_id.as_str(), key, "in the order asked");
                let first = *named.entry(tx.request_id.clone()).or_insert(tx.id);
                assert_eq!(tx.id, first, "one key, one tx");
            }
        }
    }
    let keeper = kit.keeper(&node("a"), lane(1)).await;
    assert_eq!(kit.image(keeper.key, keeper.lease_grant).await.queued, 10);
}

pub async fn of_a_gate_and_a_queue_with_one_key_one_wins(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    for round in 0..10_u64 {
        let key = format!("r{round}");
        let tx = Tx {
            request_id: request_id(key.clone()),
            ..kit.tx(keeper.next_nonce.0)
        };
        let batch = kit.batch(&keeper, acceptance(tx.clone()));
        let (new, store) = (kit.new_queued(lane(1), &key), Arc::clone(&kit.store));
        let queued_as = new.request.id;
        let queueing = tokio::spawn(async move { store.queue(vec![new]).await });
        let outcome = kit.commit(batch.clone()).await;
        let queued = queueing.await.expect("no panic").expect("queue").remove(0);
        if outcome == CommitOutcome::Applied {
            assert_eq!(queued.id, tx.id, "the queue is told of the keeper's");
            keeper.follow(&batch);
        } else {
            let conflict = Conflict::RequestId(request_id(key));
            assert_eq!(outcome, CommitOutcome::Conflict(conflict));
            assert_eq!(queued.id, queued_as);
        }
    }
}

pub async fn a_key_belongs_to_its_lane(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let asked: Vec<_> = [2, 1, 3]
        .map(|signer| kit.new_queued(lane(signer), "same"))
        .into();
    let ids: Vec<_> = asked.iter().map(|new| new.request.id).collect();
    let got = kit.store.queue(asked).await.expect("queue");
    assert_eq!(
        got.iter().map(|tx| tx.id).collect::<Vec<_>>(),
        ids,
        "in the order asked"
    );
}

pub async fn queueing_what_the_keeper_accepted_gives_that_tx(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (tx, _) = kit.accept(&mut keeper, 1).await.remove(0);
    let new = kit.new_queued(lane(1), tx.request_id.as_str());
    assert_eq!(kit.store.queue(vec![new]).await.expect("queue"), [tx]);
    assert_eq!(
        kit.image(keeper.key, keeper.lease_grant).await.queued,
        0,
        "it waits for nothing"
    );
}

pub async fn accepting_what_was_queued_is_a_conflict_that_names_the_key(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let keeper = kit.keeper(&node("a"), lane(1)).await;
    kit.store
        .queue(vec![kit.new_queued(lane(1), "r1")])
        .await
        .expect("queue");
    let tx = Tx {
        request_id: request_id("r1"),
        ..kit.tx(0)
    };
    let batch = kit.batch(&keeper, inserts([tx]));
    let conflict = CommitOutcome::Conflict(Conflict::RequestId(request_id("r1")));
    assert_eq!(kit.commit(batch).await, conflict);
    assert_eq!(
        kit.image(keeper.key, keeper.lease_grant).await.next_nonce,
        Nonce(0)
    );
}

pub async fn a_keeper_adopts_what_was_queued(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let new = ["r1", "r2"].map(|request| kit.new_queued(lane(1), request));
    kit.store.queue(new.into()).await.expect("queue");
    let mut tx = kit
        .store
        .load_queued(keeper.lease_grant.lane, 1)
        .await
        .expect("load")
        .remove(0);
    assert_eq!(tx.request_id, request_id("r1"), "the oldest first");
    tx.nonce = Some(Nonce(0));
    tx.transition(TxState::Allocated, SubState::Waiting, AT);
    let adoption = Writes {
        queued_removed: vec![tx.id],
        events: vec![accepted(&tx)],
        updates: vec![tx],
        ..Writes::default()
    };
    let tx = kit.apply(&mut keeper, adoption).await.updates.remove(0);
    let image = kit.image(keeper.key, keeper.lease_grant).await;
    assert_eq!((image.queued, image.backlog_from), (1, Some(Nonce(0))));
    assert_eq!(
        kit.store
            .load_backlog(keeper.lease_grant.lane, Nonce(0), 9)
            .await
            .expect("load"),
        [tx]
    );
    let left = kit
        .store
        .load_queued(keeper.lease_grant.lane, 9)
        .await
        .expect("load");
    assert_eq!(
        left.iter()
            .map(|tx| tx.request_id.as_str())
            .collect::<Vec<_>>(),
        ["r2"]
    );
}

pub async fn what_waits_is_read_oldest_first_and_no_more_than_asked(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let keeper = kit.keeper(&node("a"), lane(1)).await;
    let new: Vec<_> = (0..20)
        .map(|n| kit.new_queued(lane(1), &format!("r{n}")))
        .collect();
    let ids: Vec<_> = new.iter().map(|new| new.request.id).collect();
    kit.store
        .queue(new.into_iter().rev().collect())
        .await
        .expect("queue");
    let read = kit
        .store
        .load_queued(keeper.lease_grant.lane, 7)
        .await
        .expect("load");
    assert_eq!(read.iter().map(|tx| tx.id).collect::<Vec<_>>(), ids[..7]);
}

pub async fn a_tx_that_must_wait_again_is_found_in_the_queue(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (mut tx, _) = kit.accept(&mut keeper, 1).await.remove(0);
    (tx.nonce, tx.tx_hash) = (None, None);
    tx.transition(TxState::Created, SubState::Queued, AT);
    let requeue = Writes {
        queued_added: vec![tx.id],
        updates: vec![tx.clone()],
        ..Writes::default()
    };
    kit.apply(&mut keeper, requeue).await;
    assert_eq!(
        kit.store
            .load_queued(keeper.lease_grant.lane, 9)
            .await
            .expect("load"),
        [tx]
    );
}

pub async fn known_keys_are_found_in_the_order_asked(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let other = kit.keeper(&node("a"), lane(2)).await;
    let (accepted, _) = kit.accept(&mut keeper, 1).await.remove(0);
    let queued = kit
        .store
        .queue(vec![kit.new_queued(lane(1), "q")])
        .await
        .expect("queue")
        .remove(0);
    let asked = [
        (keeper.lease_grant.lane, request_id("unknown")),
        (keeper.lease_grant.lane, request_id("q")),
        (other.lease_grant.lane, request_id("q")),
        (keeper.lease_grant.lane, accepted.request_id.clone()),
    ];
    let found = kit
        .store
        .find_requests(&asked)
        .await
        .expect("find_requests");
    assert_eq!(found, [None, Some(queued), None, Some(accepted)]);
}
