//! Whose turn it is: in one lane, one `with_nonce` of this process after the other.
//!
//! A turn is a courtesy, never a right: nonces stay unique without it. So what would wait for ever gives way:
//! - a nested `with_nonce` takes no turn, in whatever lane ([`is_inside`]);
//! - a task that was spawned inside cannot be told from a stranger, unless it was wrapped by [`nested`]. It waits,
//!   and if the section before it does not move meanwhile (perhaps because it waits for that very task), the
//!   turn is passed on. A section of its own that hangs holds nobody up for longer than that either;
//! - whoever waits may be a future that its task does not poll any more, because it waits for another one behind
//!   it. When its turn comes and it does not take it, it is passed over; polled again, it joins at the end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::MonotonicTime;
use engine::ports::Clock;
use metrics::counter;
use tokio::sync::Notify;

use super::lanes::Seat;
use super::line::{Line, Ticket};

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
#[derive(Default)]
pub(super) struct Turns(Mutex<Line>);

/// A section of one's own, or the wait for it, until it is dropped.
pub(crate) struct Turn {
    seat: Seat,
    /// `None` when it does not have to wait for one.
    standing: Option<Standing>,
}

/// Where somebody stands in the line.
struct Standing {
    ticket: Ticket,
    /// Since when: others may have stood still before, but nobody waited for them then.
    since: MonotonicTime,
    bell: Arc<Notify>,
    clock: Arc<dyn Clock>,
    patience: Duration,
}

impl Turn {
    pub(super) fn without_waiting(seat: Seat) -> Self {
        let standing = None;
        Self { seat, standing }
    }

    /// Joins the line of this lane.
    pub(super) fn in_line(seat: Seat, clock: Arc<dyn Clock>, patience: Duration) -> Self {
        let (bell, since) = (Arc::new(Notify::new()), clock.monotonic());
        let standing = Standing {
            ticket: seat.turns().lock().join(Arc::clone(&bell), since),
            since,
            bell,
            clock,
            patience,
        };
        Self {
            seat,
            standing: Some(standing),
        }
    }

    /// Whether there is nothing to wait for.
    pub(super) fn has_come(&self) -> bool {
        let standing = self.standing.as_ref();
        standing.is_none_or(|standing| self.seat.turns().lock().has_turn(standing.ticket))
    }

    /// Waits until the section before this one has ended, or does not move.
    pub(super) async fn come(&mut self) {
        let Some(standing) = &mut self.standing else {
            return;
        };
        while let Some(pause) = standing.look(&self.seat) {
            tokio::select! {
                biased;
                () = standing.bell.notified() => {}
                () = standing.clock.sleep(pause) => {}
            }
        }
    }

    /// Runs the section, and sees whether it moves.
    pub(crate) async fn during<F: Future>(&self, section: F) -> F::Output {
        let mut section = std::pin::pin!(section);
        std::future::poll_fn(|context| {
            if let Some(Standing { ticket, clock, .. }) = &self.standing {
                // One that was passed over goes on all the same: what it does cannot be taken back.
                self.seat.turns().lock().moves(*ticket, clock.monotonic());
            }
            section.as_mut().poll(context)
        })
        .await
    }
}

impl Standing {
    /// How long to wait until the next look; `None` when the turn has come.
    fn look(&mut self, seat: &Seat) -> Option<Duration> {
        let now = self.clock.monotonic();
        let mut line = seat.turns().lock();
        if !line.moves(self.ticket, now) {
            self.ticket = line.join(Arc::clone(&self.bell), now);
            self.since = now;
        }
        if line.has_turn(self.ticket) {
            return None;
        }
        if line.stands_still(self.since, now) >= self.patience {
            let passed = line.pass_over(self.ticket, self.patience, now);
            tracing::warn!(lane = %seat.lane(), passed, "a with_nonce does not move: the next one goes on");
            let count = u64::try_from(passed).expect("a usize has at most 64 bits");
            counter!("lanekeeper_nonce_turns_passed_total").increment(count);
        }
        if line.has_turn(self.ticket) {
            return None;
        }
        let stands_still = line.stands_still(self.since, now);
        let left = self.patience.saturating_sub(stands_still);
        // At least twice in a patience: whoever is polled no more is known by that.
        Some(left.min(self.patience / 2))
    }
}

impl Turns {
    /// A poisoned lock is taken all the same: nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(Standing { ticket, clock, .. }) = &self.standing {
            self.seat.turns().lock().leave(*ticket, clock.monotonic());
        }
    }
}
