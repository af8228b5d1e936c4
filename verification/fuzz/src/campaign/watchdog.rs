//! Ends the process when one input never comes back: nothing else can.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// After so long an input hangs.
const HANGS_AFTER: Duration = Duration::from_secs(30);
/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The exit code of a process in which an input hangs.
pub const EXIT_HANGS: i32 = 75;

pub(super) struct Watchdog {
    born: Instant,
    /// When the present input began, in milliseconds from birth, plus one; 0 between inputs.
    began: Arc<AtomicU64>,
}

impl Watchdog {
    pub(super) fn start() -> io::Result<Self> {
        let (born, began) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let watched = Arc::clone(&began);
        thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(move || {
                while Arc::strong_count(&watched) > 1 {
                    thread::sleep(LOOK_EVERY);
                    let began = watched.load(Ordering::Relaxed);
                    let runs_for = millis(born).saturating_sub(began);
                    if began > 0 && u128::from(runs_for) > HANGS_AFTER.as_millis() {
                        eprintln!("an input runs for more than {HANGS_AFTER:?}");
                        std::process::exit(EXIT_HANGS);
                    }
                }
            })?;
        Ok(Self { born, began })
    }

    pub(super) fn begin(&self) {
        self.began.store(millis(self.born) + 1, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.began.store(0, Ordering::Relaxed);
    }
}

fn millis(born: Instant) -> u64 {
    u64::try_from(born.elapsed().as_millis()).unwrap_or(u64::MAX)
}
