//! The findings of a whole proof, as lines for people and as JSON.

use std::ops::Range;

use serde_json::{Value, json};

use super::{CatchingWorld, MutationSearch, idle_checkers};

/// All searches of a proof, and the same worlds without a bug.
pub struct Findings {
    /// One per mutation.
    pub searches: Vec<MutationSearch>,
    /// The number of available worlds.
    pub seeds: Range<u64>,
    /// The tried worlds that break a promise without a mutation.
    pub failing_without_mutation: Vec<CatchingWorld>,
    /// Whether every mutation was searched: only then a checker that caught nothing is reported.
    pub are_all: bool,
}

impl Findings {
    /// Whether every mutation was caught, every checker caught something, and all worlds are clean without a
    /// mutation.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.caught() == self.searches.len()
            && self.failing_without_mutation.is_empty()
            && self.idle_checkers().is_empty()
    }

    /// The promises whose checkers caught nothing, although they should.
    #[must_use]
    pub fn idle_checkers(&self) -> Vec<&'static str> {
        if self.are_all {
            idle_checkers(&self.searches)
        } else {
            Vec::new()
        }
    }

    /// The most worlds that a search took.
    #[must_use]
    pub fn seeds_max(&self) -> u64 {
        let counts = self.searches.iter().map(|search| search.seeds);
        counts.max().unwrap_or(0)
    }

    fn caught(&self) -> usize {
        let caught = self
            .searches
            .iter()
            .filter(|search| search.caught.is_some());
        caught.count()
    }

    /// The summary in one line.
    #[must_use]
    pub fn figure(&self) -> String {
        let mut counts: Vec<u64> = self.searches.iter().map(|search| search.seeds).collect();
        counts.sort_unstable();
        let median = counts.get(counts.len() / 2).copied().unwrap_or(0);
        let idle_checkers = match self.are_all {
            true => format!("{} checkers caught nothing; ", self.idle_checkers().len()),
            false => String::new(),
        };
        format!(
            "{} of {} mutations caught, after {median} worlds in the median and {} at most; {idle_checkers}\
             {} of these worlds break a promise without one",
            self.caught(),
            self.searches.len(),
            self.seeds_max(),
            self.failing_without_mutation.len()
        )
    }

    /// The summary for programs.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "proof": "05-2-mutations",
            "holds": self.holds(),
            "figure": self.figure(),
            "mutations": self.searches.len(),
            "caught": self.caught(),
            "firstSeed": self.seeds.start,
            "seedsMax": self.seeds.end.saturating_sub(self.seeds.start),
            "searches": self.searches.iter().map(search_json).collect::<Vec<_>>(),
            "uncleanWithoutMutation": self.failing_without_mutation.iter().map(world_json).collect::<Vec<_>>(),
            "checkersThatCaughtNothing": self.idle_checkers(),
        })
    }
}

/// One line of the table.
#[must_use]
pub fn line(search: &MutationSearch) -> String {
    let name = search.mutation.name();
    let (by, seed) = match &search.caught {
        Some(caught) => (caught.promises().join("; "), caught.seed.to_string()),
        None => ("NOT CAUGHT".to_owned(), "-".to_owned()),
    };
    let (seeds, duration) = (search.seeds, search.duration.as_secs_f64());
    format!("{name:<32}{seeds:>5} seeds {duration:>7.1} s  seed {seed:>8}  {by}")
}

fn search_json(search: &MutationSearch) -> Value {
    json!({
        "mutation": search.mutation.name(),
        "what": search.mutation.what(),
        "seeds": search.seeds,
        "seconds": search.duration.as_secs_f64(),
        "caught": search.caught.as_ref().map(world_json),
    })
}

fn world_json(world: &CatchingWorld) -> Value {
    json!({
        "seed": world.seed,
        "kind": world.options.to_string(),
        "by": world.promises(),
        "first": world.violations.first(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::mutation::Mutation;

    use super::super::options;
    use super::*;
    use crate::checkers;

    /// A search that caught its mutation in its first world, by these promises.
    fn caught_by(promises: &[&str]) -> MutationSearch {
        let violations = promises.iter().map(|promise| format!("{promise}: broken"));
        MutationSearch {
            mutation: Mutation::LeaveGapUnfilled,
            seeds: 1,
            duration: Duration::ZERO,
            caught: Some(CatchingWorld {
                seed: 1,
                options: options(1),
                violations: violations.collect(),
                events: 1,
            }),
        }
    }

    fn findings(searches: Vec<MutationSearch>, are_all: bool) -> Findings {
        Findings {
            searches,
            seeds: 1..2,
            failing_without_mutation: Vec::new(),
            are_all,
        }
    }

    #[test]
    fn idle_checker_fails_the_proof() {
        let promises = checkers::promises();
        assert!(findings(vec![caught_by(&promises)], true).holds());
        let but_one = &promises[1..];
        let idle_checkers = findings(vec![caught_by(but_one)], true);
        assert_eq!(idle_checkers.idle_checkers(), [promises[0]]);
        assert!(!idle_checkers.holds());
        let some = findings(vec![caught_by(but_one)], false);
        assert!(
            some.holds(),
            "a few mutations prove nothing about the others"
        );
    }
}
