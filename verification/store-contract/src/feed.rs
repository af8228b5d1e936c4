//! How events enter the feed of all lanes: in the gate, or by a later call that any node may make at any
//! time. In both cases readers see each event once, in lane order, and skip none.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::{LaneId, LaneKey};
use engine::ports::{CommitOutcome, EventFilter, StoreError};

use crate::Backend;
use crate::fixture::{Fixture, Keeper, acceptance, lane, node};

pub async fn events_not_yet_in_feed_are_added_by_a_sweep(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut reader = Reader::default();
    let mut keepers = keepers(&fixture).await;
    for round in 0..3 {
        for keeper in &mut keepers {
            accept_without_feed(&fixture, keeper, 1 + round % 2).await;
        }
    }
    extend(&fixture, &[]).await;
    reader.read_to_end(&fixture).await;
    reader.assert_complete(&keepers);
    extend(&fixture, &[]).await;
    assert_eq!(
        reader.read_to_end(&fixture).await,
        0,
        "nothing is missing now"
    );
}

pub async fn extending_the_feed_twice_repeats_no_event(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut reader = Reader::default();
    let mut keepers = keepers(&fixture).await;
    let [first, second] = [&keepers[0], &keepers[1]].map(|keeper| keeper.lease_grant.lane);
    let unknown = LaneId(second.0 + 1_000);
    for lanes in [
        &[first, second, first][..],
        &[second, unknown],
        &[],
        &[unknown],
    ] {
        for keeper in &mut keepers {
            accept_without_feed(&fixture, keeper, 2).await;
        }
        extend(&fixture, lanes).await;
        extend(&fixture, lanes).await;
        reader.read_to_end(&fixture).await;
    }
    extend(&fixture, &[]).await;
    reader.read_to_end(&fixture).await;
    reader.assert_complete(&keepers);
}

pub async fn reader_sees_events_that_enter_the_feed_late(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut reader = Reader::default();
    let mut keepers = keepers(&fixture).await;
    for round in 0..6_usize {
        for keeper in &mut keepers {
            accept_without_feed(&fixture, keeper, 2).await;
        }
        // The events of one lane enter the feed although another lane's events were written first.
        let lane = keepers[round % 2].lease_grant.lane;
        extend(&fixture, &[lane]).await;
        reader.read_to_end(&fixture).await;
    }
    let late = keepers[0].lease_grant.lane;
    extend(&fixture, &[late]).await;
    reader.read_to_end(&fixture).await;
    reader.assert_complete(&keepers);
}

pub async fn concurrent_feed_extensions_are_consistent(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut reader = Reader::default();
    let mut keepers = keepers(&fixture).await;
    let lanes: Vec<LaneId> = keepers
        .iter()
        .map(|keeper| keeper.lease_grant.lane)
        .collect();
    let calls = [vec![lanes[0]], vec![lanes[1], lanes[0]], vec![]];
    for _ in 0..8 {
        let tasks: Vec<_> = calls
            .iter()
            .map(|lanes| {
                let (store, lanes) = (Arc::clone(&fixture.store), lanes.clone());
                tokio::spawn(async move { store.extend_feed(&lanes).await })
            })
            .collect();
        for keeper in &mut keepers {
            accept_without_feed(&fixture, keeper, 1).await;
        }
        reader.read_to_end(&fixture).await;
        for task in tasks {
            task.await.expect("no panic").expect("extend_feed");
        }
    }
    extend(&fixture, &[]).await;
    reader.read_to_end(&fixture).await;
    reader.assert_complete(&keepers);
}

pub async fn tx_events_do_not_wait_for_the_feed(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let tx = fixture.tx(0);
    let batch = fixture.batch(&keeper, acceptance(tx.clone()));
    assert_eq!(
        fixture.commit_without_feed(batch.clone()).await,
        CommitOutcome::Applied
    );
    keeper.follow(&batch);
    let history = fixture.store.tx_events(tx.id).await.expect("tx_events");
    let history = history.expect("it is there");
    let recorded: Vec<_> = history.into_iter().map(|record| record.event).collect();
    assert_eq!(recorded, batch.writes.events);
}

/// A consumer of the feed: keeps its cursor and the events that it saw.
#[derive(Default)]
struct Reader {
    after: Option<String>,
    seen: BTreeMap<LaneKey, Vec<u64>>,
}

impl Reader {
    /// Reads until the cursor stays the same; returns how many events came.
    async fn read_to_end(&mut self, fixture: &Fixture) -> usize {
        let mut count = 0;
        loop {
            let filter = EventFilter {
                after: self.after.clone(),
                limit: 3,
                ..EventFilter::default()
            };
            let page = fixture.store.events(&filter).await.expect("events");
            count += page.events.len();
            for record in page.events {
                let seen = self.seen.entry(record.lane).or_default();
                assert_eq!(
                    record.event.seq,
                    seen.len() as u64 + 1,
                    "in lane order, once"
                );
                seen.push(record.event.seq);
            }
            let is_end = self.after.as_ref() == Some(&page.next);
            self.after = Some(page.next);
            if is_end {
                return count;
            }
        }
    }

    fn assert_complete(&self, keepers: &[Keeper]) {
        for keeper in keepers {
            let seen = self.seen.get(&keeper.key).map_or(0, Vec::len) as u64;
            assert_eq!(seen, keeper.event_seq, "{}", keeper.key);
        }
    }
}

async fn keepers(fixture: &Fixture) -> Vec<Keeper> {
    vec![
        fixture.keeper(&node("a"), lane(1)).await,
        fixture.keeper(&node("b"), lane(2)).await,
    ]
}

/// Accepts txs in one batch without extending the feed.
async fn accept_without_feed(fixture: &Fixture, keeper: &mut Keeper, count: u64) {
    let mut writes = domain::Writes::default();
    for n in 0..count {
        let one = acceptance(fixture.tx(keeper.next_nonce.0 + n));
        writes.inserts.extend(one.inserts);
        writes.events.extend(one.events);
    }
    let batch = fixture.batch(keeper, writes);
    assert_eq!(
        fixture.commit_without_feed(batch.clone()).await,
        CommitOutcome::Applied
    );
    keeper.follow(&batch);
}

async fn extend(fixture: &Fixture, lanes: &[LaneId]) {
    fixture.store.extend_feed(lanes).await.expect("extend_feed");
}

pub async fn changed_txs_are_those_of_events_after_the_cursor(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let changed = async |after: Option<&str>| {
        let changed = fixture.store.changed_txs(after).await;
        changed.expect("changed_txs")
    };
    let empty = changed(None).await;
    assert_eq!(empty.txs, []);
    fixture.accept(&mut keeper, 3).await;
    let end = changed(None).await;
    assert_eq!(end.txs, [], "only what comes later");
    let later = fixture.accept(&mut keeper, 4).await;
    let later: Vec<_> = later.into_iter().map(|(tx, _)| tx.id).collect();
    let page = changed(Some(&end.next)).await;
    assert_eq!(page.txs, later);
    let after_all = changed(Some(&page.next)).await;
    assert_eq!((after_all.txs, after_all.next), (vec![], page.next));
    assert_eq!(changed(Some(&empty.next)).await.txs.len(), 7);
    let foreign = fixture.store.changed_txs(Some("nonsense")).await;
    assert!(matches!(foreign, Err(StoreError::Invalid(_))));
}
