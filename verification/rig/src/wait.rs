//! Waiting for others, with a deadline.

use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Looks until the condition gives a value; panics with `what` when it has not after `within`.
pub fn until<T>(what: &str, within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = look() {
            return value;
        }
        assert!(
            started.elapsed() < within,
            "after {within:?} still not: {what}"
        );
        thread::sleep(LOOK_EVERY);
    }
}

/// Runs a future to its end, whether or not the caller is inside a runtime: on a thread of its own.
pub(crate) fn block_on<T: Send>(future: impl Future<Output = T> + Send) -> T {
    let run = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime needs no more than a few file handles")
            .block_on(future)
    };
    thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| resume_unwind(panic))
}
