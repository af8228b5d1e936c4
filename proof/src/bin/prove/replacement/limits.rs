//! Limits: the highest fee of a bump, and the number of attempts. Both are reported, and neither is a dead end.

use proof::manual_chain::ManualChain;
use proof::single_node::SingleNode;
use proof::{Outcome, ensure};
use serde_json::{Value, json};

use crate::replacement::{LANE, WITHIN, bumping, fees_of};

const GWEI: u64 = 1_000_000_000;

/// More than the first offer on a new chain, less than two raises.
const FEE_LIMIT: u64 = 4 * GWEI;

/// The base fee of a busy chain: far above the limit, even after some empty blocks.
const BUSY: u64 = 100 * GWEI;

/// Fees rise above `resubmit.maxFeePerGas` while three txs wait, and fall again.
pub(crate) async fn fee(manual_chain: &ManualChain) -> Outcome<(SingleNode, Value)> {
    let more = format!("maxFeePerGas = \"{FEE_LIMIT}\"\n");
    let single_node = bumping(manual_chain, "fee-limit", manual_chain.url(), &more).await?;
    let mut ids = Vec::new();
    for number in 0..3 {
        ids.push(
            single_node
                .pay(LANE, &format!("limited-{number}"), &[])
                .await?,
        );
    }
    for id in &ids {
        let is_out = |tx: &Value| tx["subState"] == "submitted";
        single_node
            .until(id, "the node has it", WITHIN, is_out)
            .await?;
    }
    if manual_chain.sets_base_fee() {
        manual_chain.set_base_fee(BUSY)?;
        manual_chain.mine(1)?;
    }
    let head = single_node.until(&ids[0], "its limit is reported", WITHIN, |tx| {
        tx["subState"] == "feeCap" && tx["reason"].is_string() && tx["waitingFor"] == "fee"
    });
    let head = head.await?;
    let offers = head["attempts"].as_array().into_iter().flatten();
    let offers = offers.map(|a| {
        a["maxFeePerGas"]
            .as_str()
            .unwrap_or_default()
            .parse::<u64>()
    });
    let offers: Vec<u64> = offers.collect::<Result<_, _>>()?;
    ensure(
        offers.iter().all(|offer| *offer <= FEE_LIMIT),
        format!("{offers:?} go beyond {FEE_LIMIT}"),
    )?;
    let lane = single_node.lane(LANE).await?;
    ensure(
        lane["waitingFor"].is_string(),
        format!("the lane does not say why it waits: {lane}"),
    )?;
    if manual_chain.sets_base_fee() {
        manual_chain.set_base_fee(GWEI)?;
    }
    manual_chain.mine(2)?;
    for id in &ids {
        let is_over = |tx: &Value| tx["state"] == "CONFIRMED";
        single_node
            .until(id, "it is confirmed", WITHIN, is_over)
            .await?;
    }
    let facts = json!({
        "attempts": fees_of(&head),
        "reason": head["reason"],
        "laneWaitingFor": lane["waitingFor"],
    });
    Ok((single_node, facts))
}

/// After two raises no third one: STUCK until it is mined.
pub(crate) async fn attempts(manual_chain: &ManualChain) -> Outcome<(SingleNode, Value)> {
    let single_node = bumping(
        manual_chain,
        "attempt-limit",
        manual_chain.url(),
        "maxAttempts = 2\n",
    )
    .await?;
    let id = single_node.pay(LANE, "stuck", &[]).await?;
    let stuck = single_node.until(&id, "it is STUCK", WITHIN, |tx| {
        tx["state"] == "STUCK" && tx["reason"].is_string() && tx["waitingFor"] == "decision"
    });
    let stuck = stuck.await?;
    let sent_again = |history: &[Value]| {
        let stuck = history.iter().position(|event| event["type"] == "TxStuck");
        let since = stuck.map(|at| &history[at..]).unwrap_or_default();
        since.iter().any(|event| event["type"] == "TxResubmitted")
    };
    let again = proof::eventually("it is sent again", WITHIN, || async {
        Ok(sent_again(&single_node.tx_events(&id).await?).then_some(()))
    });
    again.await?;
    let count = |tx: &Value| tx["attempts"].as_array().map_or(0, Vec::len);
    let later = single_node.tx(&id).await?;
    ensure(
        count(&later) == 3 && count(&stuck) == 3,
        format!("an original and two bumps, and no more: {later}"),
    )?;
    manual_chain.mine(2)?;
    let is_over = |tx: &Value| tx["state"] == "CONFIRMED";
    single_node
        .until(&id, "it left STUCK by itself", WITHIN, is_over)
        .await?;
    let facts = json!({ "attempts": fees_of(&stuck), "reason": stuck["reason"] });
    Ok((single_node, facts))
}
