//! Logs to stderr, metrics for `/metrics`.

use std::sync::Arc;
use std::time::Duration;

use cli::Failure;
use cli::output::LogLines;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

use crate::command_line::LogFormat;

/// From half a millisecond (a commit) to two minutes (finality).
const SECONDS_BUCKETS: [f64; 16] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 45.0,
    120.0,
];
/// From one request per turn to the fullest turn.
const BATCH_BUCKETS: [f64; 10] = [
    1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0,
];
/// The exporter aggregates raw samples when it renders, and at this interval.
const UPKEEP: Duration = Duration::from_secs(5);

/// Writes log lines to stderr: those selected by `RUST_LOG` (`info,engine=debug`), or else those of this level.
pub(crate) fn start_logs(format: LogFormat, level: LevelFilter) {
    let wanted = std::env::var("RUST_LOG").ok();
    let wanted = wanted.and_then(|text| text.parse::<Targets>().ok());
    let filter = wanted.unwrap_or_else(|| Targets::new().with_default(level));
    let lines = tracing_subscriber::fmt::layer().with_writer(|| LogLines);
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Text => {
            let coloured = std::io::IsTerminal::is_terminal(&std::io::stderr());
            let lines = lines.with_ansi(coloured).with_target(false);
            registry.with(lines).init();
        }
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).init(),
    }
}

/// Starts to collect metrics, and returns the function that renders them.
pub(crate) fn start_metrics() -> Result<Arc<dyn Fn() -> String + Send + Sync>, Failure> {
    let batches = Matcher::Suffix("_batch_size".to_owned());
    let install = || {
        PrometheusBuilder::new()
            .set_buckets(&SECONDS_BUCKETS)?
            .set_buckets_for_metric(batches, &BATCH_BUCKETS)?
            .install_recorder()
    };
    let handle = install().map_err(|e| Failure::refused("cannot collect metrics", &e))?;
    let upkeep = handle.clone();
    tokio::spawn(async move {
        let mut interval = tokio::time::interval(UPKEEP);
        loop {
            interval.tick().await;
            upkeep.run_upkeep();
        }
    });
    Ok(Arc::new(move || handle.render()))
}
