//! The results, as a table and as JSON.

use cli::Failure;
use cli::output::{Columns, Tone, paint, print_line};
use serde_json::{Value, json};

use super::NonceArgs;
use super::limits::Limits;
use super::measure::Run;
use super::setup::{Contender, Setup, Work};

pub(super) struct Report<'a> {
    pub(super) args: &'a NonceArgs,
    pub(super) postgres: Value,
    pub(super) redis_version: String,
    pub(super) limits: Limits,
    pub(super) runs: Vec<Run>,
}

impl Report<'_> {
    pub(super) fn print(&self) {
        let args = self.args;
        print_line!(
            "{} clients in total, {}s per run; every process calls its own component, and a node that does not \
             keep a lane (scheme lane) forwards to its keeper over HTTP",
            args.clients,
            args.duration.as_secs_f64()
        );
        let setting = |name: &str| self.postgres[name].as_str().unwrap_or("?").to_owned();
        print_line!(
            "PostgreSQL {}, fsync {}, synchronous_commit {}; Redis {}",
            setting("server_version"),
            setting("fsync"),
            setting("synchronous_commit"),
            self.redis_version
        );
        for (lanes, limit) in &self.limits.row_lock {
            print_line!(
                "pgbench, row lock and insert, {lanes} row(s), 64 clients: {:.0} a second ({:.0} before, {:.0} after)",
                limit.mean(),
                limit.before,
                limit.after
            );
        }
        let incr = self.limits.incr;
        print_line!(
            "redis-benchmark, INCR, 64 clients: {:.0} a second ({:.0} before, {:.0} after)",
            incr.mean(),
            incr.before,
            incr.after
        );
        if cfg!(debug_assertions) {
            let warning = "this is a debug build: measure with a release build";
            print_line!("{}", paint(Tone::Bad, warning));
        }
        print_line!("");
        print_line!("{}", self.table());
    }

    /// A row for each scheme, number of lanes and number of processes: allocate alone, then cycles.
    fn table(&self) -> Columns {
        let mut table = Columns::new(&[
            "scheme",
            "lanes#",
            "proc.#",
            "allocate/s#",
            "p50 ms#",
            "p99 ms#",
            "of row lock#",
            "of INCR#",
            "DB tx#",
            "Redis#",
            "cycle/s#",
            "p50 ms#",
            "p99 ms#",
            "of row lock#",
            "DB tx#",
            "Redis#",
            "failed#",
        ]);
        for pair in self.runs.chunks(Work::ALL.len()) {
            let Some(first) = pair.first() else { continue };
            let Setup {
                contender,
                lanes,
                processes,
                ..
            } = first.setup;
            let mut cells = vec![
                (Tone::Plain, contender.name().to_owned()),
                (Tone::Plain, lanes.to_string()),
                (Tone::Plain, processes.to_string()),
            ];
            for run in pair {
                cells.extend(self.run_cells(run));
            }
            let failed: u64 = pair.iter().map(|run| run.failed + run.duplicates).sum();
            let tone = if failed == 0 { Tone::Good } else { Tone::Bad };
            cells.push((tone, failed.to_string()));
            table.add_row(cells);
        }
        table
    }

    fn run_cells(&self, run: &Run) -> Vec<(Tone, String)> {
        let plain = |text: String| (Tone::Plain, text);
        let rate = run.per_second();
        let mut cells = vec![
            (Tone::Strong, format!("{rate:.0}")),
            plain(format!("{:.2}", run.millis(0.5))),
            plain(format!("{:.2}", run.millis(0.99))),
            (Tone::Strong, format!("{:.2}", self.ratio_of_row_lock(run))),
        ];
        if run.setup.work == Work::Allocate {
            cells.push(plain(format!("{:.2}", self.ratio_of_incr(run))));
        }
        cells.push(plain(format!("{:.3}", run.per_nonce(run.transactions))));
        cells.push(plain(match run.setup.contender.uses_redis() {
            true => format!("{:.2}", run.per_nonce(run.redis_calls)),
            false => "-".to_owned(),
        }));
        cells
    }

    fn ratio_of_row_lock(&self, run: &Run) -> f64 {
        run.per_second() / self.limits.row_lock_rate(run.setup.lanes)
    }

    fn ratio_of_incr(&self, run: &Run) -> f64 {
        run.per_second() / self.limits.incr.mean()
    }

    /// The rate of a setup that was measured.
    pub(super) fn rate(
        &self,
        contender: Contender,
        lanes: u16,
        processes: u16,
        work: Work,
    ) -> Option<f64> {
        let setup = Setup {
            contender,
            lanes,
            processes,
            work,
        };
        let run = self.runs.iter().find(|run| run.setup == setup)?;
        Some(run.per_second())
    }

    pub(super) fn to_json(&self) -> Value {
        let args = self.args;
        let row_lock = self.limits.row_lock.iter().map(|(lanes, limit)| {
            json!({
                "rows": lanes, "perSecond": limit.mean(),
                "perSecondBefore": limit.before, "perSecondAfter": limit.after,
            })
        });
        let incr = self.limits.incr;
        let runs = self.runs.iter().map(|run| self.run_json(run));
        json!({
            "server": self.postgres,
            "redisVersion": self.redis_version,
            "clients": args.clients,
            "secondsPerRun": args.duration.as_secs_f64(),
            "debugBuild": cfg!(debug_assertions),
            "called": "in process",
            "pgbenchRowLock": row_lock.collect::<Vec<_>>(),
            "redisIncr": {
                "perSecond": incr.mean(),
                "perSecondBefore": incr.before, "perSecondAfter": incr.after,
            },
            "runs": runs.collect::<Vec<_>>(),
        })
    }

    fn run_json(&self, run: &Run) -> Value {
        let Setup {
            contender,
            lanes,
            processes,
            work,
        } = run.setup;
        json!({
            "scheme": contender.scheme().as_str(),
            "redisLock": contender == Contender::RowLockRedis,
            "lanes": lanes,
            "processes": processes,
            "work": work.name(),
            "perSecond": run.per_second(),
            "measured": run.done,
            "seconds": run.elapsed.as_secs_f64(),
            "p50Ms": run.millis(0.5),
            "p99Ms": run.millis(0.99),
            "ofRowLock": self.ratio_of_row_lock(run),
            "ofIncr": self.ratio_of_incr(run),
            "transactionsPerNonce": run.per_nonce(run.transactions),
            "redisCallsPerNonce": run.per_nonce(run.redis_calls),
            "redisCommandsPerNonce": run.per_nonce(run.redis_commands),
            "nonces": run.done_total,
            "failed": run.failed,
            "failure": run.failure,
            "lentTwice": run.duplicates,
            "toldToComeBack": run.busy,
        })
    }

    /// Fails when a scheme failed or reserved a nonce twice: its rate is meaningless.
    pub(super) fn check_results(&self) -> Result<(), Failure> {
        let Some(bad) = self.runs.iter().find(|run| run.failed + run.duplicates > 0) else {
            return Ok(());
        };
        let (setup, failed, duplicates) = (bad.setup, bad.failed, bad.duplicates);
        let why = bad.failure.as_deref().unwrap_or("no reason");
        Err(Failure::Refused(format!(
            "{setup}: {failed} calls failed ({why}), {duplicates} nonces were reserved twice"
        )))
    }
}
