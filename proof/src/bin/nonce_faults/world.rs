//! One case's world: PostgreSQL, Redis, a chain, three borrowing processes, and for scheme `lane` three nodes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use proof::cluster::{Node, aside, logs_of, migrate, postgres};
use proof::config::{Config, Lease};
use proof::network::{Make, Network, Terms, signer};
use proof::{Chain, Outcome, Scratch, demand};
use rig::evm::CHAIN_ID;
use rig::postgres::{Database, Postgres, majors};
use rig::redis::{Keeps, Redis};
use serde_json::{Value, json};

use crate::borrower::Borrower;
use crate::journal::{At, Journals};
use crate::plan::{Case, Fault, Scheme};
use crate::times;

/// How many processes borrow.
const BORROWERS: usize = 3;
/// How many borrow at once in each.
pub(crate) const DESKS: usize = 3;
/// How long a desk rests after each nonce.
const PACE_MS: u64 = 100;
/// How many nonces are taken at once, where a scheme does so.
const BLOCK_OF_NONCES: usize = 20;
/// How often the journals are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The account that lends, of the test mnemonic.
const ACCOUNT: u32 = 0;

/// Everything of a case. Ends with the value.
pub(crate) struct World {
    pub(crate) borrowers: Vec<Borrower>,
    pub(crate) nodes: Vec<Node>,
    database: Database, // before its server
    pub(crate) postgres: Arc<Postgres>,
    pub(crate) redis: Option<Redis>,
    pub(crate) account: String,
    net: Network,
    journals: Journals,
    pub(crate) scratch: Scratch,
}

/// This moment, as the journals count.
pub(crate) fn now() -> Outcome<At> {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(u64::try_from(since_epoch.as_micros())?)
}

impl World {
    /// Starts everything and waits until all borrow.
    pub(crate) async fn start(case: Case) -> Outcome<Self> {
        let scratch = Scratch::new()?;
        let major = majors().last().copied().ok_or("no PostgreSQL")?;
        let postgres = postgres(major).await?;
        let server = Arc::clone(&postgres);
        let database = aside(move || server.database("lent")).await?;
        let redis = match case.scheme.has_redis() {
            true => Some(aside(move || Redis::start(keeps(case.fault))).await?),
            false => None,
        };
        let terms = Terms {
            block_time: times::BLOCK,
            ..Terms::default()
        };
        let net = Network::start(Make::ANVIL, terms).await?;
        let logs = logs_of(&format!("06-3-faults/{}", case.name()))?;
        let mut world = Self {
            borrowers: Vec::new(),
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
        for number in 0..BORROWERS {
            let name = format!("borrower-{number}");
            let journal = world.scratch.path().join(format!("{name}.jsonl"));
            let settings = world.settings(case.scheme, &journal);
            let borrower = Borrower::new(&name, &settings, &world.scratch, &logs)?;
            journals.push(journal);
            world.borrowers.push(borrower);
        }
        world.journals = Journals::of(journals);
        for borrower in &mut world.borrowers {
            borrower.start()?;
        }
        let began = now()?;
        world.all_borrow(began, times::STARTED_WITHIN).await?;
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
        let door = match scheme {
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
            "desks": DESKS,
            "paceMs": PACE_MS,
            "door": door,
        })
    }

    /// The chain, for those who only look.
    pub(crate) fn chain(&self) -> &Chain {
        &self.net.chain
    }

    /// What was written down until now.
    pub(crate) fn journals(&mut self) -> Outcome<&Journals> {
        self.journals.read_on()?;
        Ok(&self.journals)
    }

    /// What of it was read already.
    pub(crate) fn read_journals(&self) -> &Journals {
        &self.journals
    }

    /// Until every borrower got something since then.
    pub(crate) async fn all_borrow(&mut self, since: At, within: Duration) -> Outcome<()> {
        self.until("everybody borrows", within, |journals| {
            journals.lent_since(since).len() == BORROWERS
        })
        .await
    }

    /// Until so many more were lent than at that moment.
    pub(crate) async fn lent_more(&mut self, since: At, count: usize) -> Outcome<()> {
        self.until("more is lent", times::NORMAL_WITHIN, |journals| {
            journals.lent_since(since).values().sum::<usize>() >= count
        })
        .await
    }

    /// Until the journals say so.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        within: Duration,
        is_so: impl Fn(&Journals) -> bool,
    ) -> Outcome<()> {
        let began = Instant::now();
        loop {
            for borrower in &mut self.borrowers {
                borrower.must_run()?;
            }
            if is_so(self.journals()?) {
                return Ok(());
            }
            let patience = began.elapsed() < within;
            demand(patience, format!("after {within:?} still not: {what}"))?;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Which node keeps the lane, by what the first one says.
    pub(crate) async fn keeper(&self) -> Outcome<Option<usize>> {
        let path = format!("/api/v1/lanes/{CHAIN_ID}/{}", self.account);
        let (status, lane) = self.nodes[0].api.get(&path).await?;
        demand(status.is_success(), format!("{path}: {status} {lane}"))?;
        let keeper = &lane["keeper"]["node"];
        Ok(self.nodes.iter().position(|node| *keeper == *node.name))
    }

    /// All use what is left up to this nonce, until the chain has everything.
    pub(crate) async fn drain(&mut self, top: u64) -> Outcome<Duration> {
        let began = Instant::now();
        for borrower in &mut self.borrowers {
            borrower.order(&format!("drain {top}")).await?;
        }
        loop {
            let mined = self.chain().nonce(&self.account).await?;
            if mined > top {
                return Ok(began.elapsed());
            }
            for borrower in &mut self.borrowers {
                borrower.must_run()?;
            }
            if began.elapsed() > times::CLOSED_WITHIN {
                return Err(self.about_hole(mined, top).into());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until the chain has closed every nonce up to this one, also those of which nobody said that they are used.
    pub(crate) async fn all_closed(&mut self, scheme: Scheme, top: u64) -> Outcome<()> {
        let began = Instant::now();
        loop {
            let open = self.open_up_to(scheme, top).await?;
            if open.is_empty() {
                return Ok(());
            }
            for borrower in &mut self.borrowers {
                borrower.must_run()?;
            }
            let within = times::CLOSED_WITHIN;
            let is_early = began.elapsed() < within;
            demand(
                is_early,
                format!("after {within:?} still open in the books: {open}"),
            )?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// What the chain has not closed, in words.
    async fn open_up_to(&self, scheme: Scheme, top: u64) -> Outcome<String> {
        if scheme == Scheme::Lane {
            let path = format!("/api/v1/lanes/{CHAIN_ID}/{}/nonces", self.account);
            let (status, lent) = self.nodes[0].api.get(&path).await?;
            demand(status.is_success(), format!("{path}: {status} {lent}"))?;
            let listed = lent["nonces"].as_array().ok_or("no list of nonces")?;
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
             WHERE nonce <= {top} AND (state <> 1 OR (closed_number IS NULL AND NOT is_buried))"
        );
        let open = tokio::task::block_in_place(|| self.database.ask(&open));
        Ok(open.unwrap_or_default())
    }

    /// What is known of a nonce that nobody used in time.
    fn about_hole(&mut self, nonce: u64, top: u64) -> String {
        let within = times::CLOSED_WITHIN;
        let loans: Vec<String> = match self.journals() {
            Ok(journals) => journals
                .loans()
                .filter(|loan| loan.nonce == nonce)
                .map(|loan| format!("{loan:?}"))
                .collect(),
            Err(error) => vec![error.to_string()],
        };
        let row = format!(
            "SELECT row_to_json(r)::text FROM nonce_reservation AS r WHERE nonce = {nonce}"
        );
        let row = tokio::task::block_in_place(|| self.database.ask(&row));
        format!(
            "after {within:?} nonce {nonce} (of {top}) is still a hole; lent as {loans:?}; in the books {row:?}"
        )
    }
}

/// Only a Redis that is killed and comes back as it was keeps anything.
fn keeps(fault: Fault) -> Keeps {
    match fault {
        Fault::RedisKilled => Keeps::Everything,
        Fault::RedisFrozen
        | Fault::RedisFlushed
        | Fault::RedisEmptied
        | Fault::RedisFailedOver
        | Fault::PostgresKilled
        | Fault::HolderKilled
        | Fault::HolderFrozen
        | Fault::KeeperKilled
        | Fault::KeeperFrozen => Keeps::Nothing,
    }
}
