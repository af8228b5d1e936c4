//! Gas estimates, and the revert reason of a mined tx.

use alloy_primitives::U256;
use alloy_sol_types::{Panic, Revert, SolError};
use domain::Bytes;
use engine::ports::{CallError, CallRequest, Chain};
use rig::evm::account;

use crate::fixture::{BOB, NodeFixture, NodeSoftware};

/// Init code that reverts with these bytes, which follow it.
fn reverting_with(data: &[u8]) -> Bytes {
    let length = u8::try_from(data.len()).unwrap();
    let code = [
        0x60, length, 0x60, 0x0c, 0x60, 0x00, 0x39, // CODECOPY(0, 12, length)
        0x60, length, 0x60, 0x00, 0xfd, // REVERT(0, length)
    ];
    [&code[..], data].concat().into()
}

/// Returned bytes and their reason.
fn reasons() -> Vec<(Vec<u8>, &'static str)> {
    let overflow = Panic {
        code: U256::from(0x11),
    };
    vec![
        (Revert::from("not enough").abi_encode(), "not enough"),
        (
            overflow.abi_encode(),
            "panic 0x11: arithmetic underflow or overflow",
        ),
        (vec![0xde, 0xad, 0xbe, 0xef], "custom error 0xdeadbeef"),
    ]
}

pub(crate) async fn check_calls(software: NodeSoftware) {
    let fixture = NodeFixture::manual(software).await;
    let from = account(0).0;
    let call = |to, value, data| CallRequest {
        from,
        to,
        value,
        data,
        gas_max: None,
    };
    let simple = call(Some(BOB), U256::ONE, Bytes::new());
    let gas = fixture.chain.estimate_gas(&simple).await.unwrap();
    // Hardhat's search ends one above the lowest sufficient value.
    assert!((21_000..=21_001).contains(&gas), "{gas}");

    // No estimate decides about money.
    let poor = call(Some(BOB), U256::from(1) << 200, Bytes::new());
    let gas = fixture.chain.estimate_gas(&poor).await;
    assert!(matches!(gas, Ok(21_000..=21_001)), "{software:?}: {gas:?}");

    for (data, reason) in reasons() {
        let code = reverting_with(&data);
        let reverting_call = call(None, U256::ZERO, code.clone());
        let estimate = fixture.chain.estimate_gas(&reverting_call).await;
        let expected = Err(CallError::Reverted(reason.to_owned()));
        assert_eq!(estimate, expected, "{software:?}");
        let outgoing = fixture.deploy(0, code).await;
        fixture.mine();
        let mined = fixture.receipts(&[outgoing]).await;
        assert!(!mined[0].succeeded, "{software:?}: {reason}");
        let reason_after_mining = fixture.chain.revert_reason(&mined[0]).await.unwrap();
        assert_eq!(reason_after_mining.as_deref(), Some(reason), "{software:?}");
    }
    // Without a reason, but it fails on every node.
    let invalid = call(None, U256::ZERO, Bytes::from_static(&[0xfe]));
    let estimate = fixture.chain.estimate_gas(&invalid).await;
    let is_reverted = matches!(estimate, Err(CallError::Reverted(_)));
    assert!(is_reverted, "{software:?}: {estimate:?}");
}
