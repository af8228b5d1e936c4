//! 13.3: the speed of two commits: the measurements of 2.4 and 3.5 in alternating pairs.
//!
//! `scripts/compare` builds the commits and passes `--base` and `--head` (commits) and `--builds` (a folder with a
//! `COMMIT/lanekeeper` for each). A pair is measured within minutes on the same machine, so its ratio means more than
//! either rate; every other pair starts with the other commit, so that a drift of the machine cancels out.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proof::stats::Ratios;
use proof::{Outcome, Report, ensure, flag, print_step, run_bench_of};
use rig::postgres::Postgres;
use serde_json::{Value, json};

/// Of one run, with all limits that the benchmark measures besides.
const RUN_WITHIN: Duration = Duration::from_secs(600);
/// Digits of a commit in tables.
const SHORT_COMMIT: usize = 10;

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let pair_count: usize = parse_flag("pairs", "10")?;
    let ratio_min: f64 = parse_flag("min-ratio", "0.97")?;
    ensure(pair_count > 0, "--pairs must be at least 1")?;
    let (base, head) = (Build::of_flag("base")?, Build::of_flag("head")?);
    report.fact("base", base.commit.clone());
    report.fact("head", head.commit.clone());
    report.fact("ratioMin", ratio_min);
    // Of the last 1, 5 and 15 minutes: the figures of a busy machine are noise.
    let load_average = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    report.fact("loadAverageBefore", load_average.trim());

    // One server for all runs; the benchmark creates a database for each.
    let start = || Postgres::start_with(15, &[("max_connections", "300")]);
    let server = tokio::task::spawn_blocking(start).await?;
    let mut measurements = [
        Measurement::on_embedded_store(),
        Measurement::on_postgres(server.url()),
    ];
    let started = Instant::now();
    for number in 1..=pair_count {
        for measurement in &mut measurements {
            let place = format!("pair {number} of {pair_count}, {}", measurement.name);
            let pair = if number % 2 == 1 {
                let base = measurement.run(&place, &base).await?;
                (base, measurement.run(&place, &head).await?)
            } else {
                let head = measurement.run(&place, &head).await?;
                (measurement.run(&place, &base).await?, head)
            };
            measurement.pairs.push(pair);
        }
        print_step(format!(
            "{number} of {pair_count} pairs after {:.0} s",
            started.elapsed().as_secs_f64()
        ));
    }
    evaluate_measurements(report, &measurements, (&base, &head), ratio_min)
}

fn evaluate_measurements(
    report: &mut Report,
    measurements: &[Measurement],
    (base, head): (&Build, &Build),
    ratio_min: f64,
) -> Outcome<String> {
    let (mut figures, mut slower) = (Vec::new(), Vec::new());
    for measurement in measurements {
        let ratios = measurement.ratios()?;
        print_step(measurement.table(base, head, &ratios));
        report.note(measurement.name, measurement.to_json(&ratios));
        figures.push(format!("{} {}", measurement.name, format_ratios(&ratios)));
        if ratios.median() < ratio_min {
            slower.push(measurement.name);
        }
    }
    let pair_count = measurements.first().map_or(0, |first| first.pairs.len());
    let figure = format!(
        "accepted/s of {} relative to {}, median of {pair_count} alternating pairs: {} (minimum {ratio_min})",
        head.short_commit(),
        base.short_commit(),
        figures.join(", ")
    );
    ensure(
        slower.is_empty(),
        format!("slower on {}: {figure}", slower.join(" and ")),
    )?;
    Ok(figure)
}

/// A release build of a commit.
struct Build {
    commit: String,
    binary: PathBuf,
}

impl Build {
    /// The build of the commit that `--name` contains.
    fn of_flag(name: &str) -> Outcome<Self> {
        let commit = flag(name, "");
        let binary = Path::new(&flag("builds", ""))
            .join(&commit)
            .join("lanekeeper");
        ensure(
            !commit.is_empty() && binary.is_file(),
            format!(
                "--{name} {commit:?} has no build at {}: run scripts/compare",
                binary.display()
            ),
        )?;
        Ok(Self { commit, binary })
    }

    fn short_commit(&self) -> &str {
        self.commit.get(..SHORT_COMMIT).unwrap_or(&self.commit)
    }
}

/// A benchmark, and its rates of both commits.
struct Measurement {
    name: &'static str,
    args: Vec<String>,
    /// The runs in the JSON report of the benchmark.
    runs: &'static str,
    /// Accepted per second of base and head.
    pairs: Vec<(f64, f64)>,
}

impl Measurement {
    /// As in 02-4-accept.
    fn on_embedded_store() -> Self {
        Self::of_accept("embedded store", &["--mempool-depth", "1000000"], "/runs")
    }

    /// As in 03-5-accept.
    fn on_postgres(url: &str) -> Self {
        Self::of_accept(
            "PostgreSQL",
            &["--store", url, "--nodes", "1"],
            "/phases/0/runs",
        )
    }

    fn of_accept(name: &'static str, more: &[&str], runs: &'static str) -> Self {
        let duration = flag("duration", "8s");
        let common = [
            "accept",
            "--lanes",
            "1",
            "--clients",
            "512",
            "--duration",
            &duration,
        ];
        let args = common.iter().chain(more).copied();
        Self {
            name,
            args: args.map(str::to_owned).collect(),
            runs,
            pairs: Vec::new(),
        }
    }

    /// Accepted per second of one run.
    async fn run(&self, place: &str, build: &Build) -> Outcome<f64> {
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let (_, bench) = run_bench_of(&build.binary, RUN_WITHIN, &args).await?;
        let commit = build.short_commit();
        ensure(
            bench["debugBuild"] == false,
            format!("the build of {commit} is no release build"),
        )?;
        let run = bench.pointer(self.runs).and_then(|runs| runs.get(0));
        let run = run.ok_or_else(|| format!("the benchmark of {commit} has no run"))?;
        let rate = run["perSecond"].as_f64().unwrap_or_default();
        ensure(
            rate > 0.0,
            format!("the benchmark of {commit} accepted nothing: {run}"),
        )?;
        print_step(format!("{place}: {commit} {rate:.0} accepted/s"));
        Ok(rate)
    }

    fn ratios(&self) -> Outcome<Ratios> {
        let ratios = self.pairs.iter().map(|(base, head)| head / base).collect();
        Ratios::of(ratios).ok_or_else(|| format!("{} has no ratio", self.name).into())
    }

    fn table(&self, base: &Build, head: &Build, ratios: &Ratios) -> String {
        let mut lines = vec![
            format!("{} (accepted/s)", self.name),
            format!(
                "  pair  {:>SHORT_COMMIT$}  {:>SHORT_COMMIT$}  ratio",
                base.short_commit(),
                head.short_commit()
            ),
        ];
        for (at, (base, head)) in self.pairs.iter().enumerate() {
            lines.push(format!(
                "  {:>4}  {base:>SHORT_COMMIT$.0}  {head:>SHORT_COMMIT$.0}  {:.3}",
                at + 1,
                head / base
            ));
        }
        lines.push(format!("  median ratio {}", format_ratios(ratios)));
        lines.join("\n")
    }

    fn to_json(&self, ratios: &Ratios) -> Value {
        let pairs: Vec<Value> = self
            .pairs
            .iter()
            .map(|(base, head)| {
                json!({"basePerSecond": base, "headPerSecond": head, "ratio": head / base})
            })
            .collect();
        json!({
            "pairs": pairs,
            "medianRatio": ratios.median(),
            "lowestRatio": ratios.lowest(),
            "highestRatio": ratios.highest(),
        })
    }
}

/// The median has one more digit than its limit needs, so that a median just below the limit does not look equal to it.
fn format_ratios(ratios: &Ratios) -> String {
    format!(
        "{:.4} ({:.3} to {:.3})",
        ratios.median(),
        ratios.lowest(),
        ratios.highest()
    )
}

fn parse_flag<T: std::str::FromStr>(name: &str, default: &str) -> Outcome<T> {
    let text = flag(name, default);
    let value = text.parse().ok();
    value.ok_or_else(|| format!("--{name} {text:?} is not a number").into())
}
