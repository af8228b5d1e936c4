//! Injection of the faults. Each repairs itself before it returns, and describes its effect.

mod chain;
mod database;
mod links;
mod nodes;

use std::time::Instant;

use proof::Outcome;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use crate::torture::fault_kind::FaultKind;
use crate::torture::plan::PlannedFault;
use crate::torture::world::World;

/// One fault in the world, with its random generator.
struct FaultContext<'a> {
    world: &'a World,
    fault: &'a PlannedFault,
    dice: StdRng,
}

/// The effect of a fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// For messages.
    pub(crate) text: String,
    /// When work was possible again, if before its end.
    pub(crate) works_again: Option<Instant>,
}

impl From<String> for Done {
    fn from(text: String) -> Self {
        let works_again = None;
        Self { text, works_again }
    }
}

/// Injects a fault for its duration.
pub(crate) async fn inject(world: &World, fault: &PlannedFault) -> Outcome<Done> {
    let mut context = FaultContext {
        world,
        fault,
        dice: StdRng::seed_from_u64(fault.seed),
    };
    let text = match fault.kind {
        FaultKind::KillOne | FaultKind::KillTwo | FaultKind::KillAll => context.kill().await,
        FaultKind::Freeze => context.freeze().await,
        FaultKind::Drain => context.drain().await,
        FaultKind::ClockJump => context.clock_jump().await,
        FaultKind::CutFromDatabase => context.cut_from_database().await,
        FaultKind::SlowDatabase => context.slow_database().await,
        FaultKind::LostCommits => context.lost_commits().await,
        FaultKind::CutFromChain => context.cut_from_chain().await,
        FaultKind::LossyChain => context.lossy_chain().await,
        FaultKind::BehindChain => context.behind_chain().await,
        FaultKind::PretendedSends => context.pretended_sends().await,
        FaultKind::CutFromPeers => context.cut_from_peers().await,
        FaultKind::SlowPeers => context.slow_peers().await,
        FaultKind::DatabaseCrash => context.database_crash().await,
        FaultKind::DatabaseRestart => context.database_restart().await,
        FaultKind::Promotion => return context.promotion().await,
        FaultKind::StandbyAway => context.standby_away().await,
        FaultKind::SessionsEnded => context.sessions_ended().await,
        FaultKind::RowLocks => context.row_locks().await,
        FaultKind::ChainRestart => context.chain_restart().await,
        FaultKind::PoolForgotten => context.pool_forgotten().await,
        FaultKind::Dropped => context.dropped().await,
        FaultKind::Fork => context.fork().await,
        FaultKind::FeeSpike => context.fee_spike().await,
        FaultKind::NoBlocks => context.no_blocks().await,
    };
    Ok(text?.into())
}

impl FaultContext<'_> {
    /// Waits for the fault's duration.
    async fn last(&self) {
        tokio::time::sleep(self.fault.lasts).await;
    }

    /// The first affected node.
    fn node(&self) -> usize {
        self.fault.nodes[0]
    }
}
