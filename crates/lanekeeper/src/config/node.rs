//! From the configuration to what a node must be told.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use domain::lane::reserve::ReservationRules;
use domain::lane::{Finality, Resubmit, ResubmitPolicy};
use domain::window::Window;
use domain::{Address, ChainId, FeeRules, LaneRules, NodeName};
use engine::node::{ChainRules, NodeConfig, ReservedAccounts};
use nonce::{SchemeKind, Settings};

use super::Config;
use super::sections::Chain;
use super::words::{Policy, Progress, StuckAction};

/// Finals are watched for forks at least this deep.
const WATCH_DEPTH_MIN: u64 = 64;
/// How often a head is asked for where the block time is not known.
const POLL_DEFAULT: Duration = Duration::from_secs(1);
/// However fast a chain is, its node is not asked more often than this.
const POLL_MIN: Duration = Duration::from_millis(100);
/// However slow a chain is, a new head is seen within this.
const POLL_MAX: Duration = Duration::from_secs(4);

impl Config {
    /// What a node that listens at this address must be told.
    pub(crate) fn node_config(&self, address: SocketAddr) -> NodeConfig {
        NodeConfig {
            name: NodeName(self.node.name.clone()),
            advertise: self.advertise(address),
            lease: self.lease_terms(),
            shards: as_usize(self.worker.count),
            inbox: as_usize(self.worker.queue_capacity),
            waiters: as_usize(self.http.max_waiters),
            chains: self.chain_rules(),
            non_keeper: self.routing.non_keeper,
            on_timeline_change: self.store.on_timeline_change,
            lent: self.list_reservations(),
        }
    }

    /// The accounts that lend through their lanes; the other schemes have books of their own.
    fn list_reservations(&self) -> ReservedAccounts {
        let external = self
            .external()
            .filter(|_| self.nonce.scheme == SchemeKind::Lane);
        ReservedAccounts {
            accounts: external.collect(),
            reservations: ReservationRules {
                timeout: self.nonce.reservation_timeout,
                grace: Settings::default().free_grace,
            },
        }
    }

    /// The accounts whose nonces are lent, each with its chains; none means all.
    pub(crate) fn external(&self) -> impl Iterator<Item = (Address, Vec<ChainId>)> {
        self.signers.iter().filter_map(|signer| {
            let chains = signer.chains.iter().flatten().map(|id| ChainId(*id));
            Some((signer.address?, chains.collect()))
        })
    }

    /// Where other nodes reach it. Nobody can be told "every address".
    fn advertise(&self, address: SocketAddr) -> Option<String> {
        match &self.node.advertise {
            Some(url) => Some(url.0.clone()),
            None if address.ip().is_unspecified() => None,
            None => Some(format!("http://{address}")),
        }
    }

    fn chain_rules(&self) -> BTreeMap<ChainId, ChainRules> {
        let rules = |chain: &Chain| ChainRules {
            lane: self.lane_rules(chain),
            gas_margin_percent: chain.gas_margin.0,
            poll_interval: poll_interval(chain.block_time),
            receipt_workers: as_usize(self.confirmations.receipt_workers),
        };
        self.chains
            .iter()
            .map(|chain| (ChainId(chain.id), rules(chain)))
            .collect()
    }

    fn lane_rules(&self, chain: &Chain) -> LaneRules {
        let finality = self.finality(chain);
        LaneRules {
            window: Window {
                limit: Some(self.lane.window).filter(|limit| *limit > 0),
                releases: self.lane.window_releases,
            },
            depth: self.lane.mempool_depth,
            fee: FeeRules {
                legacy: chain.legacy,
                floor: chain.fee_floor.0,
                cap: chain.fee_cap.map_or(u128::MAX, |cap| cap.0),
            },
            finality,
            watch_depth: self.watch_depth(finality),
            emit_progress: self.confirmations.progress == Progress::EveryBlock,
            fetch_receipt_upon_entry: self.confirmations.fetch_receipt_upon_entry,
            resubmit: self.resubmit_rules(),
            on_foreign_nonce: self.lane.on_foreign_nonce,
            lent: None, // by lane: see NodeConfig::lent
            gap_fill_after: self.lane.gap_fill_after,
            max_chain_jump: self.nonce.max_chain_jump,
            chain_query: self.nonce.chain_query,
            chain_nonce_timeout: self.nonce.state_timeout,
            stale_receipt_timeout: self.confirmations.stale_receipt_timeout,
        }
    }

    /// How deep results that are final in this way are watched for forks.
    pub(crate) fn watch_depth(&self, finality: Finality) -> u64 {
        let usual = (2 * finality.depth()).max(WATCH_DEPTH_MIN);
        self.confirmations.watch_depth.unwrap_or(usual)
    }

    /// When a chain's results are final.
    pub(crate) fn finality(&self, chain: &Chain) -> Finality {
        let required = Finality::Depth(self.confirmations.required);
        chain.confirmations.unwrap_or(required)
    }

    fn resubmit_rules(&self) -> Resubmit {
        let resubmit = &self.resubmit;
        // Lanes do this by themselves. A second action would have to be told to them here.
        let StuckAction::Wait = self.stuck.action;
        Resubmit {
            interval: resubmit.enabled.then_some(resubmit.interval),
            policy: match resubmit.policy {
                Policy::Rebroadcast => ResubmitPolicy::Rebroadcast,
                Policy::Bump => ResubmitPolicy::Bump {
                    percent: resubmit.bump_percent.into(),
                    max_fee: resubmit.max_fee_per_gas.map_or(u128::MAX, |wei| wei.0),
                },
            },
            max_attempts: match resubmit.max_attempts {
                0 => None,
                most => Some(u32::try_from(most).unwrap_or(u32::MAX)),
            },
        }
    }
}

/// Twice per block, so that a head is seen half a block late on average at worst.
fn poll_interval(block_time: Option<Duration>) -> Duration {
    block_time.map_or(POLL_DEFAULT, |time| (time / 2).clamp(POLL_MIN, POLL_MAX))
}

/// Every number that is used so was checked to be small.
fn as_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
