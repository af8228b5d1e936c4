//! One input, run and judged: no panic anywhere, no broken promise, not too much memory, not too long.

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use probe::memory::Mark;

use crate::targets::{Kind, Target};

/// The longest that one input may keep this process busy. (Without optimisation everything takes longer.)
const BUSY_MAX: Duration = if cfg!(debug_assertions) {
    Duration::from_secs(10)
} else {
    Duration::from_secs(1)
};
/// The longest that one input may take, busy or not: other programs may have the processors.
const TIME_MAX: Duration = BUSY_MAX.saturating_mul(20);
/// A slow run may be the machine's fault: only what is slow so many times more counts.
const SLOW_RUNS: u32 = 2;

/// Runs inputs of one kind.
pub struct Judge {
    kind: &'static Kind,
    target: Box<dyn Target>,
}

/// What one input cost, and what is wrong with it.
#[derive(Debug)]
pub struct Trial {
    /// How long it took.
    pub took: Duration,
    /// The most memory that was taken at once.
    pub bytes: usize,
    /// What it broke.
    pub fault: Option<Fault>,
}

/// What an input broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Code panicked: where, and what it said.
    Panic {
        /// File and line.
        place: String,
        /// Its message.
        message: String,
    },
    /// A promise of the target, as a message.
    Promise(String),
    /// It took more memory than allowed.
    Memory {
        /// So many bytes.
        bytes: usize,
        /// Instead of so many.
        allowed: usize,
    },
    /// It took longer than allowed.
    Slow(Duration),
}

impl Judge {
    /// Sets the target up.
    #[must_use]
    pub fn new(kind: &'static Kind) -> Self {
        listen_for_panics();
        let target = (kind.make)();
        Self { kind, target }
    }

    /// Runs one input.
    pub fn run(&mut self, input: &[u8]) -> Trial {
        let mut trial = self.run_once(input);
        if trial.fault.is_none() && trial.took > BUSY_MAX && self.is_slow(input) {
            trial.fault = Some(Fault::Slow(trial.took));
        }
        if trial.fault.is_some() {
            // What is left of it after a failure is not to be trusted.
            self.target = (self.kind.make)();
            taken_panic();
        }
        trial
    }

    /// Whether an input that took long does so every time.
    fn is_slow(&mut self, input: &[u8]) -> bool {
        (0..SLOW_RUNS).all(|_| {
            let was_busy = busy();
            let took = self.run_once(input).took;
            took > TIME_MAX || busy().saturating_sub(was_busy) > BUSY_MAX
        })
    }

    fn run_once(&mut self, input: &[u8]) -> Trial {
        self.target.prepare();
        let target = &mut self.target;
        let (mark, began) = (Mark::now(), Instant::now());
        let result = panic::catch_unwind(AssertUnwindSafe(|| target.run(input)));
        let (took, bytes) = (began.elapsed(), mark.most_since());
        let allowed = self.allowed(input.len());
        let fault = match (taken_panic(), result) {
            (Some(panic), _) => Some(panic),
            (None, Err(_)) => Some(Fault::Promise("it unwound without a panic".to_owned())),
            (None, Ok(Err(promise))) => Some(Fault::Promise(promise)),
            (None, Ok(Ok(()))) if bytes > allowed => Some(Fault::Memory { bytes, allowed }),
            (None, Ok(Ok(()))) => None,
        };
        Trial { took, bytes, fault }
    }

    fn allowed(&self, len: usize) -> usize {
        len.saturating_mul(self.kind.memory_per_byte)
            .saturating_add(self.kind.memory_base)
    }
}

impl Fault {
    /// Two faults of one place are one bug.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Self::Panic { place, .. } => place.clone(),
            Self::Promise(message) => message.split(':').next().unwrap_or_default().to_owned(),
            Self::Memory { .. } => "memory".to_owned(),
            Self::Slow(_) => "time".to_owned(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic { place, message } => write!(f, "panic at {place}: {message}"),
            Self::Promise(message) => write!(f, "a broken promise: {message}"),
            Self::Memory { bytes, allowed } => {
                write!(
                    f,
                    "{bytes} bytes of memory, and {allowed} are allowed for its size"
                )
            }
            Self::Slow(took) => write!(f, "{took:.1?}, and {BUSY_MAX:?} are allowed"),
        }
    }
}

/// For how long all threads of this process have been busy; always zero where the system does not tell.
fn busy() -> Duration {
    /// Linux tells it in hundredths of a second, on every machine.
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may hold anything; twelve fields follow before the two times.
    let fields = stat.rsplit(')').next().unwrap_or_default().split(' ');
    let ticks: u32 = fields
        .skip(12)
        .take(2)
        .filter_map(|word| word.parse::<u32>().ok())
        .sum();
    TICK.saturating_mul(ticks)
}

/// The first panic since the last check, on any thread, caught or not.
static PANIC: Mutex<Option<Fault>> = Mutex::new(None);

fn taken_panic() -> Option<Fault> {
    PANIC.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// A panic that a router or a task catches is one all the same: the hook sees each.
fn listen_for_panics() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        panic::set_hook(Box::new(|panic| {
            let place = panic.location().map(ToString::to_string);
            let message = panic.payload_as_str().unwrap_or("no message").to_owned();
            let mut first = PANIC.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(Fault::Panic {
                place: place.unwrap_or_default(),
                message,
            });
        }));
    });
}
