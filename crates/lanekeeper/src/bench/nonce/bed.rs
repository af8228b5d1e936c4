//! A database, a chain and worker processes for one run, gone after it.

use std::path::PathBuf;
use std::time::Duration;

use alloy_primitives::Address;
use domain::{ChainId, LaneKey};
use futures::future::try_join_all;
use serde_json::{Value, json};

use super::super::null_chain::{self, CHAIN_ID, EndpointNonces, Sends};
use super::super::postgres::database::Database;
use super::super::server::be_quiet;
use super::plan::Setup;
use super::talk::{Answer, Load, Order};
use crate::commands::read_generated;
use crate::config::show_duration;
use crate::failure::Failure;
use crate::fleet::{Child, OWN_KEYS, Settings, Talker, node_name, table, this_program};
use crate::open;

/// Long, so that a saturated machine loses no lease.
const LEASE: Duration = Duration::from_secs(30);
const RENEW: Duration = Duration::from_secs(5);
/// Whatever becomes of a run, a worker answers so long after it.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// The files of a run, and what they are about.
pub(super) struct Plans {
    files: Vec<(String, PathBuf)>,
    chain: Child,
    /// Sets of lanes, each of which is borrowed from in turn.
    pub(super) sets: Vec<Vec<Address>>,
    /// Deleted at the end: it holds passwords.
    folder: tempfile::TempDir,
}

/// Workers that are ready.
pub(super) struct Bed {
    workers: Vec<Talker>,
    chain: Child,
    _folder: tempfile::TempDir,
}

impl Plans {
    /// Writes the configurations and makes the tables.
    pub(super) async fn make(
        setup: Setup,
        database: &Database,
        redis_url: &str,
    ) -> Result<Self, Failure> {
        let folder = tempfile::tempdir().map_err(|e| Failure::refused("a temporary folder", &e))?;
        // Fresh accounts, so that no run meets what another one left in Redis.
        let set = || -> Vec<Address> {
            let fresh = |_| Address::from(rand::random::<[u8; 20]>());
            (0..setup.lanes).map(fresh).collect()
        };
        let sets: Vec<Vec<Address>> = (0..setup.rounds_max()).map(|_| set()).collect();
        let (chain, chain_url) =
            null_chain::start(folder.path(), &EndpointNonces::new(), Sends::Held).await?;
        let redis_url = Some(redis_url).filter(|_| setup.contender.uses_redis());
        let settings = settings(setup, database, &chain_url, redis_url, &sets);
        let mut files = Vec::new();
        for number in 1..=usize::from(setup.processes) {
            let mut settings = settings.clone();
            let name = node_name(number);
            settings.set("node", "name", name.clone().into());
            let path = folder.path().join(format!("{name}.toml"));
            settings.write(&path)?;
            files.push((name, path));
        }
        let (_, first) = files.first().expect("there is at least one process");
        open::migrate(&read_generated(first)?, None).await?;
        Ok(Self {
            files,
            chain,
            sets,
            folder,
        })
    }

    /// The lanes of all sets.
    pub(super) fn lanes(&self) -> Vec<LaneKey> {
        let lane = |signer: &Address| LaneKey {
            chain_id: ChainId(CHAIN_ID),
            signer: *signer,
        };
        self.sets.iter().flatten().map(lane).collect()
    }

    /// Starts the workers.
    pub(super) async fn start(self) -> Result<Bed, Failure> {
        let starts = self.files.iter().map(|(name, path)| async move {
            let mut command = this_program()?;
            command
                .args(["bench", "nonce-worker", "--config"])
                .arg(path);
            for key in OWN_KEYS {
                command.env_remove(key);
            }
            be_quiet(&mut command);
            Talker::start(command, name).await
        });
        Ok(Bed {
            workers: try_join_all(starts).await?,
            chain: self.chain,
            _folder: self.folder,
        })
    }
}

impl Bed {
    /// Has every worker borrow once in each lane.
    pub(super) async fn open(&mut self, lanes: &[Address]) -> Result<Vec<Answer>, Failure> {
        let order = Order::Open {
            lanes: lanes.to_vec(),
        };
        let workers = self.workers.iter_mut();
        try_join_all(workers.map(|worker| ask(worker, &order, ANSWER_WITHIN))).await
    }

    /// Has all workers share a load.
    pub(super) async fn run(&mut self, load: &Load) -> Result<Vec<Answer>, Failure> {
        let count = u16::try_from(self.workers.len()).unwrap_or(u16::MAX).max(1);
        let within = Duration::from_millis(load.duration_ms) + ANSWER_WITHIN;
        let shares = (0..count).map(|number| {
            let mut share = load.clone();
            share.clients = load.clients / count + u16::from(number < load.clients % count);
            share.allocations_max = load.allocations_max / u64::from(count);
            Order::Run(share)
        });
        let workers = self.workers.iter_mut().zip(shares);
        let asks = workers.map(|(worker, order)| async move { ask(worker, &order, within).await });
        try_join_all(asks).await
    }

    /// Ends all processes in order, so that everything is written down and counted.
    pub(super) async fn close(self) {
        futures::future::join_all(self.workers.into_iter().map(Talker::stop)).await;
        self.chain.kill().await;
    }
}

async fn ask(worker: &mut Talker, order: &Order, within: Duration) -> Result<Answer, Failure> {
    let order = json!(order);
    let answer: Value = worker.ask(&order, within).await?;
    serde_json::from_value(answer).map_err(|e| Failure::refused("the answer of a worker", &e))
}

fn settings(
    setup: Setup,
    database: &Database,
    chain_url: &str,
    redis_url: Option<&str>,
    sets: &[Vec<Address>],
) -> Settings {
    let mut settings = Settings::default();
    let signer = |address: &Address| {
        let address = address.to_string();
        table([("kind", "external".into()), ("address", address.into())])
    };
    let signers: Vec<toml::Value> = sets.iter().flatten().map(signer).collect();
    settings.put("signer", signers.into());
    let chain = table([
        ("id", i64::try_from(CHAIN_ID).unwrap_or(i64::MAX).into()),
        ("rpc", vec![chain_url.to_owned()].into()),
    ]);
    settings.put("chain", vec![chain].into());
    settings.put("node", table([("drainDelay", "0s".into())]));
    settings.put("http", table([("listen", "127.0.0.1:0".into())]));
    settings.put("store", table([("url", database.url().secret().into())]));
    let lease = table([
        ("duration", show_duration(LEASE).into()),
        ("renewInterval", show_duration(RENEW).into()),
        ("idleRelease", "1h".into()),
    ]);
    settings.put("lease", lease);
    settings.put("lane", table([("gapFillAfter", "1h".into())]));
    // The chain has nothing to tell, and no loan is overdue while a run lasts.
    let nonce = table([
        ("scheme", setup.contender.scheme().as_str().into()),
        ("stateTimeout", "1h".into()),
        ("reservationTimeout", "1h".into()),
    ]);
    settings.put("nonce", nonce);
    if let Some(url) = redis_url {
        settings.put("redis", table([("url", url.into())]));
    }
    let confirmations = table([("staleReceiptTimeout", "1h".into())]);
    settings.put("confirmations", confirmations);
    settings
}
