//! Admission: what a request must fulfil before it reaches its lane. Pure rules; a new one belongs here.

use thiserror::Error;

use crate::lane::reservations::{RESERVATION_PREFIX, ReservationTerms};
use crate::{ChainId, FeeRules, LaneKey, Payload, RequestId, TxType};

/// The gas of a plain transfer.
const TRANSFER_GAS: u64 = 21_000;

/// Why a request is not admitted. The caller must change the request: a repeat gets the same answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AdmissionError {
    /// The payload asks for EIP-1559 fees where the chain takes type 0 only.
    #[error(
        "chain {0} takes legacy transactions only: leave out type, maxFeePerGas and maxPriorityFeePerGas, or use \
         gasPrice"
    )]
    LegacyOnly(ChainId),
    /// The payload offers more than the chain's cap.
    #[error("the fee is above the cap of chain {chain} ({cap} wei per gas)")]
    FeeAboveCap {
        /// The chain that sets the cap.
        chain: ChainId,
        /// Wei per gas.
        cap: u128,
    },
    /// The lane's nonces are reserved by holders who sign elsewhere.
    #[error(
        "{} is a signer of kind external: nothing is sent from here, and its nonces are reserved with POST \
         /api/v1/lanes/{}/{}/nonces", .0.signer, .0.chain_id, .0.signer
    )]
    ReservationsOnly(LaneKey),
    /// The request id has the prefix of reservations.
    #[error("request ids that begin with {RESERVATION_PREFIX} are reserved for Lanekeeper")]
    ReservedRequestId,
}

/// Checks the fees that a payload names against the chain's rules.
pub fn check_fees(
    chain: ChainId,
    rules: &FeeRules,
    payload: &Payload,
) -> Result<(), AdmissionError> {
    let names_1559 = payload.max_fee_per_gas.is_some()
        || payload.max_priority_fee_per_gas.is_some()
        || payload.tx_type == Some(TxType::Eip1559);
    if rules.legacy && names_1559 {
        return Err(AdmissionError::LegacyOnly(chain));
    }
    let offered = payload.max_fee_per_gas.or(payload.gas_price);
    if offered.is_some_and(|wei| wei > rules.cap) {
        let cap = rules.cap;
        return Err(AdmissionError::FeeAboveCap { chain, cap });
    }
    Ok(())
}

/// Checks that a request fits its lane: a reservation where nonces are reserved, a tx where they are sent.
pub fn check_request_kind(
    lane: LaneKey,
    takes_reservations: bool,
    request_id: &RequestId,
    payload: &Payload,
) -> Result<(), AdmissionError> {
    let has_prefix = request_id.as_str().starts_with(RESERVATION_PREFIX);
    let is_reservation = has_prefix && ReservationTerms::from_payload(lane, payload).is_some();
    match (takes_reservations, has_prefix) {
        (true, _) if is_reservation => Ok(()),
        (true, _) => Err(AdmissionError::ReservationsOnly(lane)),
        (false, true) => Err(AdmissionError::ReservedRequestId),
        (false, false) => Ok(()),
    }
}

/// The gas limit for an estimate: `margin_percent` hundredths of it (120 = 1.2 times), never less than the estimate.
/// A plain transfer gets no margin, because its cost is fixed and whole balances must be movable.
#[must_use]
pub fn gas_limit(estimate: u64, margin_percent: u64) -> u64 {
    if estimate <= TRANSFER_GAS {
        return estimate;
    }
    let with_margin = u128::from(estimate).saturating_mul(u128::from(margin_percent)) / 100;
    u64::try_from(with_margin).unwrap_or(u64::MAX).max(estimate)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;
    use crate::lane::reservations::reservation_request_id;
    use crate::{Address, Holder, Nonce, U256};

    const CHAIN: ChainId = ChainId(7);
    const LANE: LaneKey = LaneKey {
        chain_id: CHAIN,
        signer: Address::ZERO,
    };

    fn payload() -> Payload {
        Payload::transfer(Address::repeat_byte(1), U256::from(1))
    }

    #[test]
    fn estimate_gets_the_margin_and_never_shrinks() {
        assert_eq!(gas_limit(100_000, 120), 120_000);
        assert_eq!(gas_limit(100_001, 120), 120_001, "rounded down");
        assert_eq!(gas_limit(100_000, 50), 100_000);
        assert_eq!(gas_limit(u64::MAX, 120), u64::MAX);
    }

    #[test]
    fn plain_transfer_gets_no_margin() {
        assert_eq!(gas_limit(21_000, 120), 21_000);
        assert_eq!(gas_limit(21_001, 200), 42_002);
    }

    #[test]
    fn fee_above_the_cap_is_refused_in_both_fee_fields() {
        let rules = FeeRules {
            cap: 50,
            ..FeeRules::OPEN
        };
        let mut offer = payload();
        offer.max_fee_per_gas = Some(50);
        assert_eq!(check_fees(CHAIN, &rules, &offer), Ok(()));
        let refused = Err(AdmissionError::FeeAboveCap {
            chain: CHAIN,
            cap: 50,
        });
        offer.max_fee_per_gas = Some(51);
        assert_eq!(check_fees(CHAIN, &rules, &offer), refused);
        offer.max_fee_per_gas = None;
        offer.gas_price = Some(51);
        assert_eq!(check_fees(CHAIN, &rules, &offer), refused);
        offer.gas_price = None;
        assert_eq!(check_fees(CHAIN, &rules, &offer), Ok(()));
    }

    #[test]
    fn legacy_chain_refuses_every_eip1559_field() {
        let rules = FeeRules {
            legacy: true,
            ..FeeRules::OPEN
        };
        let refused = Err(AdmissionError::LegacyOnly(CHAIN));
        let mut named = [payload(), payload(), payload()];
        named[0].max_fee_per_gas = Some(1);
        named[1].max_priority_fee_per_gas = Some(1);
        named[2].tx_type = Some(TxType::Eip1559);
        for named in &named {
            assert_eq!(check_fees(CHAIN, &rules, named), refused);
            assert_eq!(check_fees(CHAIN, &FeeRules::OPEN, named), Ok(()));
        }
        let mut legacy = payload();
        legacy.gas_price = Some(1);
        assert_eq!(check_fees(CHAIN, &rules, &legacy), Ok(()));
    }

    #[test]
    fn reservations_and_txs_are_admitted_to_their_own_lanes_only() {
        let id = |text: &str| RequestId::parse(text).expect("valid");
        let holder = Holder(Uuid::from_u128(1));
        let reserved = reservation_request_id(holder);
        let check =
            |takes, id: &RequestId, payload: &Payload| check_request_kind(LANE, takes, id, payload);
        let terms = ReservationTerms {
            timeout: Duration::from_secs(60),
            at_least: Nonce(3),
        };
        assert_eq!(check(true, &reserved, &terms.payload(LANE)), Ok(()));
        assert_eq!(check(false, &id("pay-1"), &payload()), Ok(()));
        assert_eq!(
            check(false, &reserved, &payload()),
            Err(AdmissionError::ReservedRequestId)
        );
        assert_eq!(
            check(true, &id("pay-1"), &payload()),
            Err(AdmissionError::ReservationsOnly(LANE))
        );
        assert_eq!(
            check(true, &reserved, &payload()),
            Err(AdmissionError::ReservationsOnly(LANE)),
            "the id alone does not make a reservation"
        );
    }
}
