//! What is refused before it reaches a lane, and what a full lane does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::{Bytes, ChainId, GrantId, Nonce, RequestId, TxType};
use engine::node::{NewTx, NodeConfig, Refusal, Simulate};
use engine::ports::{CallError, Store as _};
use sim::chain::MemoryChain;
use sim::network::LinkFaults;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::support::{CHAIN, Cluster, CommitScript, TestNode, account, lane, transfer};

#[tokio::test(start_paused = true)]
async fn unknown_chain_and_signer_are_refused() {
    let test_node = Cluster::new().start("a").await;
    let handle = test_node.node.handle();
    let mut other_chain = transfer(1, "r1");
    other_chain.lane.chain_id = ChainId(1);
    let refused = handle.create(other_chain).await;
    assert_eq!(refused, Err(Refusal::UnknownChain(ChainId(1))));
    let refused = handle.create(transfer(99, "r2")).await;
    assert_eq!(refused, Err(Refusal::UnknownSigner(CHAIN, account(99))));
    assert_eq!(
        test_node.script.take_calls(),
        [""; 0],
        "no lane was acquired"
    );
}

#[tokio::test(start_paused = true)]
async fn admission_rules_of_the_chain_are_applied() {
    let cluster = Cluster::new();
    let test_node = cluster
        .start_with("a", |config| {
            let rules = config.chains.get_mut(&CHAIN).unwrap();
            rules.lane.fee.legacy = true;
            rules.lane.fee.cap = Some(100);
        })
        .await;
    let handle = test_node.node.handle();
    let mut typed = transfer(1, "typed");
    typed.payload.tx_type = Some(TxType::Eip1559);
    let mut expensive = transfer(1, "expensive");
    expensive.payload.gas_price = Some(101);
    let refused = handle.create(typed).await;
    assert!(
        matches!(&refused, Err(Refusal::TypeNotSupported(why)) if why.contains("legacy")),
        "{refused:?}"
    );
    let refused = handle.create(expensive).await;
    assert!(
        matches!(&refused, Err(Refusal::BadPayload(why)) if why.contains("cap of chain 31337")),
        "{refused:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn call_that_reverts_is_refused_before_a_nonce_is_allocated() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    let mut reverting = transfer(1, "reverting");
    reverting.payload.gas = None;
    reverting.payload.value = domain::U256::ZERO;
    reverting.payload.data = Bytes::copy_from_slice(&sim::chain::REVERTS);
    let refused = test_node.node.handle().create(reverting).await;
    assert!(matches!(refused, Err(Refusal::Reverted(_))), "{refused:?}");
    let next = test_node.node.handle().create(transfer(1, "next")).await;
    assert_eq!(next.unwrap().record.tx.nonce, Some(Nonce(1)));
}

#[tokio::test(start_paused = true)]
async fn simulation_covers_requests_with_gas_only_where_it_is_configured() {
    let reverting = |id: &str| {
        let mut request = transfer(1, id);
        request.payload.value = domain::U256::ZERO;
        request.payload.data = Bytes::copy_from_slice(&sim::chain::REVERTS);
        request.payload.gas = Some(100_000);
        request
    };
    let cluster = Cluster::new();
    let auto = cluster.start_warm("a").await;
    let accepted = auto.node.handle().create(reverting("auto")).await;
    assert!(accepted.is_ok(), "{accepted:?}");

    let cluster = Cluster::new();
    let always = |config: &mut NodeConfig| config.simulate = Simulate::Always;
    let always = cluster.start_with("a", always).await;
    let handle = always.node.handle();
    let refused = handle.create(reverting("always")).await;
    assert!(matches!(refused, Err(Refusal::Reverted(_))), "{refused:?}");
    let mut short = transfer(1, "short");
    short.payload.gas = Some(20_999);
    let refused = handle.create(short).await;
    assert!(matches!(refused, Err(Refusal::GasTooLow(_))), "{refused:?}");
    assert!(handle.create(transfer(1, "fine")).await.is_ok());

    let cluster = Cluster::new();
    let never = |config: &mut NodeConfig| config.simulate = Simulate::Never;
    let never = cluster.start_with("a", never).await;
    let mut without_gas = transfer(1, "without-gas");
    without_gas.payload.gas = None;
    let refused = never.node.handle().create(without_gas).await;
    assert!(
        matches!(refused, Err(Refusal::BadPayload(_))),
        "{refused:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn estimated_gas_carries_the_configured_margin() {
    let cluster = Cluster::with_chain(MemoryChain::new(CHAIN));
    let test_node = cluster.start_warm("a").await;
    let mut call = transfer(1, "call");
    call.payload.gas = None;
    call.payload.value = domain::U256::ZERO;
    call.payload.data = Bytes::from(vec![1; 100]);
    let estimate = call.payload.intrinsic_gas();
    let accepted = test_node.node.handle().create(call).await.unwrap();
    assert_eq!(accepted.record.tx.request.gas, estimate * 120 / 100);
}

#[tokio::test(start_paused = true)]
async fn batch_keeps_its_order_while_gas_is_estimated() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    // Each estimate takes its own time.
    test_node.chain.set_links(LinkFaults::healthy(500));
    let requests = (0..40).map(|n| {
        let mut request = transfer(1, &format!("r{n}"));
        if n % 3 != 2 {
            request.payload.gas = None;
        }
        request
    });
    let answers = test_node
        .node
        .handle()
        .create_many(requests.collect())
        .await;
    let nonces: Vec<Nonce> = answers
        .into_iter()
        .map(|answer| answer.unwrap().record.tx.nonce.unwrap())
        .collect();
    assert_eq!(nonces, (1..=40).map(Nonce).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn first_of_equal_request_ids_in_a_batch_wins() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    test_node.chain.set_links(LinkFaults::healthy(500));
    let mut first = transfer(1, "same");
    first.payload.gas = None;
    let mut other_payload = transfer(1, "same");
    other_payload.payload.value += domain::U256::ONE;
    let batch = vec![first.clone(), other_payload, transfer(2, "same"), first];
    let answers = test_node.node.handle().create_many(batch).await;
    let [made, reused, other_lane, repeat] = answers.try_into().unwrap();
    let made = made.unwrap();
    assert!(made.is_new && other_lane.unwrap().is_new);
    assert!(matches!(reused, Err(Refusal::KeyReused(_))), "{reused:?}");
    let repeat = repeat.unwrap();
    assert!(!repeat.is_new);
    assert_eq!(repeat.record.tx.id, made.record.tx.id);
}

/// Mines and creates requests until one is refused; the chain and the node's view of it change meanwhile.
async fn refusal_of(cluster: &Cluster, test_node: &TestNode, request: &NewTx) -> Refusal {
    for number in 0..100 {
        cluster.chain.mine();
        crate::support::sleep(Duration::from_millis(500)).await;
        let mut fresh = request.clone();
        fresh.request_id = RequestId::parse(format!("fresh-{number}")).unwrap();
        if let Err(refusal) = test_node.node.handle().create(fresh).await {
            return refusal;
        }
    }
    panic!("every request was accepted");
}

#[tokio::test(start_paused = true)]
async fn known_request_gets_its_tx_whatever_is_refused_now() {
    const GWEI: u128 = 1_000_000_000;
    let cluster = Cluster::new();
    let first = cluster.start_warm("a").await;
    let mut request = transfer(1, "known");
    request.payload.max_fee_per_gas = Some(3 * GWEI / 2);
    let made = first.node.handle().create(request.clone()).await.unwrap();
    assert!(made.is_new);

    cluster.chain.set_fees(50 * GWEI, GWEI);
    let refused = refusal_of(&cluster, &first, &request).await;
    assert!(matches!(refused, Refusal::FeeBelowFloor(_)), "{refused:?}");
    let repeat = first.node.handle().create(request.clone()).await.unwrap();
    assert_eq!(
        (repeat.record.tx.id, repeat.is_new),
        (made.record.tx.id, false)
    );

    let tx_gas_cap = |config: &mut NodeConfig| {
        config.chains.get_mut(&CHAIN).unwrap().tx_gas_cap = Some(20_000);
    };
    let second = cluster.start_with("b", tx_gas_cap).await;
    let refused = refusal_of(&cluster, &second, &transfer(1, "other")).await;
    assert!(matches!(refused, Refusal::GasAboveLimit(_)), "{refused:?}");
    let repeat = second.node.handle().create(request.clone()).await.unwrap();
    assert_eq!(
        (repeat.record.tx.id, repeat.is_new),
        (made.record.tx.id, false)
    );
    request.payload.value += domain::U256::ONE;
    let reused = second.node.handle().create(request).await;
    assert!(matches!(reused, Err(Refusal::KeyReused(_))), "{reused:?}");
}

/// Nothing is known of this chain yet, and the least gas of any chain is.
#[tokio::test(start_paused = true)]
async fn gas_below_a_transfer_is_refused_without_a_view_of_the_chain() {
    let cluster = Cluster::new();
    cluster.chain.set_down(0, true);
    let test_node = cluster.start("a").await;
    let mut short = transfer(1, "short");
    short.payload.gas = Some(20_999);
    let refused = test_node.node.handle().create(short).await;
    assert!(matches!(refused, Err(Refusal::GasTooLow(_))), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn configured_limits_hold_without_a_view_of_the_chain() {
    let cluster = Cluster::new();
    cluster.chain.set_down(0, true);
    let limited = |config: &mut NodeConfig| {
        let rules = config.chains.get_mut(&CHAIN).unwrap();
        rules.tx_gas_cap = Some(100_000);
        rules.lane.fee.floor = 10;
    };
    let test_node = cluster.start_with("a", limited).await;
    let handle = test_node.node.handle();
    let mut large = transfer(1, "large");
    large.payload.gas = Some(100_001);
    let refused = handle.create(large).await;
    assert!(
        matches!(refused, Err(Refusal::GasAboveLimit(_))),
        "{refused:?}"
    );
    let mut cheap = transfer(1, "cheap");
    cheap.payload.max_fee_per_gas = Some(9);
    let mut low_tip = transfer(1, "low-tip");
    low_tip.payload.max_priority_fee_per_gas = Some(9);
    for low in [cheap, low_tip] {
        let refused = handle.create(low).await;
        assert!(
            matches!(refused, Err(Refusal::FeeBelowFloor(_))),
            "{refused:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn margin_of_an_estimate_ends_at_the_most_gas_of_a_transaction() {
    let mut call = transfer(1, "call");
    call.payload.gas = None;
    call.payload.value = domain::U256::ZERO;
    call.payload.data = Bytes::from(vec![1; 100]);
    let estimate = call.payload.intrinsic_gas();
    let cluster = Cluster::new();
    let limited = |config: &mut NodeConfig| {
        let rules = config.chains.get_mut(&CHAIN).unwrap();
        rules.tx_gas_cap = Some(estimate + 10);
    };
    let test_node = cluster.start_with("a", limited).await;
    let accepted = test_node.node.handle().create(call).await.unwrap();
    assert_eq!(accepted.record.tx.request.gas, estimate + 10);
}

#[tokio::test(start_paused = true)]
async fn refusal_is_uncertain_where_the_look_up_failed() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    test_node.script.cut(true);
    let handle = test_node.node.handle();
    let mut short = transfer(1, "short");
    short.payload.gas = Some(20_999);
    let refused = handle.create(short.clone()).await;
    assert_eq!(refused, Err(Refusal::OutcomeUnknown), "gas too low");
    // The shard looks requests up before it opens their lane.
    let refused = handle.create(transfer(2, "other")).await;
    assert_eq!(refused, Err(Refusal::OutcomeUnknown), "lane not in memory");
    test_node.script.cut(false);
    let refused = handle.create(short).await;
    assert!(matches!(refused, Err(Refusal::GasTooLow(_))), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn flood_of_requests_leaves_connections_to_the_opening_of_lanes() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    let without_gas = |n: u8| {
        let mut request = transfer(1 + n % 8, &format!("r{n}"));
        request.payload.gas = None;
        request
    };
    let handle = test_node.node.handle();
    let answers = handle.create_many((0..64).map(without_gas).collect()).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(test_node.script.lookups_max.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn full_lane_refuses_and_other_lanes_still_get_in() {
    let cluster = Cluster::new();
    // Half of an inbox of two is one caller per lane.
    let test_node = cluster.start_with("a", |config| config.inbox = 2).await;
    let handle = test_node.node.handle();
    let wakeup = Arc::new(Notify::new());
    test_node
        .script
        .script(CommitScript::Hold(Arc::clone(&wakeup)));
    let first = tokio::spawn({
        let handle = handle.clone();
        async move { handle.create(transfer(1, "first")).await }
    });
    crate::support::sleep(std::time::Duration::from_millis(500)).await;
    let refused = handle.create(transfer(1, "second")).await;
    assert_eq!(refused, Err(Refusal::Busy));
    wakeup.notify_one();
    assert!(first.await.unwrap().is_ok());
    assert!(handle.create(transfer(1, "second")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn draining_node_refuses_forwarded_requests() {
    let test_node = Cluster::new().start("a").await;
    test_node.node.drain().await;
    let handle = test_node.node.handle();
    let answers = handle.create_forwarded(vec![transfer(1, "late")], Duration::from_secs(1));
    let answers = answers.await;
    assert_eq!(answers, [Err(Refusal::Draining)]);
    let refused = handle.create(transfer(1, "late")).await;
    assert_eq!(refused, Err(Refusal::Draining), "no other node is there");
}

#[tokio::test(start_paused = true)]
async fn known_request_gets_its_tx_from_a_node_that_stops() {
    let test_node = Cluster::new().start_warm("a").await;
    let handle = test_node.node.handle();
    let made = handle.create(transfer(1, "known")).await.unwrap();
    test_node.node.drain().await;
    let repeat = handle.create(transfer(1, "known")).await.unwrap();
    assert_eq!(
        (repeat.record.tx.id, repeat.is_new),
        (made.record.tx.id, false)
    );
    let refused = handle.create(transfer(1, "other")).await;
    assert_eq!(refused, Err(Refusal::Draining));
    test_node.script.cut(true);
    let refused = handle.create(transfer(1, "known")).await;
    assert_eq!(refused, Err(Refusal::OutcomeUnknown), "not looked up");
}

#[tokio::test(start_paused = true)]
async fn known_request_gets_its_tx_from_a_halted_lane() {
    let cluster = Cluster::new();
    let keeper = cluster.start_warm("a").await;
    let handle = keeper.node.handle();
    let made = handle.create(transfer(1, "known")).await.unwrap();
    let lost = GrantId(Uuid::from_u128(7));
    let halted = cluster.store.halt_lost_lane(lane(1), 100, lost, "lost");
    assert_eq!(halted.await, Ok(true));
    keeper.tasks.kill();
    let other = cluster.start("b").await;
    let handle = other.node.handle();
    for id in ["opens-the-lane", "finds-it-halted"] {
        let refused = handle.create(transfer(1, id)).await;
        assert!(matches!(refused, Err(Refusal::Halted(_))), "{refused:?}");
    }
    let repeat = handle.create(transfer(1, "known")).await.unwrap();
    assert_eq!(
        (repeat.record.tx.id, repeat.is_new),
        (made.record.tx.id, false)
    );
    let mut reused = transfer(1, "known");
    reused.payload.value += domain::U256::ONE;
    let reused = handle.create(reused).await;
    assert!(matches!(reused, Err(Refusal::KeyReused(_))), "{reused:?}");
    other.script.cut(true);
    let refused = handle.create(transfer(1, "known")).await;
    assert_eq!(refused, Err(Refusal::OutcomeUnknown), "not looked up");
}

#[tokio::test(start_paused = true)]
async fn one_endpoint_alone_does_not_refuse_a_call() {
    let lies = [
        Err(CallError::Reverted("no reason given".to_owned())),
        Err(CallError::Refused("unknown".to_owned())),
        Ok(u64::MAX),
    ];
    for lie in lies {
        let cluster = Cluster::with_endpoints(2);
        cluster.chain.set_false_estimate(0, Some(lie.clone()));
        let test_node = cluster.start("a").await;
        let handle = test_node.node.handle();
        crate::support::sleep(Duration::from_secs(1)).await; // the block gas limit is known
        let mut request = transfer(1, "call");
        request.payload.gas = None;
        let accepted = handle.create(request.clone()).await;
        assert!(accepted.is_ok(), "{lie:?}: {accepted:?}");
        cluster.chain.set_false_estimate(1, Some(lie.clone()));
        request.request_id = RequestId::parse("confirmed").unwrap();
        let refused = handle.create(request).await;
        assert!(refused.is_err(), "{lie:?}: {refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn gas_limit_that_one_endpoint_reports_alone_refuses_nothing() {
    let cluster = Cluster::with_endpoints(2);
    cluster.chain.set_false_gas_limit(0, Some(20_000));
    let test_node = cluster.start("a").await;
    let handle = test_node.node.handle();
    crate::support::sleep(Duration::from_secs(1)).await; // the block gas limit is known
    let accepted = handle.create(transfer(1, "r1")).await;
    assert!(accepted.is_ok(), "{accepted:?}");
    cluster.chain.set_false_gas_limit(1, Some(20_500));
    crate::support::sleep(Duration::from_secs(2)).await;
    let refused = handle.create(transfer(1, "r2")).await;
    assert!(
        matches!(refused, Err(Refusal::GasAboveLimit(_))),
        "{refused:?}"
    );
}
