//! Requests that no chain executes, or not as they are meant: each is refused, or ends without harm to those behind it.

use alloy_primitives::{Address, Bytes, U256};
use domain::lane::BalanceCheck;
use domain::{Payload, RequestId, TxType};
use engine::node::{NewTx, Origin};

use super::WorkloadContext;
use crate::chain::{BLOCK_GAS, DATA_MAX, INIT_CODE_MAX, REVERTS};
use crate::world::features::Feature;
use crate::world::plan::Plan;

/// The pause before each.
const PAUSE_MS: (u64, u64) = (200, 8_000);
/// How many a world has at most.
const COUNT_MAX: u64 = 20;
/// More than an account has where money is scarce, and less than every account has in the end.
const VALUE: u64 = 1_000_000_000_000_000_000;
/// A tip that is paid anyway.
const TIP: u128 = 1_000_000_000;
/// Enough gas for any call of a world.
const GAS: u64 = 200_000;

/// What is wrong with a request.
#[derive(Clone, Copy, Debug)]
enum Defect {
    GasAboveBlock,
    GasWithoutEnd,
    GasBelowTransfer,
    /// Enough by the rules that every chain has, too little by those of this one.
    GasBelowFloor,
    FeeBelowBase,
    FeeAboveCap,
    TooMuchData,
    TooMuchInitCode,
    ValueAboveBalance,
    RevertsWithGas,
    RevertsWithoutGas,
    /// EIP-1559 fields, also where only type 0 is taken.
    WrongType,
}

const DEFECTS: [Defect; 12] = [
    Defect::GasAboveBlock,
    Defect::GasWithoutEnd,
    Defect::GasBelowTransfer,
    Defect::GasBelowFloor,
    Defect::FeeBelowBase,
    Defect::FeeAboveCap,
    Defect::TooMuchData,
    Defect::TooMuchInitCode,
    Defect::ValueAboveBalance,
    Defect::RevertsWithGas,
    Defect::RevertsWithoutGas,
    Defect::WrongType,
];

pub(super) async fn send_poison(context: WorkloadContext) {
    for number in 0..COUNT_MAX {
        context.pause(PAUSE_MS.0, PAUSE_MS.1).await;
        let defect = *context.rng.pick(&DEFECTS);
        if !is_refused_or_harmless(defect, &context.plan) {
            continue;
        }
        let id = format!("poison-{number}");
        let new = NewTx {
            lane: *context.rng.pick(&context.plan.harmed_lanes()),
            payload: payload(defect, &id),
            request_id: RequestId::parse(id).expect("a valid request id"),
            origin: Origin::default(),
            estimated_gas: None,
        };
        context.trace.fire(Feature::PoisonedRequests);
        drop(context.submit_harmful(new).await); // any answer is fine
    }
}

/// Whether a request with this defect does not wait for something that no world ends: money that the account never gets, or
/// a price that the chain never has.
fn is_refused_or_harmless(defect: Defect, plan: &Plan) -> bool {
    match defect {
        Defect::ValueAboveBalance => plan.lane.balance == BalanceCheck::Check,
        Defect::FeeAboveCap => plan.lane.fee.cap.is_some(),
        // Who reports no base fee reports that it is enough.
        Defect::FeeBelowBase => !plan.has_workload(Feature::FalseFees),
        Defect::GasAboveBlock
        | Defect::GasWithoutEnd
        | Defect::GasBelowTransfer
        | Defect::GasBelowFloor
        | Defect::TooMuchData
        | Defect::TooMuchInitCode
        | Defect::RevertsWithGas
        | Defect::RevertsWithoutGas
        | Defect::WrongType => true,
    }
}

/// A payload with this defect. Its call data ends with its key, so that its effect on chain can be identified.
fn payload(defect: Defect, id: &str) -> Payload {
    let mut payload = Payload::transfer(Address::repeat_byte(0xee), U256::from(1));
    let mut data: Vec<u8> = Vec::new();
    payload.gas = Some(GAS);
    match defect {
        Defect::GasAboveBlock => payload.gas = Some(BLOCK_GAS + 1),
        Defect::GasWithoutEnd => payload.gas = Some(u64::MAX),
        Defect::GasBelowTransfer => payload.gas = Some(20_999),
        Defect::GasBelowFloor => {
            payload.data = Bytes::copy_from_slice(id.as_bytes());
            payload.gas = Some(payload.intrinsic_gas_min());
        }
        Defect::FeeBelowBase => payload.gas_price = Some(1),
        Defect::FeeAboveCap => payload.gas_price = Some(u128::from(u64::MAX)),
        Defect::TooMuchData => data.resize(DATA_MAX, 1),
        Defect::TooMuchInitCode => {
            payload.to = None;
            payload.value = U256::ZERO;
            data.resize(INIT_CODE_MAX, 1);
        }
        Defect::ValueAboveBalance => payload.value = U256::from(VALUE),
        Defect::RevertsWithGas => data.extend_from_slice(&REVERTS),
        Defect::RevertsWithoutGas => {
            payload.gas = None;
            data.extend_from_slice(&REVERTS);
        }
        Defect::WrongType => {
            payload.tx_type = Some(TxType::Eip1559);
            payload.max_priority_fee_per_gas = Some(TIP);
        }
    }
    data.extend_from_slice(id.as_bytes());
    payload.data = Bytes::from(data);
    payload
}
