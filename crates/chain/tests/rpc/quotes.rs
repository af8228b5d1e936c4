//! Fees and estimates, from what nodes of many kinds say.

use std::sync::Mutex;

use domain::FeeQuote;
use engine::ports::Chain;
use serde_json::{Value, json};

use crate::fake::{Fake, Say, chain_of};
use crate::reads::{block, call};

/// A chain that answers these fee questions, and its quote.
async fn quote(
    history: Say,
    latest_base: Option<&'static str>,
    tip: Option<&'static str>,
) -> FeeQuote {
    let history = Mutex::new(Some(history));
    let fake = Fake::start(move |method, _| match method {
        "eth_feeHistory" => history.lock().unwrap().take().unwrap(),
        "eth_getBlockByNumber" => {
            let mut latest = block(3);
            latest["baseFeePerGas"] = json!(latest_base);
            Say::Result(latest)
        }
        "eth_gasPrice" => Say::Result(json!("0x2a")),
        "eth_maxPriorityFeePerGas" => match tip {
            Some(tip) => Say::Result(json!(tip)),
            None => Say::Error(-32601, "method not found"),
        },
        _ => Say::Error(-1, "what?"),
    })
    .await;
    fake.chain().fee_quote().await.unwrap()
}

#[tokio::test]
async fn fee_quotes() {
    let history = |fees: Value, rewards: Value| {
        Say::Result(
            json!({ "oldestBlock": "0x1", "gasUsedRatio": [0.5], "baseFeePerGas": fees, "reward": rewards }),
        )
    };
    let busy = history(json!(["0x5", "0x7"]), json!([["0x3"]]));
    assert_eq!(
        quote(busy, None, None).await,
        FeeQuote {
            base_fee: Some(7),
            tip: 3
        }
    );
    let empty = || history(json!(["0x5", "0x7"]), json!([["0x0"]]));
    assert_eq!(
        quote(empty(), None, Some("0x9")).await,
        FeeQuote {
            base_fee: Some(7),
            tip: 9
        }
    );
    assert_eq!(
        quote(empty(), None, Some("0x0")).await,
        FeeQuote {
            base_fee: Some(7),
            tip: 1
        }
    );
    assert_eq!(
        quote(empty(), None, None).await,
        FeeQuote {
            base_fee: Some(7),
            tip: 1_000_000_000
        }
    );
    let zero = || history(json!(["0x0", "0x0"]), json!([["0x0"]]));
    assert_eq!(
        quote(zero(), Some("0x0"), Some("0x9")).await,
        FeeQuote {
            base_fee: Some(0),
            tip: 9
        }
    );
    assert_eq!(
        quote(zero(), None, None).await,
        FeeQuote {
            base_fee: None,
            tip: 42
        }
    );
    let missing = || Say::Error(-32601, "method not found");
    assert_eq!(
        quote(missing(), None, None).await,
        FeeQuote {
            base_fee: None,
            tip: 42
        }
    );
    assert_eq!(
        quote(missing(), Some("0x8"), Some("0x9")).await,
        FeeQuote {
            base_fee: Some(8),
            tip: 9
        }
    );
}

#[tokio::test]
async fn estimates_tell_the_call_from_the_node() {
    let said = format!("0x08c379a0{:064x}{:064x}{:0<64}", 32, 4, "6e6f7065");
    let cases = [
        (
            Say::ErrorData(3, "execution reverted: nope", json!(said)),
            "the call reverts: nope",
        ),
        (
            Say::Error(-32000, "execution reverted: insufficient funds"),
            "the call reverts: insufficient funds",
        ),
        (
            Say::Error(
                -32000,
                "insufficient funds for gas * price + value: have 0 want 1",
            ),
            "the account cannot pay: insufficient",
        ),
        (
            Say::Error(-32000, "gas required exceeds allowance (30000000)"),
            "the node refused the call: gas required",
        ),
        (
            Say::Error(-32603, "Internal error"),
            "an endpoint answered what cannot be used",
        ),
        (
            Say::Error(-32005, "slow down"),
            "an endpoint answered what cannot be used",
        ),
    ];
    for (say, expected) in cases {
        let say = Mutex::new(Some(say));
        let fake = Fake::start(move |_, _| say.lock().unwrap().take().unwrap()).await;
        let error = fake
            .chain()
            .estimate_gas(&call())
            .await
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let busy = Fake::start(|_, _| Say::Error(-32005, "slow down")).await;
    let fine = Fake::start(|_, params| {
        assert_eq!(params[0]["value"], "0x1");
        Say::Result(json!("0x5208"))
    })
    .await;
    let chain = chain_of(vec![busy.url(), fine.url()]);
    assert_eq!(chain.estimate_gas(&call()).await, Ok(21_000));
}
