//! `cargo run -p sim -- --seed 7` replays one world with its trace; `--seeds 100` searches.

use std::process::ExitCode;

use clap::Parser;
use sim::world::{Options, Outcome, run};

/// Seeds that once failed, and why. Run before any new one.
const REGRESSIONS: &str = include_str!("../regressions.txt");

/// After so many seeds a search says how far it is.
const PROGRESS: usize = 50;

/// The seeded simulator: real nodes on in-memory twins, in one thread.
#[derive(Debug, Parser)]
struct Arguments {
    /// Replays this seed and prints its trace.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Runs so many seeds, after those of regressions.txt.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed of a search.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Goes on after a seed that fails.
    #[arg(long)]
    keep_going: bool,
    /// Nothing goes wrong in these worlds.
    #[arg(long)]
    calm: bool,
    /// Forks go deeper than what is final.
    #[arg(long)]
    deep_forks: bool,
    /// Once the store's standby takes over and lacks the last commits.
    #[arg(long)]
    lossy: bool,
}

impl Arguments {
    fn options(&self, echo: bool) -> Options {
        Options {
            calm: self.calm,
            deep_forks: self.deep_forks,
            lossy: self.lossy,
            echo,
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.seed {
        Some(seed) => replay(seed, arguments.options(true)),
        None => search(&arguments),
    }
}

fn replay(seed: u64, options: Options) -> ExitCode {
    eprintln!("seed {seed}");
    report(&run(seed, options))
}

fn search(arguments: &Arguments) -> ExitCode {
    let Arguments {
        seeds,
        from,
        keep_going,
        ..
    } = *arguments;
    let new = from..from.saturating_add(seeds);
    let all: Vec<u64> = regressions().into_iter().chain(new).collect();
    let mut failed = 0;
    for (done, seed) in all.iter().enumerate() {
        let outcome = run(*seed, arguments.options(false));
        if !outcome.violations.is_empty() {
            failed += 1;
            report(&outcome);
            if !keep_going {
                return ExitCode::FAILURE;
            }
        }
        if done % PROGRESS == PROGRESS - 1 {
            eprintln!("{} of {} seeds", done + 1, all.len());
        }
    }
    eprintln!("{} seeds, {failed} failed", all.len());
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn report(outcome: &Outcome) -> ExitCode {
    let Outcome {
        seed,
        hash,
        lines,
        violations,
    } = outcome;
    eprintln!("seed {seed}: {} lines, trace {hash:016x}", lines.len());
    for violation in violations {
        eprintln!("VIOLATION {violation}");
    }
    if violations.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("replay with the same options and --seed {seed}");
    ExitCode::FAILURE
}

/// One seed per line; what follows it says why.
fn regressions() -> Vec<u64> {
    let seeds = REGRESSIONS
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    seeds.filter_map(|seed| seed.parse().ok()).collect()
}
