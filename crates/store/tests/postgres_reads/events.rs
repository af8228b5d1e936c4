//! The feed and the histories of txs.

use domain::{ChainId, TxState};
use engine::ports::{EventFilter, Store, StoreError};

use crate::{World, lane, places, tx_id};

#[tokio::test]
async fn feed_range_may_contain_several_turns() {
    let world = World::new("ranges").await;
    // Lane 1: turns 1-3, 4-4, 5-9, fed as one range; lane 2 in between; lane 1 again.
    for (first_seq, count) in [(1, 3), (4, 1), (5, 5), (10, 2)] {
        world.insert_turn(1, first_seq, count, 11);
    }
    world.insert_turn(2, 1, 2, 2);
    world.feed(1, 1, 9);
    world.feed(2, 1, 2);
    world.feed(1, 10, 11);
    let expected: Vec<(u64, u64)> = (1..=9)
        .map(|seq| (1, seq))
        .chain([(2, 1), (2, 2), (1, 10), (1, 11)])
        .collect();
    for limit in [1, 2, 3, 4, 5, 13, 100] {
        let (events, _) = world
            .feed_to_end(EventFilter {
                limit,
                ..EventFilter::default()
            })
            .await;
        assert_eq!(places(&events), expected, "in pages of {limit}");
        for (n, record) in events.iter().enumerate() {
            let after = Some(record.cursor.clone());
            let limit = 100;
            let rest = world
                .page(&EventFilter {
                    after,
                    limit,
                    ..EventFilter::default()
                })
                .await;
            assert_eq!(places(&rest.events), expected[n + 1..]);
        }
    }
    let of_lane = EventFilter {
        chain_id: Some(ChainId(2)),
        limit: 1,
        ..EventFilter::default()
    };
    assert_eq!(
        places(&world.feed_to_end(of_lane).await.0),
        [(2, 1), (2, 2)]
    );
    let of_kind = EventFilter {
        kinds: vec!["TxAllocated".into()],
        limit: 1,
        ..EventFilter::default()
    };
    assert_eq!(
        places(&world.feed_to_end(of_kind).await.0),
        [(2, 1), (2, 2)]
    );
}

#[tokio::test]
async fn filtered_feed_reads_a_bounded_range_and_continues() {
    let world = World::new("filtered_feed").await;
    world.exec(
        "INSERT INTO lane_event (lane_id, first_seq, at, token, count, node, body)
         SELECT 1, n, 0, 1, 1, 'a', '\\x010b0007' FROM generate_series(1, 25000) n;
         INSERT INTO event_feed (position, lane_id, first_seq, last_seq)
         SELECT n, 1, n, n FROM generate_series(1, 25000) n;
         UPDATE feed_head SET position = 25000",
    );
    world.insert_turn(2, 1, 1, 2);
    world.feed(2, 1, 1);
    let of_lane = EventFilter {
        signer: Some(lane(2).signer),
        limit: 10,
        ..EventFilter::default()
    };
    let (events, pages) = world.feed_to_end(of_lane).await;
    assert_eq!((places(&events), pages), (vec![(2, 1)], 3));
    let of_kind = EventFilter {
        kinds: vec!["TxAllocated".into()],
        limit: 10,
        ..EventFilter::default()
    };
    let (events, pages) = world.feed_to_end(of_kind).await;
    assert_eq!(places(&events), [(2, 1)]);
    assert!(pages <= 14, "two thousand turns each: {pages}");
}

#[tokio::test]
async fn feed_pages_end_early_when_turns_are_large() {
    let world = World::new("large_feed").await;
    // Two events each, the second of which has a reason of 3 MiB.
    world.exec(
        "INSERT INTO lane_event (lane_id, first_seq, at, token, count, node, body)
         SELECT 1, 2 * n - 1, 0, 1, 2, 'a',
                '\\x010b000707008080c001'::bytea || decode(repeat('61', 3 << 20), 'hex')
         FROM generate_series(1, 3) n",
    );
    for last_seq in [2, 4, 6] {
        world.feed(1, last_seq - 1, last_seq);
    }
    let (events, pages) = world
        .feed_to_end(EventFilter {
            limit: 100,
            ..EventFilter::default()
        })
        .await;
    assert_eq!(
        (events.len(), pages),
        (6, 2),
        "4 MiB are reached with the second turn"
    );
}

#[tokio::test]
async fn event_not_yet_in_the_feed_has_the_cursor_of_its_end() {
    let world = World::new("unfed").await;
    world.insert_txs(1, TxState::Tracking, 1..2, 0);
    world.exec("UPDATE managed_tx SET event_seqs = '\\x0203'"); // 2 and 5
    world.insert_turn(1, 1, 3, 11);
    world.insert_turn(1, 4, 2, 11);
    let history = || async {
        let history = world.store.tx_events(tx_id(1)).await.expect("tx_events");
        history.expect("it is there")
    };
    let returned = history().await;
    assert_eq!(places(&returned), [(1, 2), (1, 5)]);
    world.feed(1, 1, 3);
    let early = history().await;
    // Continuing from there returns events that are fed later, and not those that were returned before.
    world.feed(1, 4, 5);
    for (record, rest) in returned.iter().chain(&early).zip([5, 5, 3, 2]) {
        let after = Some(record.cursor.clone());
        let limit = 100;
        let page = world
            .page(&EventFilter {
                after,
                limit,
                ..EventFilter::default()
            })
            .await;
        assert_eq!(page.events.len(), rest, "behind {}", record.event.seq);
    }
    let (feed, _) = world
        .feed_to_end(EventFilter {
            limit: 9,
            ..EventFilter::default()
        })
        .await;
    assert_eq!(history().await, [feed[1].clone(), feed[4].clone()]);
}

#[tokio::test]
async fn tx_with_many_events_is_read_completely() {
    let world = World::new("long_history").await;
    world.insert_txs(1, TxState::Tracking, 1..2, 0);
    world.exec("UPDATE managed_tx SET event_seqs = decode(repeat('01', 1000), 'hex')");
    world.insert_turn(1, 1, 100, 11);
    world.insert_turn(1, 101, 900, 11);
    let history = world.store.tx_events(tx_id(1)).await.expect("tx_events");
    let seqs: Vec<u64> = history
        .expect("it is there")
        .iter()
        .map(|record| record.event.seq)
        .collect();
    assert_eq!(seqs, (1..=1_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn cursor_of_another_store_or_ahead_of_the_feed_is_refused() {
    let world = World::new("cursor").await;
    let other = World::new("cursor").await;
    for world in [&world, &other] {
        world.insert_turn(1, 1, 1, 11);
        world.feed(1, 1, 1);
    }
    let first = EventFilter {
        limit: 1,
        ..EventFilter::default()
    };
    let theirs = other.page(&first).await.next;
    let ours = world.page(&first).await.next;
    let future = ours.replace("000000000000000100000001", "000000000000000200000001");
    assert_ne!(ours, future);
    for after in [theirs, future] {
        let filter = EventFilter {
            after: Some(after),
            ..first.clone()
        };
        let answer = world.store.events(&filter).await;
        assert!(matches!(answer, Err(StoreError::Invalid(_))), "{answer:?}");
    }
}
