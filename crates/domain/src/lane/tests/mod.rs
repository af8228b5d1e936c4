//! Tests of the lane rules: a random world with a store and a chain, and one behaviour each.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "the numbers of a test world are small, and an overflow fails the test"
)]

mod allocation;
mod chain;
mod credibility;
mod cursor;
mod foreign_use;
mod gaps;
mod invariants;
mod property;
mod reorgs;
mod reservations;
mod resubmission;
mod sending;
mod store;
mod world;

use std::time::Duration;

use alloy_primitives::{Address, U256};
use uuid::Uuid;

use super::{
    AdmittedRequest, CapacityRules, ChainQuery, ConfirmationRules, Finality, LaneRules, NonceRules,
    OnForeignNonce, Resubmit, ResubmitPolicy,
};
use crate::window::{MempoolDepth, Release, Window};
use crate::{ChainId, FeeRules, LaneKey, Payload, RequestId, Timestamp, TxId};

/// The lane of all tests.
pub(super) const KEY: LaneKey = LaneKey {
    chain_id: ChainId(31_337),
    signer: Address::repeat_byte(0x5e),
};
/// When all tests begin.
pub(super) const START: Timestamp = Timestamp(1_000_000);

/// The rules from which tests deviate.
fn rules() -> LaneRules {
    LaneRules {
        capacity: CapacityRules {
            window: Window {
                limit: None,
                releases: Release::Mined,
            },
            mempool_depth: MempoolDepth::Fixed(16),
        },
        fee: FeeRules::OPEN,
        confirmations: ConfirmationRules {
            finality: Finality::Depth(2),
            watch_depth: 8,
            emit_progress: true,
            fetch_receipt_upon_entry: false,
            stale_receipt_timeout: Duration::from_secs(20),
        },
        resubmit: Resubmit {
            interval: Some(Duration::from_secs(30)),
            policy: ResubmitPolicy::Rebroadcast,
            max_attempts: None,
        },
        nonce: NonceRules {
            on_foreign_nonce: OnForeignNonce::Requeue,
            gap_fill_after: Duration::from_secs(5),
            max_chain_jump: 10,
            chain_query: ChainQuery::Pending,
            chain_nonce_timeout: Duration::from_secs(60),
        },
        reservations: None,
    }
}

pub(super) fn tx_id(number: u64) -> TxId {
    TxId(Uuid::from_u128(u128::from(number)))
}

/// The request with this number: another one has another id, key and payload.
pub(super) fn request(number: u64) -> AdmittedRequest {
    let payload = Payload::transfer(Address::repeat_byte(1), U256::from(number));
    AdmittedRequest {
        id: tx_id(number),
        request_id: RequestId::parse(format!("request-{number}")).expect("keeps the rule"),
        fingerprint: payload.fingerprint(),
        gas: payload.intrinsic_gas(),
        payload,
    }
}
