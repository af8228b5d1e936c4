//! What a node must be told. The binary makes it from the configuration file, the simulator from a seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::lane::reserve::ReservationRules;
use domain::lease::LeaseTerms;
use domain::{Address, ChainId, LaneKey, LaneRules, NodeName};

use crate::ports::{Chain, Clock, Peers, Signer, Store};

/// The world as the node sees it.
#[derive(Clone)]
pub struct Ports {
    /// The authority.
    pub store: Arc<dyn Store>,
    /// The chains it serves.
    pub chains: Vec<Arc<dyn Chain>>,
    /// The keys it can sign with.
    pub signer: Arc<dyn Signer>,
    /// Time and chance.
    pub clock: Arc<dyn Clock>,
    /// The other nodes.
    pub peers: Arc<dyn Peers>,
}

/// A node's settings.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Its name; another node must not have it.
    pub name: NodeName,
    /// Where other nodes reach it.
    pub advertise: Option<String>,
    /// The times of leases.
    pub lease: LeaseTerms,
    /// How many lane shards run.
    pub shards: usize,
    /// How many messages wait for one shard at most; more are refused.
    pub inbox: usize,
    /// How many callers wait for a tx to get further at most.
    pub waiters: usize,
    /// The chains, each with its rules.
    pub chains: BTreeMap<ChainId, ChainRules>,
    /// What happens to a request whose lane another node keeps.
    pub non_keeper: NonKeeper,
    /// What happens to lanes when the store's history changed.
    pub on_timeline_change: OnTimelineChange,
    /// The accounts whose nonces are lent.
    pub lent: ReservedAccounts,
}

impl NodeConfig {
    /// Every account that it signs for, and every one whose nonces it lends (and how), on each of its chains.
    #[must_use]
    pub fn lanes(&self, signer: &dyn Signer) -> Vec<(LaneKey, Option<ReservationRules>)> {
        let sends = signer.accounts().into_iter().map(|of| (of, None));
        let lends = self.lent.accounts.iter().cloned();
        let lends = lends.map(|of| (of, Some(self.lent.reservations)));
        let mut lanes = Vec::new();
        for ((signer, only), lent) in sends.chain(lends) {
            let chains = self.chains.keys().copied();
            let chains = chains.filter(|chain| only.is_empty() || only.contains(chain));
            lanes.extend(chains.map(|chain_id| (LaneKey { chain_id, signer }, lent)));
        }
        lanes
    }
}

/// Accounts whose keys are elsewhere: their nonces are lent.
#[derive(Clone, Debug)]
pub struct ReservedAccounts {
    /// The accounts, each with the chains it is lent on; none means all.
    pub accounts: Vec<(Address, Vec<ChainId>)>,
    /// How.
    pub reservations: ReservationRules,
}

impl ReservedAccounts {
    /// Nothing is lent.
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

/// What happens to a lane when a standby was promoted and the lane's last commits may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTimelineChange {
    /// It goes on only when nothing is missing; otherwise it waits for an operator.
    Halt,
    /// It goes on from what the store and the chain say.
    Continue,
}

/// What happens to a request whose lane another node keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonKeeper {
    /// It is handed to the keeper; if no keeper answers, it is put into the store.
    Forward,
    /// It is put into the store, and the keeper finds it there.
    Queue,
    /// It is refused with the keeper's name.
    Reject,
}

/// The rules of one chain.
#[derive(Clone, Debug)]
pub struct ChainRules {
    /// The rules of its lanes.
    pub lane: LaneRules,
    /// Estimated gas is multiplied by this many hundredths (120 = 1.2).
    pub gas_margin_percent: u64,
    /// How often the head is asked for.
    pub poll_interval: Duration,
    /// How many lanes ask for receipts by hash at once.
    pub receipt_workers: usize,
}
