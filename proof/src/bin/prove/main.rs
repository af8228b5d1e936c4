//! The black-box proofs in one program: `prove PROOF [ARGUMENTS...]`, called by the scripts in `proof/`.
//!
//! One program, because each of twenty would link the same libraries again.

mod accept;
mod acceptance;
mod bad_input;
mod bench_nonce;
mod calls;
mod cluster_accept;
mod compare;
mod database;
mod endpoints;
mod failover;
mod faults;
mod first_transaction;
mod forks;
mod idempotency;
mod isolation;
mod kill_nine;
mod memory;
mod nonce_examples;
mod nonce_faults;
mod poison;
mod processes;
mod readers;
mod replacement;
mod restores;
mod seeds;
mod throughput;
mod torture;
mod tracking;
mod web_pages;
mod worlds;

use std::process::ExitCode;

use futures::future::LocalBoxFuture;
use proof::{Outcome, Report, flag};

type Proof = for<'a> fn(&'a mut Report) -> LocalBoxFuture<'a, Outcome<String>>;

const PROOFS: &[(&str, Proof)] = &[
    ("02-1-first-transaction", |report| {
        Box::pin(first_transaction::prove(report))
    }),
    ("02-2-kill-nine", |report| {
        Box::pin(kill_nine::prove(report))
    }),
    ("02-3-idempotency", |report| {
        Box::pin(idempotency::prove(report))
    }),
    ("02-4-accept", |report| Box::pin(accept::prove(report))),
    ("02-5-bad-input", |report| {
        Box::pin(bad_input::prove(report))
    }),
    ("02-6-memory", |report| Box::pin(memory::prove(report))),
    ("03-1-acceptance", |report| {
        Box::pin(acceptance::prove(report))
    }),
    ("03-2-processes", |report| {
        Box::pin(processes::prove(report))
    }),
    ("03-3-failover", |report| Box::pin(failover::prove(report))),
    ("03-4-database", |report| Box::pin(database::prove(report))),
    ("03-5-accept", |report| {
        Box::pin(cluster_accept::accept(report))
    }),
    ("03-6-growth", |report| {
        Box::pin(cluster_accept::growth(report))
    }),
    ("04-1-throughput", |report| {
        Box::pin(throughput::prove(report))
    }),
    ("04-2-calls", |report| Box::pin(calls::prove(report))),
    ("04-3-faults", |report| Box::pin(faults::prove(report))),
    ("04-4-forks", |report| Box::pin(forks::prove(report))),
    ("04-5-replacement", |report| {
        Box::pin(replacement::prove(report))
    }),
    ("04-6-tracking", |report| Box::pin(tracking::prove(report))),
    ("05-1-seeds", |report| {
        Box::pin(async { seeds::prove(report) })
    }),
    ("05-3-torture", |report| Box::pin(torture::prove(report))),
    ("06-3-faults", |report| {
        Box::pin(nonce_faults::prove(report))
    }),
    ("06-4-bench", |report| Box::pin(bench_nonce::prove(report))),
    ("06-5-examples", |report| {
        Box::pin(nonce_examples::prove(report))
    }),
    ("14-1-poison", |report| Box::pin(poison::prove(report))),
    ("14-2-endpoints", |report| {
        Box::pin(endpoints::prove(report))
    }),
    ("14-5-restores", |report| Box::pin(restores::prove(report))),
    ("14-6-worlds", |report| {
        Box::pin(async { worlds::prove(report) })
    }),
    ("14-7-web-pages", |report| {
        Box::pin(web_pages::prove(report))
    }),
    ("14-3-isolation", |report| {
        Box::pin(isolation::prove(report))
    }),
    ("14-4-readers", |report| Box::pin(readers::prove(report))),
    ("compare", |report| Box::pin(compare::prove(report))),
];

/// Servers are started and stopped by blocking calls; with more threads than cores, other tasks continue meanwhile.
const BLOCKING_PROOFS: &[&str] = &[
    "04-3-faults",
    "05-3-torture",
    "06-3-faults",
    "14-1-poison",
    "14-2-endpoints",
    "14-7-web-pages",
];
const BLOCKING_PROOF_THREADS: usize = 8;

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let Some((_, prove)) = PROOFS.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = PROOFS.iter().map(|(name, _)| *name).collect();
        eprintln!(
            "usage: prove PROOF [ARGUMENTS...], one of {}",
            known.join(", ")
        );
        return ExitCode::from(2);
    };
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if BLOCKING_PROOFS.contains(&name.as_str()) {
        builder.worker_threads(BLOCKING_PROOF_THREADS);
    }
    let runtime = builder
        .enable_all()
        .build()
        .expect("threads and sockets are available");
    let mut report = Report::new(flag("report", &name));
    let outcome = runtime.block_on(prove(&mut report));
    report.close(outcome)
}
