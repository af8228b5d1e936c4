//! Endpoints that report wrong fees, and how a node's view of the chain protects itself, as the adapter for real endpoints
//! does: of two tips the lower one counts, nothing rises faster than it credibly can, and no base fee falls so.

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
/// How much more than the last plausible one a tip, and how much more with each block a base fee, can credibly be.
const TIP_FACTOR: u128 = 10;
const BASE_FEE_FACTOR: u128 = 2;
/// A tip that is always plausible.
const TIP_SMALL: u128 = 1_000_000_000;
/// By EIP-1559 a base fee moves by an eighth with each block; a price that rose by more does not count as a recent one.
const CHANGE_DENOMINATOR: u128 = 8;
/// After so many blocks everything is plausible.
const PLAUSIBLE_BLOCKS_MAX: u64 = 1_000;
/// A fall by more than an eighth per block counts in full in so many blocks in a row.
const LASTING_FALL_BLOCKS: u32 = 6;

/// What a node knows of prices.
#[derive(Debug, Default)]
pub(super) struct KnownPrices {
    /// The newest block of which the base fee is known, and that base fee.
    base_fee: Option<(u64, u128)>,
    /// The newest plausible one, and its block.
    plausible: Option<(u64, u128)>,
    /// The newest block of those in a row whose base fee is implausibly low, and how many they are.
    fall: Option<(u64, u32)>,
    /// The newest plausible tip, and its block; the second is the gas price where the followed block has no base fee.
    tips: [Option<(u64, u128)>; 2],
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
        let (tip, is_tip_plausible) = self.credible_tip(number, tip, base_fee.is_none());
        let used = base_fee.map(|reported| self.credible_base_fee(number, reported));
        // A chain that has a base fee does not lose it.
        let is_base_fee_plausible = match base_fee {
            Some(wei) => self.is_plausible(number, wei, used),
            None => self.plausible.is_none(),
        };
        if let Some(used) = used {
            self.base_fee = Some((number, used));
        }
        let price = used.unwrap_or(0).saturating_add(tip);
        if (is_tip_plausible && is_base_fee_plausible) || self.highest.is_none() {
            self.highest = Some(self.highest.unwrap_or(0).max(price));
        }
        FeeQuote {
            base_fee: used,
            tip,
            block_gas_limit: Some(BLOCK_GAS),
            no_op_gas: None,
            recent_max: self.highest,
        }
    }

    /// What counts of a tip, and whether it is plausible: measured by the last plausible one, however often it is reported.
    fn credible_tip(&mut self, number: u64, tip: u128, is_price: bool) -> (u128, bool) {
        let plausible = &mut self.tips[usize::from(is_price)];
        let Some((from, before)) = *plausible else {
            *plausible = Some((number, tip));
            return (tip, true);
        };
        let aged = risen(before, number.saturating_sub(from)).max(TIP_SMALL);
        if tip <= aged {
            *plausible = Some((number, tip));
            return (tip, true);
        }
        (tip.min(aged.max(before.saturating_mul(TIP_FACTOR))), false)
    }

    /// What counts of a base fee: it rises at most so fast, and falls at most by an eighth per block unless that lasts.
    fn credible_base_fee(&mut self, number: u64, reported: u128) -> u128 {
        let most = match self.base_fee {
            Some((from, known)) if known > 0 => {
                let blocks = u32::try_from(number.saturating_sub(from).max(1)).unwrap_or(u32::MAX);
                known.saturating_mul(BASE_FEE_FACTOR.saturating_pow(blocks))
            }
            Some(_) | None => u128::MAX,
        };
        let Some((from, before)) = self.plausible else {
            return reported.min(most);
        };
        let least = fallen(before, number.abs_diff(from));
        let (newest, blocks) = self.fall.unwrap_or((from, 0));
        if number > newest {
            self.fall = (reported < least).then_some((number, blocks + 1));
        }
        match self.fall {
            Some((_, LASTING_FALL_BLOCKS..)) => reported.min(most),
            Some(_) | None => reported.min(most).max(least),
        }
    }

    /// Whether a base fee can follow from the newest plausible one, which it then replaces.
    fn is_plausible(&mut self, number: u64, reported: u128, used: Option<u128>) -> bool {
        let is_plausible = self
            .plausible
            .is_none_or(|(from, before)| reported <= risen(before, number.saturating_sub(from)));
        if is_plausible && used <= Some(reported) {
            self.plausible = Some((number, reported));
        }
        is_plausible
    }
}

/// An eighth more with each block, rounded up.
fn risen(before: u128, blocks: u64) -> u128 {
    let blocks = 0..blocks.clamp(1, PLAUSIBLE_BLOCKS_MAX);
    blocks.fold(before, |most, _| {
        let step = (most / CHANGE_DENOMINATOR).saturating_add(1);
        most.saturating_add(step)
    })
}

/// An eighth less with each block.
fn fallen(before: u128, blocks: u64) -> u128 {
    let blocks = 0..blocks.clamp(1, PLAUSIBLE_BLOCKS_MAX);
    blocks.fold(before, |least, _| {
        least - least.div_ceil(CHANGE_DENOMINATOR)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_fees_move_slowly_and_leave_the_cap() {
        const GWEI: u128 = 1_000_000_000;
        let mut prices = KnownPrices::default();
        let mut quote = |number, base_fee: Option<u128>, tip: u128| {
            let base_fee = base_fee.map(|gwei| gwei * GWEI);
            let quote = prices.quote(number, base_fee, tip * GWEI);
            let in_gwei = |wei: Option<u128>| wei.map(|wei| wei / GWEI);
            assert_eq!(
                in_gwei(quote.recent_max),
                Some(110),
                "no lie raises the cap"
            );
            (in_gwei(quote.base_fee), quote.tip / GWEI)
        };
        assert_eq!(quote(1, Some(100), 10), (Some(100), 10));
        assert_eq!(quote(2, Some(100_000), 10_000), (Some(200), 100));
        assert_eq!(quote(3, None, 5_000), (None, 5_000));
        assert_eq!(quote(4, Some(100), 10), (Some(100), 10));
        for number in 5..8 {
            assert_eq!(quote(number, Some(100), 10_000), (Some(100), 100));
        }
        assert_eq!(quote(8, Some(0), 10), (Some(87), 10));
        for number in 9..13 {
            assert!(quote(number, Some(7), 10).0 > Some(40));
        }
        assert_eq!(quote(13, Some(7), 10), (Some(7), 10), "it lasts");
    }
}
