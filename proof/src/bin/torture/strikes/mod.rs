//! The faults, carried out. Each undoes itself before it returns, and says what it has done.

mod chain;
mod database;
mod lines;
mod nodes;

use std::time::Instant;

use proof::Outcome;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use crate::kind::Kind;
use crate::plan::Strike;
use crate::world::World;

/// One fault on one world, with its dice.
struct Blow<'a> {
    world: &'a World,
    strike: &'a Strike,
    dice: StdRng,
}

/// What a fault has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// For people.
    pub(crate) text: String,
    /// When work was possible again, where that is before its end.
    pub(crate) works_again: Option<Instant>,
}

impl From<String> for Done {
    fn from(text: String) -> Self {
        let works_again = None;
        Self { text, works_again }
    }
}

/// Lets a fault happen, for as long as it lasts.
pub(crate) async fn carry_out(world: &World, strike: &Strike) -> Outcome<Done> {
    let mut blow = Blow {
        world,
        strike,
        dice: StdRng::seed_from_u64(strike.seed),
    };
    let text = match strike.kind {
        Kind::KillOne | Kind::KillTwo | Kind::KillAll => blow.kill().await,
        Kind::Freeze => blow.freeze().await,
        Kind::Drain => blow.drain().await,
        Kind::ClockJump => blow.clock_jump().await,
        Kind::CutFromDatabase => blow.cut_from_database().await,
        Kind::SlowDatabase => blow.slow_database().await,
        Kind::LostCommits => blow.lost_commits().await,
        Kind::CutFromChain => blow.cut_from_chain().await,
        Kind::LossyChain => blow.lossy_chain().await,
        Kind::BehindChain => blow.behind_chain().await,
        Kind::PretendedSends => blow.pretended_sends().await,
        Kind::CutFromPeers => blow.cut_from_peers().await,
        Kind::SlowPeers => blow.slow_peers().await,
        Kind::DatabaseCrash => blow.database_crash().await,
        Kind::DatabaseRestart => blow.database_restart().await,
        Kind::Promotion => return blow.promotion().await,
        Kind::StandbyAway => blow.standby_away().await,
        Kind::SessionsEnded => blow.sessions_ended().await,
        Kind::RowLocks => blow.row_locks().await,
        Kind::ChainRestart => blow.chain_restart().await,
        Kind::PoolForgotten => blow.pool_forgotten().await,
        Kind::Dropped => blow.dropped().await,
        Kind::Fork => blow.fork().await,
        Kind::FeeSpike => blow.fee_spike().await,
        Kind::NoBlocks => blow.no_blocks().await,
    };
    Ok(text?.into())
}

impl Blow<'_> {
    /// For as long as it is to last.
    async fn last(&self) {
        tokio::time::sleep(self.strike.lasts).await;
    }

    /// The first of the nodes that it is about.
    fn node(&self) -> usize {
        self.strike.nodes[0]
    }
}
