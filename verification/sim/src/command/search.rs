//! Runs many seeds on several threads: the recorded ones first, then new ones, by number or by time.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::progress::{self, ProgressLine};
use super::regressions::Regression;
use super::report;
use crate::store::LossFigures;
use crate::world::{FEATURES, FeatureSet, Healing, Options, run};

/// How many results wait to be counted at most.
const RESULTS_MAX: usize = 64;
/// How often the progress line is updated while no result comes.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The amount of new seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// This number of seeds.
    Seeds(u64),
    /// As many seeds as fit into this time.
    For(Duration),
}

/// The parameters of a search.
pub struct Search {
    /// The amount of new seeds.
    pub amount: Amount,
    /// The first new one.
    pub from: u64,
    /// Those that run first.
    pub recorded: Vec<Regression>,
    /// The options of each new seed.
    pub options: Box<dyn Fn(u64) -> Options + Sync>,
    /// How many threads.
    pub jobs: usize,
    /// Continues after a seed that fails.
    pub keep_going: bool,
}

/// The result of a search.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// How many seeds were run.
    pub seeds: u64,
    /// Those that failed.
    pub failed: Vec<u64>,
    /// The number of events in all of them.
    pub events: u64,
    /// The duration of all of them, in simulated time.
    pub simulated: Duration,
    /// The longest time that a healed world took to finish, in simulated time.
    pub healing_max: Duration,
    /// The largest share of its bound that a healed world took.
    pub healing_share_max: f64,
    /// In how many worlds each fault and workload happened.
    pub fired: BTreeMap<&'static str, u64>,
    /// How lanes dealt with losses.
    pub losses: LossFigures,
    /// The CPU time of this process.
    pub cpu: Duration,
    /// The wall time.
    pub wall: Duration,
}

/// The result of one seed.
struct SeedResult {
    seed: u64,
    options: Options,
    violations: Vec<String>,
    events: u64,
    duration: Duration,
    healing: Healing,
    fired: FeatureSet,
    losses: LossFigures,
}

impl Search {
    /// Runs the seeds, shows the progress, and explains failures.
    #[must_use]
    pub fn run(&self) -> Tally {
        let (began, cpu_before) = (Instant::now(), progress::cpu().unwrap_or_default());
        let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let (results, recorded) = sync_channel(RESULTS_MAX);
        std::thread::scope(|threads| {
            for _ in 0..self.jobs.max(1) {
                let (results, next, stop) = (results.clone(), &next, &stop);
                threads.spawn(move || self.run_worker(next, stop, began, &results));
            }
            drop(results);
            let mut tally = self.count(&recorded, &stop, began, cpu_before);
            tally.wall = began.elapsed();
            tally
        })
    }

    /// One thread: takes the next seed until there is none.
    fn run_worker(
        &self,
        next: &AtomicU64,
        stop: &AtomicBool,
        began: Instant,
        results: &SyncSender<SeedResult>,
    ) {
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((seed, options)) = self.seed_at(index, began) else {
                return;
            };
            if results.send(run_one(seed, options)).is_err() {
                return; // the counter has stopped
            }
        }
    }

    fn seed_at(&self, index: u64, began: Instant) -> Option<(u64, Options)> {
        let recorded = u64::try_from(self.recorded.len()).unwrap_or(u64::MAX);
        if let Some(old) = usize::try_from(index)
            .ok()
            .and_then(|at| self.recorded.get(at))
        {
            return Some((old.seed, old.options));
        }
        let number = index - recorded;
        let is_over = match self.amount {
            Amount::Seeds(count) => number >= count,
            Amount::For(time) => began.elapsed() >= time,
        };
        let seed = self.from.wrapping_add(number);
        (!is_over).then(|| (seed, (self.options)(seed)))
    }

    fn count(
        &self,
        recorded: &Receiver<SeedResult>,
        stop: &AtomicBool,
        began: Instant,
        cpu_before: Duration,
    ) -> Tally {
        let mut tally = Tally::default();
        let extra = u64::try_from(self.recorded.len()).unwrap_or(u64::MAX);
        let mut progress = ProgressLine::new(self.amount, extra);
        loop {
            let ran = match recorded.recv_timeout(POLL_INTERVAL) {
                Ok(ran) => Some(ran),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            tally.wall = began.elapsed();
            let cpu = progress::cpu().map(|now| now.saturating_sub(cpu_before));
            tally.cpu = cpu.unwrap_or(tally.wall);
            if let Some(ran) = ran {
                tally.add(&ran);
                // After the first failure only running seeds are counted, unless the search continues.
                if !ran.violations.is_empty() && !stop.load(Ordering::Relaxed) {
                    stop.store(!self.keep_going, Ordering::Relaxed);
                    progress.clear();
                    report::explain_failure(ran.seed, ran.options);
                }
            }
            progress.show(&tally);
        }
        progress.clear();
        tally
    }
}

impl Tally {
    fn add(&mut self, ran: &SeedResult) {
        self.seeds += 1;
        self.events += ran.events;
        self.simulated += ran.duration;
        self.losses.restores += ran.losses.restores;
        self.losses.unrecorded += ran.losses.unrecorded;
        self.losses.held += ran.losses.held;
        if let Some(duration) = ran.healing.duration {
            let bound = ran.healing.bound.as_secs_f64();
            self.healing_max = self.healing_max.max(duration);
            self.healing_share_max = self.healing_share_max.max(duration.as_secs_f64() / bound);
        }
        for (feature, name) in FEATURES {
            *self.fired.entry(name).or_default() += u64::from(ran.fired.contains(feature));
        }
        if !ran.violations.is_empty() {
            self.failed.push(ran.seed);
        }
    }
}

/// A simulator that panics has failed too.
fn run_one(seed: u64, options: Options) -> SeedResult {
    let silent = Options {
        silent: true,
        ..options
    };
    let ran = catch_unwind(AssertUnwindSafe(|| run(seed, silent)));
    match ran {
        Ok(outcome) => SeedResult {
            seed,
            options,
            violations: outcome.violations,
            events: outcome.events,
            duration: outcome.duration,
            healing: outcome.healing,
            fired: outcome.fired,
            losses: outcome.losses,
        },
        Err(_) => SeedResult {
            seed,
            options,
            violations: vec!["no panic: the simulator".to_owned()],
            events: 0,
            duration: Duration::ZERO,
            healing: Healing::default(),
            fired: FeatureSet::default(),
            losses: LossFigures::default(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_find_the_same_failures_as_one() {
        let search = |jobs| Search {
            amount: Amount::Seeds(4),
            from: 7,
            recorded: vec![Regression {
                seed: 80,
                options: Options::default(),
            }],
            options: Box::new(Options::mixed),
            jobs,
            keep_going: true,
        };
        let (one, two) = (search(1).run(), search(2).run());
        assert_eq!((one.seeds, &one.failed), (5, &two.failed));
        assert_eq!((one.events, one.simulated), (two.events, two.simulated));
        assert_eq!(one.fired, two.fired);
        assert!(one.fired["crashes"] > 0);
    }
}
