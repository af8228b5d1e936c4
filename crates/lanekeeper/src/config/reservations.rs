//! `[nonce]` and `[redis]`: the chain's nonce of an account, and nonce reservations.

use std::time::Duration;

use domain::lane::ChainQuery;
use domain::lane::reservations::ReservationRules;
use engine::node::ReservedAccounts;
use nonce::{Mode, QueueSettings, RejectPolicy, SchemeKind, Settings};

use super::Config;
use super::node::StoreUrl;
use super::reader::Fallback::Unset;
use super::section::{at_least_1s, default, in_range, polling_interval, section};
use super::setting::{RedisUrl, Setting as _, as_usize, choices};
use super::validation::Validation;

/// More workers than this share cores without gain.
const WORKERS_MAX: u64 = 1_024;
/// Bounds the memory of queued calls.
const QUEUE_MAX: u64 = 1_000_000;
/// A node that dies with more unused nonces leaves a long gap.
const SEGMENT_MAX: u64 = 10_000;
const FAILURES_MAX: u64 = 1_000;
const TOO_SHORT: &str = "but must be 1s or more: it is checked about that often";

section! {
    /// The chain's nonce of an account, and nonce reservations.
    NonceRules = "nonce" {
        /// Whether transactions in the mempool count towards the chain's nonce.
        chain_query: ChainQuery = default("pending");
        /// The maximum age of the chain's nonce while a lane has work.
        state_timeout: Duration = default("30s"), polling_interval();
        /// The largest jump of the chain's nonce over the lane's that needs no operator.
        max_chain_jump: u64 = default("64");
        /// Where reservations (signers of kind "external") are kept: by the lane's keeper, or in PostgreSQL and Redis.
        scheme: SchemeKind = default("lane");
        /// Whether calls for one lane run one by one in a worker of this node.
        mode: NonceMode = default("basic");
        /// Mode "worker-queue": the number of workers.
        worker_count: u64 = default("8");
        /// Mode "worker-queue": how many calls may wait for one worker.
        worker_queue_capacity: u64 = default("1024");
        /// Mode "worker-queue": what happens to a call when the queue is full.
        worker_queue_reject_policy: RejectPolicy = default("FAIL_FAST");
        /// After this time a reservation without a submitted transaction expires.
        reservation_timeout: Duration = default("60s"), at_least_1s(TOO_SHORT);
        /// Scheme "segment": nonces that a node allocates at once. Scheme "redis-reserve": nonces that Redis may reserve ahead.
        segment_size: u64 = default("100"), in_range(1, SEGMENT_MAX);
    }
}

section! {
    /// Redis, for the reservation schemes that use it.
    Redis = "redis" {
        /// The URL of Redis: redis://user:password@host:6379/0
        url: Option<RedisUrl> = Unset("not used");
        /// Whether PostgreSQL serves alone while Redis is unreachable.
        degrade_on_failure: bool = default("true");
        /// After this many consecutive failures Redis is bypassed.
        failures_to_degrade: u64 = default("3"), in_range(1, FAILURES_MAX);
        /// How often a bypassed Redis is probed.
        probe_interval: Duration = default("5s"), at_least_1s(TOO_SHORT);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NonceMode {
    Basic,
    WorkerQueue,
}

choices!(NonceMode, "\"basic\" or \"worker-queue\"", {
    "basic" => NonceMode::Basic, "worker-queue" => NonceMode::WorkerQueue,
});
choices!(ChainQuery, "\"pending\", \"latest\" or \"off\"", {
    "pending" => ChainQuery::Pending, "latest" => ChainQuery::Latest, "off" => ChainQuery::Off,
});
choices!(RejectPolicy, "\"FAIL_FAST\" or \"CALLER_RUNS\"", {
    "FAIL_FAST" => RejectPolicy::FailFast, "CALLER_RUNS" => RejectPolicy::CallerRuns,
});
choices!(SchemeKind, "\"lane\", \"row-lock\", \"redis-issue\", \"redis-reserve\" or \"segment\"", {
    "lane" => SchemeKind::Lane, "row-lock" => SchemeKind::RowLock, "redis-issue" => SchemeKind::RedisIssue,
    "redis-reserve" => SchemeKind::RedisReserve, "segment" => SchemeKind::Segment,
});

impl Config {
    /// The accounts whose lanes keep reservations; the other schemes have tables of their own.
    pub(super) fn reserved_accounts(&self) -> ReservedAccounts {
        let accounts = self
            .external_accounts()
            .filter(|_| self.nonce.scheme == SchemeKind::Lane);
        ReservedAccounts {
            accounts: accounts.collect(),
            reservations: ReservationRules {
                timeout: self.nonce.reservation_timeout,
                grace: Settings::default().free_grace,
            },
        }
    }

    /// The settings of the nonce component.
    pub(crate) fn reservation_settings(&self) -> Settings {
        let nonce = &self.nonce;
        Settings {
            mode: match nonce.mode {
                NonceMode::Basic => Mode::Basic,
                NonceMode::WorkerQueue => Mode::WorkerQueue(QueueSettings {
                    workers: as_usize(nonce.worker_count),
                    capacity: as_usize(nonce.worker_queue_capacity),
                    reject: nonce.worker_queue_reject_policy,
                    ..QueueSettings::default()
                }),
            },
            chain_query: nonce.chain_query,
            state_timeout: nonce.state_timeout,
            max_chain_jump: nonce.max_chain_jump,
            reservation_timeout: nonce.reservation_timeout,
            ..Settings::default()
        }
    }
}

impl Validation<'_> {
    /// Also without external accounts: setting these keys shows the intention to use them.
    pub(super) fn check_reservations(&mut self) {
        let config = self.config;
        let nonce = &config.nonce;
        if nonce.mode == NonceMode::WorkerQueue {
            self.require_range("nonce.workerCount", nonce.worker_count, 1, WORKERS_MAX);
            let capacity = nonce.worker_queue_capacity;
            self.require_range("nonce.workerQueueCapacity", capacity, 1, QUEUE_MAX);
        }
        let (scheme, store) = (nonce.scheme, &config.store.url);
        if scheme != SchemeKind::Lane && !matches!(store, StoreUrl::Postgres(_)) {
            let rule = "but this scheme keeps reservations in PostgreSQL, and store.url names the embedded \
                        store: use scheme \"lane\", or a postgres:// store";
            self.reject("nonce.scheme", &scheme.to_text(), rule);
        }
        let needs_redis = matches!(scheme, SchemeKind::RedisIssue | SchemeKind::RedisReserve);
        if needs_redis && config.redis.url.is_none() {
            let rule = "but redis.url is not set: set it, or use another scheme";
            self.reject("nonce.scheme", &scheme.to_text(), rule);
        }
    }
}
