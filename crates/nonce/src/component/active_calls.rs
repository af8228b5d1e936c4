//! Counts the calls in progress, so that a shutdown can wait for them.

use std::sync::Arc;

use engine::ports::ReservationError;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::Result;
use crate::queue::is_nested;

/// The component's phase from open to closed, and the number of calls in progress.
#[derive(Default)]
pub(super) struct ActiveCalls {
    state: Mutex<State>,
    finished: Notify,
}

#[derive(Default)]
struct State {
    phase: Phase,
    active: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// Nothing is reserved any more; holders may still mark their nonces.
    Draining,
    Closed,
}

/// A call in progress, until it is dropped.
pub(super) struct ActiveCall {
    active_calls: Arc<ActiveCalls>,
}

impl ActiveCalls {
    /// Starts an allocation. While draining, only calls nested in a `with_nonce` are still accepted.
    pub(super) fn begin_allocation(self: &Arc<Self>) -> Result<ActiveCall> {
        self.begin_if(|phase| match phase {
            Phase::Open => true,
            Phase::Draining => is_nested(),
            Phase::Closed => false,
        })
    }

    /// Starts a mark.
    pub(super) fn begin_mark(self: &Arc<Self>) -> Result<ActiveCall> {
        self.begin_if(|phase| match phase {
            Phase::Open | Phase::Draining => true,
            Phase::Closed => false,
        })
    }

    fn begin_if(self: &Arc<Self>, may: impl FnOnce(Phase) -> bool) -> Result<ActiveCall> {
        let mut state = self.state.lock();
        if !may(state.phase) {
            let text = "the nonce component is shutting down";
            return Err(ReservationError::Unavailable(text.into()));
        }
        state.active += 1;
        let active_calls = Arc::clone(self);
        Ok(ActiveCall { active_calls })
    }

    pub(super) fn drain(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Draining;
        }
    }

    pub(super) fn close(&self) {
        self.state.lock().phase = Phase::Closed;
    }

    pub(super) async fn wait_until_idle(&self) {
        loop {
            let mut finished = std::pin::pin!(self.finished.notified());
            // Registered before the check, so that a call that finishes in between is not missed.
            finished.as_mut().enable();
            if self.state.lock().active == 0 {
                return;
            }
            finished.await;
        }
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        let mut state = self.active_calls.state.lock();
        state.active = state.active.checked_sub(1).expect("every call is counted");
        drop(state);
        self.active_calls.finished.notify_waiters();
    }
}
