//! Every key of the configuration file, with its kind, its default and what it is for.
//!
//! In the file a key is the field's name in camelCase (`renewInterval`), in the environment
//! `LANEKEEPER_SECTION__KEY` (`LANEKEEPER_LEASE__RENEW_INTERVAL`). Nothing else lists the keys.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use api::keys::Scope;
use chain::rpc::EndpointUrl;
use domain::Address;
use domain::lane::{ChainQuery, Finality, OnForeignNonce};
use domain::window::{Depth, Release};
use engine::node::{NonKeeper, OnTimelineChange};
use nonce::{RejectPolicy, SchemeKind};

use super::reader::{Fallback, Section, SectionReader};
use super::values::{Hundredths, Secret, Size, Url, Wei, WsUrl};
use super::words::{AuthMode, NonceMode, Policy, Progress, SignerKind, StoreUrl, StuckAction};

macro_rules! section {
    (
        $(#[doc = $section_about:literal])*
        $section:ident = $name:literal {
            $( $(#[doc = $about:literal])* $key:ident: $kind:ty = $fallback:expr; )*
        }
    ) => {
        $(#[doc = $section_about])*
        #[derive(Clone, Debug)]
        pub(crate) struct $section {
            $( $(#[doc = $about])* pub(crate) $key: $kind, )*
        }

        impl Section for $section {
            const NAME: &'static str = $name;
            fn read(reader: &mut SectionReader<'_>) -> Option<Self> {
                $( let $key = reader.key(stringify!($key), concat!($($about),*), $fallback); )*
                Some(Self { $( $key: $key?, )* })
            }
        }
    };
}

fn value(word: &str) -> Fallback {
    Fallback::Value(word.to_owned())
}

section! {
    /// This node.
    Node = "node" {
        /// Its name; no other node may have it.
        name: String = Fallback::Value(host_name());
        /// The address under which other nodes reach it.
        advertise: Option<Url> = Fallback::Unset("http:// and where http.listen listens");
        /// How long a stopping node goes on answering after it gave its lanes back.
        drain_delay: Duration = value("5s");
        /// What the nodes know each other by; the same on all. Prefer clusterSecretFile.
        cluster_secret: Option<Secret> = Fallback::Unset("not set");
        /// The file that holds it.
        cluster_secret_file: Option<PathBuf> = Fallback::Unset("not set");
    }
}

section! {
    /// The HTTP API.
    Http = "http" {
        /// Where it listens.
        listen: SocketAddr = value("127.0.0.1:8645");
        /// The largest body of a request.
        max_body: Size = value("1MiB");
        /// How many callers may wait for a tx at once (`?wait=`).
        max_waiters: u64 = value("10000");
    }
}

section! {
    /// The authority.
    Store = "store" {
        /// Where it is.
        url: StoreUrl = Fallback::Required;
        /// PostgreSQL: how many connections this node opens at most.
        pool_size: u64 = value("8");
        /// PostgreSQL: what lanes do after a standby was promoted and may have lost commits.
        on_timeline_change: OnTimelineChange = value("halt");
    }
}

section! {
    /// A chain, once per chain.
    Chain = "chain" {
        /// Its EIP-155 id.
        id: u64 = Fallback::Required;
        /// What people call it.
        name: Option<String> = Fallback::Unset("its id");
        /// Its JSON-RPC endpoints, the preferred one first.
        rpc: Vec<EndpointUrl> = Fallback::Required;
        /// A WebSocket endpoint that tells of new heads; they are asked for all the same.
        ws: Option<WsUrl> = Fallback::Unset("heads are only asked for");
        /// How many endpoints get a transaction at once; one that leaves a doubt makes it more.
        send_to: u64 = value("1");
        /// The most requests that one endpoint gets in a second.
        requests_per_second: Option<u64> = Fallback::Unset("no limit");
        /// When a result is final: so many blocks stand on it, or the chain calls its block safe or finalized.
        confirmations: Option<Finality> = Fallback::Unset("confirmations.required");
        /// How often it makes a block: how often its head is asked for.
        block_time: Option<Duration> = Fallback::Unset("its head is asked for every second");
        /// Whether it knows type 0 transactions only.
        legacy: bool = value("false");
        /// Never offer less than this per gas.
        fee_floor: Wei = value("0");
        /// Never offer more than this per gas.
        fee_cap: Option<Wei> = Fallback::Unset("no limit");
        /// What estimated gas is multiplied by.
        gas_margin: Hundredths = value("1.2");
    }
}

section! {
    /// An account to send from, once per account.
    Signer = "signer" {
        /// Where its key is.
        kind: SignerKind = Fallback::Required;
        /// kind "key": the private key itself. Prefer keyFile or keyEnv.
        key: Option<Secret> = Fallback::Unset("not set");
        /// kind "key": the file that holds the private key in hex.
        key_file: Option<PathBuf> = Fallback::Unset("not set");
        /// kind "key": the environment variable that holds the private key in hex.
        key_env: Option<String> = Fallback::Unset("not set");
        /// kind "keystore": the keystore file (version 3, as geth writes it).
        path: Option<PathBuf> = Fallback::Unset("not set");
        /// kind "keystore": the file that holds its password.
        password_file: Option<PathBuf> = Fallback::Unset("not set");
        /// kind "external": the account; its key is elsewhere and its nonces are lent.
        address: Option<Address> = Fallback::Unset("not set");
        /// The chains it sends on.
        chains: Option<Vec<u64>> = Fallback::Unset("all chains");
    }
}

section! {
    /// The times of leases.
    Lease = "lease" {
        /// How long a grant or a renewal lasts.
        duration: Duration = value("10s");
        /// How often a keeper renews.
        renew_interval: Duration = value("3s");
        /// How long after its end a lease of another node is left alone.
        clock_skew_allowance: Duration = value("1s");
        /// After how long without work a lane is given back.
        idle_release: Duration = value("60s");
    }
}

section! {
    /// What the chain is asked about an account's nonce.
    NonceRules = "nonce" {
        /// Whether what waits in the node's pool counts.
        chain_query: ChainQuery = value("pending");
        /// How old the knowledge of the chain's nonce may get.
        state_timeout: Duration = value("30s");
        /// The farthest jump of the chain's nonce over ours that is taken without an operator.
        max_chain_jump: u64 = value("64");
        /// Who keeps the books of lent nonces (signers of kind "external").
        scheme: SchemeKind = value("lane");
        /// Whether calls of one lane go one by one through a worker of this node.
        mode: NonceMode = value("basic");
        /// Mode "worker-queue": how many workers there are.
        worker_count: u64 = value("8");
        /// Mode "worker-queue": how many calls may wait for each.
        worker_queue_capacity: u64 = value("1024");
        /// Mode "worker-queue": what becomes of one more.
        worker_queue_reject_policy: RejectPolicy = value("FAIL_FAST");
        /// By when a borrower must have sent, or said that it did.
        reservation_timeout: Duration = value("60s");
        /// Scheme "segment": how many nonces a node takes at once. Scheme "redis-reserve": how many Redis may lend ahead.
        segment_size: u64 = value("100");
    }
}

section! {
    /// Redis, for those schemes of lent nonces that use it.
    Redis = "redis" {
        /// Where it is: redis://user:password@host:6379/0
        url: Option<Secret> = Fallback::Unset("not used");
        /// Whether PostgreSQL serves alone while Redis is away.
        degrade_on_failure: bool = value("true");
        /// After how many failures in a row it is left out.
        failures_to_degrade: u64 = value("3");
        /// How often it is then looked for.
        probe_interval: Duration = value("5s");
    }
}

section! {
    /// How much of a lane may be out at once.
    Lane = "lane" {
        /// How many nonces may be dealt and unresolved; 0 is no limit, 1 is strict.
        window: u64 = value("0");
        /// When a nonce counts as resolved.
        window_releases: Release = value("final");
        /// How many transactions of a lane may be at nodes at once.
        mempool_depth: Depth = value("auto");
        /// After how long a nonce that nothing uses, and others wait for, is filled.
        gap_fill_after: Duration = value("15s");
        /// What becomes of a tx whose nonce another program has consumed: a new nonce, or STUCK.
        on_foreign_nonce: OnForeignNonce = value("requeue");
    }
}

section! {
    /// The lane shards.
    Worker = "worker" {
        /// How many there are.
        count: u64 = Fallback::Value(cpus().to_string());
        /// How much may wait for one of them; more is refused with 429.
        queue_capacity: u64 = value("8192");
    }
}

section! {
    /// Sending again what is not mined.
    Resubmit = "resubmit" {
        /// Whether it is done at all.
        enabled: bool = value("true");
        /// After how long.
        interval: Duration = value("60s");
        /// How often, before it is STUCK and waits for a decision; 0 is no limit.
        max_attempts: u64 = value("0");
        /// With the same bytes, or with a new attempt that pays more.
        policy: Policy = value("rebroadcast");
        /// Policy "bump": how much more, in percent. Nodes take no less than 10.
        bump_percent: u64 = value("12");
        /// Policy "bump": never offer more than this per gas.
        max_fee_per_gas: Option<Wei> = Fallback::Unset("the chain's feeCap");
    }
}

section! {
    /// What is STUCK.
    Stuck = "stuck" {
        /// What is done by itself: "wait" sends its bytes on, and never cancels.
        action: StuckAction = value("wait");
    }
}

section! {
    /// When a result is final.
    Confirmations = "confirmations" {
        /// How many blocks must stand on a result, for chains that do not say.
        required: u64 = value("20");
        /// After how long without a receipt a hash is asked for by itself.
        stale_receipt_timeout: Duration = value("60s");
        /// Whether a lane that is taken asks for the receipts of all that is out; else for those that its nonce tells of.
        fetch_receipt_upon_entry: bool = value("false");
        /// How many receipts are asked for at once.
        receipt_workers: u64 = value("10");
        /// Whether confirmations are told on the way, or only at the end.
        progress: Progress = value("final");
        /// How deep final results are still watched for forks.
        watch_depth: Option<u64> = Fallback::Unset("twice the required confirmations, at least 64");
    }
}

section! {
    /// Requests that reach a node which does not keep their lane.
    Routing = "routing" {
        /// What happens to them.
        non_keeper: NonKeeper = value("forward");
    }
}

section! {
    /// Who may use the API.
    Auth = "auth" {
        /// How callers show who they are.
        mode: AuthMode = value("none");
    }
}

section! {
    /// An API key, once per key (`lanekeeper key new` makes one).
    AuthKey = "auth.key" {
        /// Who shows it; in logs, and a part of the key.
        name: String = Fallback::Required;
        /// The SHA-256 of the key, in hex.
        hash: String = Fallback::Required;
        /// What it may do.
        scopes: Vec<Scope> = Fallback::Required;
    }
}

fn host_name() -> String {
    // Absent outside of Linux; then it only has to be some name, and a second node must set one.
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() {
        "lanekeeper".to_owned()
    } else {
        name.to_owned()
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
