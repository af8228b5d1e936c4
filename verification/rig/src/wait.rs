//! Waiting for other processes, with a deadline.

use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

/// How often a condition is checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Polls `check` until it returns a value; panics with `what` after `within`.
pub fn wait_until<T>(what: &str, within: Duration, mut check: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(
            started.elapsed() < within,
            "timed out after {within:?} waiting until {what}"
        );
        thread::sleep(LOOK_EVERY);
    }
}

/// Runs a future on its own thread, so that it works inside and outside of a runtime.
pub(crate) fn block_on<T: Send>(future: impl Future<Output = T> + Send) -> T {
    let run = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime needs only a few file handles")
            .block_on(future)
    };
    thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| resume_unwind(panic))
}
