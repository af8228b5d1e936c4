//! Endpoints that report wrong fees, and how a node's view of the chain protects itself, as the adapter for real endpoints
//! does: of two tips the lower one counts, and nothing rises faster than it credibly can.

use std::sync::{Mutex, PoisonError};

use domain::{FeeQuote, Header};
use engine::ports::ChainError;

use super::endpoint::Method;
use super::endpoint_view::EndpointView;
use super::ledger::{BLOCK_GAS, Ledger};
use super::remote::RemoteChain;
use crate::world::Feature;

/// What an endpoint reports as fees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FeeReport {
    /// What is right.
    #[default]
    Right,
    /// A thousand times as much.
    Thousandfold,
    /// Nothing.
    Zero,
    /// No base fee, as on a chain that has none, and a gas price far above the chain's.
    NoBaseFee,
}

impl FeeReport {
    /// The wrong ones.
    pub const WRONG: [Self; 3] = [Self::Thousandfold, Self::NoBaseFee, Self::Zero];
}

/// How much more than right a gas price is where no base fee is reported.
const PRICE_FACTOR: u128 = 50;
/// How much more than before a tip, and a base fee with each block, can credibly be.
const TIP_FACTOR: u128 = 10;
const BASE_FEE_FACTOR: u128 = 2;
/// By EIP-1559 a base fee rises by an eighth with each block; one that rose by more does not count as a recent price.
const CHANGE_DENOMINATOR: u128 = 8;
/// After so many blocks everything is plausible.
const PLAUSIBLE_BLOCKS_MAX: u64 = 1_000;

/// What a node knows of prices.
#[derive(Debug, Default)]
pub(super) struct KnownPrices {
    /// The newest block of which the base fee is known, and that base fee.
    base_fee: Option<(u64, u128)>,
    /// The newest plausible one, and its block.
    plausible: Option<(u64, u128)>,
    /// The tip, or the gas price where the followed block has no base fee; and whether it is the latter.
    tip: Option<(u128, bool)>,
    /// The highest plausible price.
    highest: Option<u128>,
}

/// The fees that one endpoint reports.
#[derive(Clone, Copy, Debug)]
struct ReportedFees {
    base_fee: Option<u128>,
    tip: u128,
}

impl ReportedFees {
    fn of(view: EndpointView, ledger: &Ledger) -> Self {
        let (base_fee, tip) = (ledger.base_fee, ledger.tip);
        let times = match ledger.endpoints[view.endpoint].fee_report {
            FeeReport::Right => 1,
            FeeReport::Thousandfold => 1_000,
            FeeReport::Zero => 0,
            FeeReport::NoBaseFee => {
                return Self {
                    base_fee: None,
                    tip: base_fee.saturating_add(tip).saturating_mul(PRICE_FACTOR),
                };
            }
        };
        Self {
            base_fee: Some(base_fee.saturating_mul(times)),
            tip: tip.saturating_mul(times),
        }
    }

    /// Its tip, or its gas price where the followed block has no base fee.
    fn tip_beside(self, base_fee: Option<u128>) -> u128 {
        match base_fee {
            Some(_) => self.tip,
            None => self.tip.saturating_add(self.base_fee.unwrap_or(0)),
        }
    }
}

impl RemoteChain {
    pub(super) async fn quote_checked(
        &self,
        prices: &Mutex<KnownPrices>,
        followed: &Header,
    ) -> Result<FeeQuote, ChainError> {
        let (first, one) = self.read(Method::Fees, ReportedFees::of).await?;
        let other = match self.second_endpoint(first) {
            Some(at) => {
                let fees = self.call_endpoint(at, Method::Fees, ReportedFees::of);
                fees.await.unwrap_or(one)
            }
            None => one,
        };
        if self.chain.lock().endpoints[first].fee_report != FeeReport::Right {
            self.chain.fire(Feature::FalseFees);
        }
        let tips = [one, other].map(|fees| fees.tip_beside(one.base_fee));
        let mut prices = prices.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(prices.quote(followed.number, one.base_fee, tips[0].min(tips[1])))
    }
}

impl KnownPrices {
    fn quote(&mut self, number: u64, base_fee: Option<u128>, tip: u128) -> FeeQuote {
        let is_price = base_fee.is_none();
        let old = self.tip.filter(|(_, was_price)| *was_price == is_price);
        let most = old.map_or(u128::MAX, |(tip, _)| tip.max(1) * TIP_FACTOR);
        let is_tip_plausible = tip <= most;
        let tip = tip.min(most);
        self.tip = Some((tip, is_price));
        // A chain that has a base fee does not lose it.
        let is_base_fee_plausible = match base_fee {
            Some(wei) => self.is_plausible(number, wei),
            None => self.plausible.is_none(),
        };
        let base_fee = base_fee.map(|reported| match self.base_fee {
            Some((from, known)) if known > 0 => {
                let blocks = u32::try_from(number.saturating_sub(from).max(1)).unwrap_or(u32::MAX);
                let most = known.saturating_mul(BASE_FEE_FACTOR.saturating_pow(blocks));
                reported.min(most)
            }
            Some(_) | None => reported,
        });
        if let Some(base_fee) = base_fee {
            self.base_fee = Some((number, base_fee));
        }
        let price = base_fee.unwrap_or(0).saturating_add(tip);
        if (is_tip_plausible && is_base_fee_plausible) || self.highest.is_none() {
            self.highest = Some(self.highest.unwrap_or(0).max(price));
        }
        FeeQuote {
            base_fee,
            tip,
            block_gas_limit: Some(BLOCK_GAS),
            no_op_gas: None,
            recent_max: self.highest,
        }
    }
}

impl KnownPrices {
    /// Whether a base fee can follow from the newest plausible one, which it then replaces.
    fn is_plausible(&mut self, number: u64, reported: u128) -> bool {
        let is_plausible = self.plausible.is_none_or(|(from, before)| {
            let mut most = before;
            for _ in 0..number.saturating_sub(from).clamp(1, PLAUSIBLE_BLOCKS_MAX) {
                most = most
                    .saturating_add(most / CHANGE_DENOMINATOR)
                    .saturating_add(1);
            }
            reported <= most
        });
        if is_plausible {
            self.plausible = Some((number, reported));
        }
        is_plausible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_fees_rise_slowly_and_leave_the_cap() {
        let mut prices = KnownPrices::default();
        let right = prices.quote(1, Some(100), 10);
        assert_eq!((right.base_fee, right.tip), (Some(100), 10));
        assert_eq!(right.recent_max, Some(110));
        let wrong = prices.quote(2, Some(100_000), 10_000);
        assert_eq!((wrong.base_fee, wrong.tip), (Some(200), 100));
        assert_eq!(wrong.recent_max, Some(110), "it does not raise the cap");
        let without = prices.quote(3, None, 5_000);
        assert_eq!((without.base_fee, without.tip), (None, 5_000));
        assert_eq!(without.recent_max, Some(110), "nor does this");
        let right = prices.quote(4, Some(100), 10);
        assert_eq!((right.base_fee, right.tip), (Some(100), 10));
    }
}
