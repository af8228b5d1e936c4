//! Pages of txs, their attempts and their headers.

use std::sync::Arc;

use domain::{B256, ChainId, Header, Nonce, Timestamp, TxState};
use engine::ports::{Store, TxFilter};

use crate::{World, lane, numbers, tx_id};

#[tokio::test]
async fn selective_filter_gives_short_pages_and_continues() {
    let world = World::new("short_pages").await;
    world.insert_txs(1, TxState::Confirmed, 1..25_000, 0);
    world.insert_txs(2, TxState::FailedFinal, 25_000..25_001, 0);
    world.exec("UPDATE managed_tx SET state = 4 WHERE nonce IN (1, 12000)");
    let filter = TxFilter {
        state: Some(TxState::FailedFinal),
        limit: 10,
        ..TxFilter::default()
    };
    let (txs, pages) = world.list(filter.clone()).await;
    assert_eq!(numbers(&txs), [25_000, 12_000, 1]);
    assert_eq!(pages, 3, "ten thousand rows each");
    let of_lane = TxFilter {
        signer: Some(lane(2).signer),
        ..filter.clone()
    };
    assert_eq!(numbers(&world.list(of_lane).await.0), [25_000]);
    let none = TxFilter {
        chain_id: Some(ChainId(9)),
        ..filter
    };
    let (txs, pages) = world.list(none).await;
    assert_eq!((txs.len(), pages), (0, 3));
}

/// A list by signer or open state does not read the txs of other lanes, nor those below a lane's lowest open nonce.
#[tokio::test]
async fn lane_lists_read_only_their_own_rows() {
    let world = World::new("lane_lists").await;
    world.insert_txs(1, TxState::Confirmed, 1..25_000, 0);
    world.insert_txs(1, TxState::Tracking, 25_000..25_010, 0);
    world.insert_txs(2, TxState::Stuck, 30_000..30_003, 0);
    world.insert_txs(3, TxState::Confirmed, 40_000..40_005, 0);
    world.exec(
        "INSERT INTO signer_nonce_cursor (lane_id, next_nonce, floor_nonce, event_seq, batch_seq, fencing_token,
           updated_at, grant_id, paused, busy)
         VALUES (1, 25010, 25000, 0, 0, 0, 0, gen_random_uuid(), false, true),
                (2, 30003, 30000, 0, 0, 0, 0, gen_random_uuid(), false, true),
                (3, 40005, 40005, 0, 0, 0, 0, gen_random_uuid(), false, false)",
    );
    let of_state = |state| TxFilter {
        state: Some(state),
        limit: 100,
        ..TxFilter::default()
    };
    let (txs, pages) = world.list(of_state(TxState::Stuck)).await;
    assert_eq!((numbers(&txs), pages), (vec![30_002, 30_001, 30_000], 1));
    let (txs, pages) = world.list(of_state(TxState::Tracking)).await;
    assert_eq!((txs.len(), pages), (10, 1));
    let of_signer = TxFilter {
        signer: Some(lane(3).signer),
        limit: 100,
        ..TxFilter::default()
    };
    let (txs, pages) = world.list(of_signer).await;
    assert_eq!(numbers(&txs), [40_004, 40_003, 40_002, 40_001, 40_000]);
    assert_eq!(pages, 1);
    // A final state is looked for among all rows of the lane, ten thousand for each page.
    let final_of_signer = TxFilter {
        signer: Some(lane(1).signer),
        ..of_state(TxState::FailedFinal)
    };
    let (txs, pages) = world.list(final_of_signer).await;
    assert_eq!((txs.len(), pages), (0, 3));
}

#[tokio::test]
async fn lane_list_pages_end_early_when_their_calldata_is_large() {
    let world = World::new("large_lane_pages").await;
    world.insert_txs(1, TxState::Confirmed, 1..8, 3 << 20);
    let filter = TxFilter {
        signer: Some(lane(1).signer),
        limit: 100,
        ..TxFilter::default()
    };
    let (txs, pages) = world.list(filter).await;
    assert_eq!(numbers(&txs), [7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(pages, 3, "three of 3 MiB each are over the bound");
}

#[tokio::test]
async fn pages_end_early_when_their_calldata_is_large() {
    let world = World::new("large_pages").await;
    world.insert_txs(1, TxState::Confirmed, 1..8, 3 << 20);
    let all = TxFilter {
        limit: 100,
        ..TxFilter::default()
    };
    let (txs, pages) = world.list(all.clone()).await;
    assert_eq!(numbers(&txs), [7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(pages, 3, "three of 3 MiB each are over the bound");
    // Signed bytes count too.
    world.exec(
        "INSERT INTO tx_attempt (lane_id, nonce, gas, signed_at, tx_id, kind, hash, fees, raw)
         SELECT lane_id, nonce, 0, 0, tx_id, 0, sha256(tx_id::text::bytea || n::text::bytea), '\\x0001', data
         FROM managed_tx, generate_series(1, 2) n",
    );
    let (txs, pages) = world.list(all).await;
    assert_eq!(numbers(&txs), [7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(pages, 7);
    assert!(txs.iter().all(|record| record.attempts.len() == 2));
}

#[tokio::test]
async fn attempts_stay_with_their_tx_when_it_loses_its_nonce() {
    let world = World::new("given_up").await;
    world.insert_txs(1, TxState::Tracking, 1..3, 0);
    // The first tx was signed twice at nonce 2, lost it, and waits again.
    world.exec(
        "UPDATE managed_tx SET nonce = NULL, past_nonces = '{2}' WHERE nonce = 1;
         INSERT INTO tx_attempt
           (lane_id, nonce, gas, signed_at, tx_id, kind, hash, fees, raw, first_sent_at)
         SELECT 1, 2, 5, n, lpad(to_hex(tx), 32, '0')::uuid, kind, sha256(n::text::bytea), '\\x0007', '\\xaa',
                nullif(n, 3)
         FROM (VALUES (1, 1, 0), (2, 2, 0), (3, 1, 1)) AS attempt (n, tx, kind)",
    );
    let record = world
        .store
        .tx(tx_id(1))
        .await
        .expect("tx")
        .expect("it is there");
    let attempts: Vec<_> = record
        .attempts
        .iter()
        .map(|attempt| (attempt.signed_at.0, attempt.first_sent_at, attempt.nonce))
        .collect();
    let sent = Some(Timestamp(1));
    assert_eq!(
        attempts,
        [(1, sent, Nonce(2)), (3, None, Nonce(2))],
        "oldest first"
    );
    assert_eq!(record.lane, lane(1));
    for (hash, tx) in record
        .attempts
        .iter()
        .map(|attempt| (attempt.hash, tx_id(1)))
    {
        let found = world.store.tx_by_hash(hash).await.expect("tx");
        assert_eq!(found.expect("it is there").tx.id, tx);
    }
    let other = world
        .store
        .tx(tx_id(2))
        .await
        .expect("tx")
        .expect("it is there");
    assert_eq!(other.attempts.len(), 1);
}

#[tokio::test]
async fn page_reads_headers_of_many_stretches_and_forks_at_once() {
    let world = World::new("walks").await;
    world.insert_txs(1, TxState::Tracking, 1..9, 0);
    world.insert_headers(1, "a", 1..3_000);
    world.insert_headers(2, "a", 20..22);
    // A branch off the main one: b101 and b102 stand on a100.
    world.insert_headers(1, "b", 102..103);
    world.exec(
        "INSERT INTO chain_header (chain_id, number, timestamp, hash, parent_hash)
         VALUES (1, 101, 0, sha256('b101'), sha256('a100'))",
    );
    let walks: [(u64, &str, &str, usize); 8] = [
        (1, "a90", "a110", 21),
        (2, "a95", "a105", 11),
        (3, "a99", "b102", 4),
        (4, "a2000", "a2020", 21),
        (5, "a500", "a500", 1),
        (6, "a1000", "a2900", 0), // longer than the longest walk
        (7, "b101", "a110", 0),   // the way does not lead there
        (8, "nobody", "a110", 0), // no such header
    ];
    for (tx, block, counted, _) in walks {
        world.mine(tx, block, counted);
    }
    let filter = TxFilter {
        limit: 8,
        ..TxFilter::default()
    };
    let (txs, pages) = world.list(filter).await;
    assert_eq!(pages, 1);
    for (record, (tx, _, _, length)) in txs.iter().rev().zip(walks) {
        let walk = &record.confirmations;
        assert_eq!((record.tx.id, walk.len()), (tx_id(tx), length));
        assert!(
            walk.windows(2)
                .all(|pair| pair[1].parent_hash == pair[0].hash)
        );
        if let (Some(first), Some(last)) = (walk.first(), walk.last()) {
            let mined = record.tx.inclusion.as_ref().map(|mined| mined.block_hash);
            assert_eq!(
                (Some(first.hash), Some(last.hash)),
                (mined, record.tx.counted)
            );
        }
    }
}

#[tokio::test]
async fn page_with_too_many_headers_is_shortened_not_emptied() {
    let world = World::new("many_headers").await;
    world.insert_txs(1, TxState::Tracking, 1..101, 0);
    world.insert_headers(1, "a", 1..100_001);
    world.exec(
        "UPDATE managed_tx SET counted = sha256(('a' || nonce * 1000)::bytea),
           inclusion = '\\x01'::bytea || sha256('tx'::bytea)
             || sha256(('a' || nonce * 1000 - 999)::bytea) || decode(repeat('00', 32), 'hex')",
    );
    let filter = TxFilter {
        limit: 100,
        ..TxFilter::default()
    };
    let (txs, pages) = world.list(filter).await;
    assert_eq!((txs.len(), pages), (100, 2));
    assert!(txs.iter().all(|record| record.confirmations.len() == 1_000));
}

#[tokio::test]
async fn concurrent_header_writes_insert_each_header_once() {
    let world = World::new("headers").await;
    let headers: Vec<Header> = (0..1_500_u64)
        .map(|n| Header {
            number: n,
            hash: B256::left_padding_from(&(n * 7_919 % 1_500).to_be_bytes()),
            parent_hash: B256::ZERO,
            timestamp: u64::MAX - n,
        })
        .collect();
    let writers: Vec<_> = (0..6)
        .map(|n| {
            let (store, mut headers) = (Arc::clone(&world.store), headers.clone());
            headers.rotate_left(n * 217);
            tokio::spawn(async move { store.put_headers(ChainId(1), &headers).await })
        })
        .collect();
    for writer in writers {
        assert_eq!(writer.await.expect("no panic"), Ok(()));
    }
    world
        .store
        .put_headers(ChainId(1), &[])
        .await
        .expect("nothing to do");
    let count = world
        .database
        .query_value("SELECT count(*) || ' ' || count(DISTINCT number) FROM chain_header");
    assert_eq!(count.as_deref(), Some("1500 1500"));
}
