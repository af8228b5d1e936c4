//! `bench accept --store postgres://…`: accepting on nodes that share a PostgreSQL server, beside pgbench
//! on the same server in the same run.
//!
//! Nodes, chain and generator are processes of their own. The chain is a null chain (see
//! [`super::null_chain`]): the dev chain would take a part of the cores that are to be measured.

mod bed;
mod cpu;
pub(super) mod database;
mod fill;
pub(super) mod pgbench;
mod report;

use std::sync::Arc;
use std::time::Duration;

use store::postgres::{PostgresConfig, PostgresStore};

use super::AcceptArgs;
use super::accept::{
    LIMIT_DURATION_MAX, WARM_UP_MAX, http_limit, not_all_stored, spinner, with_bar,
};
use super::limits::store_rate;
use super::load::{Load, Measured};
use super::report::Gate;
use crate::client::{Client, NodeArgs};
use crate::config::PostgresUrl;
use crate::failure::Failure;
use bed::{Bed, LEASE};
use cpu::Cpu;
use database::{Counters, Server};
use pgbench::{BATCH_CLIENTS, PgBench, SINGLE_CLIENTS};
use report::{Limits, Phase, Report, Run};

/// How long an idle cluster is watched. Never longer than a run.
const IDLE_DURATION_MAX: Duration = Duration::from_secs(10);
/// A session that has nothing to do tells its counts after so long. Never longer than two runs.
const COUNTS_SETTLE: Duration = Duration::from_secs(11);
/// Clients that open the lanes before anything is measured.
const OPENING_CLIENTS: u16 = 16;
/// How long the lanes are opened: at least, and for each of them.
const OPENING_MIN: Duration = Duration::from_secs(1);
const OPENING_PER_LANE: Duration = Duration::from_millis(5);
/// Connections of the store without a node.
const BARE_POOL: usize = 8;

pub(crate) async fn run(args: &AcceptArgs, store: &str) -> Result<(), Failure> {
    let url = PostgresUrl::parse(store).ok_or_else(|| {
        Failure::Usage("--store takes postgres://user:password@host:5432/database".into())
    })?;
    let pgbench = PgBench::find(args.pgbench.as_deref())?;
    let server = Server::open(url).await?;
    let mut report = Report::new(args, server.describe().await?);
    for clients in &args.clients {
        report
            .http
            .push((*clients, http_limit(args, *clients).await?));
    }
    report.gate_rows_per_second = bare_gate(args, &server).await?;
    for finished in [0].into_iter().chain(args.finished) {
        report
            .phases
            .push(phase(args, &server, &pgbench, finished).await?);
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
        Some(run) => Err(not_all_stored(
            run.measured.accepted_in_all,
            run.rows_stored,
        )),
    }
}

/// The store's gate without a node: what nothing of ours could exceed.
async fn bare_gate(args: &AcceptArgs, server: &Server) -> Result<f64, Failure> {
    let bar = spinner("the gate alone");
    let database = server.create().await?;
    let measured = async {
        let url = database.url().secret().to_owned();
        let migrated = store::postgres::migrate(&url, None, LEASE).await;
        migrated.map_err(|e| Failure::refused("the store cannot be migrated", &e))?;
        let opened = PostgresStore::open(PostgresConfig {
            url,
            pool_size: BARE_POOL,
            lease: LEASE,
        });
        let store = opened
            .await
            .map_err(|e| Failure::refused("the store cannot be opened", &e))?;
        let duration = args.duration.min(LIMIT_DURATION_MAX);
        store_rate(Arc::new(store), args.lanes, args.rows(), duration).await
    }
    .await;
    server.discard(database).await;
    bar.finish_and_clear();
    measured
}

/// All runs with so many finished txs in the tables, in a database of their own.
async fn phase(
    args: &AcceptArgs,
    server: &Server,
    pgbench: &PgBench,
    finished: u64,
) -> Result<Phase, Failure> {
    let database = server.create().await?;
    let measured = async {
        let bed = Bed::make(args, &database, finished).await?;
        let measured = measure(args, &bed, pgbench, finished).await;
        bed.close().await;
        measured
    };
    let measured = Box::pin(measured).await;
    server.discard(database).await;
    measured
}

async fn measure(
    args: &AcceptArgs,
    bed: &Bed<'_>,
    pgbench: &PgBench,
    finished: u64,
) -> Result<Phase, Failure> {
    let opening = OPENING_MIN + OPENING_PER_LANE * args.lanes;
    let opening = load(bed, OPENING_CLIENTS, Duration::ZERO, opening);
    with_bar("opening the lanes", &opening).await?;
    let lanes = bed.database.count_lanes().await?;
    let idle_per_second = idle(args, bed).await?;
    let seconds = args.duration.min(LIMIT_DURATION_MAX);
    let table = pgbench::Table::like_ours(bed.database).await?;
    let before = pgbench.single(&table, SINGLE_CLIENTS, seconds).await?;
    let mut runs = Vec::new();
    for clients in &args.clients {
        runs.push(one_run(args, bed, *clients).await?);
    }
    let after = pgbench.single(&table, SINGLE_CLIENTS, seconds).await?;
    let batches = pgbench.batches(&table, BATCH_CLIENTS, seconds).await?;
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

/// Transactions per second of one node that has nothing to do but to stay alive.
async fn idle(args: &AcceptArgs, bed: &Bed<'_>) -> Result<f64, Failure> {
    let bar = spinner("the idle cluster");
    // What the sessions did before must not be counted as idleness.
    tokio::time::sleep((args.duration * 2).min(COUNTS_SETTLE)).await;
    let duration = args.duration.min(IDLE_DURATION_MAX);
    let before = bed.database.transactions().await?;
    tokio::time::sleep(duration).await;
    let count = bed.database.transactions().await?.saturating_sub(before);
    bar.finish_and_clear();
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let count = count as f64;
    Ok(count / duration.as_secs_f64() / f64::from(args.nodes))
}

async fn one_run(args: &AcceptArgs, bed: &Bed<'_>, clients: u16) -> Result<Run, Failure> {
    let load = load(bed, clients, args.duration.min(WARM_UP_MAX), args.duration);
    bed.database.checkpoint().await?;
    let rows_before = bed.database.count_rows().await?;
    let gate_before = gate(bed).await?;
    let counters = Counters::read(bed.database).await?;
    let cpu = Cpu::read(bed);
    let measured = with_bar(&format!("accept, {clients} clients"), &load).await?;
    let cpu = Cpu::read(bed).since(&cpu);
    let bar = spinner("counting");
    let written = counters.until_now(bed.database, &measured).await?;
    let gate = gate(bed).await?.since(gate_before);
    let rows_stored = bed.database.count_rows().await?.saturating_sub(rows_before);
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

fn load(bed: &Bed<'_>, clients: u16, warm_up: Duration, duration: Duration) -> Load {
    Load {
        addresses: Arc::clone(&bed.addresses),
        signers: Arc::clone(&bed.signers),
        clients,
        warm_up,
        duration,
        progress: Arc::default(),
    }
}

/// What all nodes counted.
async fn gate(bed: &Bed<'_>) -> Result<Gate, Failure> {
    let mut sum = Gate::default();
    for node in &bed.nodes {
        let client = Client::new(&NodeArgs {
            url: node.url.clone(),
            key: None,
            json: true,
        })?;
        sum = sum.plus(Gate::read(&client.text("/metrics").await?));
    }
    Ok(sum)
}

impl Run {
    fn all_stored(&self) -> bool {
        self.rows_stored == self.measured.accepted_in_all
    }
}

/// A count per accepted request.
fn per_accept(count: u64, measured: &Measured) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    let (count, accepted) = (count as f64, measured.accepted_in_all.max(1) as f64);
    count / accepted
}
