//! The lane row beside its fence: what the head waits for, and which final results must be watched.

use std::time::Duration;

use domain::lane::{HeadWait, LaneWait, WatchedBlock};
use domain::{LaneKey, Nonce, Tx, Writes};
use engine::ports::{CommitOutcome, LaneBatch, TxFilter, UnwatchedLane};

use crate::Backend;
use crate::fixture::{Fixture, Keeper, LEASE, SKEW, header, inserts, lane, node, updates};
use crate::txs::mined;

fn head(nonce: u64, reason: Option<&str>) -> HeadWait {
    HeadWait {
        nonce: Nonce(nonce),
        blocked_for: Duration::from_millis(61_001),
        reason: reason.map(str::to_owned),
    }
}

async fn apply(fixture: &Fixture, keeper: &mut Keeper, batch: LaneBatch) {
    let outcome = fixture.commit(batch.clone()).await;
    assert_eq!(outcome, CommitOutcome::Applied);
    keeper.follow(&batch);
}

/// The next keeper goes on counting, and every node shows the reason on the txs behind.
pub async fn head_is_that_of_the_last_batch(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let tx = fixture.tx(0);
    let heads = [
        head(0, Some("underfunded: ü\0")),
        head(3, None),
        head(u64::MAX >> 1, Some("")),
    ];
    let mut writes = inserts([tx.clone()]);
    for expected in heads.map(Some).into_iter().chain([None]) {
        let batch = LaneBatch {
            head: expected.clone(),
            ..fixture.batch(&keeper, std::mem::take(&mut writes))
        };
        apply(&fixture, &mut keeper, batch).await;
        let image = fixture.image(lane(1), keeper.lease_grant).await;
        assert_eq!(image.open.head, expected);
        let shown = expected.and_then(HeadWait::into_lane_wait);
        assert_eq!(lane_waits(&fixture, &tx).await, vec![shown; 5]);
    }
    let fenced = LaneBatch {
        head: Some(head(1, Some("of a deposed keeper"))),
        ..fixture.batch(&keeper, Writes::default())
    };
    backend.advance(LEASE + SKEW).await;
    let next = fixture.keeper(&node("b"), lane(1)).await;
    assert_eq!(fixture.commit(fenced).await, CommitOutcome::Fenced);
    let image = fixture.image(lane(1), next.lease_grant).await;
    assert_eq!(image.open.head, None);
}

/// What every way to read a tx or its lane shows of the lane's reason.
async fn lane_waits(fixture: &Fixture, tx: &Tx) -> Vec<Option<LaneWait>> {
    let store = &fixture.store;
    let by_id = store.tx(tx.id).await.expect("tx").expect("it is there");
    let by_request = store.tx_by_request(lane(1), &tx.request.request_id).await;
    let by_request = by_request.expect("tx").expect("it is there");
    let list = |state| TxFilter {
        state,
        limit: 10,
        ..TxFilter::default()
    };
    let all = store.txs(&list(None)).await.expect("txs").txs;
    let open = store.txs(&list(Some(tx.state))).await.expect("txs").txs;
    let of_lane = store.lanes(&[lane(1)]).await.expect("lanes");
    let listed = all.into_iter().chain(open).map(|record| record.lane_wait);
    let single = [by_id.lane_wait, by_request.lane_wait];
    let of_lane = of_lane.into_iter().map(|record| record.wait);
    single.into_iter().chain(listed).chain(of_lane).collect()
}

/// A keeper whose view is behind its predecessor's must know which headers were reported.
pub async fn reported_headers_are_loaded_with_the_lane(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let first = header(10, 0, None);
    let second = header(11, 0, Some(&first));
    let top = header(12, 0, Some(&second));
    let other = header(11, 1, Some(&first));
    fixture
        .put_headers(lane(1), &[first, second, top, other])
        .await;
    for (block, counted) in [(first, top), (second, top), (other, other)] {
        let (tx, _) = fixture.accept(&mut keeper, 1).await.remove(0);
        let mined = mined(&tx, &block, Some(&counted));
        fixture.apply(&mut keeper, updates([mined])).await;
    }
    let image = fixture.image(lane(1), keeper.lease_grant).await;
    let mut reported = image.open.reported;
    reported.sort_by_key(|header| header.number);
    assert_eq!(reported, [first, second, top], "the third tx reported none");
}

fn block(number: u64) -> WatchedBlock {
    WatchedBlock {
        number,
        hash: header(number, 0, None).hash,
    }
}

/// All pages of this size, from the first on.
async fn unwatched(fixture: &Fixture, observer: &str, limit: usize) -> Vec<UnwatchedLane> {
    let mut found = Vec::new();
    let mut after = None;
    for _ in 0..20 {
        let page = fixture
            .store
            .unwatched_lanes(&node(observer), after, limit)
            .await
            .expect("unwatched_lanes");
        assert!(page.lanes.len() <= limit);
        found.extend(page.lanes);
        after = page.next;
        if after.is_none() {
            return found;
        }
    }
    panic!("pages without an end");
}

async fn finish(fixture: &Fixture, keeper: &mut Keeper, newest_final: Option<WatchedBlock>) {
    let batch = LaneBatch {
        newest_final,
        ..fixture.batch(keeper, Writes::default())
    };
    apply(fixture, keeper, batch).await;
}

pub async fn finals_of_lanes_without_live_keeper_are_listed(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let me = node("a");
    let mut keepers = Vec::new();
    for signer in 1..=4 {
        keepers.push(fixture.keeper(&me, lane(signer)).await);
    }
    for (keeper, number) in keepers.iter_mut().zip([7, 8, 9]) {
        finish(&fixture, keeper, Some(block(number))).await;
    }
    assert_eq!(
        unwatched(&fixture, "b", 10).await,
        [],
        "node a watches them"
    );
    let of = |lane: LaneKey, number| UnwatchedLane {
        lane,
        newest: block(number),
    };
    let all = [of(lane(1), 7), of(lane(2), 8), of(lane(3), 9)];
    assert_eq!(unwatched(&fixture, "a", 10).await, all, "its own, too");
    backend.advance(LEASE + SKEW).await;
    for limit in [1, 2, 3, 10] {
        assert_eq!(unwatched(&fixture, "b", limit).await, all, "{limit} a page");
    }
    // A result that needs no watching any more, and one that is replaced by a newer one.
    let mut first = fixture.keeper(&me, lane(1)).await;
    finish(&fixture, &mut first, None).await;
    let mut second = fixture.keeper(&me, lane(2)).await;
    finish(&fixture, &mut second, Some(block(12))).await;
    backend.advance(LEASE + SKEW).await;
    let left = [of(lane(2), 12), of(lane(3), 9)];
    assert_eq!(unwatched(&fixture, "b", 10).await, left);
    let halted = fixture.keeper(&me, lane(3)).await;
    let reason = "an operator decides";
    let was_halted = fixture.store.halt(halted.lease_grant, reason).await;
    assert!(was_halted.expect("halt"));
    assert_eq!(unwatched(&fixture, "b", 10).await, left[..1]);
}
