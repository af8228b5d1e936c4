//! What an attempt offers to pay: quotes, limits and bumps. Integer arithmetic, rounded up.

use crate::{Payload, TxType, admission};

/// The present price of gas, in wei per gas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeeQuote {
    /// Base fee of the next block; `None` on chains without EIP-1559.
    pub base_fee: Option<u128>,
    /// The tip (or, without EIP-1559, the gas price) that gets in soon.
    pub tip: u128,
    /// The most gas of one block, where the chain says so.
    pub block_gas_limit: Option<u64>,
    /// The gas of a transfer of nothing, as the chain estimates it: some demand more than 21,000.
    pub no_op_gas: Option<u64>,
    /// Whether the chain's estimates show the floor of EIP-7623 for calldata.
    pub has_data_floor: bool,
    /// The highest base fee plus tip of recent blocks, where they are known.
    pub recent_max: Option<u128>,
}

/// What is added to the estimate for a no-op where it is not the fixed amount of Ethereum: there it includes the cost of
/// data on another chain, which moves.
const NO_OP_MARGIN_PERCENT: u64 = 150;
/// Far above what any chain demands: a wrong estimate must not make a no-op unaffordable.
const NO_OP_GAS_MAX: u64 = 5_000_000;

impl FeeQuote {
    /// What is known of every chain, as long as no head of this one is.
    pub const LEAST: Self = Self {
        base_fee: Some(0),
        tip: 0,
        block_gas_limit: None,
        no_op_gas: None,
        has_data_floor: false,
        recent_max: None,
    };

    /// The gas limit of a no-op.
    #[must_use]
    pub fn no_op_gas_limit(&self) -> u64 {
        let estimated = self.no_op_gas.unwrap_or(0);
        let limit = admission::gas_limit(estimated, NO_OP_MARGIN_PERCENT, self.block_gas_limit);
        limit.clamp(admission::TRANSFER_GAS, NO_OP_GAS_MAX)
    }
}

/// A chain's limits for what we offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeeRules {
    /// Type 0 envelopes only.
    pub legacy: bool,
    /// Never offer less than this, as a tip either where the chain quotes it: nodes with a minimum compare it with the tip.
    pub floor: u128,
    /// Never offer more than this; `None` for [`DEFAULT_CAP_FACTOR`] times the highest recent price.
    pub cap: Option<u128>,
}

/// Without a configured cap nothing is offered that is so many times the highest price of recent blocks: neither a node
/// that reports wrong fees nor a peak of a few blocks can make a lane pay any amount.
pub const DEFAULT_CAP_FACTOR: u128 = 10;

/// The fee fields of an envelope, in wei per gas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fees {
    /// Type 0.
    Legacy {
        /// Paid in full.
        gas_price: u128,
    },
    /// Type 2.
    Eip1559 {
        /// The most that is paid in all.
        max_fee: u128,
        /// The most of it that goes to the block's producer.
        max_priority_fee: u128,
    },
}

/// Nodes refuse a replacement that raises any fee field by less than this.
pub const REPLACEMENT_PERCENT_MIN: u128 = 10;

impl Default for FeeRules {
    fn default() -> Self {
        Self::OPEN
    }
}

impl FeeRules {
    /// No floor, no configured cap.
    pub const OPEN: Self = Self {
        legacy: false,
        floor: 0,
        cap: None,
    };

    /// The most that is offered per gas, unless a request itself names more.
    #[must_use]
    pub fn cap_at(&self, quote: FeeQuote) -> u128 {
        let of_recent = |recent: u128| recent.saturating_mul(DEFAULT_CAP_FACTOR);
        let default = quote.recent_max.map_or(u128::MAX, of_recent);
        self.cap.unwrap_or(default).max(self.floor)
    }

    /// The fees for a payload: its own where it names them, the chain's quote where it does not.
    ///
    /// The quoted cap leaves room for the base fee to double, which takes six full blocks in a row. A legacy price is paid in
    /// full and leaves less.
    #[must_use]
    pub fn fees(&self, payload: &Payload, quote: FeeQuote) -> Fees {
        let legacy = self.legacy
            || quote.base_fee.is_none()
            || payload.gas_price.is_some()
            || payload.tx_type == Some(TxType::Legacy);
        let base = quote.base_fee.unwrap_or(0);
        if legacy {
            let quoted = self.clamp(legacy_price(quote), quote);
            // A head without a base fee, of one endpoint or for a moment, must not raise what the request may pay.
            let limit = payload.fee_limit().unwrap_or(u128::MAX);
            return Fees::Legacy {
                gas_price: payload.gas_price.unwrap_or(quoted.min(limit)),
            };
        }
        let quoted_tip = self.clamp(quote.tip, quote);
        let tip = payload.max_priority_fee_per_gas.unwrap_or(quoted_tip);
        let quoted = self.clamp(base.saturating_mul(2).saturating_add(tip), quote);
        let max_fee = payload.max_fee_per_gas.unwrap_or(quoted);
        Fees::Eip1559 {
            max_fee,
            max_priority_fee: tip.min(max_fee),
        }
    }

    fn clamp(&self, wei: u128, quote: FeeQuote) -> u128 {
        wei.max(self.floor).min(self.cap_at(quote))
    }
}

impl Fees {
    /// The most that one unit of gas can cost.
    #[must_use]
    pub fn max_per_gas(&self) -> u128 {
        match self {
            Self::Legacy { gas_price } => *gas_price,
            Self::Eip1559 { max_fee, .. } => *max_fee,
        }
    }

    /// The same offer in an envelope of type 0. As a replacement it counts for both fields of type 2.
    #[must_use]
    pub fn into_legacy(self) -> Self {
        Self::Legacy {
            gas_price: self.max_per_gas(),
        }
    }

    /// Fees that nodes accept as a replacement: every field up by `percent` (at least
    /// [`REPLACEMENT_PERCENT_MIN`]) and up to the quote, never down, never above the cap. `None` when the cap does not
    /// allow a raise that nodes would accept.
    #[must_use]
    pub fn bump(&self, percent: u128, quote: FeeQuote, cap: u128) -> Option<Self> {
        let percent = percent.max(REPLACEMENT_PERCENT_MIN);
        let base = quote.base_fee.unwrap_or(0);
        let least = |wei: u128| {
            let least = raised(wei, percent);
            // At the end of the numbers there is nothing more to offer.
            (wei < least && least <= cap).then_some(least)
        };
        match *self {
            Self::Legacy { gas_price } => {
                let least = least(gas_price)?;
                Some(Self::Legacy {
                    gas_price: least.max(legacy_price(quote)).min(cap),
                })
            }
            Self::Eip1559 {
                max_fee,
                max_priority_fee,
            } => {
                // Without a base fee, of one endpoint or for a moment, the quoted tip is the whole price of gas.
                let quoted_tip = quote.base_fee.map_or(0, |_| quote.tip);
                let tip = least(max_priority_fee)?.max(quoted_tip).min(cap);
                let quoted = base.saturating_mul(2).saturating_add(tip.max(quote.tip));
                Some(Self::Eip1559 {
                    max_fee: least(max_fee)?.max(quoted).min(cap).max(tip),
                    max_priority_fee: tip,
                })
            }
        }
    }
}

/// What a type 0 envelope offers. All of it is paid, so that it leaves room for one full block only, and little more; bumps
/// raise it where that was too little.
fn legacy_price(quote: FeeQuote) -> u128 {
    let base = quote.base_fee.unwrap_or(0);
    let room = base.div_ceil(4);
    base.saturating_add(room).saturating_add(quote.tip)
}

/// `wei` raised by `percent`, rounded up, and by at least 1 wei: a tip of 0 must rise too.
fn raised(wei: u128, percent: u128) -> u128 {
    let step = wei.saturating_mul(percent).div_ceil(100).max(1);
    wei.saturating_add(step)
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "an overflow fails the test")]
mod tests {
    use alloy_primitives::{Address, U256};
    use proptest::prelude::*;

    use super::*;

    const GWEI: u128 = 1_000_000_000;

    fn fields(fees: Fees) -> Vec<u128> {
        match fees {
            Fees::Legacy { gas_price } => vec![gas_price],
            Fees::Eip1559 {
                max_fee,
                max_priority_fee,
            } => vec![max_fee, max_priority_fee],
        }
    }

    fn any_fees() -> impl Strategy<Value = Fees> {
        let wei = 0..2_000 * GWEI;
        prop_oneof![
            wei.clone().prop_map(|gas_price| Fees::Legacy { gas_price }),
            (wei.clone(), wei).prop_map(|(a, b)| Fees::Eip1559 {
                max_fee: a.max(b),
                max_priority_fee: a.min(b)
            }),
        ]
    }

    fn any_quote() -> impl Strategy<Value = FeeQuote> {
        (proptest::option::of(0..2_000 * GWEI), 0..50 * GWEI).prop_map(|(base_fee, tip)| FeeQuote {
            base_fee,
            tip,
            block_gas_limit: None,
            no_op_gas: None,
            has_data_floor: false,
            recent_max: None,
        })
    }

    #[test]
    fn default_cap_is_a_multiple_of_the_recent_prices() {
        let lie = FeeQuote {
            base_fee: Some(5_000 * GWEI),
            tip: 3_000 * GWEI,
            block_gas_limit: None,
            no_op_gas: None,
            has_data_floor: false,
            recent_max: Some(20 * GWEI),
        };
        let transfer = Payload::transfer(Address::ZERO, U256::ZERO);
        let offered = FeeRules::OPEN.fees(&transfer, lie).max_per_gas();
        assert_eq!(offered, 200 * GWEI);
        let own = FeeRules {
            cap: Some(900 * GWEI),
            ..FeeRules::OPEN
        };
        assert_eq!(own.fees(&transfer, lie).max_per_gas(), 900 * GWEI);
        let floor = FeeRules {
            floor: 300 * GWEI,
            ..FeeRules::OPEN
        };
        let offered = floor.fees(&transfer, lie).max_per_gas();
        assert_eq!(offered, 300 * GWEI, "nodes refuse less than the floor");
    }

    #[test]
    fn legacy_price_has_a_small_margin_because_it_is_paid_in_full() {
        let quote = FeeQuote {
            base_fee: Some(100 * GWEI),
            tip: 2 * GWEI,
            block_gas_limit: None,
            no_op_gas: None,
            has_data_floor: false,
            recent_max: None,
        };
        let legacy_chain = FeeRules {
            legacy: true,
            ..FeeRules::OPEN
        };
        let mut legacy = Payload::transfer(Address::ZERO, U256::ZERO);
        let price = |gwei: u128| Fees::Legacy {
            gas_price: gwei * GWEI,
        };
        assert_eq!(legacy_chain.fees(&legacy, quote), price(127));
        legacy.tx_type = Some(TxType::Legacy);
        let offered = FeeRules::OPEN.fees(&legacy, quote);
        assert_eq!(offered, price(127));
        // A replacement must offer a tenth more all the same.
        let bumped = offered.bump(0, quote, u128::MAX);
        let gas_price = 127 * GWEI * 11 / 10;
        assert_eq!(bumped, Some(Fees::Legacy { gas_price }));
        assert_eq!(price(100).bump(0, quote, u128::MAX), Some(price(127)));
    }

    #[test]
    fn quoted_tip_keeps_the_floor_and_the_cap() {
        let quote = FeeQuote {
            base_fee: Some(GWEI),
            tip: 1,
            block_gas_limit: None,
            no_op_gas: None,
            has_data_floor: false,
            recent_max: Some(2 * GWEI),
        };
        let floor = FeeRules {
            floor: 25 * GWEI,
            ..FeeRules::OPEN
        };
        let tip = |rules: FeeRules, payload: &Payload, quote| {
            let fields = fields(rules.fees(payload, quote));
            fields.last().copied()
        };
        let mut payload = Payload::transfer(Address::ZERO, U256::ZERO);
        assert_eq!(tip(floor, &payload, quote), Some(25 * GWEI));
        let lie = FeeQuote {
            tip: 3_000 * GWEI,
            ..quote
        };
        payload.max_fee_per_gas = Some(5_000 * GWEI);
        assert_eq!(tip(FeeRules::OPEN, &payload, lie), Some(20 * GWEI));
        payload.max_priority_fee_per_gas = Some(30 * GWEI);
        assert_eq!(tip(FeeRules::OPEN, &payload, lie), Some(30 * GWEI), "named");
        payload.max_priority_fee_per_gas = Some(1);
        assert_eq!(tip(floor, &payload, quote), Some(1), "named");
    }

    #[test]
    fn no_op_has_a_margin_and_a_bound() {
        let limit = |no_op_gas| {
            let quote = FeeQuote {
                base_fee: None,
                tip: 1,
                block_gas_limit: None,
                no_op_gas,
                has_data_floor: false,
                recent_max: None,
            };
            quote.no_op_gas_limit()
        };
        assert_eq!(limit(None), 21_000);
        assert_eq!(limit(Some(20_000)), 21_000);
        assert_eq!(limit(Some(21_000)), 21_000);
        assert_eq!(limit(Some(100_000)), 150_000);
        assert_eq!(limit(Some(u64::MAX)), 5_000_000);
    }

    #[test]
    fn head_without_a_base_fee_does_not_raise_a_tip_to_the_price_of_gas() {
        let quote = FeeQuote {
            base_fee: None,
            tip: 30 * GWEI,
            block_gas_limit: None,
            no_op_gas: None,
            has_data_floor: false,
            recent_max: None,
        };
        let offered = Fees::Eip1559 {
            max_fee: 20 * GWEI,
            max_priority_fee: GWEI,
        };
        let raised = Fees::Eip1559 {
            max_fee: 30 * GWEI,
            max_priority_fee: GWEI + GWEI / 10,
        };
        assert_eq!(offered.bump(10, quote, u128::MAX), Some(raised));
    }

    proptest! {
        #[test]
        fn bump_raises_every_field_enough_and_keeps_the_cap(
            fees in any_fees(), quote in any_quote(), percent in 0..200_u128, cap in 0..5_000 * GWEI,
        ) {
            let Some(new) = fees.bump(percent, quote, cap) else {
                // The cap may refuse only when the least acceptable raise really is above it.
                let least = fields(fees).into_iter().map(|wei| raised(wei, percent.max(10))).max();
                prop_assert!(least > Some(cap));
                return Ok(());
            };
            for (before, after) in fields(fees).into_iter().zip(fields(new)) {
                prop_assert!(after > before);
                prop_assert!(after * 100 >= before * (100 + percent.max(10)));
                prop_assert!(after <= cap);
            }
            if let Fees::Eip1559 { max_fee, max_priority_fee } = new {
                prop_assert!(max_priority_fee <= max_fee);
            }
        }

        #[test]
        fn quote_keeps_floor_cap_and_the_payloads_own_fee(
            quote in any_quote(), floor in 0..10 * GWEI, span in 0..1_000 * GWEI,
            requested_max in proptest::option::of(0..500 * GWEI),
        ) {
            let rules = FeeRules { legacy: false, floor, cap: Some(floor + span) };
            let mut payload = Payload::transfer(Address::ZERO, U256::ZERO);
            payload.max_fee_per_gas = requested_max;
            let fees = rules.fees(&payload, quote);
            match (requested_max, fees) {
                (Some(requested), Fees::Eip1559 { max_fee, .. }) => prop_assert_eq!(max_fee, requested),
                (Some(requested), Fees::Legacy { gas_price }) => prop_assert!(gas_price <= requested),
                (None, _) => prop_assert!((floor..=floor + span).contains(&fees.max_per_gas())),
            }
        }
    }
}
