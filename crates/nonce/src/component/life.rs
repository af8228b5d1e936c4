//! Who is inside, so that nobody is cut off by a shutdown that could wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::ports::ReservationError;
use tokio::sync::Notify;

use crate::queue::is_inside;

/// From open to closed, and how many are inside.
#[derive(Default)]
pub(super) struct Life {
    state: Mutex<State>,
    left: Notify,
}

#[derive(Default)]
struct State {
    phase: Phase,
    inside: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// Nothing is lent any more; who has something may still say what became of it.
    Draining,
    Closed,
}

/// Somebody is inside until this is dropped.
pub(super) struct Inside {
    life: Arc<Life>,
}

impl Life {
    /// To borrow. Whoever is inside a `with_nonce` already may go on until it is closed.
    pub(super) fn enter(self: &Arc<Self>) -> Result<Inside, ReservationError> {
        self.enter_if(|phase| match phase {
            Phase::Open => true,
            Phase::Draining => is_inside(),
            Phase::Closed => false,
        })
    }

    /// To say what became of a nonce.
    pub(super) fn enter_to_mark(self: &Arc<Self>) -> Result<Inside, ReservationError> {
        self.enter_if(|phase| match phase {
            Phase::Open | Phase::Draining => true,
            Phase::Closed => false,
        })
    }

    fn enter_if(
        self: &Arc<Self>,
        may: impl FnOnce(Phase) -> bool,
    ) -> Result<Inside, ReservationError> {
        let mut state = self.lock();
        if !may(state.phase) {
            let text = "the nonce component is shutting down";
            return Err(ReservationError::Unavailable(text.into()));
        }
        state.inside += 1;
        let life = Arc::clone(self);
        Ok(Inside { life })
    }

    pub(super) fn drain(&self) {
        let mut state = self.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Draining;
        }
    }

    pub(super) fn end(&self) {
        self.lock().phase = Phase::Closed;
    }

    pub(super) async fn nobody_is_inside(&self) {
        loop {
            let mut left = std::pin::pin!(self.left.notified());
            // Registered before the look, so that one who leaves in between is not missed.
            left.as_mut().enable();
            if self.lock().inside == 0 {
                return;
            }
            left.await;
        }
    }

    /// A poisoned lock is taken all the same: nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut state = self.life.lock();
        state.inside = state.inside.checked_sub(1).expect("whoever leaves came in");
        drop(state);
        self.life.left.notify_waiters();
    }
}
