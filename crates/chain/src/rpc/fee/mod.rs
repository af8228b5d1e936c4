//! Fee quotes: the next block's base fee, and the usual tip.
//!
//! The base fee follows from the header that is followed, which is read anyway. The tip changes slowly and is queried
//! periodically, so a quote per block needs almost no calls.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use domain::known_prices::{PRICE_BLOCKS_MAX, TIP_DISAGREEMENT_FACTOR, TIP_USUAL};
use domain::{
    Address, B256, CredibleTip, FeeQuote, HeadPrice, Header, KnownPrices, Payload, admission,
};
use engine::ports::{BlockTag, ChainError};
use futures::future::join;
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::rpc::answers::{Block, FeeHistory, Quantity, Wei};
use crate::rpc::endpoint::{CallKind, Endpoint};
use crate::rpc::endpoints::Endpoints;
use crate::rpc::failure::Failure;
use crate::rpc::limits::{
    FEE_EXTRA_PATIENCE, FEE_HISTORY_BLOCKS, FEE_REPORTS_MAX, TIP_AGE_MAX, TIP_BLOCKS_MAX,
};
use crate::rpc::read::{self, quantity};

/// geth's pool refuses a tip of 0.
const TIP_MIN: u128 = 1;
/// The median of the tips in a block.
const REWARD_PERCENTILE: u64 = 50;
/// By EIP-1559 a full block, twice the target, raises the base fee by an eighth.
const ELASTICITY: u128 = 2;
const CHANGE_DENOMINATOR: u128 = 8;
/// Any account: what a no-op costs does not depend on it.
const NO_OP_ACCOUNT: Address = Address::repeat_byte(0x4b);

/// Caches what was read of recent blocks, and the tip.
#[derive(Default)]
pub(super) struct FeeQuoter(Mutex<FeeState>);

#[derive(Default)]
struct FeeState {
    /// The newest blocks that were read, by hash: the one that is followed is among them.
    reports: BTreeMap<B256, HeadReport>,
    /// What counts of them. A report that is not credible waits until another endpoint was queried for it.
    prices: KnownPrices,
    /// The tip and, on chains without EIP-1559, the gas price.
    tips: [Option<Tip>; 2],
    no_op_gas: Option<u64>,
    /// Once shown it is not queried again: no chain takes it back.
    has_data_floor: bool,
}

/// What an endpoint reported of a block.
#[derive(Clone, Copy)]
struct HeadReport {
    number: u64,
    hash: B256,
    /// The base fee of the block after it; `None` on chains without EIP-1559.
    next_base_fee: Option<u128>,
    gas_limit: Option<u64>,
}

impl HeadReport {
    fn of(block: &Block) -> Self {
        let Header { number, hash, .. } = block.header();
        Self {
            number,
            hash,
            next_base_fee: next_base_fee(block),
            gas_limit: block.gas_limit.map(|limit| limit.0),
        }
    }
}

/// The usual tip; on chains without EIP-1559, the usual gas price.
#[derive(Clone, Copy)]
struct Tip {
    credible: CredibleTip,
    queried_at_block: u64,
    queried_at: Instant,
}

impl FeeQuoter {
    fn lock(&self) -> MutexGuard<'_, FeeState> {
        self.0.lock().expect("nothing panics while holding it")
    }

    /// Records a block that was read.
    pub(super) fn record_head(&self, block: &Block) {
        self.lock().record_head(HeadReport::of(block));
    }

    /// A quote for the block after `followed`, from the cache if it is fresh enough.
    pub(super) async fn quote(
        &self,
        endpoints: &Endpoints,
        followed: &Header,
    ) -> Result<FeeQuote, ChainError> {
        let known = self.lock().reports.get(&followed.hash).copied();
        let report = match known {
            Some(report) => report,
            None => self.fetch_head(endpoints, followed.hash).await?,
        };
        let decided = self.lock().prices.head(followed.hash);
        let head = match decided {
            Some(head) => head,
            None => self.query_head_again(endpoints, report).await,
        };
        let is_price = head.next_base_fee.is_none();
        let old = self.lock().tips[usize::from(is_price)];
        let tip = match old {
            Some(tip) if tip.is_fresh(head.number) => tip,
            Some(_) | None => self.query_tip(endpoints, head, old).await?,
        };
        let mut state = self.lock();
        state.prices.record_price(head, tip.credible);
        Ok(FeeQuote {
            base_fee: head.next_base_fee,
            tip: tip.credible.wei,
            block_gas_limit: report.gas_limit,
            no_op_gas: state.no_op_gas,
            has_data_floor: state.has_data_floor,
            recent_max: state.prices.recent_max(),
        })
    }

    async fn fetch_head(
        &self,
        endpoints: &Endpoints,
        hash: B256,
    ) -> Result<HeadReport, ChainError> {
        let block = endpoints
            .find_first(|endpoint| Box::pin(read::block(endpoint, BlockTag::Hash(hash))))
            .await?;
        let block = block.ok_or_else(|| {
            ChainError::Unusable(format!("no endpoint has block {hash} to derive fees from"))
        })?;
        let report = HeadReport::of(&block);
        self.lock().record_head(report);
        Ok(report)
    }

    /// Decides what counts of a report that is not credible: two endpoints are queried for the same block where there are
    /// two, because one that reports wrong fees must not decide what all others could correct.
    async fn query_head_again(&self, endpoints: &Endpoints, report: HeadReport) -> HeadPrice {
        let others = match endpoints.list().len() {
            0 | 1 => Vec::new(),
            _ => next_base_fees(endpoints, report.hash).await,
        };
        let mut state = self.lock();
        let HeadReport { number, hash, .. } = report;
        let first = report.next_base_fee;
        let head = state.prices.record_head(number, hash, first, &others);
        if let (Some(reported), used) = (first, head.next_base_fee)
            && used != first
        {
            report_outlier("base_fee", reported, used.unwrap_or(0));
        }
        head
    }

    /// Queries the tip at two endpoints where there are two; the lower one counts, because a node that reports too much
    /// costs money and one that reports too little costs a block or two. If no endpoint returns one, the old one stays in
    /// use.
    async fn query_tip(
        &self,
        endpoints: &Endpoints,
        head: HeadPrice,
        old: Option<Tip>,
    ) -> Result<Tip, ChainError> {
        let is_price = head.next_base_fee.is_none();
        let quoted = endpoints
            .query_two(CallKind::Read, |endpoint| match is_price {
                true => Box::pin(price(endpoint)),
                false => Box::pin(tip(endpoint)),
            })
            .await;
        let credible = match (quoted, old) {
            (Ok((one, other)), old) => {
                let reported = lower_tip(one, other.unwrap_or(one));
                let old = old.map(|tip| tip.credible);
                credible_tip(reported, old, head.number)
            }
            (Err(error), Some(old)) => {
                tracing::debug!(%error, "the tip could not be queried; the old one stays in use");
                old.credible
            }
            (Err(error), None) => return Err(error),
        };
        let tip = Tip {
            credible,
            queried_at_block: head.number,
            queried_at: Instant::now(),
        };
        let (no_op_gas, has_data_floor) = join(
            lower_of_two(endpoints, CallKind::DryRun, no_op_gas),
            self.query_data_floor(endpoints),
        )
        .await;
        let is_first = {
            let mut state = self.lock();
            state.no_op_gas = no_op_gas.or(state.no_op_gas);
            state.has_data_floor |= has_data_floor; // another query may have shown it meanwhile
            state.tips[usize::from(is_price)] = Some(tip);
            state.prices.recent_max().is_none()
        };
        if is_first && !is_price {
            self.read_base_fee_history(endpoints, head.number, credible.wei)
                .await;
        }
        Ok(tip)
    }

    /// Whether the chain's estimates show the floor of EIP-7623. Where two endpoints differ, it does not count.
    async fn query_data_floor(&self, endpoints: &Endpoints) -> bool {
        if self.lock().has_data_floor {
            return true;
        }
        let estimate = lower_of_two(endpoints, CallKind::DryRun, calldata_gas).await;
        estimate.is_some_and(admission::shows_data_floor)
    }

    /// The base fees of the time before this process started. Where no endpoint shows them, the first block decides.
    async fn read_base_fee_history(&self, endpoints: &Endpoints, number: u64, tip: u128) {
        let highest = lower_of_two(endpoints, CallKind::Read, highest_base_fee).await;
        if let Some(highest) = highest {
            let price = highest.saturating_add(tip);
            let before = number.saturating_sub(1);
            self.lock().prices.record_past_price(before, price);
        }
    }
}

/// What a quote can do without, from two endpoints where there are two: the lower one counts, because one of them may
/// report far too much.
async fn lower_of_two<'a, T: Ord + Send, Q>(
    endpoints: &'a Endpoints,
    kind: CallKind,
    query: impl Fn(&'a Endpoint) -> Q + Send + Sync,
) -> Option<T>
where
    Q: Future<Output = Result<T, Failure>> + Send + 'a,
{
    let answers = endpoints.query_two(kind, |endpoint| Box::pin(query(endpoint)));
    // The second endpoint may take as long as the first without its answer being lost.
    let answers = timeout(FEE_EXTRA_PATIENCE.saturating_mul(2), answers).await;
    let (one, other) = answers.ok().and_then(Result::ok)?;
    other.into_iter().chain([one]).min()
}

impl FeeState {
    fn record_head(&mut self, report: HeadReport) {
        let HeadReport { number, hash, .. } = report;
        self.reports.insert(hash, report);
        if self.reports.len() > FEE_REPORTS_MAX {
            let oldest = self.reports.values().min_by_key(|report| report.number);
            let oldest = oldest.map(|report| report.hash);
            oldest.map(|hash| self.reports.remove(&hash));
        }
        let reported = report.next_base_fee;
        if self.prices.is_credible(number, reported) {
            self.prices.record_head(number, hash, reported, &[]);
        }
    }
}

/// What two endpoints report of the base fee after a block, as far as they have it.
async fn next_base_fees(endpoints: &Endpoints, hash: B256) -> Vec<Option<u128>> {
    let blocks = endpoints.query_two(CallKind::Read, |endpoint| {
        Box::pin(read::block(endpoint, BlockTag::Hash(hash)))
    });
    let blocks = timeout(FEE_EXTRA_PATIENCE.saturating_mul(2), blocks).await;
    let Ok(Ok((one, other))) = blocks else {
        return Vec::new();
    };
    let blocks = one.into_iter().chain(other.flatten());
    blocks.map(|block| next_base_fee(&block)).collect()
}

impl Tip {
    fn is_fresh(&self, number: u64) -> bool {
        number.abs_diff(self.queried_at_block) < TIP_BLOCKS_MAX
            && self.queried_at.elapsed() < TIP_AGE_MAX
    }
}

fn credible_tip(reported: u128, old: Option<CredibleTip>, number: u64) -> CredibleTip {
    let tip = CredibleTip::of(reported, old, number);
    if tip.wei != reported {
        report_outlier("tip", reported, tip.wei);
    }
    tip
}

fn lower_tip(one: u128, other: u128) -> u128 {
    let (lower, higher) = (one.min(other), one.max(other));
    if higher > lower.saturating_mul(TIP_DISAGREEMENT_FACTOR) {
        report_outlier("tip", higher, lower);
    }
    lower
}

fn report_outlier(kind: &'static str, reported: u128, used: u128) {
    tracing::warn!(
        kind,
        reported,
        used,
        "an endpoint reports an implausible fee; a credible one is used"
    );
    metrics::counter!("lanekeeper_fee_outliers_total", "kind" => kind).increment(1);
}

/// The rule of EIP-1559. Chains with other constants change more slowly; the margin of the resulting fees is far
/// larger than the difference.
fn next_base_fee(block: &Block) -> Option<u128> {
    let base = block.base_fee_per_gas?.0;
    let (Some(used), Some(limit)) = (block.gas_used, block.gas_limit) else {
        return Some(base);
    };
    let (used, target) = (u128::from(used.0), u128::from(limit.0) / ELASTICITY);
    if target == 0 || used == target {
        return Some(base);
    }
    let change = |distance: u128| base.saturating_mul(distance) / target / CHANGE_DENOMINATOR;
    Some(if used > target {
        base.saturating_add(change(used - target).max(1))
    } else {
        base.saturating_sub(change(target - used))
    })
}

async fn price(endpoint: &Endpoint) -> Result<u128, Failure> {
    let price: Wei = endpoint.call("eth_gasPrice", &json!([])).await?;
    Ok(price.0)
}

/// One call where blocks have transactions; two on empty chains.
async fn tip(endpoint: &Endpoint) -> Result<u128, Failure> {
    let params = json!([quantity(FEE_HISTORY_BLOCKS), "latest", [REWARD_PERCENTILE]]);
    let history: Option<FeeHistory> = match endpoint.query("eth_feeHistory", &params).await? {
        Ok(history) => Some(history),
        Err(error) if error.is_missing_method() => None,
        Err(error) => return Err(Failure::Node(error)),
    };
    let tip = match history.as_ref().and_then(usual_tip) {
        Some(tip) => tip,
        None => node_tip(endpoint).await?,
    };
    Ok(tip.max(TIP_MIN))
}

/// The gas of a transfer of nothing: on some chains it includes the cost of data on another chain.
async fn no_op_gas(endpoint: &Endpoint) -> Result<u64, Failure> {
    let call = json!([{ "from": NO_OP_ACCOUNT, "to": NO_OP_ACCOUNT, "value": "0x0" }]);
    let Quantity(gas) = endpoint.call("eth_estimateGas", &call).await?;
    Ok(gas)
}

/// The gas of much calldata.
async fn calldata_gas(endpoint: &Endpoint) -> Result<u64, Failure> {
    let Payload { to, data, .. } = admission::data_floor_probe(NO_OP_ACCOUNT);
    let call = json!([{ "from": NO_OP_ACCOUNT, "to": to, "data": data }]);
    let Quantity(gas) = endpoint.call("eth_estimateGas", &call).await?;
    Ok(gas)
}

/// The highest base fee of recent blocks. A node that leaves them out shows nothing about prices.
async fn highest_base_fee(endpoint: &Endpoint) -> Result<u128, Failure> {
    let params = json!([quantity(PRICE_BLOCKS_MAX), "latest", []]);
    let history: FeeHistory = endpoint.call("eth_feeHistory", &params).await?;
    let base_fees = history.base_fee_per_gas.unwrap_or_default().into_iter();
    let highest = base_fees.map(|wei| wei.0).max().filter(|wei| *wei > 0);
    highest.ok_or_else(|| Failure::Malformed("it shows no base fees".to_owned()))
}

/// The median of the blocks' medians, but at least the newest: when fees rise, the median of ten blocks lags.
/// Blocks without a tip are empty and ignored.
fn usual_tip(history: &FeeHistory) -> Option<u128> {
    let rewards = history.reward.as_ref()?;
    let of_block = |rewards: &Option<Vec<Wei>>| rewards.as_ref()?.first().map(|tip| tip.0);
    let mut tips: Vec<u128> = rewards
        .iter()
        .filter_map(of_block)
        .filter(|tip| *tip > 0)
        .collect();
    let newest = *tips.last()?;
    tips.sort_unstable();
    Some(tips[tips.len() / 2].max(newest))
}

async fn node_tip(endpoint: &Endpoint) -> Result<u128, Failure> {
    match endpoint
        .query::<Wei>("eth_maxPriorityFeePerGas", &json!([]))
        .await?
    {
        Ok(tip) => Ok(tip.0),
        Err(error) if error.is_missing_method() => Ok(TIP_USUAL),
        Err(error) => Err(Failure::Node(error)),
    }
}

#[cfg(test)]
mod tests;
