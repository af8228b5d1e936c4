//! Limits that bind: the most that a bump may offer, and the most attempts. Both are said, and neither is
//! a dead end.

use proof::solo::Solo;
use proof::stage::Stage;
use proof::{Outcome, demand};
use serde_json::{Value, json};

use crate::{LANE, WITHIN, bumping, fees_of};

const GWEI: u64 = 1_000_000_000;

/// More than the first offer on a new chain, less than two raises of it.
const FEE_LIMIT: u64 = 4 * GWEI;

/// What a busy chain asks for: far above the limit, also after some empty blocks.
const BUSY: u64 = 100 * GWEI;

/// Fees rise above `resubmit.maxFeePerGas` while three txs wait, and fall again.
pub(crate) async fn fee(stage: &Stage) -> Outcome<(Solo, Value)> {
    let more = format!("maxFeePerGas = \"{FEE_LIMIT}\"\n");
    let solo = bumping(stage, "fee-limit", stage.url(), &more).await?;
    let mut ids = Vec::new();
    for number in 0..3 {
        ids.push(solo.pay(LANE, &format!("limited-{number}"), &[]).await?);
    }
    for id in &ids {
        let is_out = |tx: &Value| tx["subState"] == "submitted";
        solo.until(id, "the node has it", WITHIN, is_out).await?;
    }
    if stage.sets_base_fee() {
        stage.set_base_fee(BUSY)?;
        stage.mine(1)?;
    }
    let head = solo.until(&ids[0], "its limit is said", WITHIN, |tx| {
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
    demand(
        offers.iter().all(|offer| *offer <= FEE_LIMIT),
        format!("{offers:?} go beyond {FEE_LIMIT}"),
    )?;
    let lane = solo.lane(LANE).await?;
    demand(
        lane["waitingFor"].is_string(),
        format!("the lane does not say why it waits: {lane}"),
    )?;
    if stage.sets_base_fee() {
        stage.set_base_fee(GWEI)?;
    }
    stage.mine(2)?;
    for id in &ids {
        let is_over = |tx: &Value| tx["state"] == "CONFIRMED";
        solo.until(id, "it is confirmed", WITHIN, is_over).await?;
    }
    let facts = json!({
        "attempts": fees_of(&head),
        "reason": head["reason"],
        "laneWaitingFor": lane["waitingFor"],
    });
    Ok((solo, facts))
}

/// After two raises no third one: STUCK until it is mined after all.
pub(crate) async fn attempts(stage: &Stage) -> Outcome<(Solo, Value)> {
    let solo = bumping(stage, "attempt-limit", stage.url(), "maxAttempts = 2\n").await?;
    let id = solo.pay(LANE, "stuck", &[]).await?;
    let stuck = solo.until(&id, "it is STUCK", WITHIN, |tx| {
        tx["state"] == "STUCK" && tx["reason"].is_string() && tx["waitingFor"] == "decision"
    });
    let stuck = stuck.await?;
    let sent_again = |history: &[Value]| {
        let stuck = history.iter().position(|event| event["type"] == "TxStuck");
        let since = stuck.map(|at| &history[at..]).unwrap_or_default();
        since.iter().any(|event| event["type"] == "TxResubmitted")
    };
    let again = proof::eventually("its bytes go on", WITHIN, || async {
        Ok(sent_again(&solo.history(&id).await?).then_some(()))
    });
    again.await?;
    let count = |tx: &Value| tx["attempts"].as_array().map_or(0, Vec::len);
    let later = solo.tx(&id).await?;
    demand(
        count(&later) == 3 && count(&stuck) == 3,
        format!("an original and two bumps, and no more: {later}"),
    )?;
    stage.mine(2)?;
    let is_over = |tx: &Value| tx["state"] == "CONFIRMED";
    solo.until(&id, "it left STUCK by itself", WITHIN, is_over)
        .await?;
    let facts = json!({ "attempts": fees_of(&stuck), "reason": stuck["reason"] });
    Ok((solo, facts))
}
