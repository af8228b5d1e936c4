//! The event log: every transition once, in lane order; the feed across lanes skips none.

use std::collections::BTreeMap;

use alloy_primitives::B256;
use domain::{
    AttemptKind, ChainId, Event, EventKind, LaneKey, NodeName, Nonce, Token, TxId, Writes,
};
use engine::ports::{EventFilter, EventPage, EventRecord, StoreError};

use crate::Backend;
use crate::fixture::{AT, Fixture, LEASE, SKEW, first_events, header, lane, node};

pub async fn event_log_is_gapless_and_names_its_writers(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let first = fixture.accept(&mut keeper, 3).await;
    backend.advance(LEASE + SKEW).await;
    let mut keeper = fixture.keeper(&node("b"), lane(1)).await;
    let second = fixture.accept(&mut keeper, 2).await;
    let (events, _) = read_to_end(&fixture, first_events(100)).await;
    let seen: Vec<_> = events
        .iter()
        .map(|record| {
            (
                record.event.seq,
                record.event.tx_id,
                record.node.0.as_str(),
                record.token,
            )
        })
        .collect();
    let expected_record = |seq: u64, tx: TxId, node, token| (seq, Some(tx), node, Token(token));
    let expected = [
        expected_record(1, first[0].0.id, "a", 1),
        expected_record(2, first[1].0.id, "a", 1),
        expected_record(3, first[2].0.id, "a", 1),
        expected_record(4, second[0].0.id, "b", 2),
        expected_record(5, second[1].0.id, "b", 2),
    ];
    assert_eq!(seen, expected);
    assert!(events.iter().all(|record| record.lane == lane(1)));
}

pub async fn every_event_kind_round_trips(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let mut events = every_kind(fixture.tx_id());
    events.extend(events_without_optional_fields());
    let written = fixture
        .apply(
            &mut keeper,
            Writes {
                events,
                ..Writes::default()
            },
        )
        .await;
    let (read, _) = read_to_end(&fixture, first_events(100)).await;
    assert_eq!(
        read.into_iter()
            .map(|record| record.event)
            .collect::<Vec<_>>(),
        written.events
    );
}

pub async fn feed_skips_no_event_of_interleaved_lanes(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keepers = [
        fixture.keeper(&node("a"), lane(1)).await,
        fixture.keeper(&node("a"), lane(2)).await,
    ];
    let mut seen: BTreeMap<LaneKey, Vec<u64>> = BTreeMap::new();
    let mut after = None;
    for round in 0..12_u64 {
        for (n, keeper) in keepers.iter_mut().enumerate() {
            // Batches of different sizes, so that pages end within a batch.
            fixture.accept(keeper, 1 + (round * 3 + n as u64) % 4).await;
        }
        let page = page(
            &fixture,
            EventFilter {
                after,
                limit: 3,
                ..EventFilter::default()
            },
        )
        .await;
        collect_seqs(&mut seen, &page.events);
        after = Some(page.next);
    }
    let filter = EventFilter {
        after,
        limit: 2,
        ..EventFilter::default()
    };
    collect_seqs(&mut seen, &read_to_end(&fixture, filter).await.0);
    for keeper in keepers {
        let all: Vec<u64> = (1..=keeper.event_seq).collect();
        assert_eq!(seen[&keeper.key], all, "each once, in order");
    }
}

pub async fn cursor_at_end_of_feed_stays_valid(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let empty = page(&fixture, first_events(9)).await;
    assert_eq!(empty.events, []);
    assert_eq!(
        read_after(&fixture, &empty.next).await,
        EventPage {
            events: vec![],
            next: empty.next.clone()
        }
    );

    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    fixture.accept(&mut keeper, 2).await;
    let first = read_after(&fixture, &empty.next).await;
    assert_eq!(first.events.len(), 2);
    let end = read_after(&fixture, &first.next).await;
    assert_eq!(
        end,
        EventPage {
            events: vec![],
            next: first.next.clone()
        }
    );

    fixture.accept(&mut keeper, 1).await;
    let more = read_after(&fixture, &end.next).await;
    assert_eq!(
        more.events
            .iter()
            .map(|record| record.event.seq)
            .collect::<Vec<_>>(),
        [3]
    );
}

pub async fn cursor_of_an_event_continues_after_it(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    fixture.accept(&mut keeper, 3).await;
    fixture.accept(&mut keeper, 2).await;
    let (events, _) = read_to_end(&fixture, first_events(100)).await;
    for (n, record) in events.iter().enumerate() {
        let rest = read_after(&fixture, &record.cursor).await;
        assert_eq!(rest.events, events[n + 1..], "after event {}", n + 1);
    }
}

pub async fn event_filter_selects_by_chain_signer_and_kind(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let elsewhere = LaneKey {
        chain_id: ChainId(5),
        ..lane(2)
    };
    for key in [lane(1), lane(2), elsewhere] {
        let mut keeper = fixture.keeper(&node("a"), key).await;
        let events = every_kind(fixture.tx_id());
        fixture
            .apply(
                &mut keeper,
                Writes {
                    events,
                    ..Writes::default()
                },
            )
            .await;
    }
    let kinds = EventKind::NAMES.len();
    let kind_names = ["TxConfirmed", "LaneForeignNonce"].map(String::from);
    let on = |chain_id, signer, kinds: &[String]| EventFilter {
        chain_id,
        signer,
        kinds: kinds.into(),
        ..first_events(4)
    };
    let (here, signer) = (Some(lane(2).chain_id), Some(lane(2).signer));
    let cases = [
        (on(None, None, &[]), 3 * kinds),
        (on(Some(elsewhere.chain_id), None, &[]), kinds),
        (on(None, signer, &[]), 2 * kinds),
        (on(here, signer, &[]), kinds),
        (on(Some(ChainId(77)), None, &[]), 0),
        (on(None, None, &kind_names), 6),
        (on(here, signer, &kind_names[1..]), 1),
    ];
    for (filter, count) in cases {
        let (chosen, _) = read_to_end(&fixture, filter.clone()).await;
        assert_eq!(chosen.len(), count, "{filter:?}");
        for record in chosen {
            let kind_name = record.event.kind.as_str().to_owned();
            assert!(
                filter.kinds.is_empty() || filter.kinds.contains(&kind_name),
                "{kind_name}"
            );
        }
    }
}

pub async fn malformed_cursor_is_refused(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    fixture.accept(&mut keeper, 1).await;
    let good = page(&fixture, first_events(9)).await.next;
    let twice = format!("{good}{good}");
    for bad in [
        "",
        "x",
        "-1",
        "0x10",
        "🙂",
        "99999999999999999999999999",
        &twice,
    ] {
        let filter = EventFilter {
            after: Some(bad.into()),
            limit: 9,
            ..EventFilter::default()
        };
        let answer = fixture.store.events(&filter).await;
        assert!(
            matches!(answer, Err(StoreError::Invalid(_))),
            "{bad:?}: {answer:?}"
        );
    }
}

pub async fn tx_events_returns_the_events_of_one_tx(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let mut txs = fixture.accept(&mut keeper, 3).await;
    fixture.accept(&mut keeper, 2).await;
    let (tx, attempt) = txs.remove(1);
    let kind = EventKind::TxSubmitted {
        tx_hash: attempt.hash,
        nonce: attempt.nonce,
    };
    let submitted = Event {
        seq: 0,
        at: AT,
        tx_id: Some(tx.id),
        kind,
    };
    let writes = Writes {
        updates: vec![tx.clone()],
        events: vec![submitted],
        ..Writes::default()
    };
    fixture.apply(&mut keeper, writes).await;

    let history = fixture
        .store
        .tx_events(tx.id)
        .await
        .expect("tx_events")
        .expect("it is there");
    let recorded: Vec<_> = history
        .iter()
        .map(|r| (r.event.seq, r.event.kind.as_str()))
        .collect();
    assert_eq!(recorded, [(2, "TxAccepted"), (6, "TxSubmitted")]);
    assert!(
        history
            .iter()
            .all(|record| record.event.tx_id == Some(tx.id))
    );
    assert!(
        history
            .iter()
            .all(|record| record.node == NodeName("a".into()))
    );
    let (feed, _) = read_to_end(&fixture, first_events(100)).await;
    assert_eq!(
        history,
        [feed[1].clone(), feed[5].clone()],
        "the same records as in the feed"
    );
    assert_eq!(fixture.store.tx_events(fixture.tx_id()).await, Ok(None));
}

pub async fn queued_tx_has_no_events(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let queued = fixture
        .store
        .queue_requests(vec![fixture.new_queued(lane(1), "r1")])
        .await
        .expect("queue");
    assert_eq!(
        fixture.store.tx_events(queued[0].id).await,
        Ok(Some(vec![]))
    );
}

pub async fn confirmation_events_list_their_headers(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let block = header(10, 0, None);
    let above = header(11, 0, Some(&block));
    let top = header(12, 0, Some(&above));
    let counting = |counted: B256, count, since| EventKind::TxConfirmations {
        block_number: block.number,
        block_hash: block.hash,
        counted,
        count,
        since,
        new_fork: false,
    };
    let event = |kind| Event {
        seq: 0,
        at: AT,
        tx_id: None,
        kind,
    };
    let first = Writes {
        events: vec![event(counting(above.hash, 1, None))],
        ..Writes::default()
    };
    fixture.put_headers(lane(1), &[block, above]).await;
    fixture.apply(&mut keeper, first).await;
    let confirmed = EventKind::TxConfirmed {
        tx_hash: B256::repeat_byte(1),
        block_number: block.number,
        block_hash: block.hash,
        counted: top.hash,
        new_fork: false,
    };
    let events = vec![
        event(counting(top.hash, 2, Some(above.hash))),
        event(confirmed),
        event(EventKind::TxFailed {
            reason: "no".into(),
        }),
    ];
    // Headers arrive repeatedly from different lanes and turns: known ones change nothing.
    let second = Writes {
        events,
        ..Writes::default()
    };
    fixture.put_headers(lane(1), &[above, top]).await;
    fixture.apply(&mut keeper, second).await;
    let (events, _) = read_to_end(&fixture, first_events(100)).await;
    let lists: Vec<_> = events
        .into_iter()
        .map(|record| record.confirmations)
        .collect();
    // All headers from the block up, also where an event continues above `since`: leaving out the known ones is up to the reader.
    let whole = vec![block, above, top];
    let expected = [vec![block, above], whole.clone(), whole, vec![]];
    assert_eq!(lists, expected);
}

fn collect_seqs(seen: &mut BTreeMap<LaneKey, Vec<u64>>, events: &[EventRecord]) {
    for record in events {
        seen.entry(record.lane).or_default().push(record.event.seq);
    }
}

async fn page(fixture: &Fixture, filter: EventFilter) -> EventPage {
    let page = fixture.store.events(&filter).await.expect("events");
    assert!(page.events.len() <= filter.limit, "no more than the limit");
    page
}

async fn read_after(fixture: &Fixture, after: &str) -> EventPage {
    page(
        fixture,
        EventFilter {
            after: Some(after.into()),
            limit: 100,
            ..EventFilter::default()
        },
    )
    .await
}

/// Reads until the cursor stays the same; returns the events and the last cursor.
async fn read_to_end(fixture: &Fixture, mut filter: EventFilter) -> (Vec<EventRecord>, String) {
    let mut events = Vec::new();
    loop {
        let page = page(fixture, filter.clone()).await;
        events.extend(page.events);
        if filter.after.as_ref() == Some(&page.next) {
            return (events, page.next);
        }
        filter.after = Some(page.next);
    }
}

/// Events of the kinds that have an optional field, without it.
fn events_without_optional_fields() -> Vec<Event> {
    let hash = B256::repeat_byte(0xEE);
    let kinds = [
        EventKind::TxAccepted { nonce: None },
        EventKind::TxConfirmations {
            block_number: 300,
            block_hash: hash,
            counted: hash,
            count: 0,
            since: None,
            new_fork: false,
        },
        EventKind::LaneForeignNonce {
            nonce: Nonce(9),
            tx_hash: None,
        },
        EventKind::TxRequeued {
            nonce: Nonce(4),
            foreign: None,
        },
    ];
    kinds
        .map(|kind| Event {
            seq: 0,
            at: AT,
            tx_id: None,
            kind,
        })
        .into()
}

/// One event of each kind, with wide values.
fn every_kind(tx: TxId) -> Vec<Event> {
    let (hash, other) = (B256::repeat_byte(0xEE), B256::repeat_byte(0xDD));
    let kinds: Vec<EventKind> = (regular_kinds(hash, other).into_iter())
        .chain(exceptional_kinds(hash, other))
        .collect();
    let kind_names: Vec<&str> = kinds.iter().map(EventKind::as_str).collect();
    assert_eq!(kind_names, EventKind::NAMES, "one of each kind");
    let about = |kind: &EventKind| (!kind.as_str().starts_with("Lane")).then_some(tx);
    let event = |kind| Event {
        seq: 0,
        at: AT,
        tx_id: about(&kind),
        kind,
    };
    kinds.into_iter().map(event).collect()
}

/// The events of a tx's regular life cycle.
fn regular_kinds(hash: B256, other: B256) -> [EventKind; 9] {
    [
        EventKind::TxAccepted {
            nonce: Some(Nonce(3)),
        },
        EventKind::TxAllocated {
            nonce: Nonce(1 << 50),
        },
        EventKind::TxSubmitted {
            tx_hash: hash,
            nonce: Nonce(0),
        },
        EventKind::TxReceiptUpdated {
            tx_hash: hash,
            block_number: u64::MAX,
            block_hash: other,
            succeeded: false,
        },
        EventKind::TxConfirmations {
            block_number: 300,
            block_hash: hash,
            counted: other,
            count: 20,
            since: Some(hash),
            new_fork: true,
        },
        EventKind::TxConfirmed {
            tx_hash: hash,
            block_number: 300,
            block_hash: hash,
            counted: other,
            new_fork: false,
        },
        EventKind::TxFailed {
            reason: "revertiert: „zu wenig“".into(),
        },
        EventKind::TxStuck {
            reason: String::new(),
        },
        EventKind::TxReorged {
            block_number: 0,
            block_hash: hash,
            after_final: true,
        },
    ]
}

/// Events of ownership changes, foreign transactions, requeueing and missing progress.
fn exceptional_kinds(hash: B256, other: B256) -> [EventKind; 6] {
    [
        EventKind::LaneFenced {
            from: NodeName("b".into()),
            token: Token(1 << 33),
        },
        EventKind::LaneForeignNonce {
            nonce: Nonce(9),
            tx_hash: Some(other),
        },
        EventKind::TxResubmitted {
            tx_hash: hash,
            nonce: Nonce(1 << 50),
            kind: AttemptKind::Bump,
            count: u32::MAX,
        },
        EventKind::TxReplaced {
            tx_hash: other,
            nonce: Nonce(0),
            kind: AttemptKind::Cancel,
        },
        EventKind::TxRequeued {
            nonce: Nonce(4),
            foreign: Some(hash),
        },
        EventKind::LaneForeignPending { nonce: Nonce(5) },
    ]
}
