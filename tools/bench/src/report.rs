//! The results of `bench accept` on the embedded store, as a table and as JSON.
#![expect(clippy::cast_precision_loss, reason = "printed ratios")]

use cli::output::{Columns, Tone, paint, print_line};
use serde_json::{Value, json};

use super::AcceptArgs;
use super::load::Measured;

/// The counters of the gate, from `/metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GateCounters {
    /// Requests made durable.
    pub(crate) txs: u64,
    /// Round trips to the store that write.
    pub(crate) commits: u64,
    /// Round trips to the store that read.
    pub(crate) reads: u64,
}

/// One run.
pub(crate) struct Row {
    pub(crate) clients: u16,
    pub(crate) measured: Measured,
    pub(crate) gate: GateCounters,
    pub(crate) rows_stored: u64,
    pub(crate) http_per_second: f64,
}

pub(crate) struct Report {
    lanes: u32,
    mempool_depth: String,
    seconds: f64,
    pub(crate) store_rows_per_second: f64,
    pub(crate) rows: Vec<Row>,
}

impl GateCounters {
    /// The sum of two nodes.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            txs: self.txs + other.txs,
            commits: self.commits + other.commits,
            reads: self.reads + other.reads,
        }
    }

    /// Parses a page of metrics.
    pub(crate) fn parse(page: &str) -> Self {
        let counter = |name: &str, label: &str| {
            let values = page.lines().filter_map(|line| {
                let rest = line.strip_prefix(name)?;
                let (labels, value) = rest.rsplit_once(' ')?;
                // Excludes metrics whose name only begins with this one.
                let is_same = labels.is_empty() || labels.starts_with('{');
                (is_same && labels.contains(label)).then(|| value.parse::<u64>().ok())?
            });
            values.sum::<u64>()
        };
        Self {
            txs: counter("lanekeeper_gate_txs_total", ""),
            // Other commits would distort how many accepted requests share one.
            commits: counter("lanekeeper_gate_commits_total", "kind=\"accept\""),
            reads: counter("lanekeeper_store_reads_total", ""),
        }
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            txs: self.txs.saturating_sub(before.txs),
            commits: self.commits.saturating_sub(before.commits),
            reads: self.reads.saturating_sub(before.reads),
        }
    }
}

impl Row {
    fn mean_batch(&self) -> f64 {
        self.gate.txs as f64 / self.gate.commits.max(1) as f64
    }

    fn round_trips(&self) -> f64 {
        (self.gate.commits + self.gate.reads) as f64 / self.measured.accepted_total.max(1) as f64
    }

    fn millis(&self, quantile: f64) -> f64 {
        self.measured.latency.value_at_quantile(quantile) as f64 / 1_000.0
    }
}

impl Report {
    pub(crate) fn new(args: &AcceptArgs) -> Self {
        Self {
            lanes: args.lanes,
            mempool_depth: args.mempool_depth().to_owned(),
            seconds: args.duration.as_secs_f64(),
            store_rows_per_second: 0.0,
            rows: Vec::new(),
        }
    }

    pub(crate) fn print(&self) {
        print_line!(
            "{} lane(s), mempool depth {}, {}s per run; the store without a node writes {:.0} rows/s",
            self.lanes,
            self.mempool_depth,
            self.seconds,
            self.store_rows_per_second
        );
        if cfg!(debug_assertions) {
            print_line!(
                "{}",
                paint(
                    Tone::Bad,
                    "this is a debug build: measure with a release build"
                )
            );
        }
        let headings = [
            "clients#",
            "accepted/s#",
            "p50 ms#",
            "p99 ms#",
            "refused#",
            "mean batch#",
            "trips/accept#",
            "HTTP alone/s#",
            "of HTTP#",
            "of store#",
            "stored",
        ];
        let mut table = Columns::new(&headings);
        for row in &self.rows {
            let rate = row.measured.per_second();
            let all_stored = row.rows_stored == row.measured.accepted_total;
            let plain = |text: String| (Tone::Plain, text);
            table.add_row(vec![
                plain(row.clients.to_string()),
                (Tone::Strong, format!("{rate:.0}")),
                plain(format!("{:.2}", row.millis(0.5))),
                plain(format!("{:.2}", row.millis(0.99))),
                plain(row.measured.refused_total.to_string()),
                plain(format!("{:.1}", row.mean_batch())),
                plain(format!("{:.3}", row.round_trips())),
                plain(format!("{:.0}", row.http_per_second)),
                plain(format_percent(rate, row.http_per_second)),
                plain(format_percent(rate, self.store_rows_per_second)),
                (
                    if all_stored { Tone::Good } else { Tone::Bad },
                    format!("{} of {}", row.rows_stored, row.measured.accepted_total),
                ),
            ]);
        }
        print_line!("{table}");
    }

    pub(crate) fn to_json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(|row| self.row_json(row)).collect();
        json!({
            "lanes": self.lanes,
            "mempoolDepth": self.mempool_depth,
            "secondsPerRun": self.seconds,
            "debugBuild": cfg!(debug_assertions),
            "storeRowsPerSecond": self.store_rows_per_second,
            "runs": rows,
        })
    }

    fn row_json(&self, row: &Row) -> Value {
        let rate = row.measured.per_second();
        json!({
            "clients": row.clients,
            "perSecond": rate,
            "accepted": row.measured.accepted_total,
            "refused": row.measured.refused_total,
            "rows": row.rows_stored,
            "p50Ms": row.millis(0.5),
            "p99Ms": row.millis(0.99),
            "gateTxs": row.gate.txs,
            "gateCommits": row.gate.commits,
            "storeReads": row.gate.reads,
            "meanBatch": row.mean_batch(),
            "roundTripsPerAccept": row.round_trips(),
            "httpAlonePerSecond": row.http_per_second,
            "ofHttp": rate / row.http_per_second,
            "ofStore": rate / self.store_rows_per_second,
        })
    }
}

pub(super) fn format_percent(part: f64, whole: f64) -> String {
    if whole > 0.0 {
        format!("{:.0}%", 100.0 * part / whole)
    } else {
        "-".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_parsed_with_and_without_labels() {
        let page = "\
# TYPE lanekeeper_gate_txs_total counter
lanekeeper_gate_txs_total 500
lanekeeper_gate_commits_total{kind=\"accept\"} 7
lanekeeper_gate_commits_total{kind=\"progress\"} 3
lanekeeper_gate_commits_total_more 99
lanekeeper_store_reads_total 4
";
        let gate = GateCounters::parse(page);
        assert_eq!(
            gate,
            GateCounters {
                txs: 500,
                commits: 7,
                reads: 4
            }
        );
        let before = GateCounters {
            txs: 100,
            commits: 10,
            reads: 9,
        };
        assert_eq!(
            gate.since(before),
            GateCounters {
                txs: 400,
                commits: 0,
                reads: 0
            }
        );
    }
}
