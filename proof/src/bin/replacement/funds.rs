//! An account that runs dry in the middle of its txs: the lane waits, says so, and goes on when funded.

use alloy_primitives::U256;
use proof::network::Make;
use proof::solo::{Solo, address};
use proof::stage::Stage;
use proof::{Outcome, demand, eventually};
use serde_json::{Value, json};

use crate::{WITHIN, bumping};

/// Not the account of the other scenarios: nothing must be left of them.
const LANE: usize = 1;

const TXS: u64 = 50;

/// So many of them can be paid at first.
const FUNDED: u64 = 20;

/// Offered as tip too, so that each costs exactly this much.
const FEE: u64 = 5_000_000_000;

pub(crate) async fn runs_dry(stage: &Stage) -> Outcome<(Solo, Value)> {
    let cost = U256::from(21_000) * U256::from(FEE) + U256::ONE;
    stage.set_balance(address(LANE)?, cost * U256::from(FUNDED))?;
    // Hardhat takes what the account cannot pay, and then makes no block at all: there one at a time.
    let is_careless = stage.make() == Make::HARDHAT;
    let depth = if is_careless { "1" } else { "\"auto\"" };
    let more = format!("[lane]\nmempoolDepth = {depth}\n");
    let solo = bumping(stage, "runs-dry", stage.url(), &more).await?;
    let first = stage.nonce(address(LANE)?)?;
    let fee = FEE.to_string();
    let fields = [("maxFeePerGas", &*fee), ("maxPriorityFeePerGas", &*fee)];
    let mut ids = Vec::new();
    for number in 0..TXS {
        ids.push(solo.pay(LANE, &format!("dry-{number}"), &fields).await?);
    }
    let what = "the first that cannot be paid says so, and so does its lane";
    let dry = eventually(what, WITHIN, || async {
        stage.mine(1)?;
        dry(&solo, &ids).await
    });
    let dry = dry.await;
    let (waiting, lane) = match dry {
        Ok(dry) => dry,
        Err(error) => {
            let lane = solo.lane(LANE).await?;
            let first = solo.story(&ids[usize::try_from(FUNDED)?]).await?;
            return Err(format!("{error}; the lane is {lane}; {first}").into());
        }
    };
    let paid = stage.nonce(address(LANE)?)? - first;
    stage.set_balance(address(LANE)?, U256::from(10).pow(U256::from(19)))?;
    let confirmed = eventually("all are confirmed", WITHIN, || async {
        stage.mine(1)?;
        let txs = solo.node.api.all_txs().await?;
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
    Ok((solo, facts))
}

/// The lowest open tx and its lane, once they say that money is missing.
async fn dry(solo: &Solo, ids: &[String]) -> Outcome<Option<(Value, Value)>> {
    for id in ids {
        let tx = solo.tx(id).await?;
        if tx["state"] == "CONFIRMED" || tx["subState"] == "mined" {
            continue;
        }
        let lane = solo.lane(LANE).await?;
        let says = tx["subState"] == "underfunded" && tx["waitingFor"] == "funds";
        let reason = tx["reason"].as_str();
        let is_said = says && reason.is_some() && lane["waitingFor"].as_str() == reason;
        return Ok(is_said.then_some((tx, lane)));
    }
    demand(false, "the account did not run dry")?;
    Ok(None)
}
