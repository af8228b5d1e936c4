//! The record of a run: one line per event, a hash over all lines, and the checkers that inspect each
//! event as it happens.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::checkers::Checker;
use crate::event::WorldEvent;
use crate::world::{Feature, FeatureSet};

/// The trace of one world. Clones are the same trace.
#[derive(Clone)]
pub struct Trace {
    log: Arc<Mutex<TraceLog>>,
}

struct TraceLog {
    began: Instant,
    lines: Vec<String>,
    hash: u64,
    events: u64,
    /// Prints each line as it is recorded.
    echo: bool,
    /// Writes no lines at all.
    silent: bool,
    checkers: Vec<Box<dyn Checker>>,
    violations: Vec<String>,
    /// The faults and workloads that have happened.
    fired: FeatureSet,
}

/// A run with more violations is broken anyway; the rest adds no information.
const VIOLATIONS_MAX: usize = 20;

impl Trace {
    /// An empty trace, whose times count from now.
    #[must_use]
    pub fn new(checkers: Vec<Box<dyn Checker>>) -> Self {
        let log = TraceLog {
            began: Instant::now(),
            lines: Vec::new(),
            hash: FNV_OFFSET,
            events: 0,
            echo: false,
            silent: false,
            checkers,
            violations: Vec::new(),
            fired: FeatureSet::default(),
        };
        Self {
            log: Arc::new(Mutex::new(log)),
        }
    }

    /// Also prints every line to standard error as it is recorded.
    #[must_use]
    pub fn with_echo(self) -> Self {
        self.lock().echo = true;
        self
    }

    /// Records no lines; checkers still inspect every event.
    #[must_use]
    pub fn without_lines(self) -> Self {
        self.lock().silent = true;
        self
    }

    /// Records an event, and passes it to every checker.
    pub fn record(&self, event: WorldEvent) {
        let mut log = self.lock();
        log.events += 1;
        if !log.silent {
            log.write(&event.to_string());
        }
        log.check(&event);
    }

    /// Passes an event to every checker without recording it.
    pub fn check_only(&self, event: &WorldEvent) {
        self.lock().check(event);
    }

    /// Records a line of text for the reader of the trace.
    pub fn note(&self, text: &str) {
        let mut log = self.lock();
        if !log.silent {
            log.write(text);
        }
    }

    /// Records that a fault or a workload has happened: a world that only plans it shows nothing.
    pub fn fire(&self, feature: Feature) {
        let mut log = self.lock();
        log.fired = log.fired.with(feature);
    }

    /// The faults and workloads that have happened.
    #[must_use]
    pub fn fired(&self) -> FeatureSet {
        self.lock().fired
    }

    /// Records a violation that the world itself found: "promise: what broke it".
    pub fn violation(&self, what: &str) {
        self.lock().record_violation(what);
    }

    /// The violations so far.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// A digest of all lines: the same for the same seed.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.lock().hash
    }

    /// The number of events.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.lock().events
    }

    /// The duration of the run, in simulated time.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.lock().began.elapsed()
    }

    /// The lines, with their timestamps.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.lock().lines.clone()
    }

    fn lock(&self) -> MutexGuard<'_, TraceLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TraceLog {
    fn write(&mut self, text: &str) {
        let at = self.began.elapsed();
        let line = format!("{:>5}.{:03} {text}", at.as_secs(), at.subsec_millis());
        self.hash = fnv(self.hash, line.as_bytes());
        if self.echo {
            eprintln!("{line}");
        }
        self.lines.push(line);
    }

    fn check(&mut self, event: &WorldEvent) {
        let mut checkers = std::mem::take(&mut self.checkers);
        for checker in &mut checkers {
            if let Err(violation) = checker.after(event) {
                self.record_violation(&format!("{}: {violation}", checker.name()));
            }
        }
        self.checkers = checkers;
    }

    fn record_violation(&mut self, what: &str) {
        self.write(&format!("VIOLATION {what}"));
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(what.to_owned());
        }
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a: stable across versions, unlike the hashers of the standard library.
fn fnv(seed: u64, bytes: &[u8]) -> u64 {
    let mixed = bytes.iter().fold(seed, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME)
    });
    // The end of a line, so that two lines do not hash like one longer line.
    (mixed ^ 0x0a).wrapping_mul(FNV_PRIME)
}
