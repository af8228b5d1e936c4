//! Readers of txs: by id, by key, by any hash; pages without loss; confirmations as lists of headers.

use std::collections::BTreeSet;
use std::sync::Arc;

use alloy_primitives::B256;
use domain::{
    Attempt, AttemptKind, ChainId, Header, Inclusion, LaneKey, SubState, Tx, TxId, TxState, Writes,
};
use engine::ports::{TxCursor, TxFilter, TxRecord};

use crate::Backend;
use crate::fixture::{AT, Fixture, Keeper, header, lane, node, request_id, updates};

pub async fn tx_is_found_by_id_by_key_and_by_any_hash(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (mut tx, original) = fixture.accept(&mut keeper, 1).await.remove(0);
    let bump = Attempt {
        kind: AttemptKind::Bump,
        ..fixture.sign(&mut tx)
    };
    let writes = Writes {
        updates: vec![tx.clone()],
        attempts: vec![bump.clone()],
        ..Writes::default()
    };
    fixture.apply(&mut keeper, writes).await;
    let record = Some(TxRecord {
        lane: lane(1),
        tx: tx.clone(),
        attempts: vec![original.clone(), bump.clone()],
        confirmations: vec![],
        lane_wait: None,
    });
    assert_eq!(fixture.store.tx(tx.id).await.expect("tx"), record);
    assert_eq!(
        fixture
            .store
            .tx_by_request(lane(1), &tx.request.request_id)
            .await
            .expect("tx"),
        record
    );
    for hash in [original.hash, bump.hash] {
        assert_eq!(fixture.store.tx_by_hash(hash).await.expect("tx"), record);
    }
}

pub async fn unknown_tx_is_not_found(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (tx, _) = fixture.accept(&mut keeper, 1).await.remove(0);
    assert_eq!(fixture.store.tx(fixture.tx_id()).await, Ok(None));
    assert_eq!(
        fixture.store.tx_by_hash(B256::repeat_byte(0x77)).await,
        Ok(None)
    );
    assert_eq!(
        fixture
            .store
            .tx_by_request(lane(1), &request_id("unknown"))
            .await,
        Ok(None)
    );
    assert_eq!(
        fixture
            .store
            .tx_by_request(lane(2), &tx.request.request_id)
            .await,
        Ok(None)
    );
}

pub async fn pages_skip_and_repeat_no_tx_during_inserts(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keepers = [
        fixture.keeper(&node("a"), lane(1)).await,
        fixture.keeper(&node("a"), lane(2)).await,
    ];
    let mut expected = Vec::new();
    for _ in 0..5 {
        for keeper in &mut keepers {
            expected.extend(
                fixture
                    .accept(keeper, 3)
                    .await
                    .into_iter()
                    .map(|(tx, _)| tx.id),
            );
        }
    }
    expected.reverse();
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let filter = TxFilter {
            after,
            limit: 7,
            ..TxFilter::default()
        };
        let page = fixture.store.txs(&filter).await.expect("txs");
        assert!(page.txs.len() <= 7);
        seen.extend(page.txs.iter().map(|record| record.tx.id));
        fixture.accept(&mut keepers[0], 1).await;
        let Some(next) = page.next else { break };
        after = Some(next);
    }
    assert_eq!(seen, expected, "newest first, each once");
}

pub async fn tx_list_is_filtered_by_chain_signer_and_state(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let elsewhere = LaneKey {
        chain_id: ChainId(5),
        ..lane(2)
    };
    for key in [lane(1), lane(2), elsewhere] {
        let mut keeper = fixture.keeper(&node("a"), key).await;
        let txs = fixture.accept(&mut keeper, 4).await;
        let done = Tx {
            state: TxState::Confirmed,
            ..txs[1].0.clone()
        };
        fixture.apply(&mut keeper, updates([done])).await;
    }
    let on = |chain_id, signer, state| TxFilter {
        chain_id,
        signer,
        state,
        after: None,
        limit: 3,
    };
    let chain = |id| Some(ChainId(id));
    let (here, signer) = (Some(lane(2).chain_id), Some(lane(2).signer));
    let cases = [
        (on(None, None, None), 12),
        (on(chain(5), None, None), 4),
        (on(None, signer, None), 8),
        (on(here, signer, None), 4),
        (on(None, None, Some(TxState::Confirmed)), 3),
        (on(here, signer, Some(TxState::Confirmed)), 1),
        (on(None, None, Some(TxState::Stuck)), 0),
        (on(chain(6), None, None), 0),
    ];
    for (filter, count) in cases {
        assert_eq!(
            list(&fixture, filter.clone()).await.len(),
            count,
            "{filter:?}"
        );
    }
}

pub async fn tx_list_includes_attempts_and_lanes(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (tx, attempt) = fixture.accept(&mut keeper, 1).await.remove(0);
    let page = fixture
        .store
        .txs(&TxFilter {
            limit: 5,
            ..TxFilter::default()
        })
        .await
        .expect("txs");
    let record = TxRecord {
        lane: lane(1),
        tx,
        attempts: vec![attempt],
        confirmations: vec![],
        lane_wait: None,
    };
    assert_eq!((page.txs, page.next), (vec![record], None));
}

pub async fn confirmations_are_the_headers_from_block_to_counted_header(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let below = header(9, 0, None);
    let block = header(10, 0, Some(&below));
    let above = header(11, 0, Some(&block));
    let fork = header(11, 1, Some(&block));
    let top = header(12, 1, Some(&fork));
    let (tx, _) = fixture.accept(&mut keeper, 1).await.remove(0);
    fixture
        .put_headers(lane(1), &[top, below, above, block, fork])
        .await;
    let walks: [(Option<Header>, Vec<Header>); 4] = [
        (None, vec![]),
        (Some(block), vec![block]),
        (Some(above), vec![block, above]),
        (Some(top), vec![block, fork, top]),
    ];
    for (counted, walk) in walks {
        let mined = mined(&tx, &block, counted.as_ref());
        fixture.apply(&mut keeper, updates([mined])).await;
        let record = fixture
            .store
            .tx(tx.id)
            .await
            .expect("tx")
            .expect("it is there");
        assert_eq!(record.confirmations, walk);
    }
}

pub async fn headers_belong_to_one_chain(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let elsewhere = LaneKey {
        chain_id: ChainId(5),
        ..lane(1)
    };
    let block = header(10, 0, None);
    let theirs = Header {
        timestamp: 99,
        ..block
    };
    for (key, block) in [(lane(1), block), (elsewhere, theirs)] {
        let mut keeper: Keeper = fixture.keeper(&node("a"), key).await;
        let (tx, _) = fixture.accept(&mut keeper, 1).await.remove(0);
        fixture.put_headers(key, &[block]).await;
        let mined = mined(&tx, &block, Some(&block));
        fixture.apply(&mut keeper, updates([mined])).await;
        let record = fixture
            .store
            .tx(tx.id)
            .await
            .expect("tx")
            .expect("it is there");
        assert_eq!(record.confirmations, [block]);
    }
}

pub async fn concurrent_put_headers_stores_each_header_once(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    fixture.put_headers(lane(1), &[]).await;
    let mut chain = vec![header(1, 0, None)];
    for number in 2..=40 {
        chain.push(header(number, 0, chain.last()));
    }
    let backwards: Vec<Header> = chain.iter().rev().copied().collect();
    // Several nodes find the same blocks at the same time, each in its own order.
    let puts = [&chain, &backwards, &chain, &backwards].map(|headers| {
        let (store, headers) = (Arc::clone(&fixture.store), headers.clone());
        tokio::spawn(async move { store.put_headers(lane(1).chain_id, &headers).await })
    });
    for put in puts {
        put.await.expect("no panic").expect("put_headers");
    }
    let other = Header {
        timestamp: 7,
        ..chain[0]
    };
    fixture.put_headers(lane(1), &[other, chain[0]]).await;
    let (tx, _) = fixture.accept(&mut keeper, 1).await.remove(0);
    let mined = mined(&tx, &chain[0], chain.last());
    fixture.apply(&mut keeper, updates([mined])).await;
    let record = fixture
        .store
        .tx(tx.id)
        .await
        .expect("tx")
        .expect("it is there");
    assert_eq!(record.confirmations, chain, "known headers stay unchanged");
}

pub(crate) fn mined(tx: &Tx, block: &Header, counted: Option<&Header>) -> Tx {
    let inclusion = Inclusion {
        tx_hash: tx.tx_hash.expect("it was signed"),
        block_number: block.number,
        block_hash: block.hash,
        succeeded: true,
        gas_used: 21_000,
        effective_gas_price: 7,
        contract_address: None,
        revert_reason: None,
    };
    let mut tx = tx.clone();
    tx.transition(TxState::Tracking, SubState::Mined, AT);
    Tx {
        inclusion: Some(inclusion),
        counted: counted.map(|header| header.hash),
        ..tx
    }
}

/// Reads all pages; in a list of all lanes the txs must come newest first.
async fn list(fixture: &Fixture, mut filter: TxFilter) -> Vec<TxId> {
    let mut seen: Vec<TxId> = Vec::new();
    loop {
        let page = fixture.store.txs(&filter).await.expect("txs");
        seen.extend(page.txs.iter().map(|record| record.tx.id));
        let Some(next) = page.next else { break };
        if let (TxCursor::After(next), Some(TxCursor::After(after))) = (next, filter.after) {
            assert!(next < after, "pages go on towards older txs");
        }
        filter.after = Some(next);
    }
    if !filter.is_by_lane() {
        assert!(
            seen.windows(2).all(|pair| pair[0] > pair[1]),
            "newest first, each once"
        );
    }
    let distinct: BTreeSet<TxId> = seen.iter().copied().collect();
    assert_eq!(distinct.len(), seen.len(), "each once");
    seen
}
