//! What a seed decides before anything runs: how large the world is, how its parts are set, and how
//! much goes wrong in it.

use std::collections::BTreeMap;
use std::time::Duration;

use alloy_primitives::Address;
use domain::lane::FOREIGN_DEPTH_MIN;
use domain::lease::LeaseTerms;
use domain::window::Depth;
use domain::{ChainId, LaneKey, LaneRules, NodeName};
use engine::node::{ChainRules, NodeConfig, NonKeeper, OnTimelineChange, ReservedAccounts};

use super::chain_plan::{ChainPlan, lane_rules};
use super::loans::Loans;
use super::parts::Parts;
use super::peers::Switchboard;
use super::poison::Poison;
use crate::checkers::Limits;
use crate::rng::Rng;
use crate::wire::WireFaults;

/// The chain of every world.
pub const CHAIN: ChainId = ChainId(31_337);

/// How many messages wait for a shard at most.
const INBOX: usize = 256;
/// How many callers wait for txs at a node at most.
const WAITERS: usize = 64;

/// How many gaps a lane of these worlds has at once, with plenty to spare.
const GAPS_AT_ONCE: usize = 16;

/// Within how many blocks all loans are used, once nothing goes wrong: a few at a time, some one after the other.
const LOANS_BLOCKS: u32 = 400;

/// A world on paper.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The names of the nodes.
    pub nodes: Vec<NodeName>,
    /// The accounts that send.
    pub signers: Vec<Address>,
    /// How long a remote signer takes; `None` when the keys are local.
    pub signer_travel: Option<Duration>,
    /// What is asked of it.
    pub workload: Workload,
    /// So many envelopes in a thousand are put off by the signer.
    pub unsigned: u64,
    /// How long things go wrong.
    pub unrest: Duration,
    /// The times of leases.
    pub lease: LeaseTerms,
    /// The rules of all lanes.
    pub lane: LaneRules,
    /// The chain.
    pub chain: ChainPlan,
    /// What a node does with requests for lanes of others.
    pub non_keeper: NonKeeper,
    /// How many shards a node runs.
    pub shards: usize,
    /// How often nodes ask for the head.
    pub poll_interval: Duration,
    /// How bad the lines to the store are.
    pub store_line: WireFaults,
    /// How bad the lines between nodes are.
    pub peer_line: WireFaults,
    /// How often the world strikes nodes: crashes, freezes, cuts. `None` is never.
    pub strike_interval: Option<Duration>,
    /// Whether the database's clock is set now and then.
    pub clock_jumps: bool,
    /// Whether the store's standby takes over now and then, with everything.
    pub failovers: bool,
    /// When it takes over and lacks the last commits; `None` is never.
    pub lossy_failover: Option<Duration>,
    /// What those who use the cluster do beside single requests.
    pub habits: Parts,
    /// Nodes that join in the middle.
    pub newcomers: Vec<NodeName>,
    /// A lane that never works.
    pub poison: Option<Poison>,
    /// A lane whose nonces are lent.
    pub loans: Option<Loans>,
    /// What does not happen, by hand.
    pub without: Parts,
    /// Only the first so many requests are made.
    pub requests_max: Option<u64>,
    /// Only requests of the first so many lanes are made.
    pub lanes_max: Option<usize>,
    /// Only so many strikes happen to nodes, and as many to the chain.
    pub strikes_max: Option<u64>,
}

/// The requests of a world. Chances are per thousand requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// How many different ones are made.
    pub requests: u64,
    /// At how many moments many of them come at once.
    pub bursts: u64,
    /// They revert.
    pub reverting: u64,
    /// They are never signed.
    pub unsignable: u64,
    /// Every node refuses them for good.
    pub rejected: u64,
    /// One node refuses them for good, others take them.
    pub disputed: u64,
    /// Nodes refuse them for good, and take them later.
    pub wavering: u64,
}

impl Workload {
    fn new(rng: &Rng) -> Self {
        let sometimes = |permille: u64| if rng.permille(300) { permille } else { 0 };
        Self {
            requests: if rng.permille(100) {
                rng.between(100, 300)
            } else {
                rng.between(5, 60)
            },
            bursts: rng.between(1, 4),
            reverting: 50,
            unsignable: sometimes(100),
            rejected: sometimes(50),
            disputed: sometimes(100),
            wavering: sometimes(100),
        }
    }
}

impl Plan {
    /// A world in which everything may go wrong.
    #[must_use]
    pub fn stormy(rng: &Rng) -> Self {
        let calm = Self::calm(rng);
        let store_line = WireFaults {
            travel_ms_max: rng.between(1, 20),
            refused: rng.between(0, 10),
            question_lost: rng.between(0, 15),
            answer_lost: rng.between(0, 15),
            late: rng.between(0, 15),
            slow: rng.between(0, 5),
            locked: rng.between(0, 20),
            cut: false,
        };
        let peer_line = WireFaults {
            travel_ms_max: rng.between(1, 50),
            refused: rng.between(0, 30),
            question_lost: rng.between(0, 30),
            answer_lost: rng.between(0, 50),
            late: rng.between(0, 30),
            slow: rng.between(0, 20),
            locked: 0,
            cut: false,
        };
        let chain = calm.chain.clone().stormy(rng, &calm.lane.resubmit);
        let is_shared = chain.foreign_max > 0;
        let strike_interval = Some(rng.millis(2_000, 15_000));
        Self {
            store_line,
            peer_line,
            chain,
            unsigned: if rng.permille(200) { 100 } else { 0 },
            strike_interval,
            clock_jumps: rng.permille(500),
            // After a failover, what somebody else did looks like what the store has lost: lanes halt.
            failovers: !is_shared && rng.permille(300),
            ..calm
        }
    }

    /// A world in which all answers arrive and nobody dies.
    #[must_use]
    pub fn calm(rng: &Rng) -> Self {
        let names = ["a", "b", "c"];
        let nodes = usize::try_from(rng.between(2, 3)).unwrap_or(2);
        let signers = u8::try_from(rng.between(1, 4)).unwrap_or(1);
        let lane = lane_rules(rng);
        let mut chain = ChainPlan::calm(rng);
        chain.set_forks(lane.finality, 0);
        Self {
            nodes: names[..nodes]
                .iter()
                .map(|name| NodeName((*name).to_owned()))
                .collect(),
            signers: (1..=signers).map(Address::repeat_byte).collect(),
            signer_travel: rng.permille(250).then(|| rng.millis(20, 200)),
            workload: Workload::new(rng),
            unsigned: 0,
            unrest: rng.millis(30_000, 120_000),
            lease: lease_terms(rng),
            lane,
            non_keeper: match rng.below(10) {
                0..=5 => NonKeeper::Forward,
                6..=7 => NonKeeper::Queue,
                _ => NonKeeper::Reject,
            },
            shards: usize::try_from(rng.between(1, 3)).unwrap_or(1),
            poll_interval: chain.block_interval / 2,
            chain,
            store_line: WireFaults::healthy(rng.between(0, 10)),
            peer_line: WireFaults::healthy(rng.between(0, 20)),
            strike_interval: None,
            clock_jumps: false,
            failovers: false,
            lossy_failover: None,
            habits: Parts::default(),
            newcomers: Vec::new(),
            poison: None,
            loans: None,
            without: Parts::default(),
            requests_max: None,
            lanes_max: None,
            strikes_max: None,
        }
    }

    /// Every lane of this world.
    #[must_use]
    pub fn lanes(&self) -> Vec<LaneKey> {
        self.signers
            .iter()
            .map(|signer| LaneKey {
                chain_id: CHAIN,
                signer: *signer,
            })
            .collect()
    }

    /// The lanes that must be at rest in the end: not one that never works.
    #[must_use]
    pub fn judged_lanes(&self) -> Vec<LaneKey> {
        let lent = self.loans.map(Loans::lane);
        self.lanes().into_iter().chain(lent).collect()
    }

    /// The accounts that nodes have keys of.
    #[must_use]
    pub fn accounts(&self) -> Vec<Address> {
        let poisoned = self.poison.map(|poison| poison.account);
        self.signers.iter().copied().chain(poisoned).collect()
    }

    /// The lanes that requests are made for.
    #[must_use]
    pub fn used_lanes(&self) -> Vec<LaneKey> {
        let mut lanes = self.lanes();
        lanes.truncate(self.lanes_max.unwrap_or(usize::MAX).max(1));
        lanes
    }

    /// What a node of this world is told.
    #[must_use]
    pub fn node_config(&self, name: &NodeName) -> NodeConfig {
        let rules = ChainRules {
            lane: self.lane,
            gas_margin_percent: 120,
            poll_interval: self.poll_interval,
            receipt_workers: 4,
        };
        NodeConfig {
            name: name.clone(),
            advertise: Some(Switchboard::address(name)),
            lease: self.lease,
            shards: self.shards,
            inbox: INBOX,
            waiters: WAITERS,
            chains: BTreeMap::from([(CHAIN, rules)]),
            non_keeper: self.non_keeper,
            on_timeline_change: OnTimelineChange::Halt,
            lent: self
                .loans
                .map_or_else(ReservedAccounts::nothing, Loans::lent),
        }
    }

    /// How many blocks stand on a final one.
    #[must_use]
    pub fn final_depth(&self) -> u64 {
        self.chain.depth_of(self.lane.finality)
    }

    /// How soon a gap is closed in a healed world: it is told from a node that is behind, waited out, and
    /// filled by whoever keeps the lane by then.
    #[must_use]
    pub fn gaps_within(&self) -> Duration {
        let rules = &self.lane;
        let lag = u32::try_from(self.chain.lag_for_good).unwrap_or(u32::MAX);
        rules.gap_fill_after
            + rules.chain_nonce_timeout * 2
            + rules.resubmit.interval.unwrap_or_default()
            + self.lease.duration * 4
            + self.chain.block_interval * (lag + 20)
            + Duration::from_secs(30)
    }

    /// How full a node may be.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let in_a_block = self.chain.block_room;
        let taken_back = usize::try_from(self.chain.fork_max).unwrap_or(usize::MAX);
        let depth = match self.lane.depth {
            Depth::Fixed(depth) => depth,
            Depth::Auto { .. } => Depth::AUTO_MAX,
        };
        Limits {
            inbox: INBOX,
            // A lane takes at most half of its shard's inbox.
            callers: INBOX / 2,
            waiters: WAITERS,
            lanes: self.accounts().len() + usize::from(self.loans.is_some()),
            // What a fork takes back is out again, beyond the depth, and gaps are filled beyond it.
            unmined: usize::try_from(depth)
                .unwrap_or(usize::MAX)
                .saturating_mul(2)
                .saturating_add(in_a_block.saturating_mul(taken_back))
                .saturating_add(GAPS_AT_ONCE),
        }
    }

    /// How long a healed world may take to finish everything: enough for one request at a time, each of
    /// which loses its nonce to somebody else and then waits for its turn to be sent again.
    #[must_use]
    pub fn patience(&self) -> Duration {
        let requests = u32::try_from(self.workload.requests).unwrap_or(u32::MAX);
        let depth = self.final_depth() + FOREIGN_DEPTH_MIN + self.chain.lag_for_good + 6;
        let blocks = requests.saturating_mul(u32::try_from(depth).unwrap_or(u32::MAX));
        let resubmits = self.lane.resubmit.interval.unwrap_or_default() * (requests + 10);
        let loans = self.loans.map_or(Duration::ZERO, |loans| {
            loans.timeout * 4 + self.chain.block_interval * LOANS_BLOCKS
        });
        Duration::from_secs(300) + self.chain.block_interval * blocks * 2 + resubmits + loans
    }
}

fn lease_terms(rng: &Rng) -> LeaseTerms {
    let duration = rng.millis(2_000, 10_000);
    LeaseTerms {
        duration,
        renew_interval: duration / 4,
        clock_skew_allowance: duration / 10,
        idle_release: rng.millis(3_000, 60_000),
    }
}
