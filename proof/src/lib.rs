//! What the proofs share: a real `lanekeeper` process, plain HTTP to it and to its chain, and a report.
//!
//! Black box on purpose: nothing of the product is linked in, everything goes through the binary.
#![expect(clippy::print_stdout, reason = "a proof prints what it shows")]

pub mod cluster;

pub mod audit;
pub mod balancer;
pub mod config;
pub mod disk;
pub mod ledger;
pub mod load;
pub mod network;
pub mod payers;
pub mod solo;
pub mod stage;
pub mod stats;
pub mod transfer;
pub mod usage;
pub mod wire;

mod api;
mod process;
mod report;
mod scratch;

pub use api::{Answer, Api, Chain, NoAnswer, random_address};
pub use process::{Options, Server, binary, first_lines, free_port, run, run_within};
pub use report::Report;
pub use scratch::Scratch;

use std::time::{Duration, Instant};

/// What a proof gives back: any failure is a reason to exit non-zero.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Tries until a condition holds, or says what was waited for.
pub async fn eventually<T, F>(
    what: &str,
    within: Duration,
    mut attempt: impl FnMut() -> F,
) -> Outcome<T>
where
    F: Future<Output = Outcome<Option<T>>>,
{
    let started = Instant::now();
    loop {
        if let Some(value) = attempt().await? {
            return Ok(value);
        }
        if started.elapsed() > within {
            return Err(format!("after {within:?} still not: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Fails the proof with a message when a condition does not hold.
pub fn demand(holds: bool, message: impl Into<String>) -> Outcome<()> {
    if holds {
        Ok(())
    } else {
        Err(message.into().into())
    }
}

/// Says what is being done.
pub fn say(text: impl AsRef<str>) {
    println!("· {}", text.as_ref());
}

/// The value of `--name VALUE` among the arguments, or a default.
pub fn flag(name: &str, default: &str) -> String {
    let args: Vec<String> = std::env::args().collect();
    let at = args.iter().position(|arg| arg == &format!("--{name}"));
    at.and_then(|at| args.get(at + 1).cloned())
        .unwrap_or_else(|| default.into())
}
