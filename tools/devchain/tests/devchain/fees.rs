//! EIP-1559 at work.

use alloy_consensus::TxEip1559;
use alloy_primitives::U256;
use alloy_rpc_types_eth::FeeHistory;
use devchain::{DevChainConfig, Mining};
use serde_json::json;

use crate::support::{BOB, Chain, GWEI, Wallet, config, quantity, transfer};

#[tokio::test]
async fn base_fee_follows_the_gas_used() {
    // Two transfers fill a block, one is exactly its target.
    let small = DevChainConfig {
        block_gas_limit: 42_000,
        ..config(Mining::Manual)
    };
    let chain = Chain::start(small).await;
    let alice = Wallet::dev(0);
    let base_fee = async || quantity(&chain.block("latest").await["baseFeePerGas"]).to::<u128>();
    assert_eq!(base_fee().await, GWEI);
    chain.mine().await;
    assert_eq!(
        base_fee().await,
        GWEI - GWEI / 8,
        "an empty block lowers it by an eighth"
    );
    for nonce in 0..3 {
        chain.submit(&alice.transfer(nonce)).await;
    }
    chain.mine().await;
    let full = base_fee().await;
    chain.mine().await;
    assert_eq!(
        base_fee().await,
        full + full / 8,
        "a full block raises the next by an eighth"
    );
    let at_target = base_fee().await;
    chain.mine().await;
    assert_eq!(
        base_fee().await,
        at_target,
        "the third tx was alone: on target"
    );
}

#[tokio::test]
async fn base_fee_override_applies_to_one_block() {
    let chain = Chain::manual().await;
    let set = json!([format!("{:#x}", 50 * GWEI)]);
    chain.call("anvil_setNextBlockBaseFeePerGas", set).await;
    let cheap = Wallet::dev(0).transfer(0); // at most 10 gwei
    chain.submit(&cheap).await;
    chain.mine().await;
    let block = chain.block("latest").await;
    assert_eq!(quantity(&block["baseFeePerGas"]).to::<u128>(), 50 * GWEI);
    assert_eq!(block["transactions"], json!([]));
    chain.mine().await;
    let next = chain.block("latest").await;
    assert_eq!(
        quantity(&next["baseFeePerGas"]).to::<u128>(),
        50 * GWEI - 50 * GWEI / 8
    );
}

#[tokio::test]
async fn fee_history_has_fees_ratios_and_rewards() {
    let chain = Chain::manual().await;
    for (account, tip) in [1, 2, 3].into_iter().enumerate() {
        let tx = TxEip1559 {
            max_priority_fee_per_gas: tip * GWEI,
            ..transfer(0)
        };
        chain.submit(&Wallet::dev(account).sign(tx)).await;
    }
    chain.mine().await;
    let history = chain
        .call("eth_feeHistory", json!([5, "latest", [0, 50, 100]]))
        .await;
    let history: FeeHistory = serde_json::from_value(history).expect("a fee history");
    assert_eq!(history.oldest_block, 0);
    assert_eq!(history.base_fee_per_gas.len(), 3);
    assert_eq!(history.base_fee_per_gas[0], GWEI);
    assert!(history.gas_used_ratio[1] > 0.0 && history.gas_used_ratio[0] == 0.0);
    let rewards = history.reward.expect("rewards were requested");
    assert_eq!(rewards, [vec![0, 0, 0], vec![GWEI, 2 * GWEI, 3 * GWEI]]);
    chain.mine().await;
    let mined = chain.block("latest").await;
    assert_eq!(
        quantity(&mined["baseFeePerGas"]).to::<u128>(),
        history.base_fee_per_gas[2]
    );
    for bad in [json!([1, "latest", [101]]), json!([1, "latest", [50, 10]])] {
        assert_eq!(
            chain
                .try_call("eth_feeHistory", bad)
                .await
                .unwrap_err()
                .code,
            -32000
        );
    }
    let beyond = chain
        .try_call("eth_feeHistory", json!([1, "0x63", []]))
        .await
        .unwrap_err();
    assert_eq!(beyond.message, "request beyond head block");
}

#[tokio::test]
async fn suggested_fees_get_a_tx_mined() {
    let chain = Chain::instant().await;
    let price: u128 = quantity(&chain.call("eth_gasPrice", json!([])).await).to();
    let tip: u128 = quantity(&chain.call("eth_maxPriorityFeePerGas", json!([])).await).to();
    let tx = TxEip1559 {
        max_fee_per_gas: price,
        max_priority_fee_per_gas: tip,
        ..transfer(0)
    };
    let tx = Wallet::dev(0).sign(tx);
    chain.submit(&tx).await;
    chain.wait_for_receipt(&tx).await;
}

#[tokio::test]
async fn extreme_fees_and_balances_are_handled() {
    let small = DevChainConfig {
        block_gas_limit: 30_000,
        ..config(Mining::Manual)
    };
    let chain = Chain::start(small).await;
    let alice = Wallet::dev(0);
    chain
        .call("anvil_setBalance", json!([alice.address(), U256::MAX]))
        .await;
    chain
        .call("anvil_setBalance", json!([BOB, U256::MAX]))
        .await;
    let refused = chain
        .try_call("anvil_setNextBlockBaseFeePerGas", json!([u64::MAX]))
        .await;
    assert_eq!(refused.unwrap_err().code, -32602);
    // Full blocks at the highest base fee: it cannot rise any more.
    let highest = 1u64 << 60;
    chain
        .call("anvil_setNextBlockBaseFeePerGas", json!([highest]))
        .await;
    let dear = u128::MAX >> 20;
    for nonce in 0..3 {
        let tx = TxEip1559 {
            max_fee_per_gas: dear,
            max_priority_fee_per_gas: dear,
            ..transfer(nonce)
        };
        let tx = alice.sign(tx);
        chain.submit(&tx).await;
        chain.mine().await;
        // Bob cannot hold one wei more, so the transfer fails inside.
        assert_eq!(chain.wait_for_receipt(&tx).await["status"], "0x0");
        let block = chain.block("latest").await;
        assert_eq!(quantity(&block["baseFeePerGas"]).to::<u64>(), highest);
    }
    // More than revm can multiply: accepted by the pool, then excluded from the block.
    let most = TxEip1559 {
        max_fee_per_gas: u128::MAX,
        max_priority_fee_per_gas: u128::MAX,
        ..transfer(3)
    };
    let most = alice.sign(most);
    chain.send(&most).await.ok();
    let all = TxEip1559 {
        value: U256::MAX,
        ..transfer(3)
    };
    let error = chain.send(&alice.sign(all)).await.unwrap_err();
    assert!(error.message.starts_with("insufficient funds"), "{error:?}");
    chain.mine().await;
    assert_eq!(chain.receipt(most.hash).await, None);
    let call = json!([{"from": alice.address(), "to": BOB, "gasPrice": U256::from(u128::MAX)}]);
    assert!(chain.try_call("eth_call", call.clone()).await.is_err());
    assert!(chain.try_call("eth_estimateGas", call).await.is_err());
    chain
        .call("anvil_setNonce", json!([alice.address(), u64::MAX]))
        .await;
    let error = chain.send(&alice.transfer(u64::MAX - 1)).await.unwrap_err();
    assert!(error.message.starts_with("nonce too low"), "{error:?}");
}
