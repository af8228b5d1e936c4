//! Endpoints that report wrong fees, and how a node's view of the chain protects itself, as the adapter for real endpoints
//! does: it queries two endpoints, and believes as much as the rules say.

use std::sync::{Mutex, PoisonError};

use domain::{CredibleTip, FeeQuote, Header, KnownPrices};
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

/// What a node knows of prices.
#[derive(Debug, Default)]
pub(super) struct QuotedPrices {
    known: KnownPrices,
    /// The newest tip; the second is the gas price where the followed block has no base fee.
    tips: [Option<CredibleTip>; 2],
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
        prices: &Mutex<QuotedPrices>,
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
        let mut prices = prices.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(prices.quote(followed, one, other))
    }
}

impl QuotedPrices {
    fn quote(&mut self, followed: &Header, one: ReportedFees, other: ReportedFees) -> FeeQuote {
        let Header { number, hash, .. } = *followed;
        let known = &mut self.known;
        let head = known
            .head(hash)
            .unwrap_or_else(|| known.record_head(number, hash, one.base_fee, &[other.base_fee]));
        let tips = [one, other].map(|fees| fees.tip_beside(head.next_base_fee));
        let old = &mut self.tips[usize::from(head.next_base_fee.is_none())];
        let tip = CredibleTip::of(tips[0].min(tips[1]), *old, number);
        *old = Some(tip);
        known.record_price(head, tip);
        FeeQuote {
            base_fee: head.next_base_fee,
            tip: tip.wei,
            block_gas_limit: Some(BLOCK_GAS),
            no_op_gas: None,
            has_data_floor: false,
            recent_max: known.recent_max(),
        }
    }
}
