//! One run, from an empty database to its figures.

use std::collections::BTreeMap;
use std::time::Duration;

use alloy_primitives::Address;
use hdrhistogram::Histogram;

use super::super::postgres::database::Database;
use super::Bench;
use super::bed::{Bed, Plans};
use super::plan::{Setup, Work};
use super::talk::{Answer, Load, doubled, latencies};
use crate::failure::Failure;

/// Before anything is measured, connections are opened and plans are made. Never longer than the run.
const WARM_UP_MAX: Duration = Duration::from_millis(500);
/// What is left of a run is not worth another set of lanes.
const REST_MIN: Duration = Duration::from_millis(100);

/// The figures of a run.
pub(super) struct Run {
    pub(super) setup: Setup,
    /// Nonces in the measured time.
    pub(super) done: u64,
    pub(super) elapsed: Duration,
    /// In microseconds: of one nonce, with its marks in a cycle.
    pub(super) latency: Histogram<u64>,
    /// Nonces at all, with the opening and the warm-up.
    pub(super) done_in_all: u64,
    pub(super) failed: u64,
    pub(super) failure: Option<String>,
    /// How often a caller was told to come back.
    pub(super) busy: u64,
    /// Nonces that two callers had.
    pub(super) doubled: u64,
    /// What the servers counted from the start of the processes to their end.
    pub(super) transactions: u64,
    pub(super) redis_calls: u64,
    pub(super) redis_commands: u64,
}

impl Run {
    pub(super) fn per_second(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let done = self.done as f64;
        done / self.elapsed.as_secs_f64()
    }

    /// A count per nonce.
    pub(super) fn per_nonce(&self, count: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let (count, done) = (count as f64, self.done_in_all.max(1) as f64);
        count / done
    }

    pub(super) fn millis(&self, quantile: f64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a time for people")]
        let micros = self.latency.value_at_quantile(quantile) as f64;
        micros / 1_000.0
    }
}

pub(super) async fn measure(bench: &Bench<'_>, setup: Setup) -> Result<Run, Failure> {
    let database = bench.server.create().await?;
    let measured = in_database(bench, setup, &database).await;
    bench.server.discard(database).await;
    measured
}

async fn in_database(bench: &Bench<'_>, setup: Setup, database: &Database) -> Result<Run, Failure> {
    let plans = Plans::make(setup, database, &bench.redis.address.url).await?;
    let (sets, lanes) = (plans.sets.clone(), plans.lanes());
    database.alone().await?;
    database.checkpoint().await?;
    let transactions = database.transactions().await?;
    let calls = bench.redis.calls().await?;

    let mut bed = plans.start().await?;
    let tally = go_through(bench, setup, &mut bed, &sets).await;
    bed.close().await;
    let tally = tally?;

    database.alone().await?;
    let transactions = database.transactions().await?.saturating_sub(transactions);
    let (redis_calls, redis_commands) = (bench.redis.calls().await?).since(&calls, setup.contender);
    if setup.contender.uses_redis() {
        bench.redis.forget(&lanes).await?;
    }
    let rows = tally.lent.into_values().map(doubled);
    Ok(Run {
        setup,
        done: tally.done,
        elapsed: tally.elapsed,
        latency: tally.latency,
        done_in_all: tally.done_in_all,
        failed: tally.failed,
        failure: tally.failure,
        busy: tally.busy,
        doubled: rows.sum(),
        transactions,
        redis_calls,
        redis_commands,
    })
}

/// One set of lanes after the other, until the time is over.
async fn go_through(
    bench: &Bench<'_>,
    setup: Setup,
    bed: &mut Bed,
    sets: &[Vec<Address>],
) -> Result<Tally, Failure> {
    let duration = bench.args.duration;
    let mut tally = Tally::default();
    for (number, lanes) in sets.iter().enumerate() {
        let mut set = Set {
            lanes,
            left: setup
                .contender
                .per_lane_max()
                .map_or(u64::MAX, |max| max.saturating_mul(setup.lanes.into())),
        };
        let answers = bed.open(lanes).await?;
        tally.note(&mut set, answers);
        if number == 0 {
            let warm_up = duration.min(WARM_UP_MAX);
            let load = set.load(bench, setup, warm_up, set.left / 2);
            let answers = bed.run(&load).await?;
            tally.note(&mut set, answers);
        }
        let rest = duration.saturating_sub(tally.elapsed);
        let load = set.load(bench, setup, rest, set.left);
        let answers = bed.run(&load).await?;
        tally.count(&answers);
        tally.note(&mut set, answers);
        if duration.saturating_sub(tally.elapsed) < REST_MIN {
            break;
        }
    }
    Ok(tally)
}

/// Lanes, and how many of their nonces may still be lent.
struct Set<'a> {
    lanes: &'a [Address],
    left: u64,
}

impl Set<'_> {
    fn load(&self, bench: &Bench<'_>, setup: Setup, duration: Duration, max: u64) -> Load {
        Load {
            lanes: self.lanes.to_vec(),
            work: setup.work,
            clients: bench.args.clients,
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            allocations_max: max,
            // In a cycle every mark waits for what was written before it.
            until_written: setup.work == Work::Allocate && setup.contender.writes_later(),
        }
    }
}

/// What all workers said so far.
struct Tally {
    done: u64,
    elapsed: Duration,
    latency: Histogram<u64>,
    done_in_all: u64,
    failed: u64,
    failure: Option<String>,
    busy: u64,
    lent: BTreeMap<Address, Vec<(u64, u64)>>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            done: 0,
            elapsed: Duration::ZERO,
            latency: latencies(),
            done_in_all: 0,
            failed: 0,
            failure: None,
            busy: 0,
            lent: BTreeMap::new(),
        }
    }
}

impl Tally {
    /// What was measured.
    fn count(&mut self, answers: &[Answer]) {
        // They start at the same moment, and the last one ends the round.
        let slowest = answers.iter().map(|answer| answer.elapsed_us).max();
        self.elapsed += Duration::from_micros(slowest.unwrap_or(0));
        for answer in answers {
            self.done += answer.done;
            for (micros, count) in &answer.latency {
                self.latency.saturating_record_n(*micros, *count);
            }
        }
    }

    /// What happened, measured or not.
    fn note(&mut self, set: &mut Set<'_>, answers: Vec<Answer>) {
        for answer in answers {
            self.done_in_all += answer.done;
            self.failed += answer.failed;
            self.failure = self.failure.take().or(answer.failure);
            self.busy += answer.busy;
            for (lane, rows) in answer.lent {
                let lent: u64 = rows.iter().map(|(first, last)| last - first + 1).sum();
                set.left = set.left.saturating_sub(lent);
                self.lent.entry(lane).or_default().extend(rows);
            }
        }
    }
}
