//! What a seed decides about the chain of its world, and about the rules by which lanes follow it.

use std::time::Duration;

use domain::lane::{ChainQuery, Finality, FinalityTag, OnForeignNonce, Resubmit, ResubmitPolicy};
use domain::window::{Depth, Release, Window};
use domain::{FeeRules, LaneRules};

use crate::chain::Staleness;
use crate::rng::Rng;
use crate::wire::WireFaults;

/// What the chain asks for as a rule, in wei per gas.
pub(super) const FEE: u128 = 1_000_000_000;
/// And when it is dear.
pub(super) const FEE_DEAR: u128 = 50 * FEE;

/// The most heads that an endpoint is ever behind.
pub(super) const LAG_MAX: u64 = 20;

/// A chain on paper.
#[derive(Clone, Debug)]
pub struct ChainPlan {
    /// How many nodes can be asked.
    pub endpoints: usize,
    /// How many of them get bytes at once.
    pub send_to: usize,
    /// Whether new heads are announced.
    pub announces: bool,
    /// How many transactions of one account a node holds.
    pub pool_slots: u64,
    /// Whether it says so when it has no room.
    pub tells_slots: bool,
    /// How many transactions fit into a block.
    pub block_room: usize,
    /// How often a block comes.
    pub block_interval: Duration,
    /// So many transactions in a thousand that could be in a block are.
    pub inclusion: u64,
    /// So many tellings between nodes in a thousand arrive, each block.
    pub gossip: u64,
    /// How many blocks below its head a node calls safe.
    pub safe_depth: u64,
    /// And final.
    pub final_depth: u64,
    /// The deepest fork. As a rule not deeper than what is final, so that finals stay.
    pub fork_max: u64,
    /// How bad the lines to it are.
    pub line: WireFaults,
    /// How wrong the answers of its nodes are.
    pub staleness: Staleness,
    /// The last endpoint is so many heads behind, for good.
    pub lag_for_good: u64,
    /// How often something happens to it: forks, drops, prices, other users. `None` is never.
    pub strike_interval: Option<Duration>,
    /// How often somebody else uses an account of ours, at most.
    pub foreign_max: u64,
    /// Whether it stays dear when all else is well again.
    pub stays_dear: bool,
    /// Whether all its nodes lose their pools when all else is well again: whatever waits must be sent again.
    pub forgets: bool,
}

impl ChainPlan {
    /// A chain on which nothing goes wrong.
    #[must_use]
    pub fn calm(rng: &Rng) -> Self {
        let endpoints = usize::try_from(rng.between(1, 3)).unwrap_or(1);
        let few = rng.permille(300);
        let safe_depth = rng.between(1, 3);
        Self {
            endpoints,
            send_to: usize::try_from(rng.between(1, 3))
                .unwrap_or(1)
                .min(endpoints),
            announces: rng.permille(300),
            pool_slots: if few { rng.between(1, 16) } else { 4_096 },
            tells_slots: rng.permille(500),
            block_room: usize::try_from(rng.between(1, 50)).unwrap_or(1),
            block_interval: rng.millis(500, 3_000),
            inclusion: rng.between(500, 1_000),
            gossip: rng.between(300, 1_000),
            safe_depth,
            final_depth: safe_depth + rng.between(0, 3),
            fork_max: 1,
            line: WireFaults::healthy(rng.between(0, 40)),
            staleness: Staleness::NONE,
            lag_for_good: 0,
            strike_interval: None,
            foreign_max: 0,
            stays_dear: false,
            forgets: false,
        }
    }

    /// The same chain when everything may go wrong.
    #[must_use]
    pub fn stormy(self, rng: &Rng, resubmit: &Resubmit) -> Self {
        let line = WireFaults {
            travel_ms_max: rng.between(1, 80),
            refused: rng.between(0, 20),
            question_lost: rng.between(0, 20),
            answer_lost: rng.between(0, 50),
            late: rng.between(0, 20),
            slow: rng.between(0, 10),
            locked: 0,
            cut: false,
        };
        let staleness = Staleness {
            permille: rng.between(0, 100),
            heads_max: rng.between(1, 4),
            busy: rng.between(0, 50),
            refused: if rng.permille(200) { 50 } else { 0 },
            blind: *rng.pick(&[0, 0, 500, 1_000]),
        };
        let lags = self.endpoints > 1 && rng.permille(200);
        Self {
            line,
            staleness,
            lag_for_good: if lags { rng.between(1, LAG_MAX) } else { 0 },
            strike_interval: Some(rng.millis(2_000, 15_000)),
            foreign_max: if rng.permille(500) {
                rng.between(1, 6)
            } else {
                0
            },
            stays_dear: can_pay_any_price(resubmit) && rng.permille(500),
            ..self
        }
    }

    /// Sets how deep forks go, in a world with these rules. `deeper` forks take finals back, except what
    /// the chain itself calls final: nobody can be right about a chain that breaks its own word.
    pub fn set_forks(&mut self, finality: Finality, deeper: u64) {
        let depth = self.depth_of(finality);
        self.fork_max = match finality {
            Finality::Tag(FinalityTag::Finalized) => depth.max(1),
            Finality::Tag(FinalityTag::Safe) | Finality::Depth(_) => depth.max(1) + deeper,
        };
        self.final_depth = self.final_depth.max(self.fork_max);
    }

    /// How many blocks stand on a final one.
    #[must_use]
    pub fn depth_of(&self, finality: Finality) -> u64 {
        match finality {
            Finality::Depth(depth) => depth,
            Finality::Tag(FinalityTag::Safe) => self.safe_depth,
            Finality::Tag(FinalityTag::Finalized) => self.final_depth,
        }
    }
}

/// Whether a lane gets through by itself when the price rises for good.
fn can_pay_any_price(resubmit: &Resubmit) -> bool {
    let pays = match resubmit.policy {
        ResubmitPolicy::Bump { max_fee, .. } => max_fee == u128::MAX,
        ResubmitPolicy::Rebroadcast => false,
    };
    pays && resubmit.interval.is_some() && resubmit.max_attempts.is_none()
}

/// The rules of all lanes of a world.
pub(super) fn lane_rules(rng: &Rng) -> LaneRules {
    let releases = if rng.permille(500) {
        Release::Final
    } else {
        Release::Mined
    };
    let limit = rng.permille(300).then(|| rng.between(1, 5));
    let depth = if rng.permille(500) {
        Depth::auto()
    } else {
        Depth::Fixed(rng.between(1, 20))
    };
    let chain_query = if rng.permille(700) {
        ChainQuery::Pending
    } else {
        ChainQuery::Latest
    };
    let finality = match rng.below(10) {
        0 => Finality::Depth(0),
        1..=6 => Finality::Depth(rng.between(1, 5)),
        7..=8 => Finality::Tag(FinalityTag::Finalized),
        _ => Finality::Tag(FinalityTag::Safe),
    };
    LaneRules {
        window: Window { limit, releases },
        depth,
        fee: FeeRules::OPEN,
        finality,
        watch_depth: rng.between(12, 24),
        emit_progress: rng.permille(500),
        fetch_receipt_upon_entry: rng.permille(500),
        resubmit: resubmit(rng),
        lent: None,
        on_foreign_nonce: if rng.permille(700) {
            OnForeignNonce::Requeue
        } else {
            OnForeignNonce::Hold
        },
        gap_fill_after: rng.millis(3_000, 15_000),
        max_chain_jump: 64,
        chain_query,
        chain_nonce_timeout: rng.millis(5_000, 30_000),
        stale_receipt_timeout: rng.millis(5_000, 30_000),
    }
}

fn resubmit(rng: &Rng) -> Resubmit {
    let policy = if rng.permille(500) {
        ResubmitPolicy::Rebroadcast
    } else {
        ResubmitPolicy::Bump {
            percent: u128::from(rng.between(10, 30)),
            max_fee: *rng.pick(&[20 * FEE, u128::MAX, u128::MAX]),
        }
    };
    Resubmit {
        interval: Some(rng.millis(3_000, 15_000)),
        policy,
        max_attempts: rng
            .permille(200)
            .then(|| u32::try_from(rng.between(1, 5)).unwrap_or(1)),
    }
}
