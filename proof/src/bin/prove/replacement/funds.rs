//! An account without funds in the middle of its txs: the lane waits, reports it, and continues when funded.

use alloy_primitives::U256;
use proof::manual_chain::ManualChain;
use proof::network::NodeKind;
use proof::single_node::{SingleNode, address};
use proof::{Outcome, ensure, eventually};
use serde_json::{Value, json};

use crate::replacement::{WITHIN, bumping};

/// Another account than in the other scenarios, whose transactions must not interfere.
const LANE: usize = 1;

const TXS: u64 = 50;

/// The number of txs that can be paid at first.
const FUNDED: u64 = 20;

/// Also the tip, so that each tx costs exactly this much.
const FEE: u64 = 5_000_000_000;

pub(crate) async fn runs_dry(manual_chain: &ManualChain) -> Outcome<(SingleNode, Value)> {
    let cost = U256::from(21_000) * U256::from(FEE) + U256::ONE;
    manual_chain.set_balance(address(LANE)?, cost * U256::from(FUNDED))?;
    // Hardhat accepts transactions that the account cannot pay, and then mines no block at all: there one at a
    // time.
    let is_careless = manual_chain.node_kind() == NodeKind::HARDHAT;
    let depth = if is_careless { "1" } else { "\"auto\"" };
    // Otherwise what the account cannot pay for is refused.
    let more = format!("[lane]\nmempoolDepth = {depth}\n[admission]\nbalance = \"off\"\n");
    let single_node = bumping(manual_chain, "runs-dry", manual_chain.url(), &more).await?;
    let first = manual_chain.nonce(address(LANE)?)?;
    let fee = FEE.to_string();
    let fields = [("maxFeePerGas", &*fee), ("maxPriorityFeePerGas", &*fee)];
    let mut ids = Vec::new();
    for number in 0..TXS {
        ids.push(
            single_node
                .pay(LANE, &format!("dry-{number}"), &fields)
                .await?,
        );
    }
    let what = "the first that cannot be paid says so, and so does its lane";
    let wait_until_underfunded = eventually(what, WITHIN, || async {
        manual_chain.mine(1)?;
        wait_until_underfunded(&single_node, &ids).await
    });
    let wait_until_underfunded = wait_until_underfunded.await;
    let (waiting, lane) = match wait_until_underfunded {
        Ok(wait_until_underfunded) => wait_until_underfunded,
        Err(error) => {
            let lane = single_node.lane(LANE).await?;
            let first = single_node
                .describe_tx(&ids[usize::try_from(FUNDED)?])
                .await?;
            return Err(format!("{error}; the lane is {lane}; {first}").into());
        }
    };
    let paid = manual_chain.nonce(address(LANE)?)? - first;
    manual_chain.set_balance(address(LANE)?, U256::from(10).pow(U256::from(19)))?;
    let confirmed = eventually("all are confirmed", WITHIN, || async {
        manual_chain.mine(1)?;
        let txs = single_node.node.api.all_txs().await?;
        Ok(txs
            .iter()
            .all(|tx| tx["state"] == "CONFIRMED")
            .then_some(()))
    });
    confirmed.await?;
    let facts = json!({
        "txs": TXS,
        "minedBeforeItRanDry": paid,
        "reason": waiting["reason"],
        "laneWaitingFor": lane["waitingFor"],
    });
    Ok((single_node, facts))
}

/// Waits until the lowest open tx and its lane report missing funds.
async fn wait_until_underfunded(
    single_node: &SingleNode,
    ids: &[String],
) -> Outcome<Option<(Value, Value)>> {
    for id in ids {
        let tx = single_node.tx(id).await?;
        if tx["state"] == "CONFIRMED" || tx["subState"] == "mined" {
            continue;
        }
        let lane = single_node.lane(LANE).await?;
        let says = tx["subState"] == "underfunded" && tx["waitingFor"] == "funds";
        let reason = tx["reason"].as_str();
        let is_reported = says && reason.is_some() && lane["waitingFor"].as_str() == reason;
        return Ok(is_reported.then_some((tx, lane)));
    }
    ensure(false, "the account did not run dry")?;
    Ok(None)
}
