//! The record of a run: one line per event, a hash over all of them, and the checkers that look at
//! each event as it happens.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::checkers::Checker;
use crate::event::WorldEvent;

/// The trace of one world. Clones are the same trace.
#[derive(Clone)]
pub struct Trace {
    book: Arc<Mutex<Book>>,
}

struct Book {
    began: Instant,
    lines: Vec<String>,
    hash: u64,
    events: u64,
    /// Prints each line as it comes.
    echo: bool,
    /// Writes no lines at all.
    silent: bool,
    checkers: Vec<Box<dyn Checker>>,
    violations: Vec<String>,
}

/// More than this and a run has lost its way; the rest says nothing new.
const VIOLATIONS_MAX: usize = 20;

impl Trace {
    /// An empty trace, whose times count from now.
    #[must_use]
    pub fn new(checkers: Vec<Box<dyn Checker>>) -> Self {
        let book = Book {
            began: Instant::now(),
            lines: Vec::new(),
            hash: FNV_OFFSET,
            events: 0,
            echo: false,
            silent: false,
            checkers,
            violations: Vec::new(),
        };
        Self {
            book: Arc::new(Mutex::new(book)),
        }
    }

    /// Also prints every line to standard error as it comes.
    #[must_use]
    pub fn echoing(self) -> Self {
        self.lock().echo = true;
        self
    }

    /// Writes nothing down: checkers look at every event all the same.
    #[must_use]
    pub fn silently(self) -> Self {
        self.lock().silent = true;
        self
    }

    /// Writes down what happened and lets every checker look at it.
    pub fn tell(&self, event: WorldEvent) {
        let mut book = self.lock();
        book.events += 1;
        if !book.silent {
            book.write(&event.to_string());
        }
        book.check(&event);
    }

    /// Lets every checker look at something that nobody needs to read.
    pub fn show(&self, event: &WorldEvent) {
        self.lock().check(event);
    }

    /// Writes a line for whoever reads the trace.
    pub fn note(&self, text: &str) {
        let mut book = self.lock();
        if !book.silent {
            book.write(text);
        }
    }

    /// Writes down that something is wrong, found by the world itself: "promise: what broke it".
    pub fn violation(&self, what: &str) {
        self.lock().violate(what);
    }

    /// What is wrong so far.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// A digest of all lines: the same for the same seed.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.lock().hash
    }

    /// How much has happened.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.lock().events
    }

    /// For how long, in simulated time.
    #[must_use]
    pub fn lasted(&self) -> Duration {
        self.lock().began.elapsed()
    }

    /// The lines, with their times.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.lock().lines.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
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
                self.violate(&format!("{}: {violation}", checker.name()));
            }
        }
        self.checkers = checkers;
    }

    fn violate(&mut self, what: &str) {
        self.write(&format!("VIOLATION {what}"));
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(what.to_owned());
        }
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a: stable for ever, unlike the hashers of the standard library.
fn fnv(seed: u64, bytes: &[u8]) -> u64 {
    let mixed = bytes.iter().fold(seed, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME)
    });
    // A line's end, so that two lines are not one longer line.
    (mixed ^ 0x0a).wrapping_mul(FNV_PRIME)
}
