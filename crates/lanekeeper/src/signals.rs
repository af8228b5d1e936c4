//! Ctrl-C and SIGTERM mean the same: stop in order. A child process also stops when its parent is gone.

use std::io::Read as _;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::failure::Failure;

/// The signals that stop a process. Made early, so that none is missed while it starts.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Answers when standard input ends; `None` where that means nothing.
    parent: Option<oneshot::Receiver<()>>,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|e| Failure::refused("signals", &e));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            parent: None,
        })
    }

    /// From now on the end of standard input stops the process too. A parent that holds the other end
    /// of it cannot be outlived: the kernel closes it, however the parent ends.
    pub(crate) fn also_when_stdin_ends(&mut self) {
        let (gone, parent) = oneshot::channel();
        // A thread and not a task: the runtime would wait for its read at the end of the process.
        std::thread::spawn(move || {
            let mut input = std::io::stdin().lock();
            let mut bytes = [0; 64];
            while input.read(&mut bytes).is_ok_and(|count| count > 0) {}
            gone.send(()).ok(); // whoever stopped already does not listen
        });
        self.parent = Some(parent);
    }

    /// Resolves when the process shall stop. The end of standard input counts once: who is stopping
    /// already is not told to hurry by it.
    pub(crate) async fn stop(&mut self) {
        let parent_ends = async {
            match &mut self.parent {
                Some(parent) => {
                    parent.await.ok(); // an error is its end as well
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = parent_ends => {}
        }
        self.parent = None;
    }
}
