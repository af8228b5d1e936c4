//! What the shipped code stands in while it is fuzzed: a node on twins, and servers that answer anything.

pub(crate) mod node;
pub(crate) mod responder;

use tokio::runtime::{Builder, Runtime};

/// One thread, on which time stands still and jumps to the next timer when nothing else is to do: no
/// input has to be waited for. (Loopback sockets of one thread are ready at once, so that no timer fires
/// before its answer.)
pub(crate) fn still_runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("this machine has a poll and a clock")
}
