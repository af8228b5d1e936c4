//! An application that reserves nonces all the time, signs and sends by itself, and writes every step to a journal before
//! it takes it. `proof/06-3-faults` starts three of these, injects faults, kills and freezes them, and compares their
//! journals with the chain.
//!
//! `holder SETTINGS.json`; orders come line by line on stdin, and it ends with its stdin.

mod journal;
mod nonce_source;
mod orders;
mod payer;
mod settings;
mod unfinished_payments;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use proof::Outcome;
use tokio::task::JoinSet;

use journal::Journal;
use payer::Payer;
use settings::Settings;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .init();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("holder: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Outcome<()> {
    let file = std::env::args()
        .nth(1)
        .ok_or("usage: holder SETTINGS.json")?;
    let settings = Settings::read(Path::new(&file))?;
    let unfinished_payments = unfinished_payments::read(&settings.journal)?;
    let journal = Arc::new(Journal::open(&settings.journal)?);
    let source = nonce_source::open(&settings, &journal).await?;
    let payer = Arc::new(Payer::new(&settings, Arc::clone(&source), journal)?);
    let orders = orders::read_orders();

    let mut workers = JoinSet::new();
    for payment in unfinished_payments {
        let payer = Arc::clone(&payer);
        workers.spawn(async move { payer.finish(payment).await });
    }
    for _ in 0..settings.workers {
        workers.spawn(Arc::clone(&payer).work(orders.clone()));
    }
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    source.close().await;
    Ok(())
}
