//! Requests that the account cannot pay for.

use std::time::Duration;

use domain::lane::BalanceCheck;
use domain::window::MempoolDepth;
use domain::{Nonce, SubState, U256};
use engine::node::{NewTx, NodeConfig, NonKeeper, Refusal};
use engine::ports::CallError;

use crate::support::{CHAIN, Cluster, RENEW, TAKEOVER, account, sleep, transfer};

/// What a transfer of 1 wei costs at most: twice the base fee and the tip, of 1 gwei each.
const COST: u64 = 21_000 * 3_000_000_000 + 1;

/// Sets what the account has. Time passes, so that a later request is later.
async fn fund(cluster: &Cluster, transfers: u64) {
    let balance = U256::from(transfers) * U256::from(COST);
    cluster.chain.fund(account(1), balance);
    sleep(Duration::from_millis(1)).await;
}

/// More than any account has.
fn huge(request_id: &str) -> NewTx {
    let mut request = transfer(1, request_id);
    request.payload.value = U256::MAX;
    request
}

fn missing(refused: &Result<engine::node::AcceptedTx, Refusal>) -> u64 {
    match refused {
        Err(Refusal::Underfunded(why)) => {
            let (_, rest) = why.rsplit_once(": ").unwrap();
            rest.split(' ').next().unwrap().parse().unwrap()
        }
        Ok(_) | Err(_) => panic!("{refused:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn request_beyond_the_balance_uses_no_nonce_until_money_arrives() {
    let cluster = Cluster::new();
    fund(&cluster, 2).await;
    let test_node = cluster.start("a").await;
    let handle = test_node.node.handle();
    for id in ["first", "second"] {
        handle.create(transfer(1, id)).await.unwrap();
    }
    let refused = handle.create(transfer(1, "third")).await;
    assert_eq!(missing(&refused), COST);
    let Err(Refusal::Underfunded(why)) = refused else {
        unreachable!("checked above")
    };
    let figures = [
        format!("has {} wei", 2 * COST),
        format!("cost {}", 2 * COST),
        format!("needs {COST}"),
        "at block 0".to_owned(),
    ];
    for figure in figures {
        assert!(why.contains(&figure), "{why} lacks {figure}");
    }
    fund(&cluster, 3).await; // no block was followed since
    let funded = handle.create(transfer(1, "third")).await.unwrap();
    assert_eq!(funded.record.tx.nonce, Some(Nonce(2)));
}

#[tokio::test(start_paused = true)]
async fn known_request_has_its_answer_whatever_the_account_has() {
    let cluster = Cluster::new();
    fund(&cluster, 1).await;
    let test_node = cluster.start("a").await;
    let handle = test_node.node.handle();
    let first = handle.create(transfer(1, "first")).await.unwrap();
    fund(&cluster, 0).await;
    let requests = vec![
        transfer(1, "first"),
        transfer(1, "other"),
        transfer(2, "rich"),
    ];
    let answers = handle.create_many(requests).await;
    let repeat = answers[0].as_ref().unwrap();
    assert!(!repeat.is_new && repeat.record.tx.id == first.record.tx.id);
    assert_eq!(missing(&answers[1]), 2 * COST);
    assert!(answers[2].is_ok(), "another lane is not disturbed");
}

#[tokio::test(start_paused = true)]
async fn refusal_leaves_the_other_requests_of_its_turn_alone() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    let handle = test_node.node.handle();
    let requests = vec![transfer(1, "r1"), huge("huge"), transfer(1, "r2")];
    let answers = handle.create_many(requests).await;
    let nonce = |at: usize| answers[at].as_ref().unwrap().record.tx.nonce;
    assert_eq!((nonce(0), nonce(2)), (Some(Nonce(1)), Some(Nonce(2))));
    assert!(matches!(answers[1], Err(Refusal::Underfunded(_))));
    assert_eq!(handle.load().await.lanes, 1, "the lane stays open");
}

#[tokio::test(start_paused = true)]
async fn request_is_accepted_when_no_endpoint_answers() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    let handle = test_node.node.handle();
    cluster.chain.set_down(0, true);
    sleep(Duration::from_millis(1)).await; // later than the first query
    let accepted = handle.create(huge("in-the-dark")).await.unwrap();
    cluster.chain.set_down(0, false);
    sleep(Duration::from_secs(10)).await;
    let refused = handle.create(transfer(1, "small")).await;
    assert!(
        matches!(refused, Err(Refusal::Underfunded(_))),
        "the open one takes all: {refused:?}"
    );
    let waiting = handle.tx(accepted.record.tx.id).await.unwrap().unwrap();
    assert_eq!(waiting.tx.sub_state, Some(SubState::Underfunded));
}

#[tokio::test(start_paused = true)]
async fn next_keeper_counts_what_waits_in_the_store() {
    let cluster = Cluster::new();
    fund(&cluster, 5).await;
    let narrow = |config: &mut NodeConfig| {
        let rules = config.chains.get_mut(&CHAIN).unwrap();
        rules.lane.capacity.mempool_depth = MempoolDepth::Fixed(1);
    };
    let dead = cluster.start_with("a", narrow).await;
    let requests = (0..5).map(|n| transfer(1, &format!("r{n}"))).collect();
    for answer in dead.node.handle().create_many(requests).await {
        answer.unwrap();
    }
    let survivor = cluster.start_with("b", narrow).await;
    sleep(Duration::from_secs(5)).await;
    dead.tasks.kill();
    cluster.network.cut("a");
    sleep(RENEW + TAKEOVER).await;
    let handle = survivor.node.handle();
    assert_eq!(
        missing(&handle.create(transfer(1, "sixth")).await),
        COST,
        "four of five were never in its memory"
    );
    fund(&cluster, 6).await;
    let sixth = handle.create(transfer(1, "sixth")).await.unwrap();
    assert_eq!(sixth.record.tx.nonce, Some(Nonce(5)));
}

#[tokio::test(start_paused = true)]
async fn request_that_was_queued_elsewhere_waits_for_money_in_its_place() {
    let cluster = Cluster::new();
    let keeper = cluster.start_warm("a").await;
    sleep(RENEW).await;
    let queues = |config: &mut NodeConfig| config.non_keeper = NonKeeper::Queue;
    let other = cluster.start_with("b", queues).await;
    fund(&cluster, 0).await;
    let queued = other.node.handle().create(transfer(1, "queued")).await;
    let id = queued.unwrap().record.tx.id;
    sleep(Duration::from_secs(40)).await; // the balance that it knew is too old by now
    let handle = keeper.node.handle();
    let tx = handle.tx(id).await.unwrap().unwrap().tx;
    assert_eq!(tx.nonce, Some(Nonce(1)), "it keeps its place");
    assert_eq!(tx.sub_state, Some(SubState::Underfunded));
    assert_eq!(missing(&handle.create(transfer(1, "next")).await), 3 * COST);
    fund(&cluster, 3).await;
    for _ in 0..10 {
        sleep(Duration::from_secs(1)).await;
        cluster.chain.mine();
    }
    let tx = handle.tx(id).await.unwrap().unwrap().tx;
    assert!(tx.inclusion.is_some(), "it goes on by itself");
}

#[tokio::test(start_paused = true)]
async fn unchecked_lane_accepts_what_the_account_cannot_pay() {
    let cluster = Cluster::new();
    let test_node = cluster
        .start_with("a", |config| {
            let rules = config.chains.get_mut(&CHAIN).unwrap();
            rules.lane.balance = BalanceCheck::Off;
        })
        .await;
    test_node.node.handle().create(huge("huge")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn account_without_money_is_refused_with_figures_also_without_gas() {
    let without_gas = |id: &str| {
        let mut request = transfer(1, id);
        request.payload.gas = None;
        request
    };
    let cluster = Cluster::new();
    fund(&cluster, 0).await;
    let test_node = cluster.start("a").await;
    let refused = test_node.node.handle().create(without_gas("poor")).await;
    assert_eq!(missing(&refused), COST);

    let cluster = Cluster::new();
    fund(&cluster, 0).await;
    let unchecked = |config: &mut NodeConfig| {
        let rules = config.chains.get_mut(&CHAIN).unwrap();
        rules.lane.balance = BalanceCheck::Off;
    };
    let unchecked = cluster.start_with("a", unchecked).await;
    let accepted = unchecked.node.handle().create(without_gas("poor")).await;
    assert_eq!(accepted.unwrap().record.tx.request.gas, 21_000);
}

#[tokio::test(start_paused = true)]
async fn call_that_cannot_be_estimated_without_money_must_name_its_gas_where_nothing_is_checked() {
    for (balance, is_underfunded) in [(BalanceCheck::Check, true), (BalanceCheck::Off, false)] {
        let cluster = Cluster::new();
        let poor = CallError::Underfunded("insufficient funds".to_owned());
        cluster.chain.set_false_estimate(0, Some(Err(poor)));
        let rules = |config: &mut NodeConfig| {
            config.chains.get_mut(&CHAIN).unwrap().lane.balance = balance;
        };
        let test_node = cluster.start_with("a", rules).await;
        let mut request = transfer(1, "call");
        request.payload.gas = None;
        let refused = test_node.node.handle().create(request).await.unwrap_err();
        match is_underfunded {
            true => assert!(matches!(refused, Refusal::Underfunded(_)), "{refused:?}"),
            false => assert!(
                matches!(&refused, Refusal::BadPayload(why) if why.contains("name it")),
                "{refused:?}"
            ),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn balance_that_one_endpoint_reports_alone_refuses_nothing() {
    let cluster = Cluster::with_endpoints(2);
    cluster.chain.set_false_balance(0, Some(U256::ZERO));
    let test_node = cluster.start("a").await;
    let handle = test_node.node.handle();
    for id in ["first", "second"] {
        let accepted = handle.create(transfer(1, id)).await;
        assert!(accepted.is_ok(), "{accepted:?}");
        sleep(Duration::from_secs(40)).await; // the balance that it knew is too old by now
    }
    cluster.chain.set_false_balance(1, Some(U256::from(7)));
    let refused = handle.create(transfer(1, "third")).await;
    assert_eq!(missing(&refused), 3 * COST - 7, "the higher one counts");
}
