//! The proof that the checkers work: worlds with one deliberate bug each, until a promise is broken, and the
//! same worlds without it, in which none is.

mod recorded;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::mutation::{self, Mutation};

use crate::checkers;
use crate::command::promise;
use crate::world::{Options, WorldOutcome, run};

pub use recorded::{RecordedWorld, record, recorded, search_recorded};
pub use report::{Findings, line};

/// The search for the first world in which a mutation is caught.
#[derive(Clone, Debug)]
pub struct MutationSearch {
    /// The bug.
    pub mutation: Mutation,
    /// How many worlds it took, or how many were tried without success.
    pub seeds: u64,
    /// How long it took.
    pub duration: Duration,
    /// The world in which it was caught.
    pub caught: Option<CatchingWorld>,
}

/// A world in which a mutation broke a promise.
#[derive(Clone, Debug)]
pub struct CatchingWorld {
    /// Its seed.
    pub seed: u64,
    /// Its kind.
    pub options: Options,
    /// The broken promises, in order.
    pub violations: Vec<String>,
    /// The number of events.
    pub events: u64,
}

impl CatchingWorld {
    /// The world, if it breaks a promise.
    fn from_outcome(outcome: WorldOutcome, options: Options) -> Option<Self> {
        (!outcome.violations.is_empty()).then_some(Self {
            seed: outcome.seed,
            options,
            violations: outcome.violations,
            events: outcome.events,
        })
    }

    /// The promises that were broken, in order.
    #[must_use]
    pub fn promises(&self) -> Vec<&str> {
        let mut seen = BTreeSet::new();
        let promises = self.violations.iter().map(|violation| promise(violation));
        promises.filter(|promise| seen.insert(*promise)).collect()
    }
}

/// The world of a seed in this proof: of all kinds, mixed as in every search.
#[must_use]
pub fn options(seed: u64) -> Options {
    Options {
        silent: true,
        ..Options::mixed(seed)
    }
}

/// Searches for the first of these worlds in which the bug breaks a promise.
#[must_use]
pub fn search_mutation(mutation: Mutation, seeds: Range<u64>) -> MutationSearch {
    search_worlds(mutation, seeds.map(|seed| (seed, options(seed))))
}

/// The same, in the given worlds.
fn search_worlds(
    mutation: Mutation,
    worlds: impl Iterator<Item = (u64, Options)>,
) -> MutationSearch {
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
    MutationSearch {
        mutation,
        seeds: tried,
        duration: began.elapsed(),
        caught,
    }
}

/// Whether the bug breaks a promise there. A world that is broken without the bug proves nothing.
fn try_world(mutation: Mutation, seed: u64, options: Options) -> Option<CatchingWorld> {
    let outcome = mutation::with(mutation, || run(seed, options));
    let caught = CatchingWorld::from_outcome(outcome, options)?;
    let without = run(seed, options);
    without.violations.is_empty().then_some(caught)
}

/// Searches for several mutations, `jobs` at a time; `done` is called with each as it ends. In the given order.
///
/// # Panics
/// When a search does, which is a bug of the simulator.
pub fn search_all(
    mutations: &[Mutation],
    seeds: &Range<u64>,
    jobs: usize,
    done: impl Fn(&MutationSearch) + Sync,
) -> Vec<MutationSearch> {
    run_parallel(mutations, jobs, |mutation| {
        let search = search_mutation(*mutation, seeds.clone());
        done(&search);
        search
    })
}

/// The worlds among these that break a promise without any mutation.
pub fn failing_without_mutation(seeds: Range<u64>, jobs: usize) -> Vec<CatchingWorld> {
    let seeds: Vec<u64> = seeds.collect();
    let ran = run_parallel(&seeds, jobs, |seed| {
        let options = options(*seed);
        CatchingWorld::from_outcome(run(*seed, options), options)
    });
    ran.into_iter().flatten().collect()
}

/// Checkers that need not catch a mutation, by their promise, and why. A checker that catches nothing and is
/// not listed here must be removed or fixed.
const MAY_CATCH_NOTHING: &[(&str, &str)] = &[
    (
        "a refused request is not stored",
        "only ResolveUnknownByRead breaks it, and the first world that shows that one breaks another promise; its \
         recorded world breaks this one",
    ),
    (
        "accepted within the balance",
        "ForgetCostOfWaitingTxs breaks it, and the sum in the lane row shows that one before a request is accepted by it",
    ),
    (
        "only heads are given up",
        "no mutation gives up another tx; its own test shows what it reports",
    ),
];

/// The checkers that caught none of these mutations although they should, by their promise.
#[must_use]
pub fn idle_checkers(searches: &[MutationSearch]) -> Vec<&'static str> {
    let caught = searches.iter().filter_map(|search| search.caught.as_ref());
    let seen: BTreeSet<&str> = caught.flat_map(CatchingWorld::promises).collect();
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

/// Processes each item on a few threads, a world on one thread from its beginning to its end.
fn run_parallel<T: Sync, R: Send>(
    items: &[T],
    jobs: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
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
