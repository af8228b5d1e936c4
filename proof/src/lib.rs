//! The library of the proofs: real `lanekeeper` processes, HTTP clients, a load, an audit and a report.
//!
//! Proofs are black-box tests: no crate of the product is linked, everything goes through the binary.
#![expect(clippy::print_stdout, reason = "a proof prints its progress")]

pub mod cluster;

pub mod audit;
pub mod balancer;
pub mod config;
pub mod disk_probe;
pub mod ledger;
pub mod load;
pub mod manual_chain;
pub mod network;
pub mod payers;
pub mod single_node;
pub mod stats;
pub mod transfer;
pub mod usage;
pub mod virtual_address;

mod api;
mod process;
mod report;
mod scratch;

pub use api::{Answer, Api, Chain, NoAnswer, random_address};
pub use process::{
    COMMAND_WITHIN, Options, Server, binary, first_lines, free_port, run, run_bench, run_bench_of,
    run_within,
};
pub use report::Report;
pub use scratch::Scratch;

use std::time::{Duration, Instant};

/// The result of a proof: any error is a non-zero exit code.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Polls until there is a value, or fails with what was awaited.
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
            return Err(format!("timed out after {within:?} waiting until {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Fails the proof with a message if a condition does not hold.
pub fn ensure(holds: bool, message: impl Into<String>) -> Outcome<()> {
    if holds {
        Ok(())
    } else {
        Err(message.into().into())
    }
}

/// Prints the current step.
pub fn print_step(text: impl AsRef<str>) {
    println!("· {}", text.as_ref());
}

/// The value of `--name VALUE` among the arguments, or a default.
pub fn flag(name: &str, default: &str) -> String {
    let args: Vec<String> = std::env::args().collect();
    let at = args.iter().position(|arg| arg == &format!("--{name}"));
    at.and_then(|at| args.get(at + 1).cloned())
        .unwrap_or_else(|| default.into())
}
