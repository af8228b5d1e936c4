//! The proof that the checkers see: worlds with one deliberate bug each, until a promise is broken, and the
//! same worlds without it, in which none is.

mod recorded;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use domain::mutation::{self, Mutation};

use crate::checkers;
use crate::command::promise;
use crate::world::{Options, Outcome, run};

pub use recorded::{Recorded, hunt_recorded, record, recorded};
pub use report::{Findings, line};

/// The search for the first world in which a mutation is caught.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// The bug.
    pub mutation: Mutation,
    /// How many worlds it took, or how many were tried in vain.
    pub seeds: u64,
    /// How long it took.
    pub took: Duration,
    /// The world in which it was caught.
    pub caught: Option<Caught>,
}

/// A world in which a mutation broke a promise.
#[derive(Clone, Debug)]
pub struct Caught {
    /// Its seed.
    pub seed: u64,
    /// Its kind.
    pub options: Options,
    /// What is wrong there, the first first.
    pub violations: Vec<String>,
    /// How much happens there.
    pub events: u64,
}

impl Caught {
    /// The world, if it breaks a promise.
    fn of(outcome: Outcome, options: Options) -> Option<Self> {
        (!outcome.violations.is_empty()).then_some(Self {
            seed: outcome.seed,
            options,
            violations: outcome.violations,
            events: outcome.events,
        })
    }

    /// The promises that were broken, the first first.
    #[must_use]
    pub fn promises(&self) -> Vec<&str> {
        let mut seen = BTreeSet::new();
        let promises = self.violations.iter().map(|violation| promise(violation));
        promises.filter(|promise| seen.insert(*promise)).collect()
    }
}

/// The world of a seed in this proof: of all kinds, in the mix of every search.
#[must_use]
pub fn options(seed: u64) -> Options {
    Options {
        silent: true,
        ..Options::mixed(seed)
    }
}

/// Looks for the first of these worlds in which the bug breaks a promise.
#[must_use]
pub fn hunt(mutation: Mutation, seeds: Range<u64>) -> Hunt {
    hunt_in(mutation, seeds.map(|seed| (seed, options(seed))))
}

/// The same, in worlds of any kind.
fn hunt_in(mutation: Mutation, worlds: impl Iterator<Item = (u64, Options)>) -> Hunt {
    let began = Instant::now();
    let mut tried = 0;
    let mut caught = None;
    for (seed, options) in worlds {
        tried += 1;
        caught = try_world(mutation, seed, options);
        if caught.is_some() {
            break;
        }
    }
    Hunt {
        mutation,
        seeds: tried,
        took: began.elapsed(),
        caught,
    }
}

/// Whether the bug breaks a promise there. A world that is broken without the bug says nothing about it.
fn try_world(mutation: Mutation, seed: u64, options: Options) -> Option<Caught> {
    let outcome = mutation::with(mutation, || run(seed, options));
    let caught = Caught::of(outcome, options)?;
    let without = run(seed, options);
    without.violations.is_empty().then_some(caught)
}

/// Hunts for several mutations, `jobs` at a time; `done` hears of each as it ends. In the order asked.
///
/// # Panics
/// When a hunt does, which is a bug of the simulator.
pub fn hunt_all(
    mutations: &[Mutation],
    seeds: &Range<u64>,
    jobs: usize,
    done: impl Fn(&Hunt) + Sync,
) -> Vec<Hunt> {
    each(mutations, jobs, |mutation| {
        let hunt = hunt(*mutation, seeds.clone());
        done(&hunt);
        hunt
    })
}

/// Which of these worlds break a promise without any bug made on purpose, and which promise.
pub fn unclean(seeds: Range<u64>, jobs: usize) -> Vec<Caught> {
    let seeds: Vec<u64> = seeds.collect();
    let ran = each(&seeds, jobs, |seed| {
        let options = options(*seed);
        Caught::of(run(*seed, options), options)
    });
    ran.into_iter().flatten().collect()
}

/// Checkers that need not catch a mutation, by the promise that they watch, and why. A checker that catches
/// nothing and is not named here is removed or fixed.
const MAY_CATCH_NOTHING: &[(&str, &str)] = &[(
    "no means no",
    "only ResolveUnknownByRead breaks it, and the first world that shows that one breaks another promise; its \
     recorded world breaks this one",
)];

/// The checkers that caught none of these mutations though they should, by the promise that they watch.
#[must_use]
pub fn blind(hunts: &[Hunt]) -> Vec<&'static str> {
    let caught = hunts.iter().filter_map(|hunt| hunt.caught.as_ref());
    let seen: BTreeSet<&str> = caught.flat_map(Caught::promises).collect();
    let watched = checkers::promises();
    watched
        .into_iter()
        .filter(|promise| !seen.contains(promise) && !may_catch_nothing(promise))
        .collect()
}

fn may_catch_nothing(promise: &str) -> bool {
    let mut named = MAY_CATCH_NOTHING.iter();
    named.any(|(excused, _why)| *excused == promise)
}

/// Does something with each item on a few threads, a world on one thread from its beginning to its end.
fn each<T: Sync, R: Send>(items: &[T], jobs: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Mutex<BTreeMap<usize, R>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some((at, item)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    items.get(at).map(|item| (at, item))
                } {
                    let result = work(item);
                    let mut results = results.lock().expect("nothing panics while it holds this");
                    results.insert(at, result);
                }
            });
        }
    });
    let results = results
        .into_inner()
        .expect("nothing panics while it holds this");
    results.into_values().collect()
}
