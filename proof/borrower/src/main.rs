//! A business that borrows nonces without end, signs and sends by itself, and writes down every step before it
//! takes it. `proof/06-3-faults` starts three of these, breaks things under them, kills and freezes them, and
//! compares what they wrote with the chain.
//!
//! `borrower SETTINGS.json`; orders come line by line on its input, and it ends with its input.

mod business;
mod door;
mod journal;
mod orders;
mod settings;
mod unfinished;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use proof::Outcome;
use tokio::task::JoinSet;

use business::Business;
use journal::Journal;
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
            eprintln!("borrower: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Outcome<()> {
    let file = std::env::args()
        .nth(1)
        .ok_or("usage: borrower SETTINGS.json")?;
    let settings = Settings::read(Path::new(&file))?;
    let unfinished = unfinished::read(&settings.journal)?;
    let journal = Arc::new(Journal::append_to(&settings.journal)?);
    let door = door::open(&settings, &journal).await?;
    let business = Arc::new(Business::new(&settings, Arc::clone(&door), journal)?);
    let orders = orders::listen();

    let mut desks = JoinSet::new();
    for sale in unfinished {
        let business = Arc::clone(&business);
        desks.spawn(async move { business.finish(sale).await });
    }
    for _ in 0..settings.desks {
        desks.spawn(Arc::clone(&business).work(orders.clone()));
    }
    while let Some(ended) = desks.join_next().await {
        ended??;
    }
    door.close().await;
    Ok(())
}
