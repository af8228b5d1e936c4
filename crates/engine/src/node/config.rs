//! The configuration of a node. The binary makes it from the configuration file, the simulator from a seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::lane::reservations::ReservationRules;
use domain::lease::LeaseTerms;
use domain::{Address, ChainId, LaneKey, LaneRules, NodeName};

use crate::ports::{Chain, Clock, Peers, Signer, Store, Witness};

/// The ports of a node.
#[derive(Clone)]
pub struct Ports {
    /// The authority.
    pub store: Arc<dyn Store>,
    /// The chains that the node serves.
    pub chains: Vec<Arc<dyn Chain>>,
    /// The keys that the node signs with.
    pub signer: Arc<dyn Signer>,
    /// Time and randomness.
    pub clock: Arc<dyn Clock>,
    /// The other nodes.
    pub peers: Arc<dyn Peers>,
    /// Where the node remembers what it has committed; without it, a restored backup of the store is noticed only by
    /// what nodes have in memory, or when it is declared.
    pub witness: Option<Arc<dyn Witness>>,
}

/// A node's settings.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The node's name, unique in the cluster.
    pub name: NodeName,
    /// Where other nodes reach it.
    pub advertise: Option<String>,
    /// The times of leases.
    pub lease: LeaseTerms,
    /// How many lane shards run.
    pub shards: usize,
    /// The capacity of a shard's inbox; further requests are refused.
    pub inbox: usize,
    /// How many callers may wait for the progress of txs.
    pub waiters: usize,
    /// The chains, each with its rules.
    pub chains: BTreeMap<ChainId, ChainRules>,
    /// Which requests are simulated before they get a nonce.
    pub simulate: Simulate,
    /// What happens to a request whose lane another node keeps.
    pub non_keeper: NonKeeper,
    /// What happens to lanes when the store's history changed.
    pub on_timeline_change: OnTimelineChange,
    /// The accounts whose nonces are reserved by holders who sign elsewhere.
    pub reserved_accounts: ReservedAccounts,
}

impl NodeConfig {
    /// A node with these chains and otherwise the defaults of the configuration file; a test of the binary compares
    /// them.
    #[must_use]
    pub fn new(name: NodeName, chains: impl IntoIterator<Item = (ChainId, ChainRules)>) -> Self {
        Self {
            name,
            advertise: None,
            lease: LeaseTerms::default(),
            shards: 2, // in the file the number of CPUs
            inbox: 8_192,
            waiters: 10_000,
            chains: chains.into_iter().collect(),
            simulate: Simulate::Auto,
            non_keeper: NonKeeper::Forward,
            on_timeline_change: OnTimelineChange::Halt,
            reserved_accounts: ReservedAccounts::nothing(),
        }
    }

    /// Every lane of the node: each account that it signs for, and each reserved account with its rules, on each of its
    /// chains.
    #[must_use]
    pub fn lanes(&self, signer: &dyn Signer) -> Vec<(LaneKey, Option<ReservationRules>)> {
        let signing = signer.accounts().into_iter().map(|of| (of, None));
        let reserved = self.reserved_accounts.accounts.iter().cloned();
        let reserved = reserved.map(|of| (of, Some(self.reserved_accounts.reservations)));
        let mut lanes = Vec::new();
        for ((signer, only), reservations) in signing.chain(reserved) {
            let chains = self.chains.keys().copied();
            let chains = chains.filter(|chain| only.is_empty() || only.contains(chain));
            lanes.extend(chains.map(|chain_id| (LaneKey { chain_id, signer }, reservations)));
        }
        lanes
    }
}

/// Accounts whose keys are elsewhere: holders reserve their nonces.
#[derive(Clone, Debug)]
pub struct ReservedAccounts {
    /// The accounts, each with its chains; none means all.
    pub accounts: Vec<(Address, Vec<ChainId>)>,
    /// The rules of all of them.
    pub reservations: ReservationRules,
}

impl ReservedAccounts {
    /// No reserved accounts.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            accounts: Vec::new(),
            reservations: ReservationRules {
                timeout: Duration::from_secs(60),
                grace: Duration::from_secs(5),
            },
        }
    }
}

/// What happens to a lane when a standby was promoted or a restore declared, and the lane's last commits may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTimelineChange {
    /// It continues only when no commit is missing; otherwise it waits for an operator.
    Halt,
    /// It continues from what the store and the chain have.
    Continue,
}

/// Which requests are simulated before they get a nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simulate {
    /// Those that name no gas.
    Auto,
    /// All: one call of the chain for each.
    Always,
    /// None: a request must name its gas.
    Never,
}

/// What happens to a request whose lane another node keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonKeeper {
    /// It is forwarded to the keeper; if no keeper answers, it is queued in the store.
    Forward,
    /// It is queued in the store, where the keeper finds it.
    Queue,
    /// It is refused with the keeper's name.
    Reject,
}

/// The rules of one chain.
#[derive(Clone, Debug)]
pub struct ChainRules {
    /// The rules of its lanes.
    pub lane: LaneRules,
    /// The most gas of one transaction, where the chain has such a limit besides that of its blocks.
    pub tx_gas_cap: Option<u64>,
    /// Estimated gas is multiplied by this many hundredths (120 = 1.2).
    pub gas_margin_percent: u64,
    /// How often the head is polled.
    pub poll_interval: Duration,
    /// How many lanes fetch receipts by hash at once.
    pub receipt_workers: usize,
}

impl ChainRules {
    /// A chain with these rules for its lanes and otherwise the defaults of the configuration file.
    #[must_use]
    pub fn new(lane: LaneRules) -> Self {
        Self {
            lane,
            tx_gas_cap: None,
            gas_margin_percent: 120,
            poll_interval: Duration::from_secs(1),
            receipt_workers: 10,
        }
    }
}
