//! EVM nodes of every kind: start, control, restart and cleanup.
#![expect(
    clippy::unwrap_used,
    reason = "clippy does not recognize test helpers as tests"
)]

mod support;

use std::thread;
use std::time::Duration;

use alloy_primitives::{Address, B256, U256};
use rig::evm::{CHAIN_ID, EvmNode, Kind, Mining, Options, account};
use serde_json::json;
use support::{BOB, transfer};

/// Longer than mining a block or stopping a process takes.
const WITHIN: Duration = Duration::from_secs(20);

/// In parallel: the kinds are independent.
fn each(test: fn(Kind)) {
    thread::scope(|scope| {
        for kind in Kind::ALL {
            let thread = thread::Builder::new().name(kind.name().to_owned());
            thread.spawn_scoped(scope, move || test(kind)).unwrap();
        }
    });
}

fn alice() -> Address {
    account(0).0
}

/// Sends a wei to Bob, `ahead` nonces above the next.
fn send(node: &EvmNode, ahead: u64) -> B256 {
    let (hash, raw) = transfer(node.nonce_of(alice()) + ahead, 1);
    assert_eq!(node.send_raw(&raw), Ok(hash), "{:?}", node.kind());
    hash
}

fn sorted(mut hashes: Vec<B256>) -> Vec<B256> {
    hashes.sort_unstable();
    hashes
}

#[test]
fn every_kind_has_chains_of_another_id_and_of_older_rules() {
    each(|kind| {
        let options = Options {
            chain_id: CHAIN_ID + 1,
            hardfork: Some("berlin"),
            ..Options::default()
        };
        let node = EvmNode::start(kind, options);
        let id = node.rpc().call("eth_chainId", json!([]));
        assert_eq!(id, json!(format!("{:#x}", CHAIN_ID + 1)), "{kind:?}");
        let params = json!(["latest", false]);
        let newest = node.rpc().call("eth_getBlockByNumber", params);
        assert!(newest["baseFeePerGas"].is_null(), "{kind:?}: {newest}");
    });
}

#[test]
fn every_kind_has_the_same_chain_and_accounts() {
    each(|kind| {
        let options = Options {
            accounts: 3,
            block_gas_limit: 12_000_000,
            ..Options::default()
        };
        let node = EvmNode::start(kind, options);
        let id = node.rpc().call("eth_chainId", json!([]));
        assert_eq!(id, json!(format!("{CHAIN_ID:#x}")), "{kind:?}");
        let coins = U256::from(10_000) * U256::from(10).pow(U256::from(18));
        assert_eq!(node.balance_of(account(2).0), coins, "{kind:?}");
        assert_eq!(node.balance_of(account(3).0), U256::ZERO, "{kind:?}");
        let params = json!(["latest", false]);
        let newest = node.rpc().call("eth_getBlockByNumber", params);
        assert_eq!(newest["gasLimit"], json!("0xb71b00"), "{kind:?}");

        let nonce = node.nonce_of(alice());
        let hash = send(&node, 0);
        rig::wait_until("it is mined", WITHIN, || node.receipt(hash));
        let block = node.block(node.height()).unwrap();
        assert_eq!(block.transactions[0].hash, hash);
        assert_eq!(block.transactions[0].from, alice());
        assert_eq!(block.transactions[0].to, Some(BOB));
        let below = node.block(block.number - 1).unwrap();
        assert_eq!(block.parent_hash, below.hash);
        assert_eq!(node.block(block.number + 1), None);
        assert_eq!(node.nonce_of(alice()), nonce + 1);

        let foreign = json!({ "from": account(1).0, "to": BOB, "value": "0x2" });
        let hash = node.send(foreign).unwrap();
        rig::wait_until("it is mined", WITHIN, || node.receipt(hash));
        assert_eq!(node.balance_of(BOB), U256::from(3), "{kind:?}");
        node.set_nonce(account(1).0, 7);
        assert_eq!(node.nonce_of(account(1).0), 7);
        node.set_balance(BOB, U256::from(5));
        assert_eq!(node.balance_of(BOB), U256::from(5));
    });
}

#[test]
fn manual_mining_keeps_the_pool_until_mine_is_called() {
    each(|kind| {
        let node = EvmNode::manual(kind);
        let (height, nonce) = (node.height(), node.nonce_of(alice()));
        let sent: Vec<B256> = (0..3).map(|ahead| send(&node, ahead)).collect();
        assert_eq!(node.height(), height, "{kind:?}");
        let pending = if kind.counts_pending() { 3 } else { 0 };
        let counted = node.pending_nonce_of(alice()) - nonce;
        assert_eq!(counted, pending, "{kind:?}");
        assert_eq!(sorted(node.pool()), sorted(sent.clone()), "{kind:?}");
        if kind.drops_transactions() {
            node.drop_transaction(sent[2]);
            assert_eq!(node.pool().len(), 2, "{kind:?}");
        }
        node.mine(1);
        assert_eq!(node.height(), height + 1, "{kind:?}");
        assert!(node.receipt(sent[1]).is_some(), "{kind:?}");
        assert_eq!(node.receipt(sent[2]).is_none(), kind.drops_transactions());

        node.set_mining(Mining::Instant);
        let last = send(&node, 0);
        rig::wait_until("it is mined", WITHIN, || node.receipt(last));
    });
}

#[test]
fn periodic_mining_produces_blocks() {
    each(|kind| {
        let node = EvmNode::every(kind, Duration::from_secs(1));
        let from = node.height();
        rig::wait_until("two blocks", WITHIN, || {
            (node.height() >= from + 2).then_some(())
        });
    });
}

#[test]
fn restart_loses_the_pool_and_keeps_blocks_if_supported() {
    each(|kind| {
        let node = EvmNode::manual(kind);
        let (before, nonce) = (node.height(), node.nonce_of(alice()));
        let mined = send(&node, 0);
        node.mine(2);
        let block = node.block(before + 1);
        send(&node, 0);
        node.restart();
        assert!(node.pool().is_empty(), "{kind:?}");
        if kind.keeps_blocks() {
            assert_eq!(node.height(), before + 2, "{kind:?}");
            assert_eq!(node.block(before + 1), block, "{kind:?}");
            assert!(node.receipt(mined).is_some(), "{kind:?}");
            assert_eq!(node.nonce_of(alice()), nonce + 1, "{kind:?}");
            let params = json!([alice(), format!("{before:#x}")]);
            let past = node.rpc().call("eth_getTransactionCount", params);
            assert_eq!(past, json!(format!("{nonce:#x}")), "{kind:?}: the past");
        } else {
            assert_eq!(node.height(), 0, "{kind:?}");
        }
        send(&node, 0);
        node.kill();
        assert!(node.rpc().try_call("eth_chainId", json!([])).is_err());
        node.start_again();
    });
}

#[test]
fn fork_replaces_blocks() {
    each(|kind| {
        let node = EvmNode::manual(kind);
        node.mine(2);
        let ancestor = node.height();
        let (first, raw) = transfer(node.nonce_of(alice()), 1);
        node.snapshot();
        node.send_raw(&raw).unwrap();
        node.mine(1);
        let second = send(&node, 0);
        node.mine(2);
        let blocks = || -> Vec<_> {
            let numbers = ancestor..=ancestor + 3;
            numbers.map(|number| node.block(number).unwrap()).collect()
        };
        let before = blocks();
        node.reorg_with(3, &[(raw, 1)]);
        let after = blocks();
        assert_eq!(node.height(), ancestor + 3, "{kind:?}");
        assert_eq!(before[0], after[0], "{kind:?}");
        for (old, new) in before.iter().zip(&after).skip(1) {
            assert_ne!(old.hash, new.hash, "{kind:?} at {}", old.number);
        }
        assert!(
            after
                .windows(2)
                .all(|pair| pair[1].parent_hash == pair[0].hash)
        );
        assert_eq!(after[2].transactions[0].hash, first, "{kind:?}");
        assert!(node.receipt(second).is_none(), "{kind:?}");
    });
}

#[test]
fn dropped_node_leaves_nothing() {
    each(|kind| {
        let node = EvmNode::instant(kind);
        let (rpc, port) = (node.rpc().clone(), node.port());
        drop(node);
        assert!(rpc.try_call("eth_chainId", json!([])).is_err(), "{kind:?}");
        std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    });
}
