//! A fork below the watched depth: its txs visibly wait for a decision, and still end by themselves when they are
//! mined again.

use std::time::Duration;

use proof::config::Config;
use proof::manual_chain::ManualChain;
use proof::single_node::Terms;
use proof::{Outcome, ensure};

use crate::forks::scenario::ForkScenario;

const REQUIRED: u64 = 1;
const WATCH_DEPTH: u64 = 3;
/// Below the view: the required depth, the watched depth, 16 more, and the parent.
const DEPTH: u64 = REQUIRED + WATCH_DEPTH + 16 + 4;

/// Also mined in the fork, in its lowest block.
const AGAIN: usize = 0;
/// Final before the fork.
const FINAL: usize = 1;
/// In the newest block.
const MINED: usize = 2;

const STUCK_WITHIN: Duration = Duration::from_secs(30);

pub(crate) fn terms(manual_chain: &ManualChain) -> Terms {
    let terms = crate::forks::terms(manual_chain, WATCH_DEPTH);
    Terms {
        name: format!("deep-{}", manual_chain.node_kind().name()),
        config: Config {
            confirmations: REQUIRED,
            ..terms.config
        },
        ..terms
    }
}

/// The reorged txs are STUCK, until they are mined again.
pub(crate) async fn fork(scenario: &mut ForkScenario) -> Outcome<()> {
    // The view must be full: a shorter chain has no common ancestor to search.
    scenario.manual_chain.mine(2 * DEPTH)?;
    scenario.manual_chain.snapshot();
    let base = scenario.manual_chain.height()?;
    scenario.manual_chain.mine(DEPTH - 3)?;
    let last = scenario.pay(FINAL, "deep-final").await?;
    scenario.block().await?;
    scenario.block().await?;
    let again = scenario.pay(AGAIN, "deep-again").await?;
    let mined = scenario.pay(MINED, "deep-mined").await?;
    scenario.block().await?;
    let tip = scenario.manual_chain.height()?;
    ensure(tip == base + DEPTH, format!("{base} to {tip}"))?;
    ensure(
        scenario.fold.reported_state(&last).is_final,
        "it should be final",
    )?;
    let raw = scenario.held(&again).await?;
    let raw = scenario.manual_chain.raw(raw)?;

    scenario.fork_at_once(DEPTH, &[raw], 0).await?;
    for tx_id in [&last, &mined] {
        let is_stuck = |tx: &serde_json::Value| {
            tx["state"] == "STUCK" && tx["subState"] == "deepFork" && tx["reason"].is_string()
        };
        let what = "it is STUCK because of the deep fork";
        scenario
            .single_node
            .until(tx_id, what, STUCK_WITHIN, is_stuck)
            .await?;
        scenario.held(tx_id).await?; // STUCK stops new attempts only
    }
    let name = "lanekeeper_incidents_total";
    let deep = scenario
        .single_node
        .node
        .metric(name, "kind=\"deep_fork\"")
        .await?;
    ensure(deep >= 1.0, "a deep fork is an incident")?;
    scenario.fold.read(&scenario.single_node.node.api).await?;
    for tx_id in [&last, &mined] {
        ensure(
            scenario.fold.reported_state(tx_id).is_stuck,
            "there is no TxStuck event",
        )?;
    }
    scenario.finish().await
}
