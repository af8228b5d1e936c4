//! Makes a failing world smaller: leaves out one part after another, then requests, strikes, nodes and
//! lanes, as long as the same promise is broken.

use std::time::{Duration, Instant};

use super::promise;
use crate::world::{Changes, Options, PARTS, Plan, plan, run};

/// How many worlds are tried at most.
pub(super) const RERUNS_MAX: u32 = 120;
/// And for how long.
const TIME_MAX: Duration = Duration::from_secs(60);

/// The numbers that are tried, smallest first.
const FEW: [u64; 12] = [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144];

/// The smallest failing world that was found.
#[derive(Clone, Copy, Debug)]
pub struct Shrunk {
    /// How to make it.
    pub options: Options,
    /// How many worlds were tried.
    pub reruns: u32,
}

/// Makes the world of a seed smaller that breaks `broken`.
#[must_use]
pub fn shrink(seed: u64, options: Options, broken: &str) -> Shrunk {
    let mut search = Smaller {
        seed,
        broken,
        options,
        seen: look(seed, options).1,
        reruns: 0,
        until: Instant::now() + TIME_MAX,
    };
    search.parts();
    search.numbers(&plan(seed, options));
    // What mattered in a large world may not in a small one.
    search.parts();
    Shrunk {
        options: search.options,
        reruns: search.reruns,
    }
}

struct Smaller<'a> {
    seed: u64,
    broken: &'a str,
    /// The smallest so far.
    options: Options,
    /// What happens in it: a change that changes nothing is not worth a word.
    seen: Seen,
    reruns: u32,
    until: Instant,
}

impl Smaller<'_> {
    fn parts(&mut self) {
        for (part, _) in PARTS {
            let changes = self.options.changes;
            if !changes.without.has(part) {
                self.attempt(Changes {
                    without: changes.without.with(part),
                    ..changes
                });
            }
        }
    }

    fn numbers(&mut self, plan: &Plan) {
        let count = |length: usize| u64::try_from(length).unwrap_or(u64::MAX);
        let small = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        self.number(u64::MAX, |changes, number| changes.strikes = Some(number));
        self.number(plan.workload.requests, |changes, number| {
            changes.requests = Some(number.max(1));
        });
        self.number(count(plan.nodes.len()), |changes, number| {
            changes.nodes = Some(small(number.max(1)));
        });
        self.number(count(plan.signers.len()), |changes, number| {
            changes.lanes = Some(small(number.max(1)));
        });
    }

    /// The smallest of a few numbers below `most` with which it still fails.
    fn number(&mut self, most: u64, set: impl Fn(&mut Changes, u64)) {
        for number in FEW.into_iter().take_while(|number| *number < most) {
            let mut changes = self.options.changes;
            set(&mut changes, number);
            if self.attempt(changes) {
                return;
            }
        }
    }

    /// Keeps these changes when the same promise is broken with them.
    fn attempt(&mut self, changes: Changes) -> bool {
        if self.reruns >= RERUNS_MAX || Instant::now() >= self.until {
            return false;
        }
        self.reruns += 1;
        let smaller = self.options.with(changes);
        let (violations, seen) = look(self.seed, smaller);
        let fails = violations.iter().any(|found| promise(found) == self.broken);
        if fails && seen != self.seen {
            self.options = smaller;
            self.seen = seen;
        }
        fails
    }
}

/// How much happens in a world, and for how long.
type Seen = (u64, Duration);

fn look(seed: u64, options: Options) -> (Vec<String>, Seen) {
    let silent = Options {
        silent: true,
        ..options
    };
    let outcome = run(seed, silent);
    (outcome.violations, (outcome.events, outcome.lasted))
}
