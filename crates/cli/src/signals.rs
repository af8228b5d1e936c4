//! Graceful stop by Ctrl-C or SIGTERM. A child process also stops when its parent has ended.

use std::io::Read as _;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::failure::Failure;

/// The signals that stop a process. Registered first, so that none is missed during the start.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Resolves when standard input ends; `None` where that is no reason to stop.
    stdin_end: Option<oneshot::Receiver<()>>,
}

impl Signals {
    pub fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|e| Failure::refused("signals", &e));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            stdin_end: None,
        })
    }

    /// From now on the end of standard input stops the process too. The kernel closes the pipe however the
    /// parent ends, so that this process never outlives it.
    pub fn stop_when_stdin_ends(&mut self) {
        let (sender, receiver) = oneshot::channel();
        // A thread, because the runtime would wait for the blocking read of a task at shutdown.
        std::thread::spawn(move || {
            let mut input = std::io::stdin().lock();
            let mut bytes = [0; 64];
            while input.read(&mut bytes).is_ok_and(|count| count > 0) {}
            sender.send(()).ok(); // the process may be stopping already
        });
        self.stdin_end = Some(receiver);
    }

    /// Waits for a reason to stop. The end of standard input counts once, so that it does not cut short
    /// a graceful stop that it has started.
    pub async fn wait_for_stop(&mut self) {
        let stdin_ends = async {
            match &mut self.stdin_end {
                Some(end) => {
                    end.await.ok(); // an error also means the end
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = stdin_ends => {}
        }
        self.stdin_end = None;
    }
}
