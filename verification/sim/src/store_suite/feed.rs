//! How events get into the feed of all lanes: by the gate, or by a later call that any node may
//! make at any time. Whoever makes it, readers see each event once, in lane order, and skip none.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::{LaneId, LaneKey};
use engine::ports::{CommitOutcome, EventFilter};

use super::Backend;
use super::kit::{Keeper, Kit, acceptance, lane, node};

pub async fn what_a_keeper_left_out_is_swept_into_the_feed(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut reader = Reader::default();
    let mut keepers = keepers(&kit).await;
    for round in 0..3 {
        for keeper in &mut keepers {
            accept_unfed(&kit, keeper, 1 + round % 2).await;
        }
    }
    extend(&kit, &[]).await;
    reader.read_to_end(&kit).await;
    reader.has_all_of(&keepers);
    extend(&kit, &[]).await;
    assert_eq!(reader.read_to_end(&kit).await, 0, "nothing is missing now");
}

pub async fn extending_the_feed_again_repeats_nothing(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut reader = Reader::default();
    let mut keepers = keepers(&kit).await;
    let [first, second] = [&keepers[0], &keepers[1]].map(|keeper| keeper.lease_grant.lane);
    let unknown = LaneId(second.0 + 1_000);
    for lanes in [
        &[first, second, first][..],
        &[second, unknown],
        &[],
        &[unknown],
    ] {
        for keeper in &mut keepers {
            accept_unfed(&kit, keeper, 2).await;
        }
        extend(&kit, lanes).await;
        extend(&kit, lanes).await;
        reader.read_to_end(&kit).await;
    }
    extend(&kit, &[]).await;
    reader.read_to_end(&kit).await;
    reader.has_all_of(&keepers);
}

pub async fn a_reader_skips_nothing_that_comes_into_the_feed_late(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut reader = Reader::default();
    let mut keepers = keepers(&kit).await;
    for round in 0..6_usize {
        for keeper in &mut keepers {
            accept_unfed(&kit, keeper, 2).await;
        }
        // One lane's events come into the feed although another's were written before them.
        let lane = keepers[round % 2].lease_grant.lane;
        extend(&kit, &[lane]).await;
        reader.read_to_end(&kit).await;
    }
    let late = keepers[0].lease_grant.lane;
    extend(&kit, &[late]).await;
    reader.read_to_end(&kit).await;
    reader.has_all_of(&keepers);
}

pub async fn many_may_extend_the_feed_at_once(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut reader = Reader::default();
    let mut keepers = keepers(&kit).await;
    let lanes: Vec<LaneId> = keepers
        .iter()
        .map(|keeper| keeper.lease_grant.lane)
        .collect();
    let calls = [vec![lanes[0]], vec![lanes[1], lanes[0]], vec![]];
    for _ in 0..8 {
        let tasks: Vec<_> = calls
            .iter()
            .map(|lanes| {
                let (store, lanes) = (Arc::clone(&kit.store), lanes.clone());
                tokio::spawn(async move { store.extend_feed(&lanes).await })
            })
            .collect();
        for keeper in &mut keepers {
            accept_unfed(&kit, keeper, 1).await;
        }
        reader.read_to_end(&kit).await;
        for task in tasks {
            task.await.expect("no panic").expect("extend_feed");
        }
    }
    extend(&kit, &[]).await;
    reader.read_to_end(&kit).await;
    reader.has_all_of(&keepers);
}

pub async fn the_history_of_a_tx_does_not_wait_for_the_feed(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let tx = kit.tx(0);
    let batch = kit.batch(&keeper, acceptance(tx.clone()));
    assert_eq!(
        kit.commit_unfed(batch.clone()).await,
        CommitOutcome::Applied
    );
    keeper.follow(&batch);
    let history = kit.store.tx_events(tx.id).await.expect("tx_events");
    let history = history.expect("it is there");
    let told: Vec<_> = history.into_iter().map(|record| record.event).collect();
    assert_eq!(told, batch.writes.events);
}

/// A consumer of the feed: remembers its cursor, and what it saw.
#[derive(Default)]
struct Reader {
    after: Option<String>,
    seen: BTreeMap<LaneKey, Vec<u64>>,
}

impl Reader {
    /// Reads until the cursor stays; gives how many events came.
    async fn read_to_end(&mut self, kit: &Kit) -> usize {
        let mut count = 0;
        loop {
            let filter = EventFilter {
                after: self.after.clone(),
                limit: 3,
                ..EventFilter::default()
            };
            let page = kit.store.events(&filter).await.expect("events");
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

    fn has_all_of(&self, keepers: &[Keeper]) {
        for keeper in keepers {
            let seen = self.seen.get(&keeper.key).map_or(0, Vec::len) as u64;
            assert_eq!(seen, keeper.event_seq, "{}", keeper.key);
        }
    }
}

async fn keepers(kit: &Kit) -> Vec<Keeper> {
    vec![
        kit.keeper(&node("a"), lane(1)).await,
        kit.keeper(&node("b"), lane(2)).await,
    ]
}

/// Accepts txs in one batch, and does not put their events into the feed.
async fn accept_unfed(kit: &Kit, keeper: &mut Keeper, count: u64) {
    let mut writes = domain::Writes::default();
    for n in 0..count {
        let one = acceptance(kit.tx(keeper.next_nonce.0 + n));
        writes.inserts.extend(one.inserts);
        writes.events.extend(one.events);
    }
    let batch = kit.batch(keeper, writes);
    assert_eq!(
        kit.commit_unfed(batch.clone()).await,
        CommitOutcome::Applied
    );
    keeper.follow(&batch);
}

async fn extend(kit: &Kit, lanes: &[LaneId]) {
    kit.store.extend_feed(lanes).await.expect("extend_feed");
}
