//! The results, as tables and as JSON.
#![expect(clippy::cast_precision_loss, reason = "printed ratios")]

use cli::output::{Columns, Tone, paint, print_line};
use serde_json::{Value, json};

use super::cpu::CpuTimes;
use super::database::Written;
use super::per_accept;
use super::pgbench::{BATCH_CLIENTS, BATCH_ROWS, SINGLE_CLIENTS};
use crate::AcceptArgs;
use crate::load::Measured;
use crate::report::{GateCounters, format_percent};

/// The budget of one accepted tx under load.
const ROWS_MAX: f64 = 3.0;
const INDEX_ENTRIES_MAX: f64 = 6.0;
const WAL_BYTES_MAX: f64 = 1_536.0;
const ROUND_TRIPS_MAX: f64 = 0.05;

pub(super) struct Report<'a> {
    args: &'a AcceptArgs,
    server: Value,
    /// Limit of HTTP alone, by number of clients.
    pub(super) http: Vec<(u16, f64)>,
    pub(super) gate_rows_per_second: f64,
    pub(super) phases: Vec<Phase>,
}

/// All runs with this many finished txs in the tables.
pub(super) struct Phase {
    pub(super) finished: u64,
    /// Lanes in the tables.
    pub(super) lanes: u64,
    /// Transactions per second of an idle node.
    pub(super) idle_per_second: f64,
    pub(super) limits: Limits,
    pub(super) runs: Vec<Run>,
}

/// pgbench, in rows per second.
pub(super) struct Limits {
    pub(super) single_before: f64,
    pub(super) single_after: f64,
    pub(super) batches: f64,
}

pub(super) struct Run {
    pub(super) clients: u16,
    pub(super) measured: Measured,
    pub(super) gate: GateCounters,
    pub(super) cpu: CpuTimes,
    pub(super) written: Written,
    pub(super) rows_stored: u64,
}

impl Limits {
    /// The mean: the speed of the machine may have changed between both measurements.
    fn single(&self) -> f64 {
        f64::midpoint(self.single_before, self.single_after)
    }
}

impl Run {
    fn millis(&self, quantile: f64) -> f64 {
        self.measured.latency.value_at_quantile(quantile) as f64 / 1_000.0
    }

    fn per_accept(&self, count: u64) -> f64 {
        per_accept(count, &self.measured)
    }

    fn round_trips(&self) -> f64 {
        self.per_accept(self.gate.commits + self.gate.reads)
    }

    /// Without full-page images, where their size is known.
    fn wal_bytes(&self) -> Option<f64> {
        let images = self.written.page_image_bytes?;
        let rest = self.written.wal_bytes.saturating_sub(images);
        Some(self.per_accept(rest))
    }

    fn mean_batch(&self) -> f64 {
        self.gate.txs as f64 / self.gate.commits.max(1) as f64
    }
}

impl<'a> Report<'a> {
    pub(super) fn new(args: &'a AcceptArgs, server: Value) -> Self {
        Self {
            args,
            server,
            http: Vec::new(),
            gate_rows_per_second: 0.0,
            phases: Vec::new(),
        }
    }

    fn http_rate(&self, clients: u16) -> f64 {
        let found = self.http.iter().find(|(count, _)| *count == clients);
        found.map_or(0.0, |(_, rate)| *rate)
    }

    /// The rate of the same clients on empty tables.
    fn empty_rate(&self, clients: u16) -> Option<f64> {
        let empty = self.phases.iter().find(|phase| phase.finished == 0)?;
        let run = empty.runs.iter().find(|run| run.clients == clients)?;
        Some(run.measured.per_second())
    }

    pub(super) fn print(&self) {
        let args = self.args;
        print_line!(
            "{} node(s), {} lane(s) and {} idle ones, mempool depth {}, sends {}, {}s per run",
            args.nodes,
            args.lanes,
            args.idle_lanes,
            args.mempool_depth(),
            args.sends.as_str(),
            args.duration.as_secs_f64()
        );
        let setting = |name: &str| self.server[name].as_str().unwrap_or("?").to_owned();
        print_line!(
            "PostgreSQL {}, fsync {}, synchronous_commit {}; the gate without a node writes {:.0} rows/s",
            setting("server_version"),
            setting("fsync"),
            setting("synchronous_commit"),
            self.gate_rows_per_second
        );
        if cfg!(debug_assertions) {
            let warning = "this is a debug build: measure with a release build";
            print_line!("{}", paint(Tone::Bad, warning));
        }
        for phase in &self.phases {
            print_line!("");
            print_line!(
                "{} finished txs, {} lanes; pgbench inserts {:.0} rows/s one by one ({SINGLE_CLIENTS} clients: \
                 {:.0} before, {:.0} after), {:.0} in batches of {BATCH_ROWS} ({BATCH_CLIENTS} \
                 clients); an idle node runs {:.1} transactions a second",
                phase.finished,
                phase.lanes,
                phase.limits.single(),
                phase.limits.single_before,
                phase.limits.single_after,
                phase.limits.batches,
                phase.idle_per_second
            );
            self.print_rates(phase);
            print_costs(phase);
        }
    }

    fn print_rates(&self, phase: &Phase) {
        let headings = [
            "clients#",
            "accepted/s#",
            "p50 ms#",
            "p99 ms#",
            "refused#",
            "mean batch#",
            "of pgbench#",
            "of HTTP#",
            "of empty#",
            "stored",
        ];
        let mut table = Columns::new(&headings);
        for run in &phase.runs {
            let rate = run.measured.per_second();
            let plain = |text: String| (Tone::Plain, text);
            let stored = format!("{} of {}", run.rows_stored, run.measured.accepted_total);
            table.add_row(vec![
                plain(run.clients.to_string()),
                (Tone::Strong, format!("{rate:.0}")),
                plain(format!("{:.2}", run.millis(0.5))),
                plain(format!("{:.2}", run.millis(0.99))),
                plain(run.measured.refused_total.to_string()),
                plain(format!("{:.1}", run.mean_batch())),
                (Tone::Strong, format!("{:.2}", rate / phase.limits.single())),
                plain(format_percent(rate, self.http_rate(run.clients))),
                plain(format_percent(
                    rate,
                    self.empty_rate(run.clients).unwrap_or(0.0),
                )),
                (
                    if run.all_stored() {
                        Tone::Good
                    } else {
                        Tone::Bad
                    },
                    stored,
                ),
            ]);
        }
        print_line!("{table}");
    }

    pub(super) fn to_json(&self) -> Value {
        let args = self.args;
        let phases: Vec<Value> = self
            .phases
            .iter()
            .map(|phase| {
                let runs: Vec<Value> = phase
                    .runs
                    .iter()
                    .map(|run| self.run_json(phase, run))
                    .collect();
                json!({
                    "finished": phase.finished,
                    "lanes": phase.lanes,
                    "idleTransactionsPerSecondAndNode": phase.idle_per_second,
                    "pgbenchRowsPerSecond": phase.limits.single(),
                    "pgbenchRowsPerSecondBefore": phase.limits.single_before,
                    "pgbenchRowsPerSecondAfter": phase.limits.single_after,
                    "pgbenchBatchRowsPerSecond": phase.limits.batches,
                    "runs": runs,
                })
            })
            .collect();
        json!({
            "store": "postgres",
            "server": self.server,
            "nodes": args.nodes,
            "lanes": args.lanes,
            "idleLanes": args.idle_lanes,
            "mempoolDepth": args.mempool_depth(),
            "sends": args.sends.as_str(),
            "secondsPerRun": args.duration.as_secs_f64(),
            "debugBuild": cfg!(debug_assertions),
            "pgbenchClients": SINGLE_CLIENTS,
            "pgbenchBatchClients": BATCH_CLIENTS,
            "pgbenchBatchRows": BATCH_ROWS,
            "gateRowsPerSecond": self.gate_rows_per_second,
            "phases": phases,
        })
    }

    fn run_json(&self, phase: &Phase, run: &Run) -> Value {
        let rate = run.measured.per_second();
        let written = &run.written;
        let cpu = &run.cpu;
        json!({
            "clients": run.clients,
            "perSecond": rate,
            "accepted": run.measured.accepted_total,
            "refused": run.measured.refused_total,
            "rows": run.rows_stored,
            "p50Ms": run.millis(0.5),
            "p99Ms": run.millis(0.99),
            "meanBatch": run.mean_batch(),
            "ofPgbench": rate / phase.limits.single(),
            "ofPgbenchBatches": rate / phase.limits.batches,
            "ofGate": rate / self.gate_rows_per_second,
            "httpAlonePerSecond": self.http_rate(run.clients),
            "ofHttp": rate / self.http_rate(run.clients),
            "ofEmpty": self.empty_rate(run.clients).map(|empty| rate / empty),
            "gateCommits": run.gate.commits,
            "storeReads": run.gate.reads,
            "roundTripsPerAccept": run.round_trips(),
            "transactionsPerAccept": run.per_accept(written.transactions),
            "rowsPerAccept": run.per_accept(written.rows_inserted),
            "hotUpdatesPerAccept": run.per_accept(written.hot_updates),
            "indexEntriesPerAccept": run.per_accept(written.index_entries),
            "walBytesPerAccept": run.per_accept(written.wal_bytes),
            "walBytesPerAcceptWithoutPageImages": run.wal_bytes(),
            "walRecordsPerAccept": run.per_accept(written.wal_records),
            "walPageImagesPerAccept": run.per_accept(written.page_images),
            "cpuSeconds": {
                "generator": cpu.generator.as_secs_f64(),
                "nodes": cpu.nodes.as_secs_f64(),
                "postgres": cpu.postgres.map(|time| time.as_secs_f64()),
                "chain": cpu.chain.as_secs_f64(),
            },
        })
    }
}

/// Prints the cost per accepted tx, compared with the budget of the accept path.
fn print_costs(phase: &Phase) {
    let headings = [
        "clients#",
        "rows#",
        "index entries#",
        "WAL B#",
        "with pages#",
        "round trips#",
        "all queries#",
        "CPU µs: node#",
        "postgres#",
        "generator#",
        "chain#",
    ];
    let mut table = Columns::new(&headings);
    let within = |value: f64, max: f64, decimals: usize| {
        let tone = if value <= max { Tone::Good } else { Tone::Bad };
        (tone, format!("{value:.decimals$}"))
    };
    for run in &phase.runs {
        let written = &run.written;
        let plain = |text: String| (Tone::Plain, text);
        let micros = |time: std::time::Duration| {
            let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            plain(format!("{:.0}", run.per_accept(micros)))
        };
        let unknown = || plain("-".to_owned());
        table.add_row(vec![
            plain(run.clients.to_string()),
            within(run.per_accept(written.rows_inserted), ROWS_MAX, 2),
            within(run.per_accept(written.index_entries), INDEX_ENTRIES_MAX, 2),
            run.wal_bytes()
                .map_or_else(unknown, |bytes| within(bytes, WAL_BYTES_MAX, 0)),
            plain(format!("{:.0}", run.per_accept(written.wal_bytes))),
            within(run.round_trips(), ROUND_TRIPS_MAX, 3),
            plain(format!("{:.3}", run.per_accept(written.transactions))),
            micros(run.cpu.nodes),
            run.cpu.postgres.map_or_else(unknown, micros),
            micros(run.cpu.generator),
            micros(run.cpu.chain),
        ]);
    }
    print_line!("{table}");
}
