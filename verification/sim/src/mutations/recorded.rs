//! The recorded world of each deliberate bug: one per mutation, in mutations/worlds.txt, so that a test can show all of
//! them in seconds.

use std::ops::Range;
use std::path::Path;

use crate::mutation::Mutation;

use super::{CatchingWorld, MutationSearch, options, run_parallel, search_worlds, try_world};
use crate::command::kind_of;
use crate::world::Options;

/// The table at build time.
const TABLE: &str = include_str!("../../mutations/worlds.txt");

const HEAD: &str = "\
# The world in which each deliberate bug (verification/sim/src/mutation.rs) is caught, and which promise it breaks there.
# Written by: scripts/mutants --record verification/sim/mutations/worlds.txt
";

/// How many more worlds are tried after the first one that catches a mutation: the one with the fewest events is kept.
const EXTRA_WORLDS: u64 = 10;

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedWorld {
    /// The bug.
    pub mutation: Mutation,
    /// The world in which it is caught.
    pub seed: u64,
    /// And its kind.
    pub options: Options,
}

/// The table.
#[must_use]
pub fn recorded() -> Vec<RecordedWorld> {
    TABLE.lines().filter_map(parse).collect()
}

/// `NAME SEED [--calm] … promise`. A comment begins with `#`.
fn parse(line: &str) -> Option<RecordedWorld> {
    let mut words = line.split_whitespace();
    let name = words.next()?;
    let mutation = Mutation::ALL.iter().find(|one| one.name() == name)?;
    let seed = words.next()?.parse().ok()?;
    let options = Options {
        silent: true,
        ..kind_of(words)
    };
    Some(RecordedWorld {
        mutation: *mutation,
        seed,
        options,
    })
}

/// Searches for every mutation, in its recorded world first. If the code has changed so much that it is not
/// caught there, the first worlds of all kinds are tried as in the proof.
pub fn search_recorded(seeds: &Range<u64>, jobs: usize) -> Vec<MutationSearch> {
    let table = recorded();
    run_parallel(Mutation::ALL, jobs, |mutation| {
        let known = table.iter().filter(|line| line.mutation == *mutation);
        let known = known.map(|line| (line.seed, line.options));
        let others = seeds.clone().map(|seed| (seed, options(seed)));
        search_worlds(*mutation, known.chain(others))
    })
}

/// Writes the table; returns the mutations that no world caught.
///
/// # Errors
/// When the file cannot be written.
pub fn record(
    file: &Path,
    mutations: &[Mutation],
    seeds: &Range<u64>,
    jobs: usize,
    done: impl Fn(Mutation, Option<&CatchingWorld>) + Sync,
) -> std::io::Result<Vec<Mutation>> {
    let found = run_parallel(mutations, jobs, |mutation| {
        let caught = smallest(*mutation, seeds.clone());
        done(*mutation, caught.as_ref());
        (*mutation, caught)
    });
    let before = std::fs::read_to_string(file).unwrap_or_default(); // the file may not exist yet
    let mut table = HEAD.to_owned();
    for mutation in Mutation::ALL {
        let new = found.iter().find(|(found, _)| found == mutation);
        let line = match new {
            Some((_, caught)) => caught.as_ref().map(|caught| line(*mutation, caught)),
            None => kept(&before, *mutation),
        };
        table.extend(line.map(|line| line + "\n"));
    }
    std::fs::write(file, table)?;
    let missed = found.into_iter().filter(|(_, caught)| caught.is_none());
    Ok(missed.map(|(mutation, _)| mutation).collect())
}

/// The line of a mutation that is not recorded again.
fn kept(before: &str, mutation: Mutation) -> Option<String> {
    let is_its = |line: &&str| parse(line).is_some_and(|line| line.mutation == mutation);
    before.lines().find(is_its).map(str::to_owned)
}

fn line(mutation: Mutation, caught: &CatchingWorld) -> String {
    let (name, seed, kind) = (mutation.name(), caught.seed, caught.options.kind());
    let promise = caught.promises().first().copied().unwrap_or_default();
    format!("{name:<32}{seed:>5} {kind}  {promise}")
}

/// Among the first worlds that catch it, the one with the fewest events.
fn smallest(mutation: Mutation, seeds: Range<u64>) -> Option<CatchingWorld> {
    let mut smallest: Option<CatchingWorld> = None;
    let mut left = None;
    for seed in seeds {
        if left == Some(0) {
            break;
        }
        left = left.map(|left| left - 1);
        let Some(caught) = try_world(mutation, seed, options(seed)) else {
            continue;
        };
        left = left.or(Some(EXTRA_WORLDS));
        if smallest
            .as_ref()
            .is_none_or(|before| caught.events < before.events)
        {
            smallest = Some(caught);
        }
    }
    smallest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_line_is_parsed() {
        assert_eq!(parse("# about this file"), None);
        assert_eq!(parse("NoSuchBug 7 --stormy"), None);
        let line = parse("LeaveGapUnfilled   26 --lossy --busy  every gap closes").expect("a line");
        assert_eq!((line.mutation, line.seed), (Mutation::LeaveGapUnfilled, 26));
        assert_eq!(line.options.kind(), "--lossy --busy");
    }

    #[test]
    fn every_mutation_has_one_line() {
        let names: Vec<Mutation> = recorded().iter().map(|line| line.mutation).collect();
        assert_eq!(names, Mutation::ALL);
    }
}
