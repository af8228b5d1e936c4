//! Shrinks a failing world: disables one feature after another, then reduces requests, faults, nodes and
//! lanes, as long as the same promise is broken.

use std::time::{Duration, Instant};

use super::promise;
use crate::world::{Changes, FEATURES, Options, Plan, plan, run};

/// How many worlds are tried at most.
pub(super) const RERUNS_MAX: u32 = 120;
/// And for how long.
const TIME_MAX: Duration = Duration::from_secs(60);

/// The numbers that are tried, smallest first.
const SIZES: [u64; 12] = [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144];

/// The smallest failing world that was found.
#[derive(Clone, Copy, Debug)]
pub struct ShrunkWorld {
    /// Its options.
    pub options: Options,
    /// How many worlds were tried.
    pub reruns: u32,
}

/// Shrinks the world of a seed that breaks `broken`.
#[must_use]
pub fn shrink(seed: u64, options: Options, broken: &str) -> ShrunkWorld {
    let mut search = Shrinker {
        seed,
        broken,
        options,
        seen: run_world(seed, options).1,
        reruns: 0,
        until: Instant::now() + TIME_MAX,
    };
    search.parts();
    search.numbers(&plan(seed, options));
    // A feature that matters in a large world may not matter in a small one.
    search.parts();
    ShrunkWorld {
        options: search.options,
        reruns: search.reruns,
    }
}

struct Shrinker<'a> {
    seed: u64,
    broken: &'a str,
    /// The smallest world so far.
    options: Options,
    /// Its size: a change without any effect is not kept.
    seen: RunSize,
    reruns: u32,
    until: Instant,
}

impl Shrinker<'_> {
    fn parts(&mut self) {
        for (feature, _) in FEATURES {
            let changes = self.options.changes;
            if !changes.without.contains(feature) {
                self.attempt(Changes {
                    without: changes.without.with(feature),
                    ..changes
                });
            }
        }
    }

    fn numbers(&mut self, plan: &Plan) {
        let count = |length: usize| u64::try_from(length).unwrap_or(u64::MAX);
        let small = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        self.number(u64::MAX, |changes, number| changes.faults = Some(number));
        self.number(plan.request_plan.requests, |changes, number| {
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
        for number in SIZES.into_iter().take_while(|number| *number < most) {
            let mut changes = self.options.changes;
            set(&mut changes, number);
            if self.attempt(changes) {
                return;
            }
        }
    }

    /// Keeps these changes if they break the same promise.
    fn attempt(&mut self, changes: Changes) -> bool {
        if self.reruns >= RERUNS_MAX || Instant::now() >= self.until {
            return false;
        }
        self.reruns += 1;
        let shrinker = self.options.with(changes);
        let (violations, seen) = run_world(self.seed, shrinker);
        let fails = violations.iter().any(|found| promise(found) == self.broken);
        if fails && seen != self.seen {
            self.options = shrinker;
            self.seen = seen;
        }
        fails
    }
}

/// The number of events, and the simulated duration.
type RunSize = (u64, Duration);

fn run_world(seed: u64, options: Options) -> (Vec<String>, RunSize) {
    let silent = Options {
        silent: true,
        ..options
    };
    let outcome = run(seed, silent);
    (outcome.violations, (outcome.events, outcome.duration))
}
