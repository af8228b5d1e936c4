//! Lists that go lane by lane: the txs of one signer, and the txs in an open state.

use domain::{ChainId, LaneKey, Nonce, SubState, Tx, TxId, TxState, Writes};
use engine::ports::{LanePlace, StoreError, TxCursor, TxFilter};

use crate::Backend;
use crate::fixture::{AT, Fixture, Keeper, accepted, inserts, lane, node, updates};

pub async fn signer_list_goes_by_lane_then_waiting_txs_then_nonce(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let elsewhere = LaneKey {
        chain_id: ChainId(5),
        ..lane(1)
    };
    let mut expected = Vec::new();
    for key in [lane(1), lane(2), elsewhere] {
        let mut keeper = fixture.keeper(&node("a"), key).await;
        let txs = fixture.accept(&mut keeper, 5).await;
        let done = confirmed(&txs[2].0);
        fixture.apply(&mut keeper, updates([done])).await;
        let mut waiting = queue(&fixture, key, 3).await;
        // Given up without a nonce: it waits no more, and is listed all the same.
        let ended = give_up(&fixture, &mut keeper, &waiting[1]).await;
        waiting[1] = ended;
        let with_nonce = txs.iter().rev().map(|(tx, _)| tx.id);
        let in_order: Vec<TxId> = waiting.into_iter().rev().chain(with_nonce).collect();
        if key != lane(2) {
            expected.push(in_order);
        }
    }
    for limit in [1, 2, 3, 100] {
        let list = list(&fixture, of_signer(limit)).await;
        let (one, other) = list.split_at(list.len() / 2);
        let mut lists = [one.to_vec(), other.to_vec()];
        // Which lane comes first is an order of the store.
        lists.sort_by_key(|list| expected[1] == *list);
        assert_eq!(lists[..], expected[..], "pages of {limit}");
    }
    let filter = TxFilter {
        chain_id: Some(elsewhere.chain_id),
        state: Some(TxState::Confirmed),
        ..of_signer(1)
    };
    assert_eq!(list(&fixture, filter).await.len(), 1);
}

pub async fn open_state_list_has_every_open_tx_of_every_lane(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let (mut tracking, mut created, mut stuck) = (Vec::new(), Vec::new(), Vec::new());
    for signer in 1..=20 {
        let mut keeper = fixture.keeper(&node("a"), lane(signer)).await;
        let txs = fixture.accept(&mut keeper, 3).await;
        let done = confirmed(&txs[0].0);
        fixture.apply(&mut keeper, updates([done])).await;
        match signer % 3 {
            0 => {
                created.extend(queue(&fixture, lane(signer), 2).await);
                tracking.extend([txs[1].0.id, txs[2].0.id]);
            }
            1 => {
                let mut tx = txs[2].0.clone();
                tx.transition(TxState::Stuck, SubState::Rejected, AT);
                fixture.apply(&mut keeper, updates([tx.clone()])).await;
                stuck.push(tx.id);
                tracking.push(txs[1].0.id);
            }
            _ => {
                let all_done = [1, 2].map(|n| confirmed(&txs[n].0));
                fixture.apply(&mut keeper, updates(all_done)).await;
            }
        }
    }
    for (state, expected) in [
        (TxState::Tracking, &mut tracking),
        (TxState::Created, &mut created),
        (TxState::Stuck, &mut stuck),
        (TxState::Allocated, &mut Vec::new()),
    ] {
        expected.sort_unstable();
        for limit in [1, 4, 100] {
            let filter = TxFilter {
                state: Some(state),
                limit,
                ..TxFilter::default()
            };
            let mut list = list(&fixture, filter).await;
            list.sort_unstable();
            assert_eq!(list, *expected, "{state:?} in pages of {limit}");
        }
    }
}

pub async fn stuck_tx_without_nonce_is_listed(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let mut tx = fixture.tx_without_nonce();
    tx.state = TxState::Stuck;
    fixture.apply(&mut keeper, inserts([tx.clone()])).await;
    let filter = TxFilter {
        state: Some(TxState::Stuck),
        limit: 10,
        ..TxFilter::default()
    };
    assert_eq!(list(&fixture, filter).await, [tx.id]);
}

pub async fn lane_list_misses_no_tx_while_others_are_added_and_adopted(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let txs = fixture.accept(&mut keeper, 10).await;
    let mut waiting = queue(&fixture, lane(1), 6).await;
    let mut expected: Vec<TxId> = txs.into_iter().map(|(tx, _)| tx.id).collect();
    expected.extend(&waiting);
    waiting.reverse();
    let mut seen = Vec::new();
    let mut filter = of_signer(2);
    loop {
        let page = fixture.store.txs(&filter).await.expect("txs");
        assert!(page.txs.len() <= 2);
        seen.extend(page.txs.iter().map(|record| record.tx.id));
        fixture.accept(&mut keeper, 1).await;
        // The oldest waiting tx gets the next nonce.
        if let Some(oldest) = waiting.pop() {
            adopt(&fixture, &mut keeper, oldest).await;
        }
        let Some(next) = page.next else { break };
        filter.after = Some(next);
    }
    let missed = expected.iter().filter(|id| !seen.contains(id));
    assert_eq!(missed.count(), 0, "{seen:?}");
}

pub async fn cursor_of_another_list_is_refused(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (tx, _) = fixture.accept(&mut keeper, 1).await.remove(0);
    let after = |filter: TxFilter, cursor| TxFilter {
        after: Some(cursor),
        ..filter
    };
    let all = TxFilter {
        limit: 10,
        ..TxFilter::default()
    };
    let in_lane = |key| TxCursor::InLane(key, LanePlace::WithNonce(Nonce(7)));
    for filter in [
        after(of_signer(10), TxCursor::After(tx.id)),
        after(of_signer(10), in_lane(lane(2))),
        after(all, in_lane(lane(1))),
    ] {
        let answer = fixture.store.txs(&filter).await;
        assert!(matches!(answer, Err(StoreError::Invalid(_))), "{answer:?}");
    }
    let own = after(of_signer(10), in_lane(lane(1)));
    assert_eq!(list(&fixture, own).await, [tx.id]);
}

/// The txs of the signer of lane 1.
fn of_signer(limit: usize) -> TxFilter {
    TxFilter {
        signer: Some(lane(1).signer),
        limit,
        ..TxFilter::default()
    }
}

fn confirmed(tx: &Tx) -> Tx {
    Tx {
        state: TxState::Confirmed,
        ..tx.clone()
    }
}

/// Queues requests; the ids of their txs, oldest first.
async fn queue(fixture: &Fixture, key: LaneKey, count: usize) -> Vec<TxId> {
    let requests = (0..count).map(|n| fixture.new_queued(key, &format!("queued-{n}")));
    let queued = fixture.store.queue_requests(requests.collect()).await;
    let queued = queued.expect("queue").into_iter();
    queued.map(|tx| tx.id).collect()
}

async fn read(fixture: &Fixture, id: TxId) -> Tx {
    let record = fixture.store.tx(id).await.expect("tx");
    record.expect("it is there").tx
}

/// A queued tx ends without a nonce.
async fn give_up(fixture: &Fixture, keeper: &mut Keeper, id: &TxId) -> TxId {
    let mut tx = read(fixture, *id).await;
    tx.transition(TxState::FailedFinal, SubState::Refused, AT);
    let ended = Writes {
        queued_removed: vec![tx.id],
        ..updates([tx])
    };
    fixture.apply(keeper, ended).await;
    *id
}

/// A queued tx gets the next nonce.
async fn adopt(fixture: &Fixture, keeper: &mut Keeper, id: TxId) {
    let mut tx = read(fixture, id).await;
    tx.nonce = Some(keeper.next_nonce);
    tx.transition(TxState::Allocated, SubState::Waiting, AT);
    let adoption = Writes {
        queued_removed: vec![tx.id],
        events: vec![accepted(&tx)],
        ..updates([tx])
    };
    fixture.apply(keeper, adoption).await;
}

/// Reads all pages.
async fn list(fixture: &Fixture, mut filter: TxFilter) -> Vec<TxId> {
    let mut seen = Vec::new();
    loop {
        let page = fixture.store.txs(&filter).await.expect("txs");
        assert!(page.txs.len() <= filter.limit);
        seen.extend(page.txs.iter().map(|record| record.tx.id));
        let Some(next) = page.next else { return seen };
        assert_ne!(filter.after, Some(next), "pages go on");
        filter.after = Some(next);
    }
}
