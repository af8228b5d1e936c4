//! The world of a case: PostgreSQL, Redis, a chain, three holder processes, and three nodes for scheme `lane`.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use proof::cluster::{Node, logs_of, migrate, postgres, run_blocking};
use proof::config::{Config, Lease};
use proof::network::{Network, NodeKind, Terms, signer};
use proof::{Chain, Outcome, Scratch, ensure};
use rig::evm::CHAIN_ID;
use rig::postgres::{Database, Postgres, majors};
use rig::redis::{Persistence, Redis};
use serde_json::{Value, json};

use crate::nonce_faults::holder::HolderProcess;
use crate::nonce_faults::journal::{Journals, MicrosTime};
use crate::nonce_faults::plan::{Case, Fault, Scheme};
use crate::nonce_faults::times;

/// Holder processes.
const HOLDERS: usize = 3;
/// Concurrent workers per process.
pub(crate) const WORKERS: usize = 3;
/// The pause of a worker after each nonce.
const PACE_MS: u64 = 100;
/// The allocation block, where a scheme has one.
const BLOCK_OF_NONCES: usize = 20;
const POLL_PERIOD: Duration = Duration::from_millis(50);
/// The account with reserved nonces, of the test mnemonic.
const ACCOUNT: u32 = 0;

/// The parts of a case. They end with the value.
pub(crate) struct World {
    pub(crate) holders: Vec<HolderProcess>,
    pub(crate) nodes: Vec<Node>,
    database: Database, // dropped before its server
    pub(crate) postgres: Arc<Postgres>,
    pub(crate) redis: Option<Redis>,
    pub(crate) account: String,
    net: Network,
    journals: Journals,
    pub(crate) scratch: Scratch,
}

/// The current time of the journals' clock.
pub(crate) fn now() -> Outcome<MicrosTime> {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(u64::try_from(since_epoch.as_micros())?)
}

impl World {
    /// Starts everything and waits until all holders allocate.
    pub(crate) async fn start(case: Case) -> Outcome<Self> {
        let scratch = Scratch::new()?;
        let major = majors().last().copied().ok_or("no PostgreSQL")?;
        let postgres = postgres(major).await?;
        let server = Arc::clone(&postgres);
        let database = run_blocking(move || server.database("nonces")).await?;
        let redis = match case.scheme.has_redis() {
            true => Some(run_blocking(move || Redis::start(persistence_for(case.fault))).await?),
            false => None,
        };
        let terms = Terms {
            block_time: times::BLOCK,
            ..Terms::default()
        };
        let net = Network::start(NodeKind::ANVIL, terms).await?;
        let logs = logs_of(&format!("06-3-faults/{}", case.name()))?;
        let mut world = Self {
            holders: Vec::new(),
            nodes: Vec::new(),
            account: signer(ACCOUNT),
            database,
            postgres,
            redis,
            net,
            journals: Journals::default(),
            scratch,
        };
        if case.scheme == Scheme::Lane {
            world.start_nodes(&logs).await?;
        }
        let mut journals = Vec::new();
        for number in 0..HOLDERS {
            let name = format!("holder-{number}");
            let journal = world.scratch.path().join(format!("{name}.jsonl"));
            let settings = world.settings(case.scheme, &journal);
            let holder = HolderProcess::new(&name, &settings, &world.scratch, &logs)?;
            journals.push(journal);
            world.holders.push(holder);
        }
        world.journals = Journals::of(journals);
        for holder in &mut world.holders {
            holder.start()?;
        }
        let began = now()?;
        world
            .wait_all_allocate(began, times::STARTED_WITHIN)
            .await?;
        Ok(world)
    }

    async fn start_nodes(&mut self, logs: &Path) -> Outcome<()> {
        for letter in ["a", "b", "c"] {
            let store = self.database.url().to_owned();
            let node = Node::new(letter.to_owned(), store, &self.scratch, logs)?;
            let config = Config {
                advertise: Some(node.api.url().to_owned()),
                rpc: vec![self.net.url().to_owned()],
                block_time: Some(times::BLOCK),
                confirmations: 2,
                lease: Some(Lease::SHORT),
                lanes: 0,
                more: format!(
                    "[[signer]]\nkind = \"external\"\naddress = {:?}\n[nonce]\nreservationTimeout = \"{}s\"\n",
                    self.account,
                    times::RESERVATION.as_secs()
                ),
                ..Config::default()
            };
            config.write(&node)?;
            self.nodes.push(node);
        }
        migrate(self.nodes[0].config()).await?;
        for node in &mut self.nodes {
            node.start(&self.scratch)?;
        }
        for node in &self.nodes {
            node.ready().await?;
        }
        Ok(())
    }

    fn settings(&self, scheme: Scheme, journal: &Path) -> Value {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let source = match scheme {
            Scheme::Lane => {
                let nodes: Vec<&str> = self.nodes.iter().map(|node| node.api.url()).collect();
                json!({"kind": "http", "nodes": nodes})
            }
            Scheme::RowLock | Scheme::RedisIssue | Scheme::RedisReserve | Scheme::Segment => {
                json!({
                    "kind": "library",
                    "scheme": scheme.as_str(),
                    "postgres": self.database.url(),
                    "redis": self.redis.as_ref().map(Redis::url),
                    "times": {
                        "reservationMs": ms(times::RESERVATION),
                        "leaseMs": ms(times::LEASE),
                        "sweepMs": ms(times::SWEEP),
                        "freeGraceMs": ms(times::FREE_GRACE),
                        "issueGraceMs": ms(times::ISSUE_GRACE),
                        "probeMs": ms(times::PROBE),
                        "block": BLOCK_OF_NONCES,
                    },
                })
            }
        };
        json!({
            "journal": journal,
            "chainId": CHAIN_ID,
            "rpc": self.net.url(),
            "account": ACCOUNT,
            "workers": WORKERS,
            "paceMs": PACE_MS,
            "source": source,
        })
    }

    /// A client of the chain.
    pub(crate) fn chain(&self) -> &Chain {
        &self.net.chain
    }

    /// Reads the journals up to now.
    pub(crate) fn journals(&mut self) -> Outcome<&Journals> {
        self.journals.read_on()?;
        Ok(&self.journals)
    }

    /// The journals read so far.
    pub(crate) fn read_journals(&self) -> &Journals {
        &self.journals
    }

    /// Waits until every holder has allocated since then.
    pub(crate) async fn wait_all_allocate(
        &mut self,
        since: MicrosTime,
        within: Duration,
    ) -> Outcome<()> {
        self.until("every holder allocates", within, |journals| {
            journals.allocated_since(since).len() == HOLDERS
        })
        .await
    }

    /// Waits for further allocations.
    pub(crate) async fn wait_for_more_allocations(
        &mut self,
        since: MicrosTime,
        count: usize,
    ) -> Outcome<()> {
        self.until(
            "more nonces are allocated",
            times::NORMAL_WITHIN,
            |journals| journals.allocated_since(since).values().sum::<usize>() >= count,
        )
        .await
    }

    /// Waits for a condition on the journals.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        within: Duration,
        is_so: impl Fn(&Journals) -> bool,
    ) -> Outcome<()> {
        let began = Instant::now();
        loop {
            for holder in &mut self.holders {
                holder.must_run()?;
            }
            if is_so(self.journals()?) {
                return Ok(());
            }
            let timeout = began.elapsed() < within;
            ensure(timeout, format!("after {within:?} still not: {what}"))?;
            tokio::time::sleep(POLL_PERIOD).await;
        }
    }

    /// The index of the lane's keeper, according to the first node.
    pub(crate) async fn keeper(&self) -> Outcome<Option<usize>> {
        let path = format!("/api/v1/lanes/{CHAIN_ID}/{}", self.account);
        let (status, lane) = self.nodes[0].api.get(&path).await?;
        ensure(status.is_success(), format!("{path}: {status} {lane}"))?;
        let keeper = &lane["keeper"]["node"];
        Ok(self.nodes.iter().position(|node| *keeper == *node.name))
    }

    /// All holders use their nonces up to this one, until the chain has everything.
    pub(crate) async fn drain(&mut self, top: u64) -> Outcome<Duration> {
        let began = Instant::now();
        for holder in &mut self.holders {
            holder.order(&format!("drain {top}")).await?;
        }
        loop {
            let mined = self.chain().nonce(&self.account).await?;
            if mined > top {
                return Ok(began.elapsed());
            }
            for holder in &mut self.holders {
                holder.must_run()?;
            }
            if began.elapsed() > times::CLOSED_WITHIN {
                return Err(self.describe_gap(mined, top).into());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until the chain has closed every nonce up to this one, including unmarked ones.
    pub(crate) async fn all_closed(&mut self, scheme: Scheme, top: u64) -> Outcome<()> {
        let began = Instant::now();
        loop {
            let open = self.open_up_to(scheme, top).await?;
            if open.is_empty() {
                return Ok(());
            }
            for holder in &mut self.holders {
                holder.must_run()?;
            }
            let within = times::CLOSED_WITHIN;
            let is_early = began.elapsed() < within;
            ensure(
                is_early,
                format!("after {within:?} still open in the ledger: {open}"),
            )?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Describes what the chain has not closed.
    async fn open_up_to(&self, scheme: Scheme, top: u64) -> Outcome<String> {
        if scheme == Scheme::Lane {
            let path = format!("/api/v1/lanes/{CHAIN_ID}/{}/nonces", self.account);
            let (status, allocated) = self.nodes[0].api.get(&path).await?;
            ensure(status.is_success(), format!("{path}: {status} {allocated}"))?;
            let listed = allocated["nonces"].as_array().ok_or("no list of nonces")?;
            let open = listed.iter().map(|one| one["nonce"].as_u64());
            let open: Vec<u64> = open.flatten().filter(|nonce| *nonce <= top).collect();
            return Ok(if open.is_empty() {
                String::new()
            } else {
                format!("{open:?}")
            });
        }
        let open = format!(
            "SELECT coalesce(string_agg(nonce::text, ' ' ORDER BY nonce), '') FROM nonce_reservation \
             WHERE nonce <= {top} AND (state <> 1 OR (closed_number IS NULL AND NOT is_final))"
        );
        let open = tokio::task::block_in_place(|| self.database.query_value(&open));
        Ok(open.unwrap_or_default())
    }

    /// Describes a nonce that was not used in time.
    fn describe_gap(&mut self, nonce: u64, top: u64) -> String {
        let within = times::CLOSED_WITHIN;
        let reservations: Vec<String> = match self.journals() {
            Ok(journals) => journals
                .reservations()
                .filter(|reservation| reservation.nonce == nonce)
                .map(|reservation| format!("{reservation:?}"))
                .collect(),
            Err(error) => vec![error.to_string()],
        };
        let row = format!(
            "SELECT row_to_json(r)::text FROM nonce_reservation AS r WHERE nonce = {nonce}"
        );
        let row = tokio::task::block_in_place(|| self.database.query_value(&row));
        format!(
            "after {within:?} nonce {nonce} (of {top}) is still a gap; reservations {reservations:?}; in the ledger {row:?}"
        )
    }
}

/// Only a Redis that restarts with its data persists anything.
fn persistence_for(fault: Fault) -> Persistence {
    match fault {
        Fault::RedisKilled => Persistence::Everything,
        Fault::RedisFrozen
        | Fault::RedisFlushed
        | Fault::RedisEmptied
        | Fault::RedisFailedOver
        | Fault::PostgresKilled
        | Fault::HolderKilled
        | Fault::HolderFrozen
        | Fault::KeeperKilled
        | Fault::KeeperFrozen => Persistence::Nothing,
    }
}
