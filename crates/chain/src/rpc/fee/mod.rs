//! Fee quotes: the next block's base fee, and the usual tip.
//!
//! The base fee follows from the header that is followed, which is read anyway. The tip changes slowly and is queried
//! periodically, so a quote per block needs almost no calls.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use domain::{Address, B256, FeeQuote, Header};
use engine::ports::{BlockTag, ChainError};
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::rpc::answers::{Block, FeeHistory, Quantity, Wei};
use crate::rpc::endpoint::{CallKind, Endpoint};
use crate::rpc::endpoints::Endpoints;
use crate::rpc::failure::Failure;
use crate::rpc::limits::{
    FEE_EXTRA_PATIENCE, FEE_HEADS_MAX, FEE_HISTORY_BLOCKS, PRICE_BLOCKS_MAX, TIP_AGE_MAX,
    TIP_BLOCKS_MAX,
};
use crate::rpc::read::{self, quantity};

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
/// A fall of the base fee that EIP-1559 does not allow counts in full in so many blocks in a row: by then it would allow
/// half.
const LASTING_FALL_BLOCKS: u32 = 6;
/// Tips that differ by more than this factor, between two endpoints or from the last plausible one, are implausible.
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
    /// The newest block of those in a row whose base fee is implausibly low, and how many they are.
    fall: Option<(u64, u32)>,
    /// The tip and, on chains without EIP-1559, the gas price.
    tips: [Option<Tip>; 2],
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
    /// Whether it can have become what is reported.
    is_plausible: bool,
    /// The newest plausible one, and the block at which it was queried.
    plausible: (u64, u128),
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
        let old = self.lock().tips[usize::from(is_price)];
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
            .query_two(CallKind::Read, |endpoint| match is_price {
                true => Box::pin(price(endpoint)),
                false => Box::pin(tip(endpoint)),
            })
            .await;
        let tip = match (quoted, old) {
            (Ok((one, other)), old) => {
                let quoted = lower_tip(one, other.unwrap_or(one));
                Tip::quoted(quoted, old, head.number)
            }
            (Err(error), Some(old)) => {
                tracing::debug!(%error, "the tip could not be queried; the old one stays in use");
                Tip {
                    queried_at_block: head.number,
                    queried_at: Instant::now(),
                    ..old
                }
            }
            (Err(error), None) => return Err(error),
        };
        let no_op_gas = lower_of_two(endpoints, CallKind::DryRun, no_op_gas).await;
        let is_first = {
            let mut state = self.lock();
            state.no_op_gas = no_op_gas.or(state.no_op_gas);
            state.tips[usize::from(is_price)] = Some(tip);
            state.prices.max().is_none()
        };
        if is_first && !is_price {
            self.read_base_fee_history(endpoints, head.number, tip.wei)
                .await;
        }
        Ok(tip)
    }

    /// The base fees of the time before this process started. Where no endpoint shows them, the first block decides.
    async fn read_base_fee_history(&self, endpoints: &Endpoints, number: u64, tip: u128) {
        let highest = lower_of_two(endpoints, CallKind::Read, highest_base_fee).await;
        if let Some(highest) = highest {
            let price = highest.saturating_add(tip);
            self.lock().prices.record(number.saturating_sub(1), price);
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
    /// Records a block. A base fee that moved by far more than EIP-1559 allows is an endpoint's mistake or belongs to a
    /// chain with rules of its own. It counts at most twice the one before it, so that a true change is followed within a
    /// few blocks and a wrong one costs little. And it falls by an eighth per block at most: what is signed at far too low
    /// a price stays behind when the price is right again, because the default policy never raises it.
    ///
    /// Other chains fall faster: by time, with the price of another chain, or by command. Theirs counts after some blocks
    /// in a row, which come fast there; until then more is offered than needed, of which a type 2 transaction pays nothing.
    fn record_head(&mut self, block: &Block) -> Head {
        let Header { number, hash, .. } = block.header();
        let reported = next_base_fee(block);
        let before = self.heads.values().filter(|head| head.number < number);
        let before = before.filter_map(|head| Some((head.number, head.next_base_fee?)));
        let before = before.max_by_key(|(from, _)| *from);
        // A return to what it was costs nothing unexpected, however far a lie that lasted has led away from it.
        let known = self.heads.values().filter(|head| head.is_plausible);
        let known = known.filter_map(|head| head.next_base_fee).max();
        let known = known.unwrap_or(0);
        let next_base_fee = reported.map(|reported| {
            let least = self.credible_least(number, reported);
            let most = before.filter(|(_, before)| *before > 0);
            let most = most.map_or(u128::MAX, |(from, before)| {
                credible_base_fee(before, number.saturating_sub(from)).max(known)
            });
            let used = reported.min(most).max(least);
            if used != reported {
                report_outlier("base_fee", reported, used);
            }
            used
        });
        let head = Head {
            number,
            next_base_fee,
            is_plausible: self.record_plausible(number, reported, next_base_fee),
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

    /// The least that counts for a reported base fee: what EIP-1559 leaves of the newest plausible one, unless the fall
    /// lasts. A block that is read again does not make it last.
    fn credible_least(&mut self, number: u64, reported: u128) -> u128 {
        let Some((from, before)) = self.plausible else {
            return 0;
        };
        let least = fallen_base_fee(before, number.abs_diff(from));
        let (newest, blocks) = self.fall.unwrap_or((from, 0));
        if number > newest {
            let is_low = reported < least;
            self.fall = is_low.then_some((number, blocks.saturating_add(1)));
        }
        match self.fall {
            Some((_, LASTING_FALL_BLOCKS..)) => reported.min(least),
            Some(_) | None => least,
        }
    }

    /// Whether a base fee can follow from the newest plausible one, which it then replaces.
    fn record_plausible(
        &mut self,
        number: u64,
        reported: Option<u128>,
        used: Option<u128>,
    ) -> bool {
        let Some(reported) = reported else {
            return self.plausible.is_none(); // a chain that has a base fee does not lose it
        };
        let is_plausible = self.plausible.is_none_or(|(from, before)| {
            reported <= plausible_base_fee(before, number.saturating_sub(from))
        });
        let is_newer = self.plausible.is_none_or(|(from, _)| from < number);
        let is_low = used > Some(reported);
        if is_plausible && is_newer && !is_low {
            self.plausible = Some((number, reported));
        }
        is_plausible
    }
}

impl Tip {
    /// It counts up to what it can credibly have become since the newest plausible one, however often it is reported: a lie
    /// that lasts must neither be followed upwards nor raise the limit that protects against it.
    fn quoted(quoted: u128, old: Option<Self>, number: u64) -> Self {
        let aged = old.map(|Self { plausible, .. }| {
            let (from, before) = plausible;
            let aged = plausible_base_fee(before, number.saturating_sub(from));
            (plausible, aged.max(TIP_FALLBACK))
        });
        let most = aged.map_or(u128::MAX, |((_, before), aged)| {
            aged.max(before.saturating_mul(TIP_DISAGREEMENT_FACTOR))
        });
        if quoted > most {
            report_outlier("tip", quoted, most);
        }
        let implausible = aged.filter(|(_, aged)| quoted > *aged);
        Self {
            wei: quoted.min(most),
            is_plausible: implausible.is_none(),
            plausible: implausible.map_or((number, quoted), |(plausible, _)| plausible),
            queried_at_block: number,
            queried_at: Instant::now(),
        }
    }

    fn is_fresh(&self, number: u64) -> bool {
        number.abs_diff(self.queried_at_block) < TIP_BLOCKS_MAX
            && self.queried_at.elapsed() < TIP_AGE_MAX
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

/// The least that a base fee becomes by EIP-1559 after so many blocks, an eighth less with each.
fn fallen_base_fee(before: u128, blocks: u64) -> u128 {
    let mut least = before;
    for _ in 0..blocks.clamp(1, PRICE_BLOCKS_MAX) {
        let step = least.div_ceil(CHANGE_DENOMINATOR);
        least = least.saturating_sub(step);
    }
    least
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
        Err(error) if error.is_missing_method() => Ok(TIP_FALLBACK),
        Err(error) => Err(Failure::Node(error)),
    }
}

#[cfg(test)]
mod tests;
