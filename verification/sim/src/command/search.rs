//! Runs many seeds on several threads: the recorded ones first, then new ones, by number or by time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::pace::{self, Pace};
use super::regressions::Regression;
use super::report;
use crate::world::{Healing, Options, run};

/// How many results wait to be counted at most.
const RESULTS_MAX: usize = 64;
/// How often the line is looked after when no result comes.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// How many new seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many.
    Seeds(u64),
    /// As many as go into this time.
    For(Duration),
}

/// What to search.
pub struct Search {
    /// How many new seeds.
    pub amount: Amount,
    /// The first new one.
    pub from: u64,
    /// Those that come first.
    pub recorded: Vec<Regression>,
    /// The world of each new seed.
    pub options: Box<dyn Fn(u64) -> Options + Sync>,
    /// How many threads.
    pub jobs: usize,
    /// Goes on after a seed that fails.
    pub keep_going: bool,
}

/// What came of a search.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// How many seeds were run.
    pub seeds: u64,
    /// Those that failed.
    pub failed: Vec<u64>,
    /// How much happened in all of them.
    pub events: u64,
    /// For how long, in simulated time.
    pub simulated: Duration,
    /// The longest that a healed world needed, in simulated time.
    pub healing_max: Duration,
    /// The largest share of its bound that one needed.
    pub healing_share_max: f64,
    /// What it cost, in CPU time of this process.
    pub cpu: Duration,
    /// How long it took.
    pub wall: Duration,
}

/// One seed that was run.
struct Ran {
    seed: u64,
    options: Options,
    violations: Vec<String>,
    events: u64,
    lasted: Duration,
    healing: Healing,
}

impl Search {
    /// Runs them, shows how far it is, and explains what fails.
    #[must_use]
    pub fn run(&self) -> Tally {
        let (began, cpu_before) = (Instant::now(), pace::cpu().unwrap_or_default());
        let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let (tell, told) = sync_channel(RESULTS_MAX);
        std::thread::scope(|threads| {
            for _ in 0..self.jobs.max(1) {
                let (tell, next, stop) = (tell.clone(), &next, &stop);
                threads.spawn(move || self.work(next, stop, began, &tell));
            }
            drop(tell);
            let mut tally = self.count(&told, &stop, began, cpu_before);
            tally.wall = began.elapsed();
            tally
        })
    }

    /// One thread: takes the next seed until there is none.
    fn work(&self, next: &AtomicU64, stop: &AtomicBool, began: Instant, tell: &SyncSender<Ran>) {
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((seed, options)) = self.nth(index, began) else {
                return;
            };
            if tell.send(run_one(seed, options)).is_err() {
                return; // nobody counts any more
            }
        }
    }

    fn nth(&self, index: u64, began: Instant) -> Option<(u64, Options)> {
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
        told: &Receiver<Ran>,
        stop: &AtomicBool,
        began: Instant,
        cpu_before: Duration,
    ) -> Tally {
        let mut tally = Tally::default();
        let extra = u64::try_from(self.recorded.len()).unwrap_or(u64::MAX);
        let mut pace = Pace::new(self.amount, extra);
        loop {
            let ran = match told.recv_timeout(LOOK_INTERVAL) {
                Ok(ran) => Some(ran),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            tally.wall = began.elapsed();
            let cpu = pace::cpu().map(|now| now.saturating_sub(cpu_before));
            tally.cpu = cpu.unwrap_or(tally.wall);
            if let Some(ran) = ran {
                tally.add(&ran);
                // After the first failure only what is under way is counted, unless asked otherwise.
                if !ran.violations.is_empty() && !stop.load(Ordering::Relaxed) {
                    stop.store(!self.keep_going, Ordering::Relaxed);
                    pace.clear();
                    report::failure(ran.seed, ran.options);
                }
            }
            pace.show(&tally);
        }
        pace.clear();
        tally
    }
}

impl Tally {
    fn add(&mut self, ran: &Ran) {
        self.seeds += 1;
        self.events += ran.events;
        self.simulated += ran.lasted;
        if let Some(took) = ran.healing.took {
            let bound = ran.healing.bound.as_secs_f64();
            self.healing_max = self.healing_max.max(took);
            self.healing_share_max = self.healing_share_max.max(took.as_secs_f64() / bound);
        }
        if !ran.violations.is_empty() {
            self.failed.push(ran.seed);
        }
    }
}

/// A simulator that panics has failed too.
fn run_one(seed: u64, options: Options) -> Ran {
    let silent = Options {
        silent: true,
        ..options
    };
    let ran = catch_unwind(AssertUnwindSafe(|| run(seed, silent)));
    match ran {
        Ok(outcome) => Ran {
            seed,
            options,
            violations: outcome.violations,
            events: outcome.events,
            lasted: outcome.lasted,
            healing: outcome.healing,
        },
        Err(_) => Ran {
            seed,
            options,
            violations: vec!["no panic: the simulator".to_owned()],
            events: 0,
            lasted: Duration::ZERO,
            healing: Healing::default(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_find_what_one_finds() {
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
    }
}
