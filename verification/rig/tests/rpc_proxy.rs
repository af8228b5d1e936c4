//! The proxy in front of a real node: injected faults, and transparency otherwise.
#![expect(
    clippy::unwrap_used,
    reason = "clippy does not recognize test helpers as tests"
)]

mod support;

use std::time::{Duration, Instant};

use alloy_primitives::B256;
use rig::evm::{CHAIN_ID, EvmNode, Kind, Rpc, RpcError, account};
use rig::proxy::AfterLoss;
use rig::rpc_proxy::{CallFilter, Fault, Lie, OutageKind, RpcProxy, Rule, View};
use serde_json::{Value, json};

const SEND: &str = "eth_sendRawTransaction";

/// An anvil that mines on command, a proxy in front of it, and both addresses.
struct World {
    node: EvmNode,
    proxy: RpcProxy,
    rpc: Rpc,
}

impl World {
    fn start() -> Self {
        let node = EvmNode::manual(Kind::Anvil);
        let proxy = RpcProxy::in_front_of(node.url(), 1);
        let rpc = Rpc::at(proxy.url());
        Self { node, proxy, rpc }
    }

    fn call(&self, method: &str, params: Value) -> Result<Value, RpcError> {
        self.rpc.try_call(method, params)
    }

    fn number(&self, method: &str, params: Value) -> u64 {
        let answer = self.rpc.call(method, params);
        let digits = answer.as_str().and_then(|text| text.strip_prefix("0x"));
        u64::from_str_radix(digits.unwrap(), 16).unwrap()
    }
}

/// A signed transfer of one wei: the hash, and the bytes in JSON-RPC's notation.
fn transfer(nonce: u64) -> (B256, String) {
    let (hash, raw) = support::transfer(nonce, 1);
    (hash, raw.to_string())
}

#[test]
fn every_call_of_a_batch_is_counted() {
    let world = World::start();
    let answers = world.rpc.try_batch(
        "eth_getBlockByNumber",
        &[json!(["0x0", false]), json!(["0x9", false])],
    );
    let answers = answers.unwrap();
    assert_eq!(answers[0].as_ref().unwrap()["number"], json!("0x0"));
    assert_eq!(answers[1], Ok(Value::Null));
    world.rpc.call("eth_chainId", json!([]));
    assert_eq!(world.proxy.calls_of("eth_getBlockByNumber"), 2);
    assert_eq!(world.proxy.calls().len(), 2);
    assert_eq!(world.proxy.requests(), 2);
    world.proxy.reset_counts();
    assert_eq!(world.proxy.requests(), 0);
    let refused = world.call("no_suchMethod", json!([])).unwrap_err();
    assert!(matches!(refused, RpcError::Refused { .. }), "{refused}");
}

#[test]
fn lost_response_hides_a_send_and_lost_request_prevents_it() {
    let world = World::start();
    let lose = |fault| Rule::new(CallFilter::sends(), fault).times(1);
    world.proxy.add(lose(Fault::LoseAnswer(AfterLoss::Cut)));
    world.proxy.add(lose(Fault::LoseRequest(AfterLoss::Cut)));
    let (first, second) = (transfer(0), transfer(1));
    assert!(matches!(
        world.call(SEND, json!([first.1])),
        Err(RpcError::NoAnswer(_))
    ));
    assert_eq!(world.node.pool(), [first.0]);
    assert!(matches!(
        world.call(SEND, json!([second.1])),
        Err(RpcError::NoAnswer(_))
    ));
    assert_eq!(world.node.pool(), [first.0]);
    assert_eq!(world.call(SEND, json!([second.1])), Ok(json!(second.0)));
    assert_eq!((world.proxy.faults(), world.proxy.calls_of(SEND)), (2, 3));
}

#[test]
fn faults_apply_to_single_transactions_of_a_batch() {
    let world = World::start();
    let txs: Vec<_> = (0..4).map(transfer).collect();
    let error = Fault::error("rejected by rule");
    world
        .proxy
        .add(Rule::new(CallFilter::sends().with_nonce(1), error));
    world.proxy.add(Rule::new(
        CallFilter::sends().with_tx(txs[2].0),
        Fault::Pretend,
    ));
    let after = Fault::ErrorAfter {
        code: -32_603,
        message: "internal".to_owned(),
    };
    world
        .proxy
        .add(Rule::new(CallFilter::sends().with_nonce(3), after));
    let params: Vec<Value> = txs.iter().map(|(_, raw)| json!([raw])).collect();
    let answers = world.rpc.try_batch(SEND, &params).unwrap();
    assert_eq!(answers[0], Ok(json!(txs[0].0)));
    let message_of = |answer: &Result<Value, RpcError>| answer.as_ref().unwrap_err().to_string();
    assert_eq!(message_of(&answers[1]), "rejected by rule (-32000)");
    assert_eq!(answers[2], Ok(json!(txs[2].0)), "a lie");
    assert_eq!(message_of(&answers[3]), "internal (-32603)");
    let mut pool = world.node.pool();
    pool.sort_unstable();
    let mut expected = [txs[0].0, txs[3].0];
    expected.sort_unstable();
    assert_eq!(pool, expected);
}

#[test]
fn busy_slow_and_down_endpoints_differ() {
    let world = World::start();
    let client = |path: &str| {
        let answer = world.call("eth_chainId", json!([]));
        answer.map_err(|error| format!("{path}: {error}"))
    };
    let rule = world
        .proxy
        .add(Rule::new(CallFilter::all(), Fault::throttle(Some(3))));
    assert!(client("throttled").unwrap_err().contains("429"));
    world.proxy.remove(rule);
    let broken = Fault::Status {
        code: 502,
        retry_after: None,
    };
    world
        .proxy
        .add(Rule::new(CallFilter::all(), broken).times(1));
    assert!(client("broken").unwrap_err().contains("502"));

    let delay = Duration::from_millis(150);
    world
        .proxy
        .add(Rule::new(CallFilter::all(), Fault::Delay(delay)).times(1));
    let started = Instant::now();
    client("slow").unwrap();
    assert!(started.elapsed() >= delay);

    for death in [OutageKind::Refuses, OutageKind::Resets] {
        world.proxy.take_down(death);
        client("dead").unwrap_err();
        world.proxy.heal();
        client("healed").unwrap();
    }
    world.proxy.claim_chain_id(5);
    assert_eq!(world.number("eth_chainId", json!([])), 5);
    world.proxy.heal();
    assert_eq!(world.number("eth_chainId", json!([])), CHAIN_ID);
}

#[test]
fn lagging_view_hides_newer_blocks() {
    let world = World::start();
    let from = account(0).0;
    let (hash, raw) = transfer(0);
    world.node.mine(3);
    world.call(SEND, json!([raw])).unwrap();
    world.node.mine(3); // it is in block 4
    world.proxy.show(View::Behind(3));
    assert_eq!(world.number("eth_blockNumber", json!([])), 3);
    let newest = world
        .rpc
        .call("eth_getBlockByNumber", json!(["latest", false]));
    assert_eq!(newest["number"], json!("0x3"));
    let above = json!(["0x4", false]);
    assert_eq!(world.rpc.call("eth_getBlockByNumber", above), Value::Null);
    assert_eq!(
        world.number("eth_getTransactionCount", json!([from, "latest"])),
        0
    );
    assert_eq!(
        world.rpc.call("eth_getTransactionReceipt", json!([hash])),
        Value::Null
    );
    let tx = world.rpc.call("eth_getTransactionByHash", json!([hash]));
    assert_eq!(tx["blockNumber"], Value::Null);
    let block = world.node.block(4).unwrap().hash;
    assert_eq!(
        world.rpc.call("eth_getBlockReceipts", json!([block])),
        Value::Null
    );
    assert_eq!(
        world.rpc.call("eth_getBlockByHash", json!([block, false])),
        Value::Null
    );

    world.node.mine(1);
    assert_eq!(world.number("eth_blockNumber", json!([])), 4, "it moves on");
    assert_eq!(
        world.number("eth_getTransactionCount", json!([from, "latest"])),
        1
    );
    world.proxy.show(View::Until(2));
    world.node.mine(1);
    assert_eq!(
        world.number("eth_blockNumber", json!([])),
        2,
        "it stands still"
    );
    world.proxy.show(View::Live);
    assert_eq!(world.number("eth_blockNumber", json!([])), 8);
}

#[test]
fn receipts_are_hidden_and_shown_again() {
    let world = World::start();
    let (txs, sends): (Vec<B256>, Vec<String>) = (0..2).map(transfer).unzip();
    for raw in sends {
        world.call(SEND, json!([raw])).unwrap();
    }
    world.node.mine(1);
    let block = world.node.block(1).unwrap().hash;
    let seen = || {
        let list = world.rpc.call("eth_getBlockReceipts", json!([block]));
        let single = txs.iter().filter(|hash| {
            let receipt = world.rpc.call("eth_getTransactionReceipt", json!([hash]));
            !receipt.is_null()
        });
        (list.as_array().unwrap().len(), single.count())
    };
    assert_eq!(seen(), (2, 2));
    world.proxy.hide_receipts([txs[0]]);
    assert_eq!(seen(), (1, 1));
    world.proxy.hide_all_receipts();
    assert_eq!(seen(), (0, 0));
    world.proxy.show_receipts();
    assert_eq!(seen(), (2, 2));
}

#[test]
fn lies_change_answers_until_they_are_healed() {
    let world = World::start();
    let nonce = || world.number("eth_getTransactionCount", json!([account(0).0, "latest"]));
    let base_fee = || {
        let block = world
            .rpc
            .call("eth_getBlockByNumber", json!(["0x0", false]));
        let digits = block["baseFeePerGas"].as_str().unwrap()[2..].to_owned();
        u64::from_str_radix(&digits, 16).unwrap()
    };
    let (real_nonce, real_fee) = (nonce(), base_fee());
    for lie in [Lie::NonceAhead(5), Lie::FeesTimes(1_000)] {
        for method in lie.methods() {
            world
                .proxy
                .add(Rule::new(CallFilter::of(method), Fault::Lie(lie)));
        }
    }
    assert_eq!(nonce(), real_nonce + 5);
    assert_eq!(base_fee(), real_fee * 1_000);
    assert_eq!(world.proxy.faults(), 2);
    let refused = world.call("eth_getTransactionCount", json!(["nonsense", "latest"]));
    assert!(
        matches!(refused, Err(RpcError::Refused { .. })),
        "{refused:?}"
    );
    world.proxy.heal();
    assert_eq!((nonce(), base_fee()), (real_nonce, real_fee));
}
