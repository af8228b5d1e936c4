//! Forks of a given depth, with four txs at once that each meet them in another way.

use alloy_primitives::Address;
use proof::transfer::transfer;
use proof::{Outcome, demand};
use rig::evm::account;

use crate::REQUIRED;
use crate::fold::Counts;
use crate::theatre::Theatre;

/// Re-included by the fork, in another block.
const ELSEWHERE: usize = 0;
/// Not re-included: it must be sent again.
const GONE: usize = 1;
/// Its nonce goes to somebody else's transaction: it must get another one.
const FOREIGN: usize = 2;
/// In the block on which the fork stands: only its confirmations are replaced.
const ABOVE: usize = 3;

/// How many lanes a round uses.
pub(crate) const LANES: u32 = 4;

/// How a fork comes to be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// As one.
    AtOnce,
    /// Block by block, so that the chain is shorter for a moment than it was before.
    Growing,
}

/// One fork of this depth.
pub(crate) async fn round(theatre: &mut Theatre, depth: u64, manner: Manner) -> Outcome<()> {
    let before = theatre.fold.counts;
    let incidents = incidents(theatre).await?;
    theatre.cast.clear();
    theatre
        .pay(ABOVE, &format!("above-{depth}-{manner:?}"))
        .await?;
    theatre.block().await?;
    theatre.stage.snapshot();
    let base = theatre.stage.height()?;
    if depth > 1 {
        theatre.block().await?; // so that the fork can have it in an earlier block
    }
    let elsewhere = theatre
        .pay(ELSEWHERE, &format!("elsewhere-{depth}-{manner:?}"))
        .await?;
    let gone = theatre
        .pay(GONE, &format!("gone-{depth}-{manner:?}"))
        .await?;
    let replaced = theatre
        .pay(FOREIGN, &format!("foreign-{depth}-{manner:?}"))
        .await?;
    while theatre.stage.height()? < base + depth {
        theatre.block().await?;
    }
    let again = theatre.held(&elsewhere).await?;
    let again = theatre.stage.raw(again)?;
    let nonce = theatre.solo.tx(&replaced).await?["nonce"].as_u64();
    let nonce = nonce.ok_or("it is mined, so it has a nonce")?;
    let other = transfer(u32::try_from(FOREIGN)?, nonce, random())?;
    theatre.foreign.push(other.hash);
    let other = other.raw;
    match manner {
        Manner::AtOnce => theatre.fork_at_once(depth, &[again, other], 0).await?,
        Manner::Growing => theatre.stage.fork(depth, &[again, other])?,
    }
    theatre.compare().await?;
    theatre.held(&gone).await?; // sent again at once
    theatre.finish().await?;

    let moved = theatre.solo.tx(&replaced).await?;
    demand(
        moved["nonce"].as_u64().is_some_and(|now| now > nonce),
        format!("its nonce {nonce} was consumed by another: {moved}"),
    )?;
    let incidents = self::incidents(theatre).await? - incidents;
    judge(depth, &before, &theatre.fold.counts, incidents)
}

/// Whether the counts of a round are what its depth must give.
fn judge(depth: u64, before: &Counts, after: &Counts, incidents: f64) -> Outcome<()> {
    let requeued = after.requeued - before.requeued;
    demand(requeued == 1, format!("{requeued} were requeued, not 1"))?;
    let reorged = after.reorged - before.reorged;
    demand(reorged >= 3, format!("{reorged} were taken back, not 3"))?;
    let after_final = after.after_final - before.after_final;
    let expected = if depth.saturating_sub(2) >= REQUIRED {
        3
    } else {
        0
    };
    // One per lane, and each lane has one tx.
    let are_raised = incidents == f64::from(u32::try_from(after_final)?);
    demand(
        after_final == expected && are_raised,
        format!("{after_final} finals taken back, not {expected}, and {incidents} incidents"),
    )?;
    // The confirmations of the fourth are replaced on the way, unless they were final before the fork.
    demand(
        depth >= REQUIRED || after.new_forks > before.new_forks,
        "no list was told anew",
    )
}

/// A fork and the block that makes a result final are seen at once: the final list replaces what was told.
pub(crate) async fn leap(theatre: &mut Theatre) -> Outcome<()> {
    theatre.cast.clear();
    theatre.pay(ABOVE, "leap").await?;
    theatre.block().await?;
    theatre.stage.snapshot();
    for _ in 1..REQUIRED {
        theatre.block().await?;
    }
    let before = theatre.fold.counts;
    // Somebody else's transaction, so that its blocks are not the same as before.
    let stranger = u32::try_from(theatre.solo.lanes.len())?;
    let nonce = theatre.stage.nonce(account(stranger).0)?;
    let other = transfer(stranger, nonce, random())?;
    theatre.fork_at_once(REQUIRED - 1, &[other.raw], 1).await?;
    theatre.compare().await?;
    let told = theatre.fold.of(&theatre.cast[0]);
    demand(told.is_final, format!("it is not final: {told:?}"))?;
    let new_forks = theatre.fold.counts.new_forks - before.new_forks;
    let story = theatre.solo.story(&theatre.cast[0]).await?;
    demand(
        new_forks == 1,
        format!("what was told is replaced once, newFork was told {new_forks} times: {story}"),
    )
}

/// Somebody who is paid once.
fn random() -> Address {
    Address::from(rand::random::<[u8; 20]>())
}

/// How often results that had been told as final were taken back.
async fn incidents(theatre: &Theatre) -> Outcome<f64> {
    let name = "lanekeeper_incidents_total";
    let node = &theatre.solo.node;
    node.metric(name, "kind=\"fork_below_finality\"").await
}
