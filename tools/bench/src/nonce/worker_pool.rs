//! The worker processes and the chain of one run.

use std::path::PathBuf;
use std::time::Duration;

use alloy_primitives::Address;
use cli::process::{
    ChildProcess, LineProcess, NodeFile, node_name, program_command, reduce_logs,
    remove_node_variables, table,
};
use cli::{Failure, duration};
use domain::{ChainId, LaneKey};
use futures::future::try_join_all;
use serde_json::{Value, json};

use super::setup::Setup;
use super::worker_protocol::{Load, WorkerAnswer, WorkerRequest};
use crate::migration::migrate_store;
use crate::null_chain::{self, AccountNonces, CHAIN_ID, SendMode};
use crate::postgres::database::Database;

/// Long, so that no lease expires on a saturated machine.
const LEASE: Duration = Duration::from_secs(30);
const RENEW: Duration = Duration::from_secs(5);
/// How long a worker may take to answer after the end of a run.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The configuration files and the chain of a run.
pub(super) struct WorkerFiles {
    files: Vec<(String, PathBuf)>,
    chain: ChildProcess,
    /// Sets of lanes, which are used one after the other.
    pub(super) lane_sets: Vec<Vec<Address>>,
    /// Deleted at the end: it contains passwords.
    folder: tempfile::TempDir,
}

/// The running workers.
pub(super) struct WorkerPool {
    workers: Vec<LineProcess>,
    chain: ChildProcess,
    _folder: tempfile::TempDir,
}

impl WorkerFiles {
    /// Writes the configuration files and creates the tables.
    pub(super) async fn create(
        setup: Setup,
        database: &Database,
        redis_url: &str,
    ) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()
            .map_err(|e| Failure::refused("cannot create a temporary folder", &e))?;
        // New accounts, so that no run finds the keys of a previous one in Redis.
        let set = || -> Vec<Address> {
            let fresh = |_| Address::from(rand::random::<[u8; 20]>());
            (0..setup.lanes).map(fresh).collect()
        };
        let lane_sets: Vec<Vec<Address>> = (0..setup.lane_sets_max()).map(|_| set()).collect();
        let (chain, chain_url) =
            null_chain::start_process(folder.path(), &AccountNonces::new(), SendMode::Held).await?;
        let redis_url = Some(redis_url).filter(|_| setup.contender.uses_redis());
        let common = common_file(setup, database, &chain_url, redis_url, &lane_sets);
        let mut files = Vec::new();
        for number in 1..=usize::from(setup.processes) {
            let mut file = common.clone();
            let name = node_name(number);
            file.set_key("node", "name", name.clone().into());
            let path = folder.path().join(format!("{name}.toml"));
            file.write(&path)?;
            files.push((name, path));
        }
        let (_, first) = files.first().expect("there is at least one process");
        migrate_store(first).await?;
        Ok(Self {
            files,
            chain,
            lane_sets,
            folder,
        })
    }

    /// The lanes of all sets.
    pub(super) fn lanes(&self) -> Vec<LaneKey> {
        let lane = |signer: &Address| LaneKey {
            chain_id: ChainId(CHAIN_ID),
            signer: *signer,
        };
        self.lane_sets.iter().flatten().map(lane).collect()
    }

    pub(super) async fn start_workers(self) -> Result<WorkerPool, Failure> {
        let starts = self.files.iter().map(|(name, path)| async move {
            let mut command = program_command()?;
            command
                .args(["bench", "nonce-worker", "--config"])
                .arg(path);
            remove_node_variables(&mut command);
            reduce_logs(&mut command);
            LineProcess::start(command, name).await
        });
        Ok(WorkerPool {
            workers: try_join_all(starts).await?,
            chain: self.chain,
            _folder: self.folder,
        })
    }
}

impl WorkerPool {
    /// Makes every worker reserve one nonce of each lane.
    pub(super) async fn open_lanes(
        &mut self,
        lanes: &[Address],
    ) -> Result<Vec<WorkerAnswer>, Failure> {
        let request = WorkerRequest::Open {
            lanes: lanes.to_vec(),
        };
        let workers = self.workers.iter_mut();
        try_join_all(workers.map(|worker| send_request(worker, &request, ANSWER_TIMEOUT))).await
    }

    /// Divides a load among all workers.
    pub(super) async fn run_load(&mut self, load: &Load) -> Result<Vec<WorkerAnswer>, Failure> {
        let count = u16::try_from(self.workers.len()).unwrap_or(u16::MAX).max(1);
        let deadline = Duration::from_millis(load.duration_ms) + ANSWER_TIMEOUT;
        let shares = (0..count).map(|number| {
            let mut share = load.clone();
            share.clients = load.clients / count + u16::from(number < load.clients % count);
            share.allocations_max = load.allocations_max / u64::from(count);
            WorkerRequest::Run(share)
        });
        let workers = self.workers.iter_mut().zip(shares);
        let answers = workers
            .map(|(worker, request)| async move { send_request(worker, &request, deadline).await });
        try_join_all(answers).await
    }

    /// Stops all processes gracefully, so that all reservations are written and counted.
    pub(super) async fn close(self) {
        futures::future::join_all(self.workers.into_iter().map(LineProcess::stop)).await;
        self.chain.kill().await;
    }
}

async fn send_request(
    worker: &mut LineProcess,
    request: &WorkerRequest,
    deadline: Duration,
) -> Result<WorkerAnswer, Failure> {
    let answer: Value = worker.request(&json!(request), deadline).await?;
    serde_json::from_value(answer)
        .map_err(|e| Failure::refused("cannot decode the answer of a worker", &e))
}

/// The configuration that all workers share.
fn common_file(
    setup: Setup,
    database: &Database,
    chain_url: &str,
    redis_url: Option<&str>,
    lane_sets: &[Vec<Address>],
) -> NodeFile {
    let mut file = NodeFile::default();
    let signer = |address: &Address| {
        let address = address.to_string();
        table([("kind", "external".into()), ("address", address.into())])
    };
    let signers: Vec<toml::Value> = lane_sets.iter().flatten().map(signer).collect();
    file.add_section("signer", signers.into());
    let chain = table([
        ("id", i64::try_from(CHAIN_ID).unwrap_or(i64::MAX).into()),
        ("rpc", vec![chain_url.to_owned()].into()),
    ]);
    file.add_section("chain", vec![chain].into());
    file.add_section("node", table([("drainDelay", "0s".into())]));
    file.add_section("http", table([("listen", "127.0.0.1:0".into())]));
    file.add_section("store", table([("url", database.url().secret().into())]));
    let lease = table([
        ("duration", duration::format(LEASE).into()),
        ("renewInterval", duration::format(RENEW).into()),
        ("idleRelease", "1h".into()),
    ]);
    file.add_section("lease", lease);
    file.add_section("lane", table([("gapFillAfter", "1h".into())]));
    // The chain is not queried and no reservation expires during a run.
    let nonce = table([
        ("scheme", setup.contender.scheme().as_str().into()),
        ("stateTimeout", "1h".into()),
        ("reservationTimeout", "1h".into()),
    ]);
    file.add_section("nonce", nonce);
    if let Some(url) = redis_url {
        file.add_section("redis", table([("url", url.into())]));
    }
    let confirmations = table([("staleReceiptTimeout", "1h".into())]);
    file.add_section("confirmations", confirmations);
    file
}
