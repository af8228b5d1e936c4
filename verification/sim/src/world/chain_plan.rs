//! The settings of a world's chain that a seed decides, and the rules by which lanes follow it.

use std::time::Duration;

use domain::LaneRules;
use domain::lane::{
    BalanceCheck, ChainQuery, Finality, FinalityTag, OnForeignNonce, Resubmit, ResubmitPolicy,
};
use domain::window::{MempoolDepth, Release, Window};

use crate::chain::Staleness;
use crate::network::LinkFaults;
use crate::rng::Rng;

/// The usual base price, in wei per gas.
pub(super) const FEE: u128 = 1_000_000_000;
/// The least price at which anything is signed that names none: a type 0 envelope's, which leaves room for one full block.
pub(super) const PRICE_MIN: u128 = FEE + FEE / 4 + FEE;
/// The high price.
pub(super) const FEE_HIGH: u128 = 50 * FEE;

/// The most heads that an endpoint is ever behind.
pub(super) const LAG_MAX: u64 = 20;

/// The settings of a chain.
#[derive(Clone, Debug)]
pub struct ChainPlan {
    /// The number of endpoints.
    pub endpoints: usize,
    /// How many of them get each attempt at once.
    pub send_to: usize,
    /// Whether new heads are announced.
    pub announces: bool,
    /// How many transactions of one account a mempool holds.
    pub pool_slots: u64,
    /// Whether a full mempool reports its depth.
    pub reports_depth: bool,
    /// How many transactions fit into a block.
    pub block_room: usize,
    /// The block interval.
    pub block_interval: Duration,
    /// How many of a thousand minable transactions are in the next block.
    pub inclusion: u64,
    /// How many of a thousand gossip messages between endpoints arrive, per block.
    pub gossip: u64,
    /// How many blocks below its head an endpoint calls safe.
    pub safe_depth: u64,
    /// And finalized.
    pub final_depth: u64,
    /// The deepest reorg. Usually not deeper than finality, so that final results stay.
    pub fork_max: u64,
    /// The faults of the links to it.
    pub link: LinkFaults,
    /// How stale the answers of its endpoints are.
    pub staleness: Staleness,
    /// The last endpoint is permanently this many heads behind.
    pub lag_for_good: u64,
    /// How often a chain fault happens: reorgs, drops, prices, foreign transactions. `None` is never.
    pub fault_interval: Option<Duration>,
    /// How often another owner of the key uses an account, at most.
    pub foreign_max: u64,
    /// Whether the price stays high after the world is healed.
    pub stays_expensive: bool,
    /// Whether all mempools are lost when the world is healed: everything pending must be sent again.
    pub forgets: bool,
}

impl ChainPlan {
    /// A chain without faults.
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
            reports_depth: rng.permille(500),
            block_room: usize::try_from(rng.between(1, 50)).unwrap_or(1),
            block_interval: rng.millis(500, 3_000),
            inclusion: rng.between(500, 1_000),
            gossip: rng.between(300, 1_000),
            safe_depth,
            final_depth: safe_depth + rng.between(0, 3),
            fork_max: 1,
            link: LinkFaults::healthy(rng.between(0, 40)),
            staleness: Staleness::NONE,
            lag_for_good: 0,
            fault_interval: None,
            foreign_max: 0,
            stays_expensive: false,
            forgets: false,
        }
    }

    /// The same chain with all faults.
    #[must_use]
    pub fn stormy(self, rng: &Rng, resubmit: &Resubmit) -> Self {
        let link = LinkFaults {
            travel_ms_max: rng.between(1, 80),
            refused: rng.between(0, 20),
            request_lost: rng.between(0, 20),
            response_lost: rng.between(0, 50),
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
            without_old_blocks: *rng.pick(&[0, 0, 500, 1_000]),
        };
        let lags = self.endpoints > 1 && rng.permille(200);
        Self {
            link,
            staleness,
            lag_for_good: if lags { rng.between(1, LAG_MAX) } else { 0 },
            fault_interval: Some(rng.millis(2_000, 15_000)),
            foreign_max: if rng.permille(500) {
                rng.between(1, 6)
            } else {
                0
            },
            stays_expensive: can_pay_any_price(resubmit) && rng.permille(500),
            ..self
        }
    }

    /// Sets how deep reorgs go, in a world with these rules. `deeper` reorgs revert final results, except
    /// blocks that the chain itself calls finalized: no client can be right about a chain that reverts those.
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

/// Whether a lane succeeds without help when the price rises permanently.
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
        MempoolDepth::auto()
    } else {
        MempoolDepth::Fixed(rng.between(1, 20))
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
    // Drawn in this order: recorded seeds depend on it.
    let watch_depth = rng.between(12, 24);
    let emit_progress = rng.permille(500);
    let fetch_receipt_upon_entry = rng.permille(500);
    let resubmit = resubmit(rng);
    let on_foreign_nonce = if rng.permille(700) {
        OnForeignNonce::Requeue
    } else {
        OnForeignNonce::Hold
    };
    let gap_fill_after = rng.millis(3_000, 15_000);
    let chain_nonce_timeout = rng.millis(5_000, 30_000);
    let stale_receipt_timeout = rng.millis(5_000, 30_000);
    let mut rules = LaneRules {
        resubmit,
        balance: BalanceCheck::Off, // see `Options::scarce`
        ..LaneRules::default()
    };
    rules.capacity.window = Window { limit, releases };
    rules.capacity.mempool_depth = depth;
    rules.confirmations.finality = finality;
    rules.confirmations.watch_depth = watch_depth;
    rules.confirmations.emit_progress = emit_progress;
    rules.confirmations.fetch_receipt_upon_entry = fetch_receipt_upon_entry;
    rules.confirmations.stale_receipt_timeout = stale_receipt_timeout;
    rules.nonce.chain_query = chain_query;
    rules.nonce.chain_nonce_timeout = chain_nonce_timeout;
    rules.nonce.gap_fill_after = gap_fill_after;
    rules.nonce.on_foreign_nonce = on_foreign_nonce;
    rules
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
