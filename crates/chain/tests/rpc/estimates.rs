//! Estimates of gas and limits of heads: what refuses a call is confirmed by a second endpoint, and no estimate decides about
//! money.

use std::time::{Duration, Instant};

use domain::admission::HeadLimits;
use domain::{Bytes, U256};
use engine::ports::{CallError, CallRequest, Chain as _, ChainError};
use serde_json::{Value, json};

use crate::fake_node::{FakeNode, FakeReply, chain_of, unreachable_url};
use crate::reads::{block, call};

async fn node_with(estimate: impl Fn(&Value) -> FakeReply + Send + Sync + 'static) -> FakeNode {
    FakeNode::start(move |method, params| match method {
        "eth_estimateGas" => estimate(params),
        _ => FakeReply::Result(Value::Null),
    })
    .await
}

async fn honest() -> FakeNode {
    node_with(|_| FakeReply::Result(json!("0x5208"))).await
}

async fn refusing(code: i64, text: &'static str) -> FakeNode {
    node_with(move |_| FakeReply::Error(code, text)).await
}

/// The estimate of these endpoints, and how many calls each of them got.
async fn estimate(nodes: &[&FakeNode], call: &CallRequest) -> (Result<u64, CallError>, Vec<usize>) {
    let chain = chain_of(nodes.iter().map(|node| node.url()).collect());
    let estimate = chain.estimate_gas(call).await;
    let calls = nodes.iter().map(|node| node.count("eth_estimateGas"));
    (estimate, calls.collect())
}

#[tokio::test]
async fn estimate_that_admits_the_call_costs_one_request() {
    let (first, second) = (honest().await, honest().await);
    let (found, calls) = estimate(&[&first, &second], &call()).await;
    assert_eq!((found, calls), (Ok(21_000), vec![1, 0]));
}

#[tokio::test]
async fn refusal_of_one_endpoint_does_not_count_where_another_one_admits() {
    let refusals = [
        (3, "execution reverted"),
        (-32000, "a text that is in no table"),
        (-32000, "insufficient funds for transfer"),
        (-32603, "internal error"),
    ];
    for (code, text) in refusals {
        let (liar, honest) = (refusing(code, text).await, honest().await);
        let (found, calls) = estimate(&[&liar, &honest], &call()).await;
        assert_eq!((found, calls[1]), (Ok(21_000), 1), "{text}");
    }
    let high = node_with(|_| FakeReply::Result(json!("0xffffffffff"))).await;
    let honest = honest().await;
    let limited = CallRequest {
        gas_max: Some(30_000_000),
        ..call()
    };
    let (found, calls) = estimate(&[&high, &honest], &limited).await;
    assert_eq!((found, calls), (Ok(21_000), vec![1, 1]), "absurdly high");
}

#[tokio::test]
async fn refusal_counts_when_a_second_endpoint_repeats_it_or_none_answers() {
    let reverted = Err(CallError::Reverted("no reason given".to_owned()));
    let revert = || refusing(3, "execution reverted");
    let (first, second, third) = (revert().await, revert().await, honest().await);
    let (found, calls) = estimate(&[&first, &second, &third], &call()).await;
    assert_eq!((found, calls), (reverted.clone(), vec![1, 1, 0]));

    let alone = revert().await;
    let chain = chain_of(vec![alone.url(), unreachable_url().await]);
    assert_eq!(chain.estimate_gas(&call()).await, reverted);

    let hanging = node_with(|_| FakeReply::NoAnswer).await;
    let began = Instant::now();
    let (found, _) = estimate(&[&revert().await, &hanging], &call()).await;
    assert_eq!(found, reverted);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");

    let unknown = || refusing(-32000, "a text that is in no table");
    let (found, _) = estimate(&[&unknown().await, &revert().await], &call()).await;
    assert_eq!(found, reverted, "a reason is better than a text");
    let (found, _) = estimate(&[&unknown().await, &unknown().await], &call()).await;
    assert!(matches!(found, Err(CallError::Refused(_))), "{found:?}");
    let failing = || refusing(-32603, "internal error");
    let (found, _) = estimate(&[&failing().await, &failing().await], &call()).await;
    let is_unavailable = matches!(found, Err(CallError::Chain(ChainError::Unusable(_))));
    assert!(is_unavailable, "{found:?}");
}

/// A node on which the account has nothing.
async fn poor(has_overrides: bool) -> FakeNode {
    node_with(
        move |params| match (params[2].is_null(), &params[0]["value"]) {
            (true, value) if *value == "0x0" => FakeReply::Result(json!("0x5208")),
            (true, _) => FakeReply::Error(-32000, "insufficient funds for transfer"),
            (false, _) if has_overrides => FakeReply::Result(json!("0x7530")),
            (false, _) => FakeReply::Error(-32602, "too many arguments, want at most 2"),
        },
    )
    .await
}

#[tokio::test]
async fn gas_is_estimated_for_an_account_without_money() {
    let calling = CallRequest {
        value: U256::MAX,
        data: Bytes::from_static(&[1]),
        ..call()
    };
    let (found, _) = estimate(&[&poor(true).await], &calling).await;
    assert_eq!(found, Ok(30_000), "by an override of its balance");
    let (found, _) = estimate(&[&poor(false).await], &call()).await;
    assert_eq!(found, Ok(21_000), "a transfer costs the same without value");
    let (found, _) = estimate(&[&poor(false).await], &calling).await;
    assert!(matches!(found, Err(CallError::Underfunded(_))), "{found:?}");
}

#[tokio::test]
async fn call_that_reverts_whatever_the_account_has_is_reverted() {
    let node = node_with(|params| match params[2].is_null() {
        true => FakeReply::Error(-32000, "insufficient funds for transfer"),
        false => FakeReply::Error(3, "execution reverted"),
    })
    .await;
    let (found, _) = estimate(&[&node], &call()).await;
    assert!(matches!(found, Err(CallError::Reverted(_))), "{found:?}");
}

async fn node_with_head(gas_limit: &'static str, base_fee: Option<&'static str>) -> FakeNode {
    FakeNode::start(move |_, _| {
        let mut head = block(7);
        head["gasLimit"] = json!(gas_limit);
        head["baseFeePerGas"] = json!(base_fee);
        FakeReply::Result(head)
    })
    .await
}

#[tokio::test]
async fn head_limits_are_the_more_permissive_of_two_endpoints() {
    let liar = node_with_head("0x1", None).await;
    let honest = node_with_head("0x1c9c380", Some("0x7")).await;
    let limits = |has_base_fee, gas_limit| {
        Ok(HeadLimits {
            has_base_fee,
            gas_limit: Some(gas_limit),
        })
    };
    let both = chain_of(vec![liar.url(), honest.url()]);
    assert_eq!(both.head_limits().await, limits(true, 30_000_000));
    let alone = chain_of(vec![liar.url(), unreachable_url().await]);
    assert_eq!(alone.head_limits().await, limits(false, 1));
}
