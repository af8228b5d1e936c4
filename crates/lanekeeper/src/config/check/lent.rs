//! Lent nonces: what their schemes need, and settings that cannot work.

use nonce::SchemeKind;

use super::super::words::{NonceMode, StoreUrl};
use super::{Found, show_duration};
use crate::config::values::Setting as _;

/// More workers than this share cores without gain.
const WORKERS_MAX: u64 = 1_024;
/// Bounds the memory of waiting calls.
const QUEUE_MAX: u64 = 1_000_000;
/// More than this at once would be missing for long when a node dies with them.
const SEGMENT_MAX: u64 = 10_000;
const FAILURES_MAX: u64 = 1_000;

impl Found<'_> {
    /// Also where nothing is lent yet: whoever sets these means to.
    pub(super) fn list_reservations(&mut self) {
        let config = self.config;
        let nonce = &config.nonce;
        if nonce.mode == NonceMode::WorkerQueue {
            self.range("nonce.workerCount", nonce.worker_count, 1, WORKERS_MAX);
            let capacity = nonce.worker_queue_capacity;
            self.range("nonce.workerQueueCapacity", capacity, 1, QUEUE_MAX);
        }
        self.range("nonce.segmentSize", nonce.segment_size, 1, SEGMENT_MAX);
        let failures = config.redis.failures_to_degrade;
        self.range("redis.failuresToDegrade", failures, 1, FAILURES_MAX);
        for (path, duration) in [
            ("nonce.reservationTimeout", nonce.reservation_timeout),
            ("redis.probeInterval", config.redis.probe_interval),
        ] {
            if duration.as_millis() < 1_000 {
                let rule = "but must be 1s or more: it is looked at about that often";
                self.wrong(path, &show_duration(duration), rule);
            }
        }
        self.scheme();
    }

    fn scheme(&mut self) {
        let (scheme, store) = (self.config.nonce.scheme, &self.config.store.url);
        let needs_redis = matches!(scheme, SchemeKind::RedisIssue | SchemeKind::RedisReserve);
        if scheme != SchemeKind::Lane && !matches!(store, StoreUrl::Postgres(_)) {
            let rule = "but this scheme's books are in PostgreSQL, and store.url names the embedded store: \
                        use scheme \"lane\", or a postgres:// store";
            self.wrong("nonce.scheme", &scheme.shown(), rule);
        }
        if needs_redis && self.config.redis.url.is_none() {
            let rule = "but redis.url is not set: set it, or use another scheme";
            self.wrong("nonce.scheme", &scheme.shown(), rule);
        }
    }
}
