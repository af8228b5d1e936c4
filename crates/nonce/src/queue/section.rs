//! Whose turn it is: in one lane, one `with_nonce` of this process after the other.
//!
//! A turn is a courtesy, never a right: nonces stay unique without it. So what would wait for ever gives way:
//! - a nested `with_nonce` takes no turn, in whatever lane ([`is_inside`]);
//! - a task that was spawned inside cannot be told from a stranger, unless it was wrapped by [`nested`]. It waits,
//!   and if the section before it does not move meanwhile (perhaps because it waits for that very task), the
//!   turn is passed on. A section of its own that hangs holds nobody up for longer than that either.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::ports::Clock;
use metrics::counter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::lanes::Seat;

tokio::task_local! {
    /// Set while code of the business runs inside `with_nonce`.
    static INSIDE: ();
}

/// Whether the caller stands inside a `with_nonce`.
pub(crate) fn is_inside() -> bool {
    INSIDE.try_with(|()| ()).is_ok()
}

/// Makes what runs in this future count as inside.
pub(crate) async fn nested<F: Future>(future: F) -> F::Output {
    INSIDE.scope((), future).await
}

/// The turns of one lane.
pub(super) struct Turns {
    /// One permit: whoever has it is in the section. Waiters get it in their order.
    permits: Arc<Semaphore>,
    holder: Mutex<Option<Arc<Held>>>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(1)),
            holder: Mutex::new(None),
        }
    }
}

/// A turn that somebody has, or had until it was passed on.
struct Held {
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    /// How often the section was polled: whether it moves.
    polls: AtomicU64,
}

/// A section of one's own, until it is dropped.
pub(crate) struct Turn {
    seat: Seat,
    /// `None` when it did not have to wait for one.
    held: Option<Arc<Held>>,
}

impl Turn {
    pub(super) fn without_waiting(seat: Seat) -> Self {
        Self { seat, held: None }
    }

    /// Waits until the section before this one has ended, or does not move.
    pub(super) async fn take(seat: Seat, clock: &dyn Clock, patience: Duration) -> Self {
        let turns = seat.turns();
        let mut permit = std::pin::pin!(Arc::clone(&turns.permits).acquire_owned());
        let mut seen = turns.sight();
        let permit = loop {
            tokio::select! {
                biased;
                permit = &mut permit => break permit.expect("nobody closes the semaphore"),
                () = clock.sleep(patience) => {}
            }
            let now = turns.sight();
            if let (Some((before, at_first)), Some((holder, polls))) = (&seen, &now)
                && Arc::ptr_eq(before, holder)
                && at_first == polls
            {
                tracing::warn!(lane = %seat.lane(), "a with_nonce does not move: the next one goes on");
                counter!("lanekeeper_nonce_turns_passed_total").increment(1);
                drop(holder.lock().take());
            }
            seen = now;
        };
        let held = Arc::new(Held {
            permit: Mutex::new(Some(permit)),
            polls: AtomicU64::new(0),
        });
        *turns.lock() = Some(Arc::clone(&held));
        Self {
            seat,
            held: Some(held),
        }
    }

    /// Runs the section, and sees whether it moves.
    pub(crate) async fn during<F: Future>(&self, section: F) -> F::Output {
        let mut section = std::pin::pin!(section);
        std::future::poll_fn(|context| {
            if let Some(held) = &self.held {
                held.polls.fetch_add(1, Ordering::Relaxed);
            }
            section.as_mut().poll(context)
        })
        .await
    }
}

impl Turns {
    /// Who has the turn, and how far it has moved.
    fn sight(&self) -> Option<(Arc<Held>, u64)> {
        let holder = self.lock().clone()?;
        let polls = holder.polls.load(Ordering::Relaxed);
        Some((holder, polls))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Held>>> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn lock(&self) -> MutexGuard<'_, Option<OwnedSemaphorePermit>> {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(held) = &self.held else {
            return;
        };
        let mut holder = self.seat.turns().lock();
        if holder.as_ref().is_some_and(|now| Arc::ptr_eq(now, held)) {
            *holder = None;
        }
        drop(holder);
        drop(held.lock().take());
    }
}
