//! What stands beside the schemes: the same server taking one row lock and one row per transaction, and Redis
//! counting.

use std::time::Duration;

use super::super::accept::spinner;
use super::super::postgres::database::{Database, Server, failed};
use super::super::postgres::pgbench::{PgBench, SINGLE_CLIENTS};
use super::redis;
use crate::failure::Failure;

/// One measurement before the runs and one after: the machine may have got slower or faster in between.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limit {
    pub(super) before: f64,
    pub(super) after: f64,
}

impl Limit {
    pub(super) fn mean(self) -> f64 {
        f64::midpoint(self.before, self.after)
    }
}

/// All limits.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    /// By the number of lanes: transactions per second of pgbench.
    pub(super) row_lock: Vec<(u16, Limit)>,
    /// Commands per second of `redis-benchmark`.
    pub(super) incr: Limit,
}

impl Limits {
    pub(super) fn row_lock(&self, lanes: u16) -> f64 {
        let found = self.row_lock.iter().find(|(of, _)| *of == lanes);
        found.map_or(0.0, |(_, limit)| limit.mean())
    }
}

/// Measures all of them once: row locks by lanes, and Redis.
pub(super) async fn measure(
    server: &Server,
    pgbench: &PgBench,
    redis: &redis::Server,
    lanes: &[u16],
    duration: Duration,
) -> Result<(Vec<f64>, f64), Failure> {
    let mut rates = Vec::new();
    for lanes in lanes {
        let bar = spinner(&format!("pgbench, row lock and insert, {lanes} row(s)"));
        let database = server.create().await?;
        let rate = row_lock_rate(&database, pgbench, *lanes, duration).await;
        server.discard(database).await;
        bar.finish_and_clear();
        rates.push(rate?);
    }
    Ok((rates, redis.incr_rate(duration).await?))
}

/// What any scheme must do that issues under a row lock, as one statement: no functions, no rules, no questions.
async fn row_lock_rate(
    database: &Database,
    pgbench: &PgBench,
    lanes: u16,
    duration: Duration,
) -> Result<f64, Failure> {
    let make = format!(
        "CREATE TABLE bench_lane (lane_id integer PRIMARY KEY, next_nonce bigint NOT NULL) WITH (fillfactor = 50); \
         INSERT INTO bench_lane SELECT n, 0 FROM generate_series(1, {lanes}) AS n; \
         CREATE TABLE bench_loan (lane_id integer, nonce bigint, state smallint NOT NULL, holder uuid NOT NULL, \
           expires_at timestamptz NOT NULL, PRIMARY KEY (lane_id, nonce))"
    );
    let script = format!(
        "\\set lane random(1, {lanes})\n\
         WITH dealt AS (UPDATE bench_lane SET next_nonce = next_nonce + 1 WHERE lane_id = :lane \
         RETURNING lane_id, next_nonce) \
         INSERT INTO bench_loan SELECT lane_id, next_nonce, 0, gen_random_uuid(), now() FROM dealt;\n"
    );
    let made = database.client().batch_execute(&make).await;
    made.map_err(|e| failed(&e))?;
    pgbench
        .run(database, &script, SINGLE_CLIENTS, duration)
        .await
}
