//! `scripts/mutants`: are deliberate bugs caught?
//!
//! Every mutation runs in worlds of all kinds until a promise is broken; then the same worlds run without it and
//! must be clean. Exits with 1 if a mutation is not caught, or if a checker caught nothing at all.
//! `--recorded` tries the recorded world of each first, which takes seconds; `--record` records them.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use sim::mutation::{self, IS_PATCHED, Mutation};
use sim::mutations::{
    CatchingWorld, Findings, failing_without_mutation, line, options, record, search_all,
    search_recorded,
};
use sim::world::{Options, run};

/// The seeded simulator with deliberate bugs.
#[derive(Debug, Parser)]
struct Arguments {
    /// Only this mutation (may be given several times).
    #[arg(long)]
    only: Vec<String>,
    /// The maximum number of worlds per mutation.
    #[arg(long, default_value_t = 1_000)]
    seeds_max: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Replays this world with the mutation, and prints its trace.
    #[arg(long)]
    seed: Option<u64>,
    /// The number of threads.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Does not run the worlds again without mutations.
    #[arg(long)]
    skip_clean: bool,
    /// Tries the world that is recorded for each mutation first, and skips the search for idle checkers.
    #[arg(long, conflicts_with_all = ["seed", "record", "only"])]
    recorded: bool,
    /// Writes this table (verification/sim/mutations/worlds.txt): a small world in which each mutation is caught.
    #[arg(long, value_name = "FILE", conflicts_with = "seed")]
    record: Option<PathBuf>,
    /// Lists the mutations and exits.
    #[arg(long)]
    list: bool,
    /// Writes the report to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

impl Arguments {
    fn seeds(&self) -> Range<u64> {
        self.from..self.from.saturating_add(self.seeds_max)
    }
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
    if !IS_PATCHED {
        eprintln!(
            "this build has no mutations: run scripts/mutants, which applies verification/sim/mutations"
        );
        return ExitCode::from(2);
    }
    match (arguments.seed, wanted.as_slice()) {
        (None, _) => match &arguments.record {
            Some(table) => write_record(&arguments, &wanted, table),
            None if arguments.recorded => catch_recorded(&arguments),
            None => prove(&arguments, &wanted),
        },
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

/// Writes the table of recorded worlds, or the lines of the wanted mutations.
fn write_record(arguments: &Arguments, wanted: &[Mutation], table: &Path) -> ExitCode {
    let recorded = |mutation: Mutation, caught: Option<&CatchingWorld>| {
        let world = caught.map(|caught| (caught.seed, caught.events, caught.promises()));
        eprintln!("{:<27}{world:?}", mutation.name());
    };
    match record(table, wanted, &arguments.seeds(), arguments.jobs, recorded) {
        Ok(missed) if missed.is_empty() => ExitCode::SUCCESS,
        Ok(missed) => {
            eprintln!("not caught in any world: {missed:?}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("the table could not be written: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every mutation is caught, in its recorded world or at least in one of the first.
fn catch_recorded(arguments: &Arguments) -> ExitCode {
    let searches = search_recorded(&arguments.seeds(), arguments.jobs);
    for search in &searches {
        eprintln!("{}", line(search));
        if search.seeds > 1 {
            let name = search.mutation.name();
            eprintln!(
                "{name}: its recorded world is outdated, record it again with --record FILE --only {name}"
            );
        }
    }
    let uncaught = searches.iter().filter(|search| search.caught.is_none());
    let uncaught = uncaught.count();
    eprintln!(
        "{} of {} mutations caught",
        searches.len() - uncaught,
        searches.len()
    );
    ExitCode::from(u8::from(uncaught > 0))
}

#[expect(
    clippy::print_stdout,
    reason = "the figure is the last line of a proof"
)]
fn prove(arguments: &Arguments, wanted: &[Mutation]) -> ExitCode {
    let (seeds, jobs) = (arguments.seeds(), arguments.jobs);
    let searches = search_all(wanted, &seeds, jobs, |search| eprintln!("{}", line(search)));
    let mut findings = Findings {
        searches,
        seeds: seeds.clone(),
        failing_without_mutation: Vec::new(),
        are_all: wanted == Mutation::ALL,
    };
    if !arguments.skip_clean {
        // All searches began at the same seed, so the longest one has run every world of the others.
        let tried = seeds.start..seeds.start.saturating_add(findings.seeds_max());
        findings.failing_without_mutation = failing_without_mutation(tried, jobs);
    }
    for world in &findings.failing_without_mutation {
        eprintln!(
            "seed {} without a mutation: {:?}",
            world.seed, world.violations
        );
    }
    for promise in findings.idle_checkers() {
        eprintln!("caught nothing here: {promise}");
    }
    if let Some(path) = &arguments.json {
        let text = format!("{:#}\n", findings.json());
        if let Err(error) = std::fs::write(path, text) {
            eprintln!(
                "the report could not be written to {}: {error}",
                path.display()
            );
            return ExitCode::FAILURE;
        }
    }
    let holds = findings.holds();
    let verdict = if holds { "HOLDS" } else { "FAILS" };
    println!("{verdict} 05-2-mutations: {}", findings.figure());
    if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
