//! The proof that the checkers see: worlds with one deliberate bug each, until a promise is broken, and the
//! same worlds without it, in which none is.

mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use domain::mutation::{self, Mutation};

use crate::checkers;
use crate::world::{Options, run};

pub use report::{json, line};

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
    /// What is wrong there, the first first.
    pub violations: Vec<String>,
}

impl Caught {
    /// The promises that were broken, the first first.
    #[must_use]
    pub fn promises(&self) -> Vec<&str> {
        let mut seen = BTreeSet::new();
        let promises = self.violations.iter().map(|violation| promise(violation));
        promises.filter(|promise| seen.insert(*promise)).collect()
    }
}

/// A violation begins with the promise that it breaks.
fn promise(violation: &str) -> &str {
    violation.split(": ").next().unwrap_or(violation)
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
    let began = Instant::now();
    let mut tried = 0;
    let mut caught = None;
    for seed in seeds {
        tried += 1;
        let outcome = mutation::with(mutation, || run(seed, options(seed)));
        // A world that is broken without the bug says nothing about it.
        if !outcome.violations.is_empty() && run(seed, options(seed)).violations.is_empty() {
            let violations = outcome.violations;
            caught = Some(Caught { seed, violations });
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
    let ran = each(&seeds, jobs, |seed| run(*seed, options(*seed)));
    let broken = ran.into_iter().filter(|ran| !ran.violations.is_empty());
    broken
        .map(|ran| Caught {
            seed: ran.seed,
            violations: ran.violations,
        })
        .collect()
}

/// The checkers that caught none of these mutations, by the promise that they watch.
#[must_use]
pub fn blind(hunts: &[Hunt]) -> Vec<&'static str> {
    let caught = hunts.iter().filter_map(|hunt| hunt.caught.as_ref());
    let seen: BTreeSet<&str> = caught.flat_map(Caught::promises).collect();
    let watched = checkers::promises();
    watched
        .into_iter()
        .filter(|promise| !seen.contains(promise))
        .collect()
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
