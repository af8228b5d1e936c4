//! `bench accept --store postgres://…`: nodes that share a PostgreSQL server, compared with pgbench on the same
//! server in the same run.
//!
//! Nodes, chain and load generator are separate processes. The chain is a null chain (see
//! [`super::null_chain`]), because the dev chain would use a part of the measured cores.

mod cpu;
pub(super) mod database;
pub(super) mod pgbench;
mod prefill;
mod report;
mod test_cluster;

use std::sync::Arc;
use std::time::Duration;

use cli::client::{Client, NodeArgs};
use cli::{Failure, PostgresUrl};
use engine::ports::Store;
use store::postgres::{PostgresConfig, PostgresStore};

use super::AcceptArgs;
use super::accept::{
    LIMIT_DURATION_MAX, WARM_UP_MAX, measure_http_limit, missing_rows_failure, run_with_bar,
    spinner,
};
use super::limits::measure_store_rate;
use super::load::{Load, Measured};
use super::report::GateCounters;
use cpu::CpuTimes;
use database::{Counters, Database, Server};
use pgbench::{BATCH_CLIENTS, PgBench, SINGLE_CLIENTS};
use report::{Limits, Phase, Report, Run};
use test_cluster::{LEASE, TestCluster};

/// How long an idle cluster is measured. Never longer than a run.
const IDLE_DURATION_MAX: Duration = Duration::from_secs(10);
/// An idle session reports its statistics after this time. Never longer than two runs.
const STATISTICS_DELAY: Duration = Duration::from_secs(11);
/// Clients that open the lanes before anything is measured.
const OPENING_CLIENTS: u16 = 16;
/// How long opening the lanes takes: at least, and for each lane.
const OPENING_MIN: Duration = Duration::from_secs(1);
const OPENING_PER_LANE: Duration = Duration::from_millis(5);
/// Connections of the store without a node.
const POOL_SIZE: usize = 10;

pub(crate) async fn run(args: &AcceptArgs, store: &str) -> Result<(), Failure> {
    let url = PostgresUrl::parse(store).ok_or_else(|| {
        Failure::Usage("--store takes postgres://user:password@host:5432/database".into())
    })?;
    let pgbench = PgBench::find(args.pgbench.as_deref())?;
    let server = Server::open(url).await?;
    let mut report = Report::new(args, server.read_settings().await?);
    for clients in &args.clients {
        report
            .http
            .push((*clients, measure_http_limit(args, *clients).await?));
    }
    report.gate_rows_per_second = measure_gate(args, &server).await?;
    for finished in [0].into_iter().chain(args.finished) {
        report
            .phases
            .push(measure_phase(args, &server, &pgbench, finished).await?);
    }
    report.print();
    args.write_json(&report.to_json())?;
    match report
        .phases
        .iter()
        .flat_map(|phase| &phase.runs)
        .find(|run| !run.all_stored())
    {
        None => Ok(()),
        Some(run) => Err(missing_rows_failure(
            run.measured.accepted_total,
            run.rows_stored,
        )),
    }
}

/// Measures the store's gate without a node: the upper limit of every node.
async fn measure_gate(args: &AcceptArgs, server: &Server) -> Result<f64, Failure> {
    let bar = spinner("the gate without a node");
    let database = server.create_database().await?;
    let measured = async {
        let url = database.url().secret().to_owned();
        let migrated = store::postgres::migrate(&url, None, LEASE).await;
        migrated.map_err(|e| Failure::refused("cannot migrate the store", &e))?;
        let store = open_store(&database).await?;
        let duration = args.duration.min(LIMIT_DURATION_MAX);
        measure_store_rate(store, args.lanes, args.row_kind(), duration).await
    }
    .await;
    server.drop_database(database).await;
    bar.finish_and_clear();
    measured
}

/// Opens the store of a migrated database.
async fn open_store(database: &Database) -> Result<Arc<dyn Store>, Failure> {
    let opened = PostgresStore::open(PostgresConfig {
        url: database.url().secret().to_owned(),
        pool_size: POOL_SIZE,
        lease: LEASE,
    });
    let store = opened
        .await
        .map_err(|e| Failure::refused("cannot open the store", &e))?;
    Ok(Arc::new(store))
}

/// Measures all runs with this many finished txs in the tables, in a new database.
async fn measure_phase(
    args: &AcceptArgs,
    server: &Server,
    pgbench: &PgBench,
    finished: u64,
) -> Result<Phase, Failure> {
    let database = server.create_database().await?;
    let measured = async {
        let cluster = TestCluster::start(args, &database, finished).await?;
        let measured = measure_runs(args, &cluster, pgbench, finished).await;
        cluster.close().await;
        measured
    };
    let measured = Box::pin(measured).await;
    server.drop_database(database).await;
    measured
}

async fn measure_runs(
    args: &AcceptArgs,
    cluster: &TestCluster<'_>,
    pgbench: &PgBench,
    finished: u64,
) -> Result<Phase, Failure> {
    let opening = OPENING_MIN + OPENING_PER_LANE * args.lanes;
    let opening = build_load(cluster, OPENING_CLIENTS, Duration::ZERO, opening);
    run_with_bar("opening the lanes", &opening).await?;
    let lanes = cluster.database.count_lanes().await?;
    let idle_per_second = measure_idle(args, cluster).await?;
    let seconds = args.duration.min(LIMIT_DURATION_MAX);
    let table = pgbench::Table::create_like_managed_tx(cluster.database).await?;
    let before = pgbench
        .measure_single(&table, SINGLE_CLIENTS, seconds)
        .await?;
    let mut runs = Vec::new();
    for clients in &args.clients {
        runs.push(measure_run(args, cluster, *clients).await?);
    }
    let after = pgbench
        .measure_single(&table, SINGLE_CLIENTS, seconds)
        .await?;
    let batches = pgbench
        .measure_batches(&table, BATCH_CLIENTS, seconds)
        .await?;
    Ok(Phase {
        finished,
        lanes,
        idle_per_second,
        limits: Limits {
            single_before: before,
            single_after: after,
            batches,
        },
        runs,
    })
}

/// Measures the transactions per second of an idle node.
async fn measure_idle(args: &AcceptArgs, cluster: &TestCluster<'_>) -> Result<f64, Failure> {
    let bar = spinner("the idle cluster");
    // Earlier work of the sessions must not be counted.
    tokio::time::sleep((args.duration * 2).min(STATISTICS_DELAY)).await;
    let duration = args.duration.min(IDLE_DURATION_MAX);
    let before = cluster.database.count_transactions().await?;
    tokio::time::sleep(duration).await;
    let count = cluster
        .database
        .count_transactions()
        .await?
        .saturating_sub(before);
    bar.finish_and_clear();
    #[expect(clippy::cast_precision_loss, reason = "a printed rate")]
    let count = count as f64;
    Ok(count / duration.as_secs_f64() / f64::from(args.nodes))
}

async fn measure_run(
    args: &AcceptArgs,
    cluster: &TestCluster<'_>,
    clients: u16,
) -> Result<Run, Failure> {
    let load = build_load(
        cluster,
        clients,
        args.duration.min(WARM_UP_MAX),
        args.duration,
    );
    cluster.database.checkpoint().await?;
    let rows_before = cluster.database.count_rows().await?;
    let gate_before = read_gate(cluster).await?;
    let counters = Counters::read(cluster.database).await?;
    let cpu = CpuTimes::read(cluster);
    let measured = run_with_bar(&format!("accept, {clients} clients"), &load).await?;
    let cpu = CpuTimes::read(cluster).since(&cpu);
    let bar = spinner("counting");
    let written = counters.written_since(cluster.database, &measured).await?;
    let gate = read_gate(cluster).await?.since(gate_before);
    let rows_stored = cluster
        .database
        .count_rows()
        .await?
        .saturating_sub(rows_before);
    bar.finish_and_clear();
    Ok(Run {
        clients,
        measured,
        gate,
        cpu,
        written,
        rows_stored,
    })
}

fn build_load(
    cluster: &TestCluster<'_>,
    clients: u16,
    warm_up: Duration,
    duration: Duration,
) -> Load {
    Load {
        addresses: Arc::clone(&cluster.addresses),
        signers: Arc::clone(&cluster.signers),
        clients,
        warm_up,
        duration,
        progress: Arc::default(),
    }
}

/// Sums the gate counters of all nodes.
async fn read_gate(cluster: &TestCluster<'_>) -> Result<GateCounters, Failure> {
    let mut sum = GateCounters::default();
    for node in &cluster.nodes {
        let client = Client::new(&NodeArgs {
            url: node.url.clone(),
            key: None,
            json: true,
        })?;
        sum = sum.plus(GateCounters::parse(&client.get_text("/metrics").await?));
    }
    Ok(sum)
}

impl Run {
    fn all_stored(&self) -> bool {
        self.rows_stored == self.measured.accepted_total
    }
}

/// A count per accepted request.
fn per_accept(count: u64, measured: &Measured) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a printed ratio")]
    let (count, accepted) = (count as f64, measured.accepted_total.max(1) as f64);
    count / accepted
}
