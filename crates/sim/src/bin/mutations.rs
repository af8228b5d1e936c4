//! `cargo run --release -p sim --features mutations --bin mutations`: are deliberate bugs caught?
//!
//! Every mutation of `domain::mutation` gets worlds of all kinds until a promise is broken; then the same
//! worlds run without it and must be clean. Ends with 1 where a bug gets through.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use domain::mutation::{self, Mutation};
use sim::mutations::{blind, hunt_all, json, line, options, unclean};
use sim::world::{Options, run};

/// The seeded simulator with deliberate bugs.
#[derive(Debug, Parser)]
struct Arguments {
    /// Only this mutation (may be given several times).
    #[arg(long)]
    only: Vec<String>,
    /// The most worlds of one mutation.
    #[arg(long, default_value_t = 400)]
    seeds_max: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Replays this world with the mutation, and prints its trace.
    #[arg(long)]
    seed: Option<u64>,
    /// So many threads.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Does not run the worlds once more without bugs.
    #[arg(long)]
    skip_clean: bool,
    /// Lists the mutations and ends.
    #[arg(long)]
    list: bool,
    /// Writes the report here.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let wanted = match wanted(&arguments.only) {
        Ok(wanted) => wanted,
        Err(unknown) => {
            eprintln!("there is no mutation {unknown}; --list shows all");
            return ExitCode::from(2);
        }
    };
    if arguments.list {
        for mutation in wanted {
            eprintln!("{:<27}{}", mutation.name(), mutation.what());
        }
        return ExitCode::SUCCESS;
    }
    match (arguments.seed, wanted.as_slice()) {
        (None, _) => prove(&arguments, &wanted),
        (Some(seed), [mutation]) => replay(*mutation, seed),
        (Some(_), _) => {
            eprintln!("--seed replays one mutation: name it with --only");
            ExitCode::from(2)
        }
    }
}

fn replay(mutation: Mutation, seed: u64) -> ExitCode {
    let options = Options {
        echo: true,
        silent: false,
        ..options(seed)
    };
    eprintln!("{}: {}", mutation.name(), mutation.what());
    let outcome = mutation::with(mutation, || run(seed, options));
    for violation in &outcome.violations {
        eprintln!("VIOLATION {violation}");
    }
    ExitCode::from(u8::from(outcome.violations.is_empty()))
}

fn wanted(only: &[String]) -> Result<Vec<Mutation>, String> {
    if only.is_empty() {
        return Ok(Mutation::ALL.to_vec());
    }
    let named = |name: &String| {
        let mut all = Mutation::ALL.iter();
        let found = all.find(|mutation| mutation.name() == name);
        found.copied().ok_or_else(|| name.clone())
    };
    only.iter().map(named).collect()
}

#[expect(
    clippy::print_stdout,
    reason = "the figure is the last line of a proof"
)]
fn prove(arguments: &Arguments, wanted: &[Mutation]) -> ExitCode {
    let Arguments { from, jobs, .. } = *arguments;
    let seeds = from..from.saturating_add(arguments.seeds_max);
    let hunts = hunt_all(wanted, &seeds, jobs, |hunt| eprintln!("{}", line(hunt)));
    // All began at the same seed, so the longest hunt has seen every world of the others.
    let most = hunts.iter().map(|hunt| hunt.seeds).max().unwrap_or(0);
    let unclean = match arguments.skip_clean {
        true => Vec::new(),
        false => unclean(from..from.saturating_add(most), jobs),
    };
    for world in &unclean {
        eprintln!(
            "seed {} without a mutation: {:?}",
            world.seed, world.violations
        );
    }
    for promise in blind(&hunts) {
        eprintln!("caught nothing here: {promise}");
    }
    let caught = hunts.iter().filter(|hunt| hunt.caught.is_some()).count();
    let mut counts: Vec<u64> = hunts.iter().map(|hunt| hunt.seeds).collect();
    counts.sort_unstable();
    let median = counts.get(counts.len() / 2).copied().unwrap_or(0);
    let figure = format!(
        "{caught} of {} mutations caught, after {median} worlds in the median and {most} at most; \
         {} of these worlds break a promise without one",
        hunts.len(),
        unclean.len()
    );
    let holds = caught == hunts.len() && unclean.is_empty();
    if let Some(path) = &arguments.json {
        let text = format!("{:#}\n", json(&hunts, &seeds, &unclean, &figure));
        if let Err(error) = std::fs::write(path, text) {
            eprintln!(
                "the report could not be written to {}: {error}",
                path.display()
            );
            return ExitCode::FAILURE;
        }
    }
    let verdict = if holds { "HOLDS" } else { "FAILS" };
    println!("{verdict} 05-2-mutations: {figure}");
    if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
