//! Fee quotes: the next block's base fee, and the usual tip.
//!
//! The base fee follows from the newest header, which is read anyway. The tip changes slowly and is queried
//! periodically, so a quote per block needs almost no calls.

use std::sync::Mutex;

use domain::FeeQuote;
use engine::ports::ChainError;
use serde_json::json;
use tokio::time::Instant;

use super::answers::{Block, FeeHistory, Wei};
use super::endpoint::Endpoint;
use super::endpoints::Endpoints;
use super::failure::Failure;
use super::limits::{FEE_HISTORY_BLOCKS, TIP_AGE_MAX, TIP_BLOCKS_MAX};
use super::read::quantity;

/// The tip if neither blocks nor the node provide one: the default of wallets since EIP-1559.
const TIP_FALLBACK: u128 = 1_000_000_000;
/// geth's pool refuses a tip of 0.
const TIP_MIN: u128 = 1;
/// The median of the tips in a block.
const REWARD_PERCENTILE: u64 = 50;
/// By EIP-1559 a full block, twice the target, raises the base fee by an eighth.
const ELASTICITY: u128 = 2;
const CHANGE_DENOMINATOR: u128 = 8;

/// Caches the newest base fee and tip.
#[derive(Default)]
pub(super) struct FeeQuoter(Mutex<FeeState>);

#[derive(Clone, Copy, Default)]
struct FeeState {
    head: Option<Head>,
    tip: Option<Tip>,
}

/// The newest block that was read.
#[derive(Clone, Copy)]
struct Head {
    number: u64,
    /// The base fee of the block after it; `None` on chains without EIP-1559.
    next_base_fee: Option<u128>,
    gas_limit: Option<u64>,
}

/// The usual tip; on chains without EIP-1559, the usual gas price.
#[derive(Clone, Copy)]
struct Tip {
    wei: u128,
    is_price: bool,
    queried_at_block: u64,
    queried_at: Instant,
}

impl FeeQuoter {
    fn state(&self) -> FeeState {
        *self.0.lock().expect("nothing panics while holding it")
    }

    /// Records the newest block.
    pub(super) fn record_head(&self, block: &Block) {
        let head = Head {
            number: block.header().number,
            next_base_fee: next_base_fee(block),
            gas_limit: block.gas_limit.map(|limit| limit.0),
        };
        let mut state = self.0.lock().expect("nothing panics while holding it");
        state.head = Some(head);
    }

    /// A quote, from the cache if it is fresh enough.
    pub(super) async fn quote(&self, endpoints: &Endpoints) -> Result<FeeQuote, ChainError> {
        if self.state().head.is_none()
            && let Some(block) = endpoints.fetch_latest_block().await?
        {
            self.record_head(&block);
        }
        let FeeState { head, tip } = self.state();
        let head = head.ok_or_else(|| {
            ChainError::Unusable("the chain has no block to derive fees from".to_owned())
        })?;
        let is_price = head.next_base_fee.is_none();
        let old = tip.filter(|tip| tip.is_price == is_price);
        let tip = match old {
            Some(tip) if tip.is_fresh(head.number) => tip.wei,
            Some(_) | None => self.query_tip(endpoints, head, old).await?,
        };
        Ok(FeeQuote {
            base_fee: head.next_base_fee,
            tip,
            block_gas_limit: head.gas_limit,
        })
    }

    /// Queries the tip. If no endpoint returns one, the old one stays in use.
    async fn query_tip(
        &self,
        endpoints: &Endpoints,
        head: Head,
        old: Option<Tip>,
    ) -> Result<u128, ChainError> {
        let is_price = head.next_base_fee.is_none();
        let quoted = if is_price {
            endpoints
                .read_first(|endpoint| Box::pin(price(endpoint)))
                .await
        } else {
            endpoints
                .read_first(|endpoint| Box::pin(tip(endpoint)))
                .await
        };
        let wei = match (quoted, old) {
            (Ok(wei), _) => wei,
            (Err(error), Some(old)) => {
                tracing::debug!(%error, "the tip could not be queried; the old one stays in use");
                old.wei
            }
            (Err(error), None) => return Err(error),
        };
        let mut state = self.0.lock().expect("nothing panics while holding it");
        state.tip = Some(Tip {
            wei,
            is_price,
            queried_at_block: head.number,
            queried_at: Instant::now(),
        });
        Ok(wei)
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
