//! Forks of a given depth, with four txs that are affected in different ways.

use alloy_primitives::Address;
use proof::transfer::transfer;
use proof::{Outcome, ensure};
use rig::evm::account;

use crate::forks::REQUIRED;
use crate::forks::fold::Counts;
use crate::forks::scenario::ForkScenario;

/// Re-included by the fork, in another block.
const RE_INCLUDED: usize = 0;
/// Not re-included: it must be resubmitted.
const DROPPED: usize = 1;
/// A foreign transaction consumes its nonce: it must get another one.
const FOREIGN: usize = 2;
/// In the block below the fork: only its confirmations are replaced.
const ABOVE: usize = 3;

/// Lanes per round.
pub(crate) const LANES: u32 = 4;

/// How the node observes a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForkVisibility {
    /// At once.
    AtOnce,
    /// Block by block, so that the chain is temporarily shorter.
    Growing,
}

/// One fork of this depth.
pub(crate) async fn round(
    scenario: &mut ForkScenario,
    depth: u64,
    visibility: ForkVisibility,
) -> Outcome<()> {
    let before = scenario.fold.counts;
    let incidents = incidents(scenario).await?;
    scenario.tx_ids.clear();
    scenario
        .pay(ABOVE, &format!("above-{depth}-{visibility:?}"))
        .await?;
    scenario.block().await?;
    scenario.manual_chain.snapshot();
    let base = scenario.manual_chain.height()?;
    if depth > 1 {
        scenario.block().await?; // so that the fork can include it in an earlier block
    }
    let elsewhere = scenario
        .pay(RE_INCLUDED, &format!("elsewhere-{depth}-{visibility:?}"))
        .await?;
    let gone = scenario
        .pay(DROPPED, &format!("gone-{depth}-{visibility:?}"))
        .await?;
    let replaced = scenario
        .pay(FOREIGN, &format!("foreign-{depth}-{visibility:?}"))
        .await?;
    while scenario.manual_chain.height()? < base + depth {
        scenario.block().await?;
    }
    let again = scenario.held(&elsewhere).await?;
    let again = scenario.manual_chain.raw(again)?;
    let nonce = scenario.single_node.tx(&replaced).await?["nonce"].as_u64();
    let nonce = nonce.ok_or("it is mined, so it has a nonce")?;
    let other = transfer(u32::try_from(FOREIGN)?, nonce, random())?;
    scenario.foreign.push(other.hash);
    let other = other.raw;
    match visibility {
        ForkVisibility::AtOnce => scenario.fork_at_once(depth, &[again, other], 0).await?,
        ForkVisibility::Growing => scenario.manual_chain.fork(depth, &[again, other])?,
    }
    scenario.compare().await?;
    scenario.held(&gone).await?; // resubmitted at once
    scenario.finish().await?;

    let moved = scenario.single_node.tx(&replaced).await?;
    ensure(
        moved["nonce"].as_u64().is_some_and(|now| now > nonce),
        format!("its nonce {nonce} was consumed by another: {moved}"),
    )?;
    let incidents = self::incidents(scenario).await? - incidents;
    check_counts(depth, &before, &scenario.fold.counts, incidents)
}

/// Checks the counts of a round.
fn check_counts(depth: u64, before: &Counts, after: &Counts, incidents: f64) -> Outcome<()> {
    let requeued = after.requeued - before.requeued;
    ensure(requeued == 1, format!("{requeued} were requeued, not 1"))?;
    let reorged = after.reorged - before.reorged;
    ensure(reorged >= 3, format!("{reorged} were reorged out, not 3"))?;
    let after_final = after.after_final - before.after_final;
    let expected = if depth.saturating_sub(2) >= REQUIRED {
        3
    } else {
        0
    };
    // One per lane, and each lane has one tx.
    let are_raised = incidents == f64::from(u32::try_from(after_final)?);
    ensure(
        after_final == expected && are_raised,
        format!(
            "{after_final} final results reorged out, not {expected}, and {incidents} incidents"
        ),
    )?;
    // The confirmations of the fourth are replaced, unless they were final before the fork.
    ensure(
        depth >= REQUIRED || after.new_forks > before.new_forks,
        "no list was replaced",
    )
}

/// A fork and the final block are observed at once: the final list replaces the reported one.
pub(crate) async fn fork_with_final_block(scenario: &mut ForkScenario) -> Outcome<()> {
    scenario.tx_ids.clear();
    scenario.pay(ABOVE, "leap").await?;
    scenario.block().await?;
    scenario.manual_chain.snapshot();
    for _ in 1..REQUIRED {
        scenario.block().await?;
    }
    let before = scenario.fold.counts;
    // A foreign transaction, so that the new blocks differ from the old ones.
    let foreign_account = u32::try_from(scenario.single_node.lanes.len())?;
    let nonce = scenario.manual_chain.nonce(account(foreign_account).0)?;
    let other = transfer(foreign_account, nonce, random())?;
    scenario.fork_at_once(REQUIRED - 1, &[other.raw], 1).await?;
    scenario.compare().await?;
    let reported = scenario.fold.reported_state(&scenario.tx_ids[0]);
    ensure(reported.is_final, format!("it is not final: {reported:?}"))?;
    let new_forks = scenario.fold.counts.new_forks - before.new_forks;
    let story = scenario
        .single_node
        .describe_tx(&scenario.tx_ids[0])
        .await?;
    ensure(
        new_forks == 1,
        format!("the list must be replaced once, newFork was reported {new_forks} times: {story}"),
    )
}

/// A new recipient.
fn random() -> Address {
    Address::from(rand::random::<[u8; 20]>())
}

/// The number of final results that were reorged out.
async fn incidents(scenario: &ForkScenario) -> Outcome<f64> {
    let name = "lanekeeper_incidents_total";
    let node = &scenario.single_node.node;
    node.metric(name, "kind=\"fork_below_finality\"").await
}
