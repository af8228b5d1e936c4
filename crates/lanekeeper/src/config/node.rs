//! `[node]`, `[http]`, `[store]`, `[lease]`, `[worker]` and `[routing]`: the node itself.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use browser_guard::BrowserGuard;
use cli::PostgresUrl;
use domain::NodeName;
use domain::lane::BalanceCheck;
use domain::lease::LeaseTerms;
use engine::node::{NodeConfig, NonKeeper, OnTimelineChange, Simulate};

use super::raw::Raw;
use super::reader::Fallback::{self, Required, Unset};
use super::section::{default, in_range, rule, section};
use super::setting::{
    HostNames, Secret, Setting, Size, Url, ValueError, WebOrigins, as_usize, choices, text,
};
use super::validation::Validation;
use super::{Config, Problem};

/// More shards than this share cores without gain.
const WORKERS_MAX: u64 = 1_024;
/// Bounds the memory of queued requests.
const QUEUE_MAX: u64 = 1_000_000;
/// Bounds the memory of waiting callers.
const WAITERS_MAX: u64 = 1_000_000;
const CONNECTIONS_MAX: u64 = api::CONNECTIONS_MAX as u64;
const BODY_BYTES_MIN: u64 = 1 << 10;
const BODY_BYTES_MAX: u64 = 64 << 20;
const NODE_NAME_LEN_MAX: usize = 64;
/// One connection each for leases, the engine's reads, those of customers, and writes.
const POOL_MIN: u64 = 4;
/// PostgreSQL runs one process per connection.
const POOL_MAX: u64 = 500;

section! {
    /// This node.
    Node = "node" {
        /// The node's name, which must be unique in the cluster.
        name: String = Fallback::Value(host_name());
        /// The URL under which other nodes reach this one.
        advertise: Option<Url> = Unset("http:// and the address of http.listen");
        /// How long a stopping node answers reads after it has released its lanes.
        drain_delay: Duration = default("5s"),
            rule(|delay: &Duration| delay.as_secs() <= 600, "but a node must stop within 10m");
        /// A folder in which the node records what it has committed, by which it notices a restored backup of the store.
        /// It must survive restarts, belong to this node alone, and lie outside of everything that is restored.
        state_dir: Option<PathBuf> = Unset("none; a restored backup is noticed by a running node, or when it is declared");
        /// The secret by which nodes authenticate each other, the same on all nodes. Prefer clusterSecretFile.
        cluster_secret: Option<Secret> = Unset("not set");
        /// The file that contains the cluster secret.
        cluster_secret_file: Option<PathBuf> = Unset("not set");
    }
}

section! {
    /// The HTTP API.
    Http = "http" {
        /// The address that the API listens on.
        listen: SocketAddr = default("127.0.0.1:8645");
        /// The largest request body.
        max_body: Size = default("1MiB"),
            rule(|size: &Size| (BODY_BYTES_MIN..=BODY_BYTES_MAX).contains(&size.0), "but must be from 1KiB to 64MiB");
        /// How many callers may wait for a tx at once (`?wait=`).
        max_waiters: u64 = default("10000"), in_range(1, WAITERS_MAX);
        /// How many connections one address may hold, each with one request at a time. All that come through a load balancer
        /// have its address.
        max_connections_per_address: u64 = default("4096"), in_range(1, CONNECTIONS_MAX);
        /// Names under which clients reach this node, besides IP addresses, localhost and the host of node.advertise.
        allowed_hosts: Option<HostNames> = Unset("none; a request with an API key may use any name");
        /// Web sites whose pages may use the API.
        allowed_origins: Option<WebOrigins> = Unset("none");
    }
}

section! {
    /// The store.
    Store = "store" {
        /// The URL of the store.
        url: StoreUrl = Required;
        /// PostgreSQL: the maximum number of connections of this node.
        pool_size: u64 = default("10");
        /// PostgreSQL: what a lane does when a promoted standby may lack its last commits.
        on_timeline_change: OnTimelineChange = default("halt");
    }
}

section! {
    /// The timing of leases.
    Lease = "lease" {
        /// How long a grant or a renewal lasts.
        duration: Duration = default("10s");
        /// How often a keeper renews its leases.
        renew_interval: Duration = default("3s");
        /// How long after its expiry a lease of another node is not taken over.
        clock_skew_allowance: Duration = default("1s");
        /// A lane without work is released after this time.
        idle_release: Duration = default("60s");
    }
}

section! {
    /// The lane shards.
    Worker = "worker" {
        /// The number of shards.
        count: u64 = Fallback::Value(cpu_count().to_string()), in_range(1, WORKERS_MAX);
        /// How many requests may wait for one shard; further ones are refused with 429.
        queue_capacity: u64 = default("8192"), in_range(1, QUEUE_MAX);
    }
}

section! {
    /// Requests that reach a node which does not keep their lane.
    Routing = "routing" {
        /// What happens to a request whose lane another node keeps.
        non_keeper: NonKeeper = default("forward");
    }
}

section! {
    /// What a request must fulfil before it gets a nonce.
    Admission = "admission" {
        /// Which requests are simulated: "auto" those without gas, "always" all, "never" none (gas is required then).
        simulate: Simulate = default("auto");
        /// What happens to a request whose account cannot pay for it besides all that is open: "check" refuses it, "off"
        /// accepts it, and it waits in its lane until money arrives.
        balance: BalanceCheck = default("check");
    }
}

choices!(Simulate, "\"auto\", \"always\" or \"never\"", {
    "auto" => Simulate::Auto, "always" => Simulate::Always, "never" => Simulate::Never,
});
choices!(BalanceCheck, "\"check\" or \"off\"", {
    "check" => BalanceCheck::Check, "off" => BalanceCheck::Off,
});
choices!(NonKeeper, "\"forward\", \"queue\" or \"reject\"", {
    "forward" => NonKeeper::Forward, "queue" => NonKeeper::Queue, "reject" => NonKeeper::Reject,
});
choices!(OnTimelineChange, "\"halt\" or \"continue\"", {
    "halt" => OnTimelineChange::Halt, "continue" => OnTimelineChange::Continue,
});

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    /// The embedded store in this folder.
    Sqlite(PathBuf),
    /// The store of a cluster.
    Postgres(PostgresUrl),
}

impl Setting for StoreUrl {
    const IS_SECRET: bool = true;
    const FORM: &'static str = "\"postgres://user:password@host/database\", or \"sqlite:\" and a \
                                folder, such as \"sqlite:/var/lib/lanekeeper\"";
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        let url = text(raw)?;
        if let Some(url) = PostgresUrl::parse(url) {
            return Ok(Self::Postgres(url));
        }
        match url
            .strip_prefix("sqlite:")
            .map(|path| path.trim_start_matches("//"))
        {
            None | Some("") => Err(ValueError::Malformed),
            Some(_) if url.starts_with("sqlite:///") => {
                Ok(Self::Sqlite(PathBuf::from(&url["sqlite://".len()..])))
            }
            Some(path) => Ok(Self::Sqlite(PathBuf::from(path))),
        }
    }
    fn to_text(&self) -> String {
        match self {
            Self::Sqlite(path) => format!("sqlite:{}", path.display()),
            Self::Postgres(url) => url.redacted(),
        }
    }
}

impl Config {
    /// The settings of a node that listens on this address.
    pub(crate) fn node_config(&self, address: SocketAddr) -> NodeConfig {
        NodeConfig {
            name: NodeName(self.node.name.clone()),
            advertise: self.advertised_url(address),
            lease: self.lease_terms(),
            shards: as_usize(self.worker.count),
            inbox: as_usize(self.worker.queue_capacity),
            waiters: as_usize(self.http.max_waiters),
            chains: self.chain_rules(),
            simulate: self.admission.simulate,
            non_keeper: self.routing.non_keeper,
            on_timeline_change: self.store.on_timeline_change,
            reserved_accounts: self.reserved_accounts(),
        }
    }

    /// What browsers may send to this node.
    pub(crate) fn browser_guard(&self, needs_bearer: bool) -> BrowserGuard {
        let advertised = self.node.advertise.as_ref().and_then(Url::host);
        let hosts = self.http.allowed_hosts.as_ref();
        let origins = self.http.allowed_origins.as_ref();
        BrowserGuard {
            own_hosts: advertised.into_iter().collect(),
            allowed_hosts: hosts.map_or_else(Vec::new, |hosts| hosts.0.clone()),
            allowed_origins: origins.map_or_else(Vec::new, |origins| origins.0.clone()),
            needs_bearer,
        }
    }

    /// The URL under which other nodes reach this one; an unspecified address is not reachable.
    fn advertised_url(&self, address: SocketAddr) -> Option<String> {
        match &self.node.advertise {
            Some(url) => Some(url.0.clone()),
            None if address.ip().is_unspecified() => None,
            None => Some(format!("http://{address}")),
        }
    }

    fn lease_terms(&self) -> LeaseTerms {
        LeaseTerms {
            duration: self.lease.duration,
            renew_interval: self.lease.renew_interval,
            clock_skew_allowance: self.lease.clock_skew_allowance,
            idle_release: self.lease.idle_release,
        }
    }
}

impl Validation<'_> {
    pub(super) fn check_node(&mut self) {
        let config = self.config;
        let name = &config.node.name;
        let fits = (1..=NODE_NAME_LEN_MAX).contains(&name.len());
        if !fits || !name.bytes().all(|b| b.is_ascii_graphic()) {
            let rule = format!("but must be 1 to {NODE_NAME_LEN_MAX} visible ASCII characters");
            self.reject("node.name", &format!("{name:?}"), &rule);
        }
        match config.store.url {
            StoreUrl::Postgres(_) => {
                self.require_range("store.poolSize", config.store.pool_size, POOL_MIN, POOL_MAX);
            }
            StoreUrl::Sqlite(ref folder) => self.check_state_dir(folder),
        }
        if let Err(message) = config.lease_terms().check() {
            // The message begins with the key that must be changed.
            let path = message.split(' ').next().unwrap_or_default();
            self.problems
                .push(Problem::at_origin(&config.origin(path), message.clone()));
        }
    }

    /// A copy of the embedded store that is restored as a folder must not bring the witness of its own time.
    fn check_state_dir(&mut self, store: &Path) {
        let Some(state_dir) = &self.config.node.state_dir else {
            return;
        };
        let absolute =
            |path: &Path| std::path::absolute(path).unwrap_or_else(|_no_cwd| path.to_owned());
        if absolute(state_dir).starts_with(absolute(store)) {
            let found = format!("{:?}", state_dir.display().to_string());
            let rule = format!(
                "but must lie outside of the store's folder {}: a restored copy of that would restore it too",
                store.display()
            );
            self.reject("node.stateDir", &found, &rule);
        }
    }
}

fn host_name() -> String {
    // Absent outside of Linux; then any name will do, and a second node must set one.
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "lanekeeper".to_owned(),
        name => name.to_owned(),
    }
}

fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_url_is_a_folder_or_a_postgres_database() {
        let read = |url: &str| StoreUrl::from_raw(&Raw::Bare(url.into()));
        let folder = |path: &str| Ok(StoreUrl::Sqlite(PathBuf::from(path)));
        assert_eq!(read("sqlite:a/b.db"), folder("a/b.db"));
        assert_eq!(read("sqlite:/a/b.db"), folder("/a/b.db"));
        assert_eq!(read("sqlite:///a/b.db"), folder("/a/b.db"));
        assert_eq!(read("sqlite://b.db"), folder("b.db"));
        for bad in ["sqlite:", "postgres:", "postgres://", "mysql://h/db"] {
            assert_eq!(read(bad), Err(ValueError::Malformed), "{bad}");
        }
    }
}
