//! Admission: what a request must fulfil before it reaches its lane. Pure rules; a new one belongs here.

use alloy_primitives::U256;
use thiserror::Error;

use crate::lane::UNRECORDED_PREFIX;
use crate::lane::reservations::{RESERVATION_PREFIX, ReservationTerms};
use crate::lane::total_cost;
use crate::{Address, ChainId, FeeQuote, FeeRules, Fees, LaneKey, Payload, RequestId, TxType};

/// The gas of a plain transfer.
pub(crate) const TRANSFER_GAS: u64 = 21_000;

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
    /// No block can hold it.
    #[error("gas {gas} is above what one transaction may use on chain {chain} ({limit})")]
    GasAboveLimit {
        /// The chain that sets the limit.
        chain: ChainId,
        /// What the request may use.
        gas: u64,
        /// The block gas limit, or the limit per transaction where that is lower.
        limit: u64,
    },
    /// Every node refuses it.
    #[error(
        "gas {gas} is below the {least} that this payload costs at least: raise it, or leave it out to have it estimated"
    )]
    GasTooLow {
        /// What the request may use.
        gas: u64,
        /// Its intrinsic gas.
        least: u64,
    },
    /// No block includes it at present.
    #[error(
        "the request offers {offered} wei per gas, and chain {chain} demands {least} at present"
    )]
    FeeTooLow {
        /// The chain.
        chain: ChainId,
        /// What the request offers at most.
        offered: u128,
        /// The base fee of the next block, or `chain.feeFloor` where that is higher.
        least: u128,
    },
    /// Nodes with a minimum refuse it.
    #[error("the request offers a tip of {offered} wei per gas, and chain {chain} demands {floor}")]
    TipBelowFloor {
        /// The chain.
        chain: ChainId,
        /// The tip that would be signed.
        offered: u128,
        /// `chain.feeFloor`.
        floor: u128,
    },
    /// The account cannot pay for it besides all that is open.
    #[error("{0}")]
    Underfunded(Box<Shortfall>),
    /// The lane's nonces are reserved by holders who sign elsewhere.
    #[error(
        "{} is a signer of kind external: nothing is sent from here, and its nonces are reserved with POST \
         /api/v1/lanes/{}/{}/nonces", .0.signer, .0.chain_id, .0.signer
    )]
    ReservationsOnly(LaneKey),
    /// The request id has a prefix of Lanekeeper's own rows.
    #[error(
        "request ids that begin with {RESERVATION_PREFIX} or {UNRECORDED_PREFIX} are reserved for Lanekeeper"
    )]
    ReservedRequestId,
}

/// What an account lacks for a request.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "at block {block} the account has {balance} wei, open txs can cost {committed} of them, and this request needs \
     {needed}: {missing} wei are missing"
)]
pub struct Shortfall {
    /// The block whose balance counts.
    pub block: u64,
    /// The account's balance after that block.
    pub balance: U256,
    /// What the lane's open txs can cost that this block does not contain.
    pub committed: U256,
    /// What the request can cost.
    pub needed: U256,
    /// How much more the account would need.
    pub missing: U256,
}

/// Checks the fees that a payload names against the chain's rules.
pub fn check_fees(
    chain: ChainId,
    rules: &FeeRules,
    payload: &Payload,
) -> Result<(), AdmissionError> {
    if rules.legacy && names_1559_fees(payload) {
        return Err(AdmissionError::LegacyOnly(chain));
    }
    let offered = payload.fee_limit();
    if let Some(cap) = rules.cap.filter(|cap| offered > Some(*cap)) {
        return Err(AdmissionError::FeeAboveCap { chain, cap });
    }
    Ok(())
}

/// Checks that a request's gas limit covers what the payload costs before it runs, as far as it is known of the chain and
/// its estimates: what an older chain would accept is not refused.
fn check_gas(
    chain: ChainId,
    quote: FeeQuote,
    (payload, gas): (&Payload, u64),
) -> Result<(), AdmissionError> {
    // Nodes add a margin to what they estimate, and the cost of data on another chain moves.
    let excess = quote.no_op_gas.unwrap_or(0).saturating_sub(TRANSFER_GAS) / 2;
    let of_data = match has_prague_rules(chain) || quote.has_data_floor {
        true => payload.intrinsic_gas(),
        false => payload.intrinsic_gas_min(),
    };
    let least = of_data.max(payload.intrinsic_gas_min().saturating_add(excess));
    match gas < least {
        true => Err(AdmissionError::GasTooLow { gas, least }),
        false => Ok(()),
    }
}

/// Checks that the chain can execute a request with this gas limit, as far as its newest head shows
/// ([`FeeQuote::LEAST`] where none is known). A tx that no block
/// can include would hold up every tx behind it.
pub fn check_execution(
    chain: ChainId,
    rules: &FeeRules,
    tx_gas_cap: Option<u64>,
    quote: FeeQuote,
    (payload, gas): (&Payload, u64),
) -> Result<(), AdmissionError> {
    let limit = gas_max(tx_gas_cap, quote);
    if let Some(limit) = limit.filter(|limit| gas > *limit) {
        return Err(AdmissionError::GasAboveLimit { chain, gas, limit });
    }
    check_gas(chain, quote, (payload, gas))?;
    if quote.base_fee.is_none() && names_1559_fees(payload) {
        return Err(AdmissionError::LegacyOnly(chain));
    }
    let least = quote.base_fee.unwrap_or(0).max(rules.floor);
    if let Some(offered) = payload.fee_limit().filter(|offered| *offered < least) {
        return Err(AdmissionError::FeeTooLow {
            chain,
            offered,
            least,
        });
    }
    check_tip(chain, rules, quote, payload)
}

/// Checks the tip that would be signed. One that the request does not name keeps the floor by itself.
fn check_tip(
    chain: ChainId,
    rules: &FeeRules,
    quote: FeeQuote,
    payload: &Payload,
) -> Result<(), AdmissionError> {
    match rules.fees(payload, quote) {
        Fees::Eip1559 {
            max_priority_fee, ..
        } if max_priority_fee < rules.floor => Err(AdmissionError::TipBelowFloor {
            chain,
            offered: max_priority_fee,
            floor: rules.floor,
        }),
        Fees::Eip1559 { .. } | Fees::Legacy { .. } => Ok(()),
    }
}

/// The most gas of one transaction: that of a block, or the limit per transaction where that is lower.
#[must_use]
pub fn gas_max(tx_gas_cap: Option<u64>, quote: FeeQuote) -> Option<u64> {
    quote.block_gas_limit.into_iter().chain(tx_gas_cap).min()
}

/// What the newest blocks of two endpoints show of a chain, where two answer: the more permissive of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadLimits {
    /// Whether one of them has a base fee.
    pub has_base_fee: bool,
    /// The higher gas limit.
    pub gas_limit: Option<u64>,
}

impl HeadLimits {
    /// The quote of a followed head, without what another endpoint contradicts.
    #[must_use]
    pub fn relax(self, quote: FeeQuote) -> FeeQuote {
        let higher = self.gas_limit.unwrap_or(0);
        FeeQuote {
            base_fee: quote.base_fee.or(self.has_base_fee.then_some(0)),
            block_gas_limit: quote.block_gas_limit.map(|limit| limit.max(higher)),
            ..quote
        }
    }
}

/// What an account has after a block, and what of it is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountFunds {
    /// The block's height.
    pub block: u64,
    /// In wei.
    pub balance: U256,
    /// What open txs can cost that this block does not contain, in wei.
    pub committed: U256,
}

/// The most that a request with this gas limit costs if it is signed now, in wei.
#[must_use]
pub fn cost(rules: &FeeRules, quote: FeeQuote, (payload, gas): (&Payload, u64)) -> U256 {
    let per_gas = rules.fees(payload, quote).max_per_gas();
    total_cost(payload.value, gas, per_gas)
}

/// Checks that an account can pay for a request besides all that is open. Otherwise it would hold up every tx behind it.
pub fn check_balance(funds: AccountFunds, needed: U256) -> Result<(), AdmissionError> {
    let AccountFunds {
        block,
        balance,
        committed,
    } = funds;
    let missing = committed.saturating_add(needed).saturating_sub(balance);
    if needed.is_zero() || missing.is_zero() {
        return Ok(());
    }
    Err(AdmissionError::Underfunded(Box::new(Shortfall {
        block,
        balance,
        committed,
        needed,
        missing,
    })))
}

impl AdmissionError {
    /// Whether it stems from a head, which one endpoint alone may report wrongly. (Base fees are followed only as far as
    /// they are credible.)
    #[must_use]
    pub fn stems_from_head(&self) -> bool {
        matches!(self, Self::GasAboveLimit { .. } | Self::LegacyOnly(_))
    }
}

/// The networks of Ethereum: mainnet, Sepolia, Hoodi.
const ETHEREUM: [ChainId; 3] = [ChainId(1), ChainId(11_155_111), ChainId(560_048)];

/// The limit per transaction of EIP-7825 on the networks of Ethereum that have it.
#[must_use]
pub fn tx_gas_cap(chain: ChainId) -> Option<u64> {
    const EIP_7825_GAS_CAP: u64 = 1 << 24;
    ETHEREUM.contains(&chain).then_some(EIP_7825_GAS_CAP)
}

/// A call without code at its end, of which a chain estimates another gas if it has the floor of EIP-7623 for calldata.
#[must_use]
pub fn data_floor_probe(account: Address) -> Payload {
    Payload {
        data: vec![0xff; 1_000].into(),
        ..Payload::transfer(account, U256::ZERO)
    }
}

/// Whether the estimate of a [`data_floor_probe`] shows that floor: it is 61,000 gas instead of 37,000. Nodes add a few
/// percent; chains whose data costs something else, or more, are not judged by it.
#[must_use]
pub fn shows_data_floor(estimate: u64) -> bool {
    (61_000..=65_000).contains(&estimate)
}

/// Whether the chain is known to charge init code by the word (EIP-3860) and to have the floor of EIP-7623 for calldata.
fn has_prague_rules(chain: ChainId) -> bool {
    ETHEREUM.contains(&chain)
}

fn names_1559_fees(payload: &Payload) -> bool {
    payload.max_fee_per_gas.is_some()
        || payload.max_priority_fee_per_gas.is_some()
        || payload.tx_type == Some(TxType::Eip1559)
}

/// Checks that a request fits its lane: a reservation where nonces are reserved, a tx where they are sent.
pub fn check_request_kind(
    lane: LaneKey,
    takes_reservations: bool,
    request_id: &RequestId,
    payload: &Payload,
) -> Result<(), AdmissionError> {
    if request_id.as_str().starts_with(UNRECORDED_PREFIX) {
        return Err(AdmissionError::ReservedRequestId);
    }
    let has_prefix = request_id.as_str().starts_with(RESERVATION_PREFIX);
    let is_reservation = has_prefix && ReservationTerms::from_payload(lane, payload).is_some();
    match (takes_reservations, has_prefix) {
        (true, _) if is_reservation => Ok(()),
        (true, _) => Err(AdmissionError::ReservationsOnly(lane)),
        (false, true) => Err(AdmissionError::ReservedRequestId),
        (false, false) => Ok(()),
    }
}

/// The gas limit for an estimate: `margin_percent` hundredths of it (120 = 1.2 times), never less than the estimate. The
/// margin ends at the most gas of one transaction, where that is known: it must not make a call inadmissible.
/// A plain transfer gets no margin, because its cost is fixed and whole balances must be movable.
#[must_use]
pub fn gas_limit(estimate: u64, margin_percent: u64, most: Option<u64>) -> u64 {
    if estimate <= TRANSFER_GAS {
        return estimate;
    }
    let with_margin = u128::from(estimate).saturating_mul(u128::from(margin_percent)) / 100;
    let with_margin = u64::try_from(with_margin).unwrap_or(u64::MAX);
    let most = most.filter(|most| estimate <= *most).unwrap_or(u64::MAX);
    with_margin.min(most).max(estimate)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;
    use crate::lane::reservations::reservation_request_id;
    use crate::{Address, Holder, Nonce};

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
        assert_eq!(gas_limit(100_000, 120, None), 120_000);
        assert_eq!(gas_limit(100_001, 120, None), 120_001, "rounded down");
        assert_eq!(gas_limit(100_000, 50, None), 100_000);
        assert_eq!(gas_limit(u64::MAX, 120, None), u64::MAX);
    }

    #[test]
    fn margin_ends_at_the_most_gas_of_one_transaction() {
        assert_eq!(gas_limit(100_000, 120, Some(110_000)), 110_000);
        assert_eq!(gas_limit(100_000, 120, Some(130_000)), 120_000);
        assert_eq!(gas_limit(100_000, 120, Some(90_000)), 120_000, "refused");
        assert_eq!(gas_max(None, QUOTE), Some(30_000_000));
        assert_eq!(gas_max(Some(16_777_216), QUOTE), Some(16_777_216));
        assert_eq!(gas_max(Some(40_000_000), QUOTE), Some(30_000_000));
    }

    #[test]
    fn plain_transfer_gets_no_margin() {
        assert_eq!(gas_limit(21_000, 120, None), 21_000);
        assert_eq!(gas_limit(21_001, 200, None), 42_002);
    }

    #[test]
    fn fee_above_the_cap_is_refused_in_both_fee_fields() {
        let rules = FeeRules {
            cap: Some(50),
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

    fn execution(payload: &Payload, gas: u64, quote: FeeQuote) -> Result<(), AdmissionError> {
        let rules = FeeRules {
            floor: 5,
            ..FeeRules::OPEN
        };
        check_execution(CHAIN, &rules, Some(40_000_000), quote, (payload, gas))
    }

    const QUOTE: FeeQuote = FeeQuote {
        base_fee: Some(100),
        tip: 1,
        block_gas_limit: Some(30_000_000),
        no_op_gas: None,
        has_data_floor: false,
        recent_max: None,
    };

    #[test]
    fn gas_must_fit_a_block_a_transaction_and_the_payload() {
        assert_eq!(execution(&payload(), 21_000, QUOTE), Ok(()));
        assert_eq!(execution(&payload(), 30_000_000, QUOTE), Ok(()));
        let above = |gas, limit| AdmissionError::GasAboveLimit {
            chain: CHAIN,
            gas,
            limit,
        };
        let refused = execution(&payload(), 30_000_001, QUOTE);
        assert_eq!(refused, Err(above(30_000_001, 30_000_000)));
        let unknown = FeeQuote {
            block_gas_limit: None,
            ..QUOTE
        };
        let refused = execution(&payload(), 40_000_001, unknown);
        assert_eq!(refused, Err(above(40_000_001, 40_000_000)));
        let (gas, least) = (20_999, 21_000);
        let refused = execution(&payload(), gas, QUOTE);
        assert_eq!(refused, Err(AdmissionError::GasTooLow { gas, least }));
        assert_eq!(tx_gas_cap(ChainId(1)), Some(16_777_216));
        assert_eq!(tx_gas_cap(CHAIN), None);
    }

    #[test]
    fn estimate_of_calldata_shows_whether_it_has_a_floor() {
        let probe = data_floor_probe(Address::ZERO);
        let (floor, without) = (probe.intrinsic_gas(), probe.intrinsic_gas_min());
        for (estimate, shows) in [
            (without, false),
            (without + without / 4, false),
            (floor, true),
            (floor + floor / 50, true),
            (10 * floor, false),
        ] {
            assert_eq!(shows_data_floor(estimate), shows, "{estimate}");
        }
    }

    #[test]
    fn least_gas_is_that_of_the_chain() {
        let mut call = payload();
        call.data = vec![0xff; 1_000].into();
        let check = |chain: u64, no_op_gas: Option<u64>, gas: u64| {
            let quote = FeeQuote { no_op_gas, ..QUOTE };
            check_gas(ChainId(chain), quote, (&call, gas))
        };
        let refused = |gas, least| Err(AdmissionError::GasTooLow { gas, least });
        // 16 gas per byte; the floor of EIP-7623 only where the chain is known to have it.
        assert_eq!(check(7, None, 36_999), refused(36_999, 37_000));
        assert_eq!(check(7, None, 37_000), Ok(()));
        assert_eq!(check(1, None, 60_999), refused(60_999, 61_000));
        assert_eq!(check(1, None, 61_000), Ok(()));
        let floored = FeeQuote {
            has_data_floor: true,
            ..QUOTE
        };
        let checked = check_gas(ChainId(7), floored, (&call, 60_999));
        assert_eq!(checked, refused(60_999, 61_000), "its estimates show it");
        // A chain whose no-op costs more demands more of everything else, too.
        assert_eq!(check(7, Some(21_000), 37_000), Ok(()));
        assert_eq!(check(7, Some(121_000), 86_999), refused(86_999, 87_000));
        assert_eq!(check(7, Some(121_000), 87_000), Ok(()));
        assert_eq!(
            check(1, Some(25_000), 61_000),
            Ok(()),
            "the floor covers it"
        );
        let quote = FeeQuote {
            no_op_gas: Some(121_000),
            ..QUOTE
        };
        let checked = execution(&payload(), 70_999, quote);
        assert_eq!(checked, refused(70_999, 71_000));
    }

    #[test]
    fn named_fee_must_reach_the_base_fee_and_the_floor() {
        let check = |max_fee: Option<u128>, gas_price: Option<u128>, quote: FeeQuote| {
            let mut offer = payload();
            offer.max_fee_per_gas = max_fee;
            offer.gas_price = gas_price;
            execution(&offer, 21_000, quote)
        };
        let too_low = |offered, least| AdmissionError::FeeTooLow {
            chain: CHAIN,
            offered,
            least,
        };
        assert_eq!(check(Some(100), None, QUOTE), Ok(()));
        assert_eq!(check(Some(99), None, QUOTE), Err(too_low(99, 100)));
        assert_eq!(check(None, Some(99), QUOTE), Err(too_low(99, 100)));
        let legacy = FeeQuote {
            base_fee: None,
            ..QUOTE
        };
        assert_eq!(check(None, Some(4), legacy), Err(too_low(4, 5)));
        assert_eq!(check(None, Some(5), legacy), Ok(()));
        let refused = Err(AdmissionError::LegacyOnly(CHAIN));
        assert_eq!(check(Some(500), None, legacy), refused, "no base fee");
    }

    #[test]
    fn configured_limits_hold_while_no_head_is_known() {
        let check = |offer: &Payload, gas| execution(offer, gas, FeeQuote::LEAST);
        assert_eq!(check(&payload(), 40_000_000), Ok(()));
        assert!(matches!(
            check(&payload(), 40_000_001),
            Err(AdmissionError::GasAboveLimit { .. })
        ));
        assert!(matches!(
            check(&payload(), 20_999),
            Err(AdmissionError::GasTooLow { .. })
        ));
        let mut offer = payload();
        offer.gas_price = Some(4);
        let refused = check(&offer, 21_000);
        assert!(matches!(refused, Err(AdmissionError::FeeTooLow { .. })));
        offer.gas_price = None;
        offer.max_fee_per_gas = Some(5);
        assert_eq!(check(&offer, 21_000), Ok(()), "the chain's type is open");
        offer.max_priority_fee_per_gas = Some(4);
        let refused = check(&offer, 21_000);
        assert!(matches!(refused, Err(AdmissionError::TipBelowFloor { .. })));
    }

    #[test]
    fn quote_is_relaxed_by_what_another_endpoint_shows() {
        let lie = FeeQuote {
            base_fee: None,
            block_gas_limit: Some(1),
            ..QUOTE
        };
        let mut offer = payload();
        offer.max_fee_per_gas = Some(100);
        let limits = HeadLimits {
            has_base_fee: true,
            gas_limit: Some(30_000_000),
        };
        let low = execution(&offer, 21_000, lie).unwrap_err();
        let same_gas_limit = FeeQuote {
            block_gas_limit: None,
            ..lie
        };
        let other_type = execution(&offer, 21_000, same_gas_limit).unwrap_err();
        assert!(low.stems_from_head() && other_type.stems_from_head());
        assert_eq!(execution(&offer, 21_000, limits.relax(lie)), Ok(()));
        let nothing = HeadLimits::default().relax(lie);
        assert_eq!(nothing, lie);
        assert_eq!(HeadLimits::default().relax(QUOTE), QUOTE);
        offer.max_fee_per_gas = Some(1);
        let dear = execution(&offer, 21_000, QUOTE).unwrap_err();
        assert!(!dear.stems_from_head());
    }

    #[test]
    fn named_tip_must_reach_the_floor() {
        let check = |max_fee: Option<u128>, tip: Option<u128>| {
            let mut offer = payload();
            offer.max_fee_per_gas = max_fee;
            offer.max_priority_fee_per_gas = tip;
            execution(&offer, 21_000, QUOTE)
        };
        let refused = Err(AdmissionError::TipBelowFloor {
            chain: CHAIN,
            offered: 4,
            floor: 5,
        });
        assert_eq!(check(None, Some(4)), refused);
        assert_eq!(check(Some(500), Some(4)), refused);
        assert_eq!(check(None, Some(5)), Ok(()));
        assert_eq!(check(Some(100), Some(5)), Ok(()));
        assert_eq!(check(Some(100), None), Ok(()), "the quoted tip is raised");
        assert_eq!(check(None, None), Ok(()));
        let mut legacy = payload();
        legacy.gas_price = Some(100);
        assert_eq!(execution(&legacy, 21_000, QUOTE), Ok(()), "no tip");
    }

    #[test]
    fn request_must_fit_into_what_open_txs_leave() {
        let check = |balance: u64, committed: u64, needed: u64| {
            let [balance, committed, needed] = [balance, committed, needed].map(U256::from);
            let funds = AccountFunds {
                block: 9,
                balance,
                committed,
            };
            check_balance(funds, needed)
        };
        assert_eq!(check(100, 60, 40), Ok(()));
        assert_eq!(check(100, 200, 0), Ok(()), "what costs nothing fits");
        let refused = AdmissionError::Underfunded(Box::new(Shortfall {
            block: 9,
            balance: U256::from(100),
            committed: U256::from(60),
            needed: U256::from(41),
            missing: U256::from(1),
        }));
        assert_eq!(
            refused.to_string(),
            "at block 9 the account has 100 wei, open txs can cost 60 of them, and this request needs 41: 1 wei are missing"
        );
        assert_eq!(check(100, 60, 41), Err(refused));
    }

    #[test]
    fn cost_is_that_of_the_dearest_envelope() {
        let mut offer = payload();
        let cost = |offer: &Payload| cost(&FeeRules::OPEN, QUOTE, (offer, 21_000));
        assert_eq!(cost(&offer), U256::from(1 + 21_000 * 201));
        offer.max_fee_per_gas = Some(7);
        assert_eq!(cost(&offer), U256::from(1 + 21_000 * 7));
        offer.value = U256::MAX;
        assert!(
            cost(&offer) > U256::from(u128::MAX),
            "and does not overflow"
        );
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
