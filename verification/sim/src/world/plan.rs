//! The plan of a world: the size, the settings and the faults that its seed decides before anything runs.

use std::time::Duration;

use alloy_primitives::Address;
use domain::lane::FOREIGN_FINALITY_DEPTH_MIN;
use domain::lease::LeaseTerms;
use domain::window::MempoolDepth;
use domain::{ChainId, LaneKey, LaneRules, NodeName};
use engine::node::{ChainRules, NodeConfig, NonKeeper, ReservedAccounts};

use super::chain_plan::{ChainPlan, lane_rules};
use super::features::FeatureSet;
use super::hostile_plan::HostilePlan;
use super::peers::PeerDirectory;
use super::poison::Poison;
use super::reservation_plan::ReservationPlan;
use crate::checkers::Limits;
use crate::network::LinkFaults;
use crate::rng::Rng;

/// The chain of every world.
pub const CHAIN: ChainId = ChainId(31_337);

/// The inbox size of a shard.
const INBOX: usize = 256;
/// How many callers wait for txs at a node at most.
const WAITERS: usize = 64;

/// A generous bound of the gaps that a lane has at once.
const GAPS_AT_ONCE: usize = 16;

/// Within how many blocks all reservations are used after the faults have ended: a few at a time, some in sequence.
const RESERVATION_BLOCKS: u32 = 400;

/// The settings of a world.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The names of the nodes.
    pub nodes: Vec<NodeName>,
    /// The accounts that send.
    pub signers: Vec<Address>,
    /// How long a remote signer takes; `None` when the keys are local.
    pub signer_travel: Option<Duration>,
    /// The requests.
    pub request_plan: RequestPlan,
    /// How many of a thousand envelopes find the signer unavailable.
    pub unsigned: u64,
    /// The duration of the fault phase.
    pub fault_phase: Duration,
    /// The lease times.
    pub lease: LeaseTerms,
    /// The rules of all lanes.
    pub lane: LaneRules,
    /// The chain.
    pub chain: ChainPlan,
    /// How a node handles requests for lanes that it does not keep.
    pub non_keeper: NonKeeper,
    /// How many shards a node runs.
    pub shards: usize,
    /// How often nodes poll the head.
    pub poll_interval: Duration,
    /// The faults of the links to the store.
    pub store_link: LinkFaults,
    /// The faults of the links between nodes.
    pub peer_link: LinkFaults,
    /// How often a fault hits nodes: crashes, freezes, cuts. `None` is never.
    pub fault_interval: Option<Duration>,
    /// Whether the database's clock jumps.
    pub clock_jumps: bool,
    /// Whether the store's standby is promoted, without data loss.
    pub failovers: bool,
    /// When the standby is promoted and lacks the last commits; `None` is never.
    pub lossy_failover: Option<Duration>,
    /// What loses them is a restored backup that was taken then; `None` is the promotion of a standby.
    pub restore: Option<RestorePlan>,
    /// The workloads beside single requests.
    pub workloads: FeatureSet,
    /// Nodes that join during the run.
    pub newcomers: Vec<NodeName>,
    /// The poisoned lane.
    pub poison: Option<Poison>,
    /// What harms others, in a hostile world.
    pub hostile: Option<HostilePlan>,
    /// The lane whose nonces are reserved by clients.
    pub reservations: Option<ReservationPlan>,
    /// The features that the command line disabled.
    pub without: FeatureSet,
    /// Only the first N requests are sent.
    pub requests_max: Option<u64>,
    /// Only requests of the first N lanes are sent.
    pub lanes_max: Option<usize>,
    /// The number of faults of nodes, and of faults of the chain.
    pub faults_max: Option<u64>,
}

/// A backup that is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestorePlan {
    /// How old it is then.
    pub age: Duration,
    /// Whether the nodes are killed before, as the manual demands: they forget what they knew.
    pub restarts_nodes: bool,
}

/// The requests of a world. Rates are per thousand requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestPlan {
    /// The number of different requests.
    pub requests: u64,
    /// The number of bursts.
    pub bursts: u64,
    /// They revert.
    pub reverting: u64,
    /// They are never signed.
    pub unsignable: u64,
    /// Every endpoint rejects them.
    pub rejected: u64,
    /// One endpoint rejects them, others accept them.
    pub disputed: u64,
    /// Endpoints reject them, and accept them later.
    pub sometimes_rejected: u64,
}

impl RequestPlan {
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
            sometimes_rejected: sometimes(100),
        }
    }
}

impl Plan {
    /// A world with all faults.
    #[must_use]
    pub fn stormy(rng: &Rng) -> Self {
        let calm = Self::calm(rng);
        let store_link = LinkFaults {
            travel_ms_max: rng.between(1, 20),
            refused: rng.between(0, 10),
            request_lost: rng.between(0, 15),
            response_lost: rng.between(0, 15),
            late: rng.between(0, 15),
            slow: rng.between(0, 5),
            locked: rng.between(0, 20),
            cut: false,
        };
        let peer_link = LinkFaults {
            travel_ms_max: rng.between(1, 50),
            refused: rng.between(0, 30),
            request_lost: rng.between(0, 30),
            response_lost: rng.between(0, 50),
            late: rng.between(0, 30),
            slow: rng.between(0, 20),
            locked: 0,
            cut: false,
        };
        let chain = calm.chain.clone().stormy(rng, &calm.lane.resubmit);
        let is_shared = chain.foreign_max > 0;
        let fault_interval = Some(rng.millis(2_000, 15_000));
        Self {
            store_link,
            peer_link,
            chain,
            unsigned: if rng.permille(200) { 100 } else { 0 },
            fault_interval,
            clock_jumps: rng.permille(500),
            // After a failover, foreign transactions look like lost commits: lanes would halt.
            failovers: !is_shared && rng.permille(300),
            ..calm
        }
    }

    /// A world without faults.
    #[must_use]
    pub fn calm(rng: &Rng) -> Self {
        let names = ["a", "b", "c"];
        let nodes = usize::try_from(rng.between(2, 3)).unwrap_or(2);
        let signers = u8::try_from(rng.between(1, 4)).unwrap_or(1);
        let lane = lane_rules(rng);
        let mut chain = ChainPlan::calm(rng);
        chain.set_forks(lane.confirmations.finality, 0);
        Self {
            nodes: names[..nodes]
                .iter()
                .map(|name| NodeName((*name).to_owned()))
                .collect(),
            signers: (1..=signers).map(Address::repeat_byte).collect(),
            signer_travel: rng.permille(250).then(|| rng.millis(20, 200)),
            request_plan: RequestPlan::new(rng),
            unsigned: 0,
            fault_phase: rng.millis(30_000, 120_000),
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
            store_link: LinkFaults::healthy(rng.between(0, 10)),
            peer_link: LinkFaults::healthy(rng.between(0, 20)),
            fault_interval: None,
            clock_jumps: false,
            failovers: false,
            lossy_failover: None,
            restore: None,
            workloads: FeatureSet::default(),
            newcomers: Vec::new(),
            poison: None,
            hostile: None,
            reservations: None,
            without: FeatureSet::default(),
            requests_max: None,
            lanes_max: None,
            faults_max: None,
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

    /// The lanes that must be idle in the end: all except the poisoned one.
    #[must_use]
    pub fn checked_lanes(&self) -> Vec<LaneKey> {
        let reserved_lane = self.reservations.map(ReservationPlan::lane);
        let harmed_lane = self.hostile.and_then(HostilePlan::own_lane);
        let lanes = self.lanes().into_iter().chain(harmed_lane);
        lanes.chain(reserved_lane).collect()
    }

    /// The accounts whose keys nodes have.
    #[must_use]
    pub fn accounts(&self) -> Vec<Address> {
        let poisoned = self.poison.map(|poison| poison.account);
        let harmed = self.hostile.and_then(|hostile| hostile.own_account);
        let accounts = self.signers.iter().copied().chain(poisoned);
        accounts.chain(harmed).collect()
    }

    /// The lanes that poisoned requests, repeats and floods are sent for: where nothing else goes wrong one of their own, so
    /// that all others must not be delayed.
    #[must_use]
    pub fn harmed_lanes(&self) -> Vec<LaneKey> {
        let own = self.hostile.and_then(HostilePlan::own_lane);
        own.map_or_else(|| self.used_lanes(), |lane| vec![lane])
    }

    /// The lanes that requests are sent for.
    #[must_use]
    pub fn used_lanes(&self) -> Vec<LaneKey> {
        let mut lanes = self.lanes();
        lanes.truncate(self.lanes_max.unwrap_or(usize::MAX).max(1));
        lanes
    }

    /// The configuration of a node of this world.
    #[must_use]
    pub fn node_config(&self, name: &NodeName) -> NodeConfig {
        let rules = ChainRules {
            poll_interval: self.poll_interval,
            receipt_workers: 4,
            ..ChainRules::new(self.lane)
        };
        NodeConfig {
            advertise: Some(PeerDirectory::address(name)),
            lease: self.lease,
            shards: self.shards,
            inbox: INBOX,
            waiters: WAITERS,
            non_keeper: self.non_keeper,
            reserved_accounts: self.reservations.map_or_else(
                ReservedAccounts::nothing,
                ReservationPlan::reserved_accounts,
            ),
            ..NodeConfig::new(name.clone(), [(CHAIN, rules)])
        }
    }

    /// How many blocks stand on a final one.
    #[must_use]
    pub fn final_depth(&self) -> u64 {
        self.chain.depth_of(self.lane.confirmations.finality)
    }

    /// How soon a gap is closed in a healed world: it is distinguished from a lagging endpoint, waited out, and
    /// filled by the lane's keeper.
    #[must_use]
    pub fn gaps_within(&self) -> Duration {
        let rules = &self.lane;
        let lag = u32::try_from(self.chain.lag_for_good).unwrap_or(u32::MAX);
        rules.nonce.gap_fill_after
            + rules.nonce.chain_nonce_timeout * 2
            + rules.resubmit.interval.unwrap_or_default()
            + self.lease.duration * 4
            + self.chain.block_interval * (lag + 20)
            + Duration::from_secs(30)
    }

    /// How soon something of a lane with work is mined in a healed world: a no-op takes the nonce of what no node accepts,
    /// a foreign transaction becomes final, and what is missing is sent again.
    #[must_use]
    pub fn progress_within(&self) -> Duration {
        let depth = self.final_depth() + FOREIGN_FINALITY_DEPTH_MIN + self.chain.lag_for_good;
        let blocks = self.chain.block_interval * (u32::try_from(depth).unwrap_or(u32::MAX) * 2);
        self.gaps_within() + self.lane.resubmit.interval.unwrap_or_default() * 8 + blocks
    }

    /// The limits of a node.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let in_a_block = self.chain.block_room;
        let reorg_depth = usize::try_from(self.chain.fork_max).unwrap_or(usize::MAX);
        let depth = match self.lane.capacity.mempool_depth {
            MempoolDepth::Fixed(depth) => depth,
            MempoolDepth::Auto { .. } => MempoolDepth::AUTO_MAX,
        };
        Limits {
            inbox: INBOX,
            // A lane takes at most half of its shard's inbox.
            callers: INBOX / 2,
            waiters: WAITERS,
            lanes: self.accounts().len() + usize::from(self.reservations.is_some()),
            // Txs that are reorged out are in flight again beyond the mempool depth, and so are gap fillers.
            unmined: usize::try_from(depth)
                .unwrap_or(usize::MAX)
                .saturating_mul(2)
                .saturating_add(in_a_block.saturating_mul(reorg_depth))
                .saturating_add(GAPS_AT_ONCE),
        }
    }

    /// How long a healed world may take to finish everything: enough for one request at a time, each of which
    /// loses its nonce to a foreign transaction and then waits until it is sent again.
    #[must_use]
    pub fn finish_bound(&self) -> Duration {
        let requests = u32::try_from(self.request_plan.requests).unwrap_or(u32::MAX);
        let depth = self.final_depth() + FOREIGN_FINALITY_DEPTH_MIN + self.chain.lag_for_good + 6;
        let blocks = requests.saturating_mul(u32::try_from(depth).unwrap_or(u32::MAX));
        let resubmits = self.lane.resubmit.interval.unwrap_or_default() * (requests + 10);
        let reservations = self.reservations.map_or(Duration::ZERO, |reservations| {
            reservations.timeout * 4 + self.chain.block_interval * RESERVATION_BLOCKS
        });
        Duration::from_secs(300) + self.chain.block_interval * blocks * 2 + resubmits + reservations
    }
}

fn lease_terms(rng: &Rng) -> LeaseTerms {
    let duration = rng.millis(2_000, 10_000);
    let mut terms = LeaseTerms {
        duration,
        ..LeaseTerms::default()
    };
    terms.renew_interval = duration / 4;
    terms.clock_skew_allowance = duration / 10;
    terms.idle_release = rng.millis(3_000, 60_000);
    terms
}
