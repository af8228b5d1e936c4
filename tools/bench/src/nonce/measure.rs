//! One run, from an empty database to its results.

use std::collections::BTreeMap;
use std::time::Duration;

use alloy_primitives::Address;
use cli::Failure;
use hdrhistogram::Histogram;

use super::Bench;
use super::setup::{Setup, Work};
use super::worker_pool::{WorkerFiles, WorkerPool};
use super::worker_protocol::{Load, WorkerAnswer, count_duplicates, new_histogram};
use crate::postgres::database::Database;

/// Nothing is measured while connections are opened and statements are planned. Never longer than the run.
const WARM_UP_MAX: Duration = Duration::from_millis(500);
/// A shorter rest of a run is not worth another set of lanes.
const REST_MIN: Duration = Duration::from_millis(100);

/// The results of a run.
pub(super) struct Run {
    pub(super) setup: Setup,
    /// Nonces within the measured time.
    pub(super) done: u64,
    pub(super) elapsed: Duration,
    /// In microseconds, per nonce; in a cycle including its marks.
    pub(super) latency: Histogram<u64>,
    /// Nonces in total, including the opening and the warm-up.
    pub(super) done_total: u64,
    pub(super) failed: u64,
    pub(super) failure: Option<String>,
    /// How often a caller had to retry because the queue was full.
    pub(super) busy: u64,
    /// Nonces that two callers got.
    pub(super) duplicates: u64,
    /// Counted by the servers from the start of the processes to their end.
    pub(super) transactions: u64,
    pub(super) redis_calls: u64,
    pub(super) redis_commands: u64,
}

impl Run {
    pub(super) fn per_second(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a printed rate")]
        let done = self.done as f64;
        done / self.elapsed.as_secs_f64()
    }

    /// A count per nonce.
    pub(super) fn per_nonce(&self, count: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a printed ratio")]
        let (count, done) = (count as f64, self.done_total.max(1) as f64);
        count / done
    }

    pub(super) fn millis(&self, quantile: f64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a printed time")]
        let micros = self.latency.value_at_quantile(quantile) as f64;
        micros / 1_000.0
    }
}

pub(super) async fn measure_setup(bench: &Bench<'_>, setup: Setup) -> Result<Run, Failure> {
    let database = bench.server.create_database().await?;
    let measured = measure_in_database(bench, setup, &database).await;
    bench.server.drop_database(database).await;
    measured
}

async fn measure_in_database(
    bench: &Bench<'_>,
    setup: Setup,
    database: &Database,
) -> Result<Run, Failure> {
    let files = WorkerFiles::create(setup, database, &bench.redis.address.url).await?;
    let (sets, lanes) = (files.lane_sets.clone(), files.lanes());
    database.wait_until_idle().await?;
    database.checkpoint().await?;
    let transactions = database.count_transactions().await?;
    let calls = bench.redis.read_calls().await?;

    let mut workers = files.start_workers().await?;
    let tally = measure_lane_sets(bench, setup, &mut workers, &sets).await;
    workers.close().await;
    let tally = tally?;

    database.wait_until_idle().await?;
    let transactions = database
        .count_transactions()
        .await?
        .saturating_sub(transactions);
    let (redis_calls, redis_commands) =
        (bench.redis.read_calls().await?).since(&calls, setup.contender);
    if setup.contender.uses_redis() {
        bench.redis.delete_keys_of(&lanes).await?;
    }
    let duplicates = tally.reserved.into_values().map(count_duplicates);
    Ok(Run {
        setup,
        done: tally.done,
        elapsed: tally.elapsed,
        latency: tally.latency,
        done_total: tally.done_total,
        failed: tally.failed,
        failure: tally.failure,
        busy: tally.busy,
        duplicates: duplicates.sum(),
        transactions,
        redis_calls,
        redis_commands,
    })
}

/// Measures one set of lanes after the other until the time is over.
async fn measure_lane_sets(
    bench: &Bench<'_>,
    setup: Setup,
    workers: &mut WorkerPool,
    sets: &[Vec<Address>],
) -> Result<Tally, Failure> {
    let duration = bench.args.duration;
    let mut tally = Tally::default();
    for (number, lanes) in sets.iter().enumerate() {
        let mut set = LaneSet {
            lanes,
            left: setup
                .contender
                .per_lane_max()
                .map_or(u64::MAX, |max| max.saturating_mul(setup.lanes.into())),
        };
        let answers = workers.open_lanes(lanes).await?;
        tally.add_totals(&mut set, answers);
        if number == 0 {
            let warm_up = duration.min(WARM_UP_MAX);
            let load = set.load(bench, setup, warm_up, set.left / 2);
            let answers = workers.run_load(&load).await?;
            tally.add_totals(&mut set, answers);
        }
        let rest = duration.saturating_sub(tally.elapsed);
        let load = set.load(bench, setup, rest, set.left);
        let answers = workers.run_load(&load).await?;
        tally.add_measured(&answers);
        tally.add_totals(&mut set, answers);
        if duration.saturating_sub(tally.elapsed) < REST_MIN {
            break;
        }
    }
    Ok(tally)
}

/// Lanes, and how many of their nonces may still be reserved.
struct LaneSet<'a> {
    lanes: &'a [Address],
    left: u64,
}

impl LaneSet<'_> {
    fn load(&self, bench: &Bench<'_>, setup: Setup, duration: Duration, max: u64) -> Load {
        Load {
            lanes: self.lanes.to_vec(),
            work: setup.work,
            clients: bench.args.clients,
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            allocations_max: max,
            // In a cycle every mark waits until its reservation is written.
            until_written: setup.work == Work::Allocate && setup.contender.writes_later(),
        }
    }
}

/// The sum of all answers of the workers.
struct Tally {
    done: u64,
    elapsed: Duration,
    latency: Histogram<u64>,
    done_total: u64,
    failed: u64,
    failure: Option<String>,
    busy: u64,
    reserved: BTreeMap<Address, Vec<(u64, u64)>>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            done: 0,
            elapsed: Duration::ZERO,
            latency: new_histogram(),
            done_total: 0,
            failed: 0,
            failure: None,
            busy: 0,
            reserved: BTreeMap::new(),
        }
    }
}

impl Tally {
    /// Adds what counts as measured.
    fn add_measured(&mut self, answers: &[WorkerAnswer]) {
        // The workers start together, and the slowest ends the round.
        let slowest = answers.iter().map(|answer| answer.elapsed_us).max();
        self.elapsed += Duration::from_micros(slowest.unwrap_or(0));
        for answer in answers {
            self.done += answer.done;
            for (micros, count) in &answer.latency {
                self.latency.saturating_record_n(*micros, *count);
            }
        }
    }

    /// Adds what happened, measured or not.
    fn add_totals(&mut self, set: &mut LaneSet<'_>, answers: Vec<WorkerAnswer>) {
        for answer in answers {
            self.done_total += answer.done;
            self.failed += answer.failed;
            self.failure = self.failure.take().or(answer.failure);
            self.busy += answer.busy;
            for (lane, ranges) in answer.reserved {
                let reserved: u64 = ranges.iter().map(|(first, last)| last - first + 1).sum();
                set.left = set.left.saturating_sub(reserved);
                self.reserved.entry(lane).or_default().extend(ranges);
            }
        }
    }
}
