//! Fee quotes: the next block's base fee, and the usual tip.
//!
//! The base fee follows from the header that is followed, which is read anyway. The tip changes slowly and is queried
//! periodically, so a quote per block needs almost no calls.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use domain::{Address, B256, FeeQuote, Header, admission};
use engine::ports::{BlockTag, ChainError};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::answers::{Block, FeeHistory, Quantity, Wei};
use super::endpoint::Endpoint;
use super::endpoints::Endpoints;
use super::failure::Failure;
use super::limits::{
    FEE_EXTRA_PATIENCE, FEE_HEADS_MAX, FEE_HISTORY_BLOCKS, PRICE_BLOCKS_MAX, TIP_AGE_MAX,
    TIP_BLOCKS_MAX,
};
use super::read::{self, quantity};

/// The tip if neither blocks nor the node provide one: the default of wallets since EIP-1559.
const TIP_FALLBACK: u128 = 1_000_000_000;
/// geth's pool refuses a tip of 0.
const TIP_MIN: u128 = 1;
/// The median of the tips in a block.
const REWARD_PERCENTILE: u64 = 50;
/// By EIP-1559 a full block, twice the target, raises the base fee by an eighth.
const ELASTICITY: u128 = 2;
const CHANGE_DENOMINATOR: u128 = 8;
/// Any account: what a no-op costs does not depend on it.
const NO_OP_ACCOUNT: Address = Address::repeat_byte(0x4b);
const NO_OP_MARGIN_PERCENT: u64 = 150;
/// Far above what any chain demands: a wrong estimate must not make a no-op unaffordable.
const NO_OP_GAS_MAX: u64 = 5_000_000;
/// Tips that differ by more than this factor, between two endpoints or two queries, are implausible.
const TIP_DISAGREEMENT_FACTOR: u128 = 10;

/// Caches base fees of recent blocks, and the tip.
#[derive(Default)]
pub(super) struct FeeQuoter(Mutex<FeeState>);

#[derive(Default)]
struct FeeState {
    /// The newest blocks that were read, by hash: the one that is followed is among them.
    heads: BTreeMap<B256, Head>,
    /// The number and next base fee of the newest block whose base fee is plausible.
    plausible: Option<(u64, u128)>,
    tip: Option<Tip>,
    no_op_gas: Option<u64>,
    prices: RecentPrices,
}

/// A block that was read.
#[derive(Clone, Copy)]
struct Head {
    number: u64,
    /// The base fee of the block after it; `None` on chains without EIP-1559.
    next_base_fee: Option<u128>,
    /// Whether the base fee may have become what is reported by the rule of EIP-1559.
    is_plausible: bool,
    gas_limit: Option<u64>,
}

/// The usual tip; on chains without EIP-1559, the usual gas price.
#[derive(Clone, Copy)]
struct Tip {
    wei: u128,
    /// Whether it is near the one before it.
    is_plausible: bool,
    is_price: bool,
    queried_at_block: u64,
    queried_at: Instant,
}

impl FeeQuoter {
    fn lock(&self) -> MutexGuard<'_, FeeState> {
        self.0.lock().expect("nothing panics while holding it")
    }

    /// Records a block that was read.
    pub(super) fn record_head(&self, block: &Block) {
        self.lock().record_head(block);
    }

    /// A quote for the block after `followed`, from the cache if it is fresh enough.
    pub(super) async fn quote(
        &self,
        endpoints: &Endpoints,
        followed: &Header,
    ) -> Result<FeeQuote, ChainError> {
        let known = self.lock().heads.get(&followed.hash).copied();
        let head = match known {
            Some(head) => head,
            None => self.fetch_head(endpoints, followed.hash).await?,
        };
        let is_price = head.next_base_fee.is_none();
        let old = self.lock().tip.filter(|tip| tip.is_price == is_price);
        let tip = match old {
            Some(tip) if tip.is_fresh(head.number) => tip,
            Some(_) | None => self.query_tip(endpoints, head, old).await?,
        };
        let mut state = self.lock();
        // What is implausible must not raise the limit that protects against it. A change that lasts becomes plausible.
        if (head.is_plausible && tip.is_plausible) || state.prices.max().is_none() {
            let price = head.next_base_fee.unwrap_or(0).saturating_add(tip.wei);
            state.prices.record(head.number, price);
        }
        Ok(FeeQuote {
            base_fee: head.next_base_fee,
            tip: tip.wei,
            block_gas_limit: head.gas_limit,
            no_op_gas: state.no_op_gas,
            recent_max: state.prices.max(),
        })
    }

    async fn fetch_head(&self, endpoints: &Endpoints, hash: B256) -> Result<Head, ChainError> {
        let block = endpoints
            .find_first(|endpoint| Box::pin(read::block(endpoint, BlockTag::Hash(hash))))
            .await?;
        let block = block.ok_or_else(|| {
            ChainError::Unusable(format!("no endpoint has block {hash} to derive fees from"))
        })?;
        Ok(self.lock().record_head(&block))
    }

    /// Queries the tip at two endpoints where there are two; the lower one counts, because a node that reports too much
    /// costs money and one that reports too little costs a block or two. If no endpoint returns one, the old one stays in
    /// use.
    async fn query_tip(
        &self,
        endpoints: &Endpoints,
        head: Head,
        old: Option<Tip>,
    ) -> Result<Tip, ChainError> {
        let is_price = head.next_base_fee.is_none();
        let quoted = endpoints
            .read_two(|endpoint| match is_price {
                true => Box::pin(price(endpoint)),
                false => Box::pin(tip(endpoint)),
            })
            .await;
        let (wei, is_plausible) = match (quoted, old) {
            (Ok((one, other)), old) => {
                let most = old.map_or(u128::MAX, |old| credible_tip(old.wei));
                let quoted = lower_tip(one, other.unwrap_or(one));
                if quoted > most {
                    report_outlier("tip", quoted, most);
                }
                (quoted.min(most), quoted <= most)
            }
            (Err(error), Some(old)) => {
                tracing::debug!(%error, "the tip could not be queried; the old one stays in use");
                (old.wei, old.is_plausible)
            }
            (Err(error), None) => return Err(error),
        };
        let no_op_gas = endpoints.dry_run(1, |endpoint| Box::pin(no_op_gas(endpoint)));
        let no_op_gas = timeout(FEE_EXTRA_PATIENCE, no_op_gas).await;
        let no_op_gas = no_op_gas.ok().and_then(Result::ok);
        let tip = Tip {
            wei,
            is_plausible,
            is_price,
            queried_at_block: head.number,
            queried_at: Instant::now(),
        };
        let is_first = {
            let mut state = self.lock();
            state.no_op_gas = no_op_gas.or(state.no_op_gas);
            state.tip = Some(tip);
            state.prices.max().is_none()
        };
        if is_first && !is_price {
            self.read_base_fee_history(endpoints, head.number, wei)
                .await;
        }
        Ok(tip)
    }

    /// The base fees of the time before this process started. Where no endpoint shows them, the first block decides.
    async fn read_base_fee_history(&self, endpoints: &Endpoints, number: u64, tip: u128) {
        let history = endpoints.read_first(|endpoint| Box::pin(base_fee_history(endpoint)));
        let history = timeout(FEE_EXTRA_PATIENCE, history).await;
        // A node that leaves them out says nothing about prices.
        let highest = history
            .ok()
            .and_then(Result::ok)
            .and_then(|base_fees| base_fees.into_iter().max());
        if let Some(highest) = highest.filter(|wei| *wei > 0) {
            let price = highest.saturating_add(tip);
            self.lock().prices.record(number.saturating_sub(1), price);
        }
    }
}

impl FeeState {
    /// Records a block. A base fee that rose by far more than EIP-1559 allows is an endpoint's mistake or belongs to a
    /// chain with rules of its own: it counts at most twice the one before it, so that a true change is followed within a
    /// few blocks and a wrong one costs little.
    fn record_head(&mut self, block: &Block) -> Head {
        let Header { number, hash, .. } = block.header();
        let reported = next_base_fee(block);
        let before = self.heads.values().filter(|head| head.number < number);
        let before = before.max_by_key(|head| head.number).copied();
        let credible = before.and_then(|before| Some((before.number, before.next_base_fee?)));
        let next_base_fee = match (reported, credible) {
            (Some(reported), Some((from, before))) if before > 0 => {
                let most = credible_base_fee(before, number.saturating_sub(from));
                if reported > most {
                    report_outlier("base_fee", reported, most);
                }
                Some(reported.min(most))
            }
            (reported, _) => reported,
        };
        let head = Head {
            number,
            next_base_fee,
            is_plausible: self.record_plausible(number, reported),
            gas_limit: block.gas_limit.map(|limit| limit.0),
        };
        self.heads.insert(hash, head);
        if self.heads.len() > FEE_HEADS_MAX {
            let oldest = self.heads.iter().min_by_key(|(_, head)| head.number);
            let oldest = oldest.map(|(hash, _)| *hash);
            oldest.map(|hash| self.heads.remove(&hash));
        }
        head
    }

    /// Whether a base fee can follow from the newest plausible one, which it then replaces.
    fn record_plausible(&mut self, number: u64, reported: Option<u128>) -> bool {
        let Some(reported) = reported else {
            return self.plausible.is_none(); // a chain that has a base fee does not lose it
        };
        let is_plausible = self.plausible.is_none_or(|(from, before)| {
            reported <= plausible_base_fee(before, number.saturating_sub(from))
        });
        let is_newer = self.plausible.is_none_or(|(from, _)| from < number);
        if is_plausible && is_newer {
            self.plausible = Some((number, reported));
        }
        is_plausible
    }
}

/// The most that a base fee becomes by EIP-1559 after so many blocks, an eighth more with each, rounded up.
fn plausible_base_fee(before: u128, blocks: u64) -> u128 {
    let mut most = before;
    for _ in 0..blocks.clamp(1, PRICE_BLOCKS_MAX) {
        let step = most / CHANGE_DENOMINATOR;
        most = most.saturating_add(step).saturating_add(1);
    }
    most
}

/// The most that a base fee can have become after so many blocks: twice as much with each, where EIP-1559 allows an
/// eighth more.
fn credible_base_fee(before: u128, blocks: u64) -> u128 {
    let doublings = u32::try_from(blocks.max(1)).unwrap_or(u32::MAX);
    before.saturating_mul(2_u128.saturating_pow(doublings.min(127)))
}

/// The most that a tip can have become since it was queried last.
fn credible_tip(before: u128) -> u128 {
    let raised = before.saturating_mul(TIP_DISAGREEMENT_FACTOR);
    raised.max(TIP_FALLBACK)
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
        "an endpoint reports an implausible fee; the lower one is used"
    );
    metrics::counter!("lanekeeper_fee_outliers_total", "kind" => kind).increment(1);
}

/// The prices of recent blocks.
#[derive(Default)]
struct RecentPrices(BTreeMap<u64, u128>);

impl RecentPrices {
    fn record(&mut self, number: u64, price: u128) {
        self.0.insert(number, price);
        self.0 = self.0.split_off(&number.saturating_sub(PRICE_BLOCKS_MAX));
    }

    fn max(&self) -> Option<u128> {
        self.0.values().max().copied()
    }
}

impl Tip {
    fn is_fresh(&self, number: u64) -> bool {
        number.abs_diff(self.queried_at_block) < TIP_BLOCKS_MAX
            && self.queried_at.elapsed() < TIP_AGE_MAX
    }
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

/// The gas of a transfer of nothing, with a margin where it is not the fixed amount of Ethereum: there it includes the
/// cost of data on another chain, which moves.
async fn no_op_gas(endpoint: &Endpoint) -> Result<u64, Failure> {
    let call = json!([{ "from": NO_OP_ACCOUNT, "to": NO_OP_ACCOUNT, "value": "0x0" }]);
    let Quantity(gas) = endpoint.call("eth_estimateGas", &call).await?;
    Ok(admission::gas_limit(gas, NO_OP_MARGIN_PERCENT).min(NO_OP_GAS_MAX))
}

async fn base_fee_history(endpoint: &Endpoint) -> Result<Vec<u128>, Failure> {
    let params = json!([quantity(PRICE_BLOCKS_MAX), "latest", []]);
    let history: FeeHistory = endpoint.call("eth_feeHistory", &params).await?;
    let base_fees = history.base_fee_per_gas.unwrap_or_default().into_iter();
    Ok(base_fees.map(|wei| wei.0).collect())
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
        Err(error) if error.is_missing_method() => Ok(TIP_FALLBACK),
        Err(error) => Err(Failure::Node(error)),
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    fn tip(rewards: &str) -> Option<u128> {
        let history = format!(r#"{{"reward":{rewards}}}"#);
        usual_tip(&serde_json::from_str(&history).unwrap())
    }

    #[test]
    fn tip_is_the_median_but_at_least_the_newest() {
        assert_eq!(tip(r#"[["0x1"],["0x9"],["0x5"]]"#), Some(5));
        assert_eq!(tip(r#"[["0x1"],["0x5"],["0x9"]]"#), Some(9));
        assert_eq!(tip(r#"[["0x3"],["0x0"],null,[]]"#), Some(3));
        assert_eq!(tip(r#"[["0x0"],["0x0"]]"#), None);
        assert_eq!(tip("[]"), None);
        assert_eq!(tip("null"), None);
    }

    fn next(base: u128, used: u64, limit: u64) -> Option<u128> {
        let block = json!({
            "number": "0x1", "hash": format!("{:#066x}", 1), "parentHash": format!("{:#066x}", 0),
            "timestamp": "0x1", "baseFeePerGas": format!("{base:#x}"),
            "gasUsed": quantity(used), "gasLimit": quantity(limit),
        });
        next_base_fee(&serde_json::from_value(block).unwrap())
    }

    fn block_at(number: u64, base: u128) -> Block {
        let block = json!({
            "number": quantity(number), "hash": format!("{number:#066x}"), "parentHash": format!("{:#066x}", 0),
            "timestamp": "0x1", "baseFeePerGas": format!("{base:#x}"),
        });
        serde_json::from_value(block).unwrap()
    }

    #[test]
    fn implausible_base_fee_is_followed_only_step_by_step() {
        let mut state = FeeState::default();
        let next = |state: &mut FeeState, number, base| {
            state.record_head(&block_at(number, base)).next_base_fee
        };
        assert_eq!(next(&mut state, 1, 100), Some(100));
        assert_eq!(
            next(&mut state, 2, 190),
            Some(190),
            "a chain with its own rules"
        );
        assert_eq!(next(&mut state, 3, 90_000), Some(380), "a lie, or a jump");
        assert_eq!(
            next(&mut state, 4, 200),
            Some(200),
            "falling is never wrong"
        );
        assert_eq!(
            next(&mut state, 7, 90_000),
            Some(1_600),
            "three blocks later"
        );
        assert_eq!(next(&mut state, 400, u128::MAX), Some(u128::MAX));
        for number in 500..600 {
            next(&mut state, number, 5);
        }
        assert_eq!(state.heads.len(), FEE_HEADS_MAX);
    }

    #[test]
    fn missing_base_fee_is_plausible_only_where_no_block_has_one() {
        let without = |number| {
            let mut block = block_at(number, 0);
            block.base_fee_per_gas = None;
            block
        };
        let mut legacy = FeeState::default();
        assert!(legacy.record_head(&without(1)).is_plausible);
        assert!(legacy.record_head(&without(2)).is_plausible);
        let mut state = FeeState::default();
        assert!(state.record_head(&block_at(1, 100)).is_plausible);
        let lie = state.record_head(&without(2));
        assert!(!lie.is_plausible, "its price does not raise the cap");
        assert!(state.record_head(&block_at(3, 110)).is_plausible);
    }

    #[test]
    fn base_fee_is_plausible_as_far_as_eip1559_allows() {
        let mut state = FeeState::default();
        let mut is_plausible =
            |number, base| state.record_head(&block_at(number, base)).is_plausible;
        assert!(is_plausible(1, 8_000), "the first one decides");
        assert!(is_plausible(2, 9_000), "a full block");
        // Until then they do not raise the limit of what is signed.
        let lies = 3..3 + 58;
        for number in lies {
            assert!(!is_plausible(number, 9_000_000), "block {number}");
        }
        assert!(is_plausible(61, 9_000_000), "it could have become so");
        assert!(is_plausible(62, 8_000) && is_plausible(62, 9_000));
        assert_eq!(plausible_base_fee(0, 1), 1);
        assert_eq!(plausible_base_fee(u128::MAX, u64::MAX), u128::MAX);
    }

    #[test]
    fn highest_price_counts_for_a_thousand_blocks() {
        let mut prices = RecentPrices::default();
        assert_eq!(prices.max(), None);
        prices.record(10, 50);
        prices.record(12, 140);
        prices.record(12 + PRICE_BLOCKS_MAX, 60);
        assert_eq!(prices.max(), Some(140));
        prices.record(13 + PRICE_BLOCKS_MAX, 60);
        assert_eq!(prices.max(), Some(60));
    }

    #[test]
    fn lower_of_two_tips_counts_and_a_disagreement_is_counted() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _recording = metrics::set_default_local_recorder(&recorder);
        assert_eq!(lower_tip(7, 9), 7);
        assert_eq!(recorder.handle().render(), "");
        assert_eq!(lower_tip(9_000, 7), 7);
        let page = recorder.handle().render();
        let line = "lanekeeper_fee_outliers_total{kind=\"tip\"} 1\n";
        assert!(page.contains(line), "{page}");
    }

    #[test]
    fn next_base_fee_follows_eip1559() {
        // The EIP's own test cases, and edge cases.
        assert_eq!(
            next(1_000_000_000, 10_000_000, 20_000_000),
            Some(1_000_000_000)
        );
        assert_eq!(
            next(1_000_000_000, 9_000_000, 20_000_000),
            Some(987_500_000)
        );
        assert_eq!(
            next(1_000_000_000, 11_000_000, 20_000_000),
            Some(1_012_500_000)
        );
        assert_eq!(next(800, 20, 20), Some(900));
        assert_eq!(next(800, 0, 20), Some(700));
        assert_eq!(next(1, 20, 20), Some(2));
        assert_eq!(next(0, 20, 20), Some(1));
        assert_eq!(next(7, 5, 0), Some(7));
        assert_eq!(next(7, 5, 1), Some(7));
        assert_eq!(next(u128::MAX, u64::MAX, 2), Some(u128::MAX));
    }
}
