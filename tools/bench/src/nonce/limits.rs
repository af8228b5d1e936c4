//! The limits that the schemes are compared with: one row lock and one insert per transaction on the same
//! PostgreSQL server, and INCR on Redis.

use std::time::Duration;

use cli::Failure;

use super::redis;
use crate::accept::spinner;
use crate::postgres::database::{Database, Server, query_failure};
use crate::postgres::pgbench::{PgBench, SINGLE_CLIENTS};

/// One measurement before the runs and one after: the speed of the machine may have changed meanwhile.
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

#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    /// Transactions per second of pgbench, by number of lanes.
    pub(super) row_lock: Vec<(u16, Limit)>,
    /// Commands per second of `redis-benchmark`.
    pub(super) incr: Limit,
}

impl Limits {
    pub(super) fn row_lock_rate(&self, lanes: u16) -> f64 {
        let found = self.row_lock.iter().find(|(count, _)| *count == lanes);
        found.map_or(0.0, |(_, limit)| limit.mean())
    }
}

/// Measures all limits once: row locks by number of lanes, and INCR.
pub(super) async fn measure_limits(
    server: &Server,
    pgbench: &PgBench,
    redis: &redis::Server,
    lanes: &[u16],
    duration: Duration,
) -> Result<(Vec<f64>, f64), Failure> {
    let mut rates = Vec::new();
    for lanes in lanes {
        let bar = spinner(&format!("pgbench, row lock and insert, {lanes} row(s)"));
        let database = server.create_database().await?;
        let rate = measure_row_lock(&database, pgbench, *lanes, duration).await;
        server.drop_database(database).await;
        bar.finish_and_clear();
        rates.push(rate?);
    }
    Ok((rates, redis.measure_incr(duration).await?))
}

/// The least that a scheme with a row lock must do, as one statement without functions or rules.
async fn measure_row_lock(
    database: &Database,
    pgbench: &PgBench,
    lanes: u16,
    duration: Duration,
) -> Result<f64, Failure> {
    let make = format!(
        "CREATE TABLE bench_lane (lane_id integer PRIMARY KEY, next_nonce bigint NOT NULL) WITH (fillfactor = 50); \
         INSERT INTO bench_lane SELECT n, 0 FROM generate_series(1, {lanes}) AS n; \
         CREATE TABLE bench_reservation (lane_id integer, nonce bigint, state smallint NOT NULL, holder uuid NOT NULL, \
           expires_at timestamptz NOT NULL, PRIMARY KEY (lane_id, nonce))"
    );
    let script = format!(
        "\\set lane random(1, {lanes})\n\
         WITH allocated AS (UPDATE bench_lane SET next_nonce = next_nonce + 1 WHERE lane_id = :lane \
         RETURNING lane_id, next_nonce) \
         INSERT INTO bench_reservation SELECT lane_id, next_nonce, 0, gen_random_uuid(), now() FROM allocated;\n"
    );
    let made = database.client().batch_execute(&make).await;
    made.map_err(|e| query_failure(&e))?;
    pgbench
        .run_script(database, &script, SINGLE_CLIENTS, duration)
        .await
}
