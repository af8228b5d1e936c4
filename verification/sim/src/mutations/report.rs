//! What a whole proof found, as lines for people and as JSON.

use std::ops::Range;

use serde_json::{Value, json};

use super::{Caught, Hunt, blind};

/// All hunts of a proof, and the same worlds without a bug.
pub struct Findings {
    /// One per mutation.
    pub hunts: Vec<Hunt>,
    /// The worlds that were there to be tried.
    pub seeds: Range<u64>,
    /// Those of the tried ones that break a promise without a mutation.
    pub unclean: Vec<Caught>,
    /// Whether every mutation was hunted: only then a checker that caught nothing is blind.
    pub are_all: bool,
}

impl Findings {
    /// Whether every mutation was caught, by checkers of which each caught something, in worlds that are clean
    /// without it.
    #[must_use]
    pub fn hold(&self) -> bool {
        self.caught() == self.hunts.len() && self.unclean.is_empty() && self.blind().is_empty()
    }

    /// The promises whose checkers caught nothing, though they should.
    #[must_use]
    pub fn blind(&self) -> Vec<&'static str> {
        if self.are_all {
            blind(&self.hunts)
        } else {
            Vec::new()
        }
    }

    /// The most worlds that a hunt took.
    #[must_use]
    pub fn most(&self) -> u64 {
        let counts = self.hunts.iter().map(|hunt| hunt.seeds);
        counts.max().unwrap_or(0)
    }

    fn caught(&self) -> usize {
        let caught = self.hunts.iter().filter(|hunt| hunt.caught.is_some());
        caught.count()
    }

    /// All of it in one line.
    #[must_use]
    pub fn figure(&self) -> String {
        let mut counts: Vec<u64> = self.hunts.iter().map(|hunt| hunt.seeds).collect();
        counts.sort_unstable();
        let median = counts.get(counts.len() / 2).copied().unwrap_or(0);
        let blind = match self.are_all {
            true => format!("{} checkers caught nothing; ", self.blind().len()),
            false => String::new(),
        };
        format!(
            "{} of {} mutations caught, after {median} worlds in the median and {} at most; {blind}\
             {} of these worlds break a promise without one",
            self.caught(),
            self.hunts.len(),
            self.most(),
            self.unclean.len()
        )
    }

    /// All of it for a program.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "proof": "05-2-mutations",
            "holds": self.hold(),
            "figure": self.figure(),
            "mutations": self.hunts.len(),
            "caught": self.caught(),
            "firstSeed": self.seeds.start,
            "seedsMax": self.seeds.end.saturating_sub(self.seeds.start),
            "hunts": self.hunts.iter().map(of_hunt).collect::<Vec<_>>(),
            "uncleanWithoutMutation": self.unclean.iter().map(of_world).collect::<Vec<_>>(),
            "checkersThatCaughtNothing": self.blind(),
        })
    }
}

/// One line of the table.
#[must_use]
pub fn line(hunt: &Hunt) -> String {
    let name = hunt.mutation.name();
    let (by, seed) = match &hunt.caught {
        Some(caught) => (caught.promises().join("; "), caught.seed.to_string()),
        None => ("NOT CAUGHT".to_owned(), "-".to_owned()),
    };
    let (seeds, took) = (hunt.seeds, hunt.took.as_secs_f64());
    format!("{name:<27}{seeds:>5} seeds {took:>7.1} s  seed {seed:>8}  {by}")
}

fn of_hunt(hunt: &Hunt) -> Value {
    json!({
        "mutation": hunt.mutation.name(),
        "what": hunt.mutation.what(),
        "seeds": hunt.seeds,
        "seconds": hunt.took.as_secs_f64(),
        "caught": hunt.caught.as_ref().map(of_world),
    })
}

fn of_world(world: &Caught) -> Value {
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

    use domain::mutation::Mutation;

    use super::super::options;
    use super::*;
    use crate::checkers;

    /// A hunt that caught its mutation in its first world, by these promises.
    fn caught_by(promises: &[&str]) -> Hunt {
        let violations = promises.iter().map(|promise| format!("{promise}: broken"));
        Hunt {
            mutation: Mutation::DropGap,
            seeds: 1,
            took: Duration::ZERO,
            caught: Some(Caught {
                seed: 1,
                options: options(1),
                violations: violations.collect(),
                events: 1,
            }),
        }
    }

    fn findings(hunts: Vec<Hunt>, are_all: bool) -> Findings {
        Findings {
            hunts,
            seeds: 1..2,
            unclean: Vec::new(),
            are_all,
        }
    }

    #[test]
    fn a_checker_that_caught_nothing_fails_the_proof() {
        let promises = checkers::promises();
        assert!(findings(vec![caught_by(&promises)], true).hold());
        let but_one = &promises[1..];
        let blind = findings(vec![caught_by(but_one)], true);
        assert_eq!(blind.blind(), [promises[0]]);
        assert!(!blind.hold());
        let some = findings(vec![caught_by(but_one)], false);
        assert!(some.hold(), "a few mutations say nothing of the others");
    }
}
