//! What the chain asks for: the next block's base fee, and the tip that others pay.

use domain::FeeQuote;
use serde_json::json;

use super::answers::{Block, FeeHistory, Wei};
use super::endpoint::Endpoint;
use super::failure::Failure;
use super::limits::FEE_HISTORY_BLOCKS;
use super::read::quantity;

/// The tip where neither blocks nor node tell one: what wallets have offered since EIP-1559.
const TIP_FALLBACK: u128 = 1_000_000_000;
/// geth's pool refuses a tip of 0.
const TIP_MIN: u128 = 1;
/// The middle of what a block's transactions paid.
const REWARD_PERCENTILE: u64 = 50;

/// One call where blocks have transactions; two or three on empty chains and on those without a
/// base fee.
pub(super) async fn quote(endpoint: &Endpoint) -> Result<FeeQuote, Failure> {
    let params = json!([quantity(FEE_HISTORY_BLOCKS), "latest", [REWARD_PERCENTILE]]);
    let history: Option<FeeHistory> = match endpoint.ask("eth_feeHistory", &params).await? {
        Ok(history) => Some(history),
        Err(error) if error.is_missing_method() => None,
        Err(error) => return Err(Failure::Node(error)),
    };
    let told = history.as_ref().and_then(next_base_fee);
    let base_fee = match told {
        Some(wei) if wei > 0 => Some(wei),
        // Nodes write 0 for blocks from before EIP-1559, and some chains really ask for 0.
        Some(_) | None => base_fee_of_latest(endpoint).await?,
    };
    let Some(base_fee) = base_fee else {
        let price: Wei = endpoint.call("eth_gasPrice", &json!([])).await?;
        return Ok(FeeQuote {
            base_fee: None,
            tip: price.0,
        });
    };
    let tip = match history.as_ref().and_then(usual_tip) {
        Some(tip) => tip,
        None => node_tip(endpoint).await?,
    };
    Ok(FeeQuote {
        base_fee: Some(base_fee),
        tip: tip.max(TIP_MIN),
    })
}

fn next_base_fee(history: &FeeHistory) -> Option<u128> {
    let fees = history.base_fee_per_gas.as_ref()?;
    fees.last().copied().flatten().map(|fee| fee.0)
}

async fn base_fee_of_latest(endpoint: &Endpoint) -> Result<Option<u128>, Failure> {
    let block: Option<Block> = endpoint
        .call("eth_getBlockByNumber", &json!(["latest", false]))
        .await?;
    let block = block.ok_or_else(|| Failure::Malformed("there is no latest block".to_owned()))?;
    Ok(block.base_fee_per_gas.map(|fee| fee.0))
}

/// The median of the blocks' own medians, and not less than the newest of them: when fees rise,
/// the median of ten blocks comes late. Blocks that paid nothing are empty and say nothing.
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
        .ask::<Wei>("eth_maxPriorityFeePerGas", &json!([]))
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
        let history = format!(r#"{{"baseFeePerGas":["0x1"],"reward":{rewards}}}"#);
        usual_tip(&serde_json::from_str(&history).unwrap())
    }

    #[test]
    fn tip_is_the_median_but_not_below_the_newest() {
        assert_eq!(tip(r#"[["0x1"],["0x9"],["0x5"]]"#), Some(5));
        assert_eq!(tip(r#"[["0x1"],["0x5"],["0x9"]]"#), Some(9));
        assert_eq!(tip(r#"[["0x3"],["0x0"],null,[]]"#), Some(3));
        assert_eq!(tip(r#"[["0x0"],["0x0"]]"#), None);
        assert_eq!(tip("[]"), None);
        assert_eq!(tip("null"), None);
    }
}
