//! Estimates, and why a mined transaction reverted.

use alloy_primitives::U256;
use alloy_sol_types::{Panic, Revert, SolError};
use domain::Bytes;
use engine::ports::{CallError, CallRequest, Chain};
use rig::evm::account;

use crate::world::{BOB, Make, World};

/// Init code that reverts with these bytes: it copies what stands behind it, and returns it.
fn reverting_with(data: &[u8]) -> Bytes {
    let length = u8::try_from(data.len()).unwrap();
    let code = [
        0x60, length, 0x60, 0x0c, 0x60, 0x00, 0x39, // CODECOPY(0, 12, length)
        0x60, length, 0x60, 0x00, 0xfd, // REVERT(0, length)
    ];
    [&code[..], data].concat().into()
}

/// What is returned, and how it reads.
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

pub(crate) async fn everything(make: Make) {
    let world = World::manual(make).await;
    let from = account(0).0;
    let call = |to, value, data| CallRequest {
        from,
        to,
        value,
        data,
    };
    let simple = call(Some(BOB), U256::ONE, Bytes::new());
    let gas = world.chain.estimate_gas(&simple).await.unwrap();
    // Hardhat looks for the least that works from above, and stops one too high.
    assert!((21_000..=21_001).contains(&gas), "{gas}");

    for (data, words) in reasons() {
        let code = reverting_with(&data);
        let doomed = call(None, U256::ZERO, code.clone());
        let foretold = world.chain.estimate_gas(&doomed).await;
        let expected = Err(CallError::Reverted(words.to_owned()));
        assert_eq!(foretold, expected, "{make:?}");
        let outgoing = world.deploy(0, code).await;
        world.mine();
        let mined = world.receipts(&[outgoing]).await;
        assert!(!mined[0].succeeded, "{make:?}: {words}");
        let told = world.chain.revert_reason(&mined[0]).await.unwrap();
        assert_eq!(told.as_deref(), Some(words), "{make:?}");
    }
    // No reason, but it fails on every node and for ever.
    let invalid = call(None, U256::ZERO, Bytes::from_static(&[0xfe]));
    let foretold = world.chain.estimate_gas(&invalid).await;
    let is_reverted = matches!(foretold, Err(CallError::Reverted(_)));
    assert!(is_reverted, "{make:?}: {foretold:?}");
}
