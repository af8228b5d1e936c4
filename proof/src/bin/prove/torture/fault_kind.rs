//! The kinds of faults: name, duration, frequency, and their exclusive targets.

use std::time::Duration;

use proof::Outcome;

pub(crate) const NODES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultKind {
    KillOne,
    KillTwo,
    KillAll,
    Freeze,
    Drain,
    ClockJump,
    CutFromDatabase,
    SlowDatabase,
    LostCommits,
    CutFromChain,
    LossyChain,
    BehindChain,
    PretendedSends,
    CutFromPeers,
    SlowPeers,
    DatabaseCrash,
    DatabaseRestart,
    Promotion,
    StandbyAway,
    SessionsEnded,
    RowLocks,
    ChainRestart,
    PoolForgotten,
    Dropped,
    Fork,
    FeeSpike,
    NoBlocks,
}

/// The target of a fault. Only one fault at a time affects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Node(usize),
    /// A node's link to the database.
    DatabaseLine(usize),
    /// A node's links to the chain.
    ChainLine(usize),
    /// The link from a node's peers.
    PeerLine(usize),
    Database,
    Chain,
}

/// How a kind selects its targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetRule {
    Nodes(usize),
    DatabaseLines(usize),
    ChainLine,
    PeerLine,
    Database,
    Chain,
}

struct About {
    name: &'static str,
    aim: TargetRule,
    /// Relative frequency.
    weight: u32,
    /// Minimum and maximum in milliseconds.
    lasts: (u64, u64),
}

const fn about(name: &'static str, aim: TargetRule, weight: u32, lasts: (u64, u64)) -> About {
    About {
        name,
        aim,
        weight,
        lasts,
    }
}

impl FaultKind {
    pub(crate) const ALL: [Self; 27] = [
        Self::KillOne,
        Self::KillTwo,
        Self::KillAll,
        Self::Freeze,
        Self::Drain,
        Self::ClockJump,
        Self::CutFromDatabase,
        Self::SlowDatabase,
        Self::LostCommits,
        Self::CutFromChain,
        Self::LossyChain,
        Self::BehindChain,
        Self::PretendedSends,
        Self::CutFromPeers,
        Self::SlowPeers,
        Self::DatabaseCrash,
        Self::DatabaseRestart,
        Self::Promotion,
        Self::StandbyAway,
        Self::SessionsEnded,
        Self::RowLocks,
        Self::ChainRestart,
        Self::PoolForgotten,
        Self::Dropped,
        Self::Fork,
        Self::FeeSpike,
        Self::NoBlocks,
    ];

    /// A freeze is longer than a lease and its allowance (`world::LEASE`).
    fn about(self) -> About {
        use TargetRule::{Chain, ChainLine, Database, DatabaseLines, Nodes, PeerLine};
        match self {
            Self::KillOne => about("killOne", Nodes(1), 6, (300, 6_000)),
            Self::KillTwo => about("killTwo", Nodes(2), 3, (300, 5_000)),
            Self::KillAll => about("killAll", Nodes(3), 2, (300, 3_000)),
            Self::Freeze => about("freeze", Nodes(1), 6, (4_000, 9_000)),
            Self::Drain => about("drain", Nodes(1), 4, (100, 2_000)),
            Self::ClockJump => about("clockJump", Nodes(1), 3, (3_000, 12_000)),
            Self::CutFromDatabase => about("cutFromDatabase", DatabaseLines(1), 5, (1_000, 9_000)),
            Self::SlowDatabase => about("slowDatabase", DatabaseLines(1), 3, (3_000, 9_000)),
            Self::LostCommits => about("lostCommits", DatabaseLines(3), 6, (2_000, 8_000)),
            Self::CutFromChain => about("cutFromChain", ChainLine, 4, (1_000, 8_000)),
            Self::LossyChain => about("lossyChain", ChainLine, 4, (3_000, 9_000)),
            Self::BehindChain => about("behindChain", ChainLine, 3, (3_000, 9_000)),
            Self::PretendedSends => about("pretendedSends", ChainLine, 3, (2_000, 6_000)),
            Self::CutFromPeers => about("cutFromPeers", PeerLine, 4, (2_000, 9_000)),
            Self::SlowPeers => about("slowPeers", PeerLine, 2, (3_000, 9_000)),
            Self::DatabaseCrash => about("databaseCrash", Database, 4, (200, 4_000)),
            Self::DatabaseRestart => about("databaseRestart", Database, 2, (200, 2_000)),
            Self::Promotion => about("promotion", Database, 5, (6_000, 6_000)),
            Self::StandbyAway => about("standbyAway", Database, 3, (1_000, 5_000)),
            Self::SessionsEnded => about("sessionsEnded", Database, 3, (100, 100)),
            Self::RowLocks => about("rowLocks", Database, 4, (1_000, 7_000)),
            Self::ChainRestart => about("chainRestart", Chain, 3, (300, 4_000)),
            Self::PoolForgotten => about("poolForgotten", Chain, 3, (100, 100)),
            Self::Dropped => about("dropped", Chain, 4, (100, 100)),
            Self::Fork => about("fork", Chain, 6, (100, 100)),
            Self::FeeSpike => about("feeSpike", Chain, 3, (100, 100)),
            Self::NoBlocks => about("noBlocks", Chain, 3, (2_000, 7_000)),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.about().name
    }

    pub(crate) fn weight(self) -> u32 {
        self.about().weight
    }

    /// Minimum and maximum duration.
    pub(crate) fn lasts(self) -> (Duration, Duration) {
        let (from, to) = self.about().lasts;
        (Duration::from_millis(from), Duration::from_millis(to))
    }

    /// The number of selected nodes.
    pub(crate) fn picks(self) -> usize {
        match self.about().aim {
            TargetRule::Nodes(count) | TargetRule::DatabaseLines(count) => count,
            TargetRule::ChainLine | TargetRule::PeerLine => 1,
            TargetRule::Database | TargetRule::Chain => 0,
        }
    }

    /// The targets for the selected nodes, in locking order.
    pub(crate) fn targets(self, nodes: &[usize]) -> Vec<Target> {
        let of_each = |target: fn(usize) -> Target| {
            let mut targets: Vec<Target> = nodes.iter().map(|node| target(*node)).collect();
            targets.sort_unstable();
            targets
        };
        match self.about().aim {
            TargetRule::Nodes(_) => of_each(Target::Node),
            TargetRule::DatabaseLines(_) => of_each(Target::DatabaseLine),
            TargetRule::ChainLine => of_each(Target::ChainLine),
            TargetRule::PeerLine => of_each(Target::PeerLine),
            TargetRule::Database => vec![Target::Database],
            TargetRule::Chain => vec![Target::Chain],
        }
    }

    /// Whether no request can be accepted meanwhile, whatever Lanekeeper does.
    pub(crate) fn stops_everything(self) -> bool {
        match self {
            Self::KillAll
            | Self::DatabaseCrash
            | Self::DatabaseRestart
            | Self::Promotion
            | Self::StandbyAway => true,
            Self::KillOne
            | Self::KillTwo
            | Self::Freeze
            | Self::Drain
            | Self::ClockJump
            | Self::CutFromDatabase
            | Self::SlowDatabase
            | Self::LostCommits
            | Self::CutFromChain
            | Self::LossyChain
            | Self::BehindChain
            | Self::PretendedSends
            | Self::CutFromPeers
            | Self::SlowPeers
            | Self::SessionsEnded
            | Self::RowLocks
            | Self::ChainRestart
            | Self::PoolForgotten
            | Self::Dropped
            | Self::Fork
            | Self::FeeSpike
            | Self::NoBlocks => false,
        }
    }

    /// The kinds in a list such as `killOne,fork`; all if it is empty.
    pub(crate) fn list(names: &str) -> Outcome<Vec<Self>> {
        if names.is_empty() {
            return Ok(Self::ALL.to_vec());
        }
        let of = |name: &str| {
            let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
            found.ok_or_else(|| {
                let all: Vec<&str> = Self::ALL.iter().map(|kind| kind.name()).collect();
                format!("--only: there is no {name:?} among {}", all.join(", ")).into()
            })
        };
        names.split(',').map(of).collect()
    }
}
