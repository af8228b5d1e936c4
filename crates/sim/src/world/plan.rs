//! What a seed decides before anything runs: how large the world is, how its parts are set, and how
//! much goes wrong in it.

use std::collections::BTreeMap;
use std::time::Duration;

use alloy_primitives::Address;
use domain::lane::ChainQuery;
use domain::lease::LeaseTerms;
use domain::window::{Depth, Release, Window};
use domain::{ChainId, FeeRules, LaneKey, LaneRules, NodeName};
use engine::node::{ChainRules, NodeConfig, NonKeeper, OnHistoryChange};

use super::peers::Switchboard;
use crate::chain::Staleness;
use crate::rng::Rng;
use crate::wire::WireFaults;

/// The chain of every world.
pub const CHAIN: ChainId = ChainId(31_337);

/// A world on paper.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The names of the nodes.
    pub nodes: Vec<NodeName>,
    /// The accounts that send.
    pub signers: Vec<Address>,
    /// How long a remote signer takes; `None` when the keys are local.
    pub signer_travel: Option<Duration>,
    /// How many different requests are made.
    pub requests: u64,
    /// At how many moments many of them come at once.
    pub bursts: u64,
    /// So many requests in a thousand revert.
    pub reverting: u64,
    /// So many requests in a thousand are never signed.
    pub unsignable: u64,
    /// So many envelopes in a thousand are put off by the signer.
    pub unsigned: u64,
    /// How many transactions of one account a node of the chain holds.
    pub pool_slots: u64,
    /// How many transactions fit into a block.
    pub block_room: usize,
    /// How long things go wrong.
    pub unrest: Duration,
    /// The times of leases.
    pub lease: LeaseTerms,
    /// The rules of all lanes.
    pub lane: LaneRules,
    /// What a node does with requests for lanes of others.
    pub non_keeper: NonKeeper,
    /// How many shards a node runs.
    pub shards: usize,
    /// How often nodes ask for the head.
    pub poll_interval: Duration,
    /// How often a block comes.
    pub block_interval: Duration,
    /// So many transactions in a thousand that could be in a block are.
    pub inclusion: u64,
    /// The deepest fork. As a rule not deeper than what is final, so that finals stay.
    pub fork_max: u64,
    /// How bad the lines to the store are.
    pub store_line: WireFaults,
    /// How bad the lines to the chain are.
    pub chain_line: WireFaults,
    /// How bad the lines between nodes are.
    pub peer_line: WireFaults,
    /// How far the chain's nodes lag.
    pub staleness: Staleness,
    /// How often the world strikes: crashes, freezes, cuts, forks, drops. `None` is never.
    pub strike_interval: Option<Duration>,
    /// Whether the database's clock is set now and then.
    pub clock_jumps: bool,
    /// Whether the store's standby takes over now and then, with everything.
    pub failovers: bool,
    /// When it takes over and lacks the last commits; `None` is never.
    pub lossy_failover: Option<Duration>,
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
        let chain_line = WireFaults {
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
        };
        let strike_interval = Some(rng.millis(2_000, 15_000));
        Self {
            store_line,
            chain_line,
            peer_line,
            staleness,
            strike_interval,
            clock_jumps: rng.permille(500),
            failovers: rng.permille(300),
            ..calm
        }
    }

    /// A world in which all answers arrive and nobody dies.
    #[must_use]
    pub fn calm(rng: &Rng) -> Self {
        let names = ["a", "b", "c"];
        let nodes = usize::try_from(rng.between(2, 3)).unwrap_or(2);
        let signers = u8::try_from(rng.between(1, 4)).unwrap_or(1);
        let block_interval = rng.millis(500, 3_000);
        let lane = lane_rules(rng);
        Self {
            nodes: names[..nodes]
                .iter()
                .map(|name| NodeName((*name).to_owned()))
                .collect(),
            signers: (1..=signers).map(Address::repeat_byte).collect(),
            signer_travel: rng.permille(250).then(|| rng.millis(20, 200)),
            requests: if rng.permille(100) {
                rng.between(100, 300)
            } else {
                rng.between(5, 60)
            },
            bursts: rng.between(1, 4),
            reverting: 50,
            unsignable: if rng.permille(300) { 100 } else { 0 },
            unsigned: 0,
            pool_slots: if rng.permille(300) {
                rng.between(1, 16)
            } else {
                4_096
            },
            block_room: usize::try_from(rng.between(1, 50)).unwrap_or(1),
            unrest: rng.millis(30_000, 120_000),
            lease: lease_terms(rng),
            non_keeper: match rng.below(10) {
                0..=5 => NonKeeper::Forward,
                6..=7 => NonKeeper::Queue,
                _ => NonKeeper::Reject,
            },
            shards: usize::try_from(rng.between(1, 3)).unwrap_or(1),
            poll_interval: block_interval / 2,
            block_interval,
            inclusion: rng.between(500, 1_000),
            fork_max: lane.required,
            lane,
            store_line: WireFaults::healthy(rng.between(0, 10)),
            chain_line: WireFaults::healthy(rng.between(0, 40)),
            peer_line: WireFaults::healthy(rng.between(0, 20)),
            staleness: Staleness::NONE,
            strike_interval: None,
            clock_jumps: false,
            failovers: false,
            lossy_failover: None,
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
            inbox: 256,
            waiters: 64,
            chains: BTreeMap::from([(CHAIN, rules)]),
            non_keeper: self.non_keeper,
            on_history_change: OnHistoryChange::Halt,
        }
    }

    /// How long a healed world may take to finish everything: enough for one request at a time.
    #[must_use]
    pub fn patience(&self) -> Duration {
        let blocks = u32::try_from((self.lane.required + 6) * self.requests).unwrap_or(u32::MAX);
        let resubmits = self.lane.resubmit_interval.unwrap_or_default() * 10;
        Duration::from_secs(300) + self.block_interval * blocks * 2 + resubmits
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

fn lane_rules(rng: &Rng) -> LaneRules {
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
    let required = rng.between(1, 5);
    LaneRules {
        window: Window { limit, releases },
        depth,
        fee: FeeRules::OPEN,
        required,
        watch_depth: 2 * required + 10,
        tell_progress: rng.permille(500),
        resubmit_interval: Some(rng.millis(3_000, 15_000)),
        gap_fill_after: rng.millis(3_000, 15_000),
        max_chain_jump: 64,
        chain_query,
        chain_nonce_timeout: rng.millis(5_000, 30_000),
        stale_receipt_timeout: rng.millis(5_000, 30_000),
    }
}
