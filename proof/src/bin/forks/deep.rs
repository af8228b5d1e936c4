//! A fork that goes deeper than is watched: what it took waits for a decision, visibly, and still ends by
//! itself when it is mined again.

use std::time::Duration;

use proof::config::Config;
use proof::solo::Terms;
use proof::stage::Stage;
use proof::{Outcome, demand};

use crate::theatre::Theatre;

/// Blocks that make a result final.
const REQUIRED: u64 = 1;
/// How deep finals are watched.
const WATCH_DEPTH: u64 = 3;
/// Deeper than the view: what is required, what is watched, and 16 more; and its parent.
const DEPTH: u64 = REQUIRED + WATCH_DEPTH + 16 + 4;

/// Mined by the fork too, in its lowest block.
const AGAIN: usize = 0;
/// Final before the fork.
const FINAL: usize = 1;
/// In the newest block.
const MINED: usize = 2;

const STUCK_WITHIN: Duration = Duration::from_secs(30);

/// The settings of the node that follows it.
pub(crate) fn terms(stage: &Stage) -> Terms {
    let terms = crate::terms(stage, WATCH_DEPTH);
    Terms {
        name: format!("deep-{}", stage.make().name()),
        config: Config {
            confirmations: REQUIRED,
            ..terms.config
        },
        ..terms
    }
}

/// What it took is STUCK, and leaves that when it is mined again.
pub(crate) async fn fork(theatre: &mut Theatre) -> Outcome<()> {
    // The view must be full: a chain without so many blocks has no ancestor to look for.
    theatre.stage.mine(2 * DEPTH)?;
    theatre.stage.snapshot();
    let base = theatre.stage.height()?;
    theatre.stage.mine(DEPTH - 3)?;
    let last = theatre.pay(FINAL, "deep-final").await?;
    theatre.block().await?;
    theatre.block().await?;
    let again = theatre.pay(AGAIN, "deep-again").await?;
    let mined = theatre.pay(MINED, "deep-mined").await?;
    theatre.block().await?;
    let tip = theatre.stage.height()?;
    demand(tip == base + DEPTH, format!("{base} to {tip}"))?;
    demand(theatre.fold.of(&last).is_final, "it should be final")?;
    let raw = theatre.held(&again).await?;
    let raw = theatre.stage.raw(raw)?;

    theatre.fork_at_once(DEPTH, &[raw], 0).await?;
    for tx_id in [&last, &mined] {
        let is_stuck = |tx: &serde_json::Value| {
            tx["state"] == "STUCK" && tx["subState"] == "deepFork" && tx["reason"].is_string()
        };
        let what = "it is STUCK because of the deep fork";
        theatre
            .solo
            .until(tx_id, what, STUCK_WITHIN, is_stuck)
            .await?;
        theatre.held(tx_id).await?; // STUCK stops new attempts only
    }
    let name = "lanekeeper_incidents_total";
    let deep = theatre.solo.node.metric(name, "kind=\"deep_fork\"").await?;
    demand(deep >= 1.0, "a deep fork is an incident")?;
    theatre.fold.read(&theatre.solo.node.api).await?;
    for tx_id in [&last, &mined] {
        demand(theatre.fold.of(tx_id).is_stuck, "no TxStuck was told")?;
    }
    theatre.finish().await
}
