//! Tests of the lane rules: a random world with a store and a chain, and one behaviour each.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "the numbers of a test world are small, and an overflow fails the test"
)]

mod allocation;
mod attribution;
mod chain;
mod claims;
mod credibility;
mod cursor;
mod fee_raises;
mod foreign_use;
mod funds;
mod gaps;
mod head;
mod invariants;
mod property;
mod reorgs;
mod reservations;
mod resubmission;
mod sending;
mod skipped_blocks;
mod store;
mod world;

use std::time::Duration;

use alloy_primitives::{Address, U256};
use uuid::Uuid;

use super::{AdmittedRequest, Finality, LaneRules};
use crate::window::{MempoolDepth, Release};
use crate::{ChainId, LaneKey, Payload, RequestId, Timestamp, TxId};

/// The lane of all tests.
pub(super) const KEY: LaneKey = LaneKey {
    chain_id: ChainId(31_337),
    signer: Address::repeat_byte(0x5e),
};
/// When all tests begin.
pub(super) const START: Timestamp = Timestamp(1_000_000);

/// The rules from which tests deviate.
fn rules() -> LaneRules {
    let mut rules = LaneRules::default();
    rules.capacity.window.releases = Release::Mined;
    rules.capacity.mempool_depth = MempoolDepth::Fixed(16);
    rules.confirmations.finality = Finality::Depth(2);
    rules.confirmations.watch_depth = 8;
    rules.confirmations.emit_progress = true;
    rules.confirmations.stale_receipt_timeout = Duration::from_secs(20);
    rules.resubmit.interval = Some(Duration::from_secs(30));
    rules.nonce.gap_fill_after = Duration::from_secs(5);
    rules.nonce.max_chain_jump = 10;
    rules.nonce.chain_nonce_timeout = Duration::from_secs(60);
    rules
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
