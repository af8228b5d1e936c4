//! Readers of txs: by id, by key, by any hash; pages without loss; confirmations as a walk.

use std::sync::Arc;

use alloy_primitives::B256;
use domain::{
    Attempt, AttemptKind, ChainId, Header, Inclusion, LaneKey, SubState, Tx, TxId, TxState, Writes,
};
use engine::ports::{TxFilter, TxRecord};

use super::Backend;
use super::kit::{AT, Keeper, Kit, header, lane, node, request_id, updates};

pub async fn a_tx_is_found_by_id_by_key_and_by_any_hash(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (mut tx, original) = kit.accept(&mut keeper, 1).await.remove(0);
    let bump = Attempt {
        kind: AttemptKind::Bump,
        ..kit.sign(&mut tx)
    };
    let writes = Writes {
        updates: vec![tx.clone()],
        attempts: vec![bump.clone()],
        ..Writes::default()
    };
    kit.apply(&mut keeper, writes).await;
    let record = Some(TxRecord {
        lane: lane(1),
        tx: tx.clone(),
        attempts: vec![original.clone(), bump.clone()],
        confirmations: vec![],
    });
    assert_eq!(kit.store.tx(tx.id).await.expect("tx"), record);
    assert_eq!(
        kit.store
            .tx_by_request(lane(1), &tx.request_id)
            .await
            .expect("tx"),
        record
    );
    for hash in [original.hash, bump.hash] {
        assert_eq!(kit.store.tx_by_hash(hash).await.expect("tx"), record);
    }
}

pub async fn what_nobody_stored_is_not_found(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (tx, _) = kit.accept(&mut keeper, 1).await.remove(0);
    assert_eq!(kit.store.tx(kit.tx_id()).await, Ok(None));
    assert_eq!(
        kit.store.tx_by_hash(B256::repeat_byte(0x77)).await,
        Ok(None)
    );
    assert_eq!(
        kit.store
            .tx_by_request(lane(1), &request_id("unknown"))
            .await,
        Ok(None)
    );
    assert_eq!(
        kit.store.tx_by_request(lane(2), &tx.request_id).await,
        Ok(None)
    );
}

pub async fn pages_lose_and_repeat_nothing_while_txs_come_in(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keepers = [
        kit.keeper(&node("a"), lane(1)).await,
        kit.keeper(&node("a"), lane(2)).await,
    ];
    let mut expected = Vec::new();
    for _ in 0..5 {
        for keeper in &mut keepers {
            expected.extend(kit.accept(keeper, 3).await.into_iter().map(|(tx, _)| tx.id));
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
        let page = kit.store.txs(&filter).await.expect("txs");
        assert!(page.txs.len() <= 7);
        seen.extend(page.txs.iter().map(|record| record.tx.id));
        kit.accept(&mut keepers[0], 1).await;
        let Some(next) = page.next else { break };
        after = Some(next);
    }
    assert_eq!(seen, expected, "newest first, each once");
}

pub async fn lists_are_filtered_by_chain_signer_and_state(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let elsewhere = LaneKey {
        chain_id: ChainId(5),
        ..lane(2)
    };
    for key in [lane(1), lane(2), elsewhere] {
        let mut keeper = kit.keeper(&node("a"), key).await;
        let txs = kit.accept(&mut keeper, 4).await;
        let done = Tx {
            state: TxState::Confirmed,
            ..txs[1].0.clone()
        };
        kit.apply(&mut keeper, updates([done])).await;
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
        assert_eq!(list(&kit, filter.clone()).await.len(), count, "{filter:?}");
    }
}

pub async fn a_list_carries_attempts_and_lanes(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (tx, attempt) = kit.accept(&mut keeper, 1).await.remove(0);
    let page = kit
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
    };
    assert_eq!((page.txs, page.next), (vec![record], None));
}

pub async fn confirmations_are_the_walk_from_the_counted_header_to_the_block(
    backend: &dyn Backend,
) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let below = header(9, 0, None);
    let block = header(10, 0, Some(&below));
    let above = header(11, 0, Some(&block));
    let fork = header(11, 1, Some(&block));
    let top = header(12, 1, Some(&fork));
    let (tx, _) = kit.accept(&mut keeper, 1).await.remove(0);
    kit.put_headers(lane(1), &[top, below, above, block, fork])
        .await;
    let walks: [(Option<Header>, Vec<Header>); 4] = [
        (None, vec![]),
        (Some(block), vec![block]),
        (Some(above), vec![block, above]),
        (Some(top), vec![block, fork, top]),
    ];
    for (counted, walk) in walks {
        let mined = mined(&tx, &block, counted.as_ref());
        kit.apply(&mut keeper, updates([mined])).await;
        let record = kit.store.tx(tx.id).await.expect("tx").expect("it is there");
        assert_eq!(record.confirmations, walk);
    }
}

pub async fn headers_of_one_chain_are_not_those_of_another(backend: &dyn Backend) {
    let kit = Kit::new(backend);
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
        let mut keeper: Keeper = kit.keeper(&node("a"), key).await;
        let (tx, _) = kit.accept(&mut keeper, 1).await.remove(0);
        kit.put_headers(key, &[block]).await;
        let mined = mined(&tx, &block, Some(&block));
        kit.apply(&mut keeper, updates([mined])).await;
        let record = kit.store.tx(tx.id).await.expect("tx").expect("it is there");
        assert_eq!(record.confirmations, [block]);
    }
}

pub async fn headers_are_remembered_once_whoever_brings_them(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    kit.put_headers(lane(1), &[]).await;
    let mut chain = vec![header(1, 0, None)];
    for number in 2..=40 {
        chain.push(header(number, 0, chain.last()));
    }
    let backwards: Vec<Header> = chain.iter().rev().copied().collect();
    // Several nodes find the same blocks in the same second, each in its own order.
    let puts = [&chain, &backwards, &chain, &backwards].map(|headers| {
        let (store, headers) = (Arc::clone(&kit.store), headers.clone());
        tokio::spawn(async move { store.put_headers(lane(1).chain_id, &headers).await })
    });
    for put in puts {
        put.await.expect("no panic").expect("put_headers");
    }
    let other = Header {
        timestamp: 7,
        ..chain[0]
    };
    kit.put_headers(lane(1), &[other, chain[0]]).await;
    let (tx, _) = kit.accept(&mut keeper, 1).await.remove(0);
    let mined = mined(&tx, &chain[0], chain.last());
    kit.apply(&mut keeper, updates([mined])).await;
    let record = kit.store.tx(tx.id).await.expect("tx").expect("it is there");
    assert_eq!(record.confirmations, chain, "known ones stay as they are");
}

fn mined(tx: &Tx, block: &Header, counted: Option<&Header>) -> Tx {
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

/// Reads all pages; their txs must come newest first.
async fn list(kit: &Kit, mut filter: TxFilter) -> Vec<TxId> {
    let mut seen: Vec<TxId> = Vec::new();
    loop {
        let page = kit.store.txs(&filter).await.expect("txs");
        seen.extend(page.txs.iter().map(|record| record.tx.id));
        let Some(next) = page.next else { break };
        assert!(
            filter.after.is_none_or(|after| next < after),
            "pages go on towards older txs"
        );
        filter.after = Some(next);
    }
    assert!(
        seen.windows(2).all(|pair| pair[0] > pair[1]),
        "newest first, each once"
    );
    seen
}
