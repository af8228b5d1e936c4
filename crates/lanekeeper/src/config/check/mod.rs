//! Relations between values: each broken one is told with the value, the rule and the fix.

mod access;
mod chains;
mod lent;

use domain::lease::LeaseTerms;

use super::sections::Signer;
use super::values::Setting;
use super::words::{SignerKind, StoreUrl};
use super::{Config, Problem, show_duration};

/// More shards than this share cores without gain.
const WORKERS_MAX: u64 = 1_024;
/// Bounds the memory of waiting requests.
const QUEUE_MAX: u64 = 1_000_000;
/// Bounds the memory of waiting callers.
const WAITERS_MAX: u64 = 1_000_000;
/// Every header down to this depth is kept in memory, per chain.
const WATCH_DEPTH_MAX: u64 = 10_000;
/// More calls at once than this is an attack on the endpoint.
const RECEIPT_WORKERS_MAX: u64 = 256;
const BODY_BYTES_MIN: u64 = 1 << 10;
const BODY_BYTES_MAX: u64 = 64 << 20;
const NODE_NAME_LEN_MAX: usize = 64;
/// One connection for leases, one for readers, one for writers.
const POOL_MIN: u64 = 3;
/// PostgreSQL has a process per connection.
const POOL_MAX: u64 = 500;

impl Config {
    /// All broken relations.
    pub(super) fn check(&self) -> Vec<Problem> {
        let mut found = Found {
            config: self,
            problems: Vec::new(),
        };
        found.node();
        found.access();
        found.limits();
        found.times();
        found.chains();
        found.resubmit();
        found.signers();
        found.list_reservations();
        found.problems.sort();
        found.problems
    }

    /// What works but should not stay so.
    pub(super) fn warn(&self) -> Vec<Problem> {
        let mut warnings = Vec::new();
        let secret = self.origin("node.clusterSecret");
        if matches!(secret, super::Origin::File { .. }) {
            let message = "node.clusterSecret holds the secret in the file: move it to \
                           clusterSecretFile, or to the environment";
            warnings.push(Problem::of(&secret, message.to_owned()));
        }
        for (index, signer) in self.signers.iter().enumerate() {
            let origin = self.origin(&format!("signer[{index}].key"));
            // The keys that `dev` brings are known to everybody: nothing to hide there.
            if signer.key.is_some() && origin != super::Origin::Dev {
                let message = format!(
                    "signer[{index}].key holds a private key in the file: move it to keyFile or keyEnv"
                );
                warnings.push(Problem::of(&origin, message));
            }
        }
        warnings.extend(self.bumps_that_never_happen());
        warnings
    }

    /// The times of leases.
    pub(crate) fn lease_terms(&self) -> LeaseTerms {
        LeaseTerms {
            duration: self.lease.duration,
            renew_interval: self.lease.renew_interval,
            clock_skew_allowance: self.lease.clock_skew_allowance,
            idle_release: self.lease.idle_release,
        }
    }
}

struct Found<'c> {
    config: &'c Config,
    problems: Vec<Problem>,
}

impl Found<'_> {
    /// Notes a problem with the value of `path`. The message goes on after "is <value>, ".
    fn wrong(&mut self, path: &str, shown: &str, rule_and_fix: &str) {
        let message = format!("{path} is {shown}, {rule_and_fix}");
        self.problems
            .push(Problem::of(&self.config.origin(path), message));
    }

    fn range(&mut self, path: &str, value: u64, min: u64, max: u64) {
        if !(min..=max).contains(&value) {
            let rule = format!("but must be from {min} to {max}");
            self.wrong(path, &value.to_string(), &rule);
        }
    }

    fn node(&mut self) {
        let name = &self.config.node.name;
        let fits = (1..=NODE_NAME_LEN_MAX).contains(&name.len());
        if !fits || !name.bytes().all(|b| b.is_ascii_graphic()) {
            let rule = format!("but must be 1 to {NODE_NAME_LEN_MAX} visible ASCII characters");
            self.wrong("node.name", &format!("{name:?}"), &rule);
        }
    }

    fn limits(&mut self) {
        let config = self.config;
        self.range("worker.count", config.worker.count, 1, WORKERS_MAX);
        self.range(
            "worker.queueCapacity",
            config.worker.queue_capacity,
            1,
            QUEUE_MAX,
        );
        self.range("http.maxWaiters", config.http.max_waiters, 1, WAITERS_MAX);
        match config.store.url {
            StoreUrl::Postgres(_) => {
                self.range("store.poolSize", config.store.pool_size, POOL_MIN, POOL_MAX);
            }
            StoreUrl::Sqlite(_) => {}
        }
        let workers = config.confirmations.receipt_workers;
        self.range(
            "confirmations.receiptWorkers",
            workers,
            1,
            RECEIPT_WORKERS_MAX,
        );
        if !(BODY_BYTES_MIN..=BODY_BYTES_MAX).contains(&config.http.max_body.0) {
            let shown = config.http.max_body.shown();
            self.wrong("http.maxBody", &shown, "but must be from 1KiB to 64MiB");
        }
        if let Some(depth) = config.confirmations.watch_depth {
            let path = "confirmations.watchDepth";
            let depths = (config.chains.iter()).map(|chain| config.finality(chain).depth());
            let required = depths.max().unwrap_or(config.confirmations.required);
            if depth < required {
                let rule = format!(
                    "but a result must be watched at least until it is final ({required} \
                     confirmations): set it to {required} or more"
                );
                self.wrong(path, &depth.to_string(), &rule);
            } else if depth > WATCH_DEPTH_MAX {
                let rule = format!(
                    "but every header down to it is kept in memory: at most {WATCH_DEPTH_MAX}"
                );
                self.wrong(path, &depth.to_string(), &rule);
            }
        }
    }

    fn times(&mut self) {
        let config = self.config;
        if let Err(message) = config.lease_terms().check() {
            // It begins with the key that is to be changed.
            let path = message.split(' ').next().unwrap_or_default();
            self.problems
                .push(Problem::of(&config.origin(path), message.clone()));
        }
        let at_least_a_second = [
            ("nonce.stateTimeout", config.nonce.state_timeout),
            ("lane.gapFillAfter", config.lane.gap_fill_after),
            ("resubmit.interval", config.resubmit.interval),
            (
                "confirmations.staleReceiptTimeout",
                config.confirmations.stale_receipt_timeout,
            ),
        ];
        for (path, duration) in at_least_a_second {
            if duration.as_millis() < 1_000 {
                let rule = "but less than 1s would ask nodes without end: set it to 1s or more";
                self.wrong(path, &show_duration(duration), rule);
            }
        }
        if config.node.drain_delay.as_secs() > 600 {
            let shown = show_duration(config.node.drain_delay);
            self.wrong("node.drainDelay", &shown, "but a node must stop within 10m");
        }
    }

    fn signers(&mut self) {
        for (index, signer) in self.config.signers.iter().enumerate() {
            let path = format!("signer[{index}].kind");
            match (signer.kind, which_keys(signer).as_slice()) {
                (SignerKind::Key, ["key" | "keyFile" | "keyEnv"])
                | (SignerKind::Keystore, ["path", "passwordFile"])
                | (SignerKind::External, ["address"]) => {}
                (SignerKind::External, given) => {
                    let rule = format!("which takes address alone, but has {}", listed(given));
                    self.wrong(&path, "\"external\"", &rule);
                }
                (SignerKind::Key, given) => {
                    let rule = format!(
                        "which takes exactly one of key, keyFile and keyEnv, but has {}",
                        listed(given)
                    );
                    self.wrong(&path, "\"key\"", &rule);
                }
                (SignerKind::Keystore, given) => {
                    let rule = format!(
                        "which takes path and passwordFile, but has {}",
                        listed(given)
                    );
                    self.wrong(&path, "\"keystore\"", &rule);
                }
            }
            for chain in signer.chains.iter().flatten() {
                if !self.config.chains.iter().any(|known| known.id == *chain) {
                    let path = format!("signer[{index}].chains");
                    let rule = format!("but no [[chain]] has id {chain}: add it or leave it out");
                    self.wrong(&path, &signer.chains.shown(), &rule);
                }
            }
        }
    }
}

/// The keys that say where a signer's key is, as given.
fn which_keys(signer: &Signer) -> Vec<&'static str> {
    let given = [
        ("key", signer.key.is_some()),
        ("keyFile", signer.key_file.is_some()),
        ("keyEnv", signer.key_env.is_some()),
        ("path", signer.path.is_some()),
        ("passwordFile", signer.password_file.is_some()),
        ("address", signer.address.is_some()),
    ];
    given
        .into_iter()
        .filter(|(_, is_given)| *is_given)
        .map(|(key, _)| key)
        .collect()
}

fn listed(keys: &[&str]) -> String {
    if keys.is_empty() {
        "none of them".to_owned()
    } else {
        keys.join(" and ")
    }
}
