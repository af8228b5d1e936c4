//! `bench accept` on the embedded store: how fast requests become durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cli::Failure;
use cli::client::{Client, NodeArgs, decode};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use serde::de::IgnoredAny;
use store::sqlite::SqliteStore;

use super::AcceptArgs;
use super::limits::measure_store_rate;
use super::load::{self, Load, Measured};
use super::report::{GateCounters, Report, Row};
use super::server::{Server, socket_address};

/// Nothing is counted while lanes are acquired and caches fill. Never longer than the run.
pub(super) const WARM_UP_MAX: Duration = Duration::from_secs(2);
/// The measured time of a limit. Never longer than the run.
pub(super) const LIMIT_DURATION_MAX: Duration = Duration::from_secs(5);
const PROGRESS_TICK: Duration = Duration::from_millis(200);
/// The most pages of 1000 txs that are counted.
const PAGES_MAX: usize = 100_000;

pub(crate) async fn run(args: &AcceptArgs) -> Result<(), Failure> {
    let mut report = Report::new(args);
    report.store_rows_per_second = measure_store_limit(args).await?;
    for clients in &args.clients {
        let http = measure_http_limit(args, *clients).await?;
        report
            .rows
            .push(measure_accept(args, *clients, http).await?);
    }
    report.print();
    args.write_json(&report.to_json())?;
    match report
        .rows
        .iter()
        .find(|row| row.rows_stored != row.measured.accepted_total)
    {
        None => Ok(()),
        Some(row) => Err(missing_rows_failure(
            row.measured.accepted_total,
            row.rows_stored,
        )),
    }
}

pub(super) fn missing_rows_failure(accepted: u64, stored: u64) -> Failure {
    Failure::Refused(format!(
        "{accepted} requests were accepted, but {stored} are stored: the results are invalid"
    ))
}

async fn measure_store_limit(args: &AcceptArgs) -> Result<f64, Failure> {
    let bar = spinner("the store without a node");
    let duration = args.duration.min(LIMIT_DURATION_MAX);
    let store =
        SqliteStore::temporary().map_err(|e| Failure::refused("the store cannot be opened", &e))?;
    let rate = measure_store_rate(Arc::new(store), args.lanes, args.row_kind(), duration).await;
    bar.finish_and_clear();
    rate
}

pub(super) async fn measure_http_limit(args: &AcceptArgs, clients: u16) -> Result<f64, Failure> {
    let server = Server::start_http_limit().await?;
    let load = Load {
        addresses: [server.address].into(),
        signers: Arc::from(["0x00000000000000000000000000000000000a11ce".to_owned()]),
        clients,
        warm_up: args.duration.min(WARM_UP_MAX),
        duration: args.duration.min(LIMIT_DURATION_MAX),
        progress: Arc::default(),
    };
    Ok(
        run_with_bar(&format!("HTTP alone, {clients} clients"), &load)
            .await?
            .per_second(),
    )
}

async fn measure_accept(
    args: &AcceptArgs,
    clients: u16,
    http_per_second: f64,
) -> Result<Row, Failure> {
    // A new server per run, so that none has the backlog of a previous one.
    let server = match &args.url {
        Some(_) => None,
        None => Some(Server::start_dev(args.lanes, args.mempool_depth()).await?),
    };
    let url = match (&args.url, &server) {
        (Some(url), _) => url.clone(),
        (None, Some(server)) => format!("http://{}", server.address),
        (None, None) => return Err(Failure::Usage("no server to measure".into())),
    };
    let lanes = usize::try_from(args.lanes).unwrap_or(usize::MAX);
    let signers: Vec<String> = match &server {
        Some(server) => server.accounts(),
        None => derive_dev_accounts(args.lanes).await?,
    };
    let address = socket_address(&url).ok_or_else(|| {
        Failure::Usage(format!(
            "{url:?} is not an address such as http://127.0.0.1:8645"
        ))
    })?;
    let client = Client::new(&NodeArgs {
        url,
        key: None,
        json: true,
    })?;
    let load = Load {
        addresses: [address].into(),
        signers: signers.into_iter().take(lanes).collect(),
        clients,
        warm_up: args.duration.min(WARM_UP_MAX),
        duration: args.duration,
        progress: Arc::default(),
    };
    if load.signers.is_empty() {
        return Err(Failure::Refused(
            "the ready line of the server lists no accounts".into(),
        ));
    }

    let rows_before = count_rows(&client).await?;
    let gate_before = GateCounters::parse(&client.get_text("/metrics").await?);
    let measured = run_with_bar(&format!("accept, {clients} clients"), &load).await?;
    let gate = GateCounters::parse(&client.get_text("/metrics").await?).since(gate_before);
    let bar = spinner("counting stored txs");
    let rows_stored = count_rows(&client).await?.saturating_sub(rows_before);
    bar.finish_and_clear();
    Ok(Row {
        clients,
        measured,
        gate,
        rows_stored,
        http_per_second,
    })
}

async fn derive_dev_accounts(lanes: u32) -> Result<Vec<String>, Failure> {
    let derive = move || devchain::dev_accounts(lanes);
    let accounts = tokio::task::spawn_blocking(derive).await;
    let accounts = accounts.map_err(|e| Failure::refused("cannot derive the accounts", &e))?;
    Ok(accounts
        .iter()
        .map(|(address, _)| address.to_string())
        .collect())
}

#[derive(Deserialize)]
struct Page {
    txs: Vec<IgnoredAny>,
    next: Option<String>,
}

/// Counts the stored txs by reading all pages.
async fn count_rows(client: &Client) -> Result<u64, Failure> {
    let mut count = 0;
    let mut cursor: Option<String> = None;
    for _ in 0..PAGES_MAX {
        let mut query = vec![("limit", "1000".to_owned())];
        query.extend(cursor.take().map(|next| ("cursor", next)));
        let page: Page = decode(&client.get("/api/v1/tx", &query).await?)?;
        count += u64::try_from(page.txs.len()).unwrap_or(0);
        match page.next {
            Some(next) => cursor = Some(next),
            None => return Ok(count),
        }
    }
    Err(Failure::Refused(
        "the node has too many txs to count them: use a new database".into(),
    ))
}

/// Runs a load with a progress bar.
pub(super) async fn run_with_bar(what: &str, load: &Load) -> Result<Measured, Failure> {
    let whole = load.warm_up + load.duration;
    let bar = ProgressBar::new(u64::try_from(whole.as_millis()).unwrap_or(u64::MAX));
    let style = ProgressStyle::with_template("{prefix:<28} {bar:32} {msg}");
    bar.set_style(style.expect("a fixed template is valid"));
    bar.set_prefix(what.to_owned());
    let progress = Arc::clone(&load.progress);
    let shown = bar.clone();
    let ticking = tokio::spawn(async move { update_bar(&shown, &progress).await });
    let measured = load::generate_load(load).await;
    ticking.abort();
    bar.finish_and_clear();
    measured
}

async fn update_bar(bar: &ProgressBar, progress: &AtomicU64) {
    let started = Instant::now();
    let mut pace = tokio::time::interval(PROGRESS_TICK);
    let mut before = 0;
    loop {
        pace.tick().await;
        let count = progress.load(Ordering::Relaxed);
        let rate = (count - before) * 1000 / u64::try_from(PROGRESS_TICK.as_millis()).unwrap_or(1);
        before = count;
        bar.set_position(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX));
        bar.set_message(format!("{rate}/s, {count} in total"));
    }
}

pub(super) fn spinner(what: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(what.to_owned());
    bar.enable_steady_tick(PROGRESS_TICK);
    bar
}
