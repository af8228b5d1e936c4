//! Exclusive sections: in one lane, the `with_nonce` calls of this process run one after the other.
//!
//! Exclusivity is best effort: nonces stay unique without it. So whatever would wait forever gives way:
//! - a nested `with_nonce` does not queue, in whichever lane ([`is_nested`]);
//! - a task that was spawned inside a section is recognised as nested only if it was wrapped by [`run_nested`].
//!   Otherwise it waits, and if the active section is not polled meanwhile (perhaps because it waits for that task), it
//!   loses its place. The same limits a section that hangs;
//! - a waiter may be a future that its task no longer polls, because it waits for another one behind it. If it becomes
//!   first and is not polled, it is removed; when polled again, it joins at the end.

use std::sync::Arc;
use std::time::Duration;

use domain::MonotonicTime;
use engine::ports::Clock;
use metrics::counter;
use tokio::sync::Notify;

use super::lane_table::LaneRef;
use super::section_queue::Ticket;

tokio::task_local! {
    /// Set while application code runs inside `with_nonce`.
    static NESTED: ();
}

/// Whether the caller runs inside a `with_nonce` section.
pub(crate) fn is_nested() -> bool {
    NESTED.try_with(|()| ()).is_ok()
}

/// Runs a future as nested in a section.
pub(crate) async fn run_nested<F: Future>(future: F) -> F::Output {
    NESTED.scope((), future).await
}

/// An exclusive section, or the wait for it, until it is dropped.
pub(crate) struct SectionPermit {
    lane_ref: LaneRef,
    /// `None` when it does not queue.
    position: Option<QueuePosition>,
}

/// A place in the section queue.
struct QueuePosition {
    ticket: Ticket,
    /// When it joined: an earlier idle time of the first section did not block this one.
    since: MonotonicTime,
    wakeup: Arc<Notify>,
    clock: Arc<dyn Clock>,
    idle_timeout: Duration,
}

impl SectionPermit {
    pub(super) fn immediate(lane_ref: LaneRef) -> Self {
        let position = None;
        Self { lane_ref, position }
    }

    /// Joins the queue of this lane.
    pub(super) fn enqueue(
        lane_ref: LaneRef,
        clock: Arc<dyn Clock>,
        idle_timeout: Duration,
    ) -> Self {
        let (wakeup, since) = (Arc::new(Notify::new()), clock.monotonic());
        let position = QueuePosition {
            ticket: lane_ref.lock_sections().enqueue(Arc::clone(&wakeup), since),
            since,
            wakeup,
            clock,
            idle_timeout,
        };
        Self {
            lane_ref,
            position: Some(position),
        }
    }

    /// Whether the section may start.
    pub(super) fn is_granted(&self) -> bool {
        let position = self.position.as_ref();
        position.is_none_or(|position| self.lane_ref.lock_sections().is_first(position.ticket))
    }

    /// Waits until the section before this one has ended or is idle.
    pub(super) async fn wait_until_granted(&mut self) {
        let Some(position) = &mut self.position else {
            return;
        };
        while let Some(pause) = position.check_position(&self.lane_ref) {
            tokio::select! {
                biased;
                () = position.wakeup.notified() => {}
                () = position.clock.sleep(pause) => {}
            }
        }
    }

    /// Runs the section and records its polls.
    pub(crate) async fn run_section<F: Future>(&self, section: F) -> F::Output {
        let mut section = std::pin::pin!(section);
        std::future::poll_fn(|context| {
            if let Some(QueuePosition { ticket, clock, .. }) = &self.position {
                // A section that was removed continues: what it did cannot be undone.
                self.lane_ref
                    .lock_sections()
                    .record_poll(*ticket, clock.monotonic());
            }
            section.as_mut().poll(context)
        })
        .await
    }
}

impl QueuePosition {
    /// How long to wait until the next check; `None` when this place is first.
    fn check_position(&mut self, lane_ref: &LaneRef) -> Option<Duration> {
        let now = self.clock.monotonic();
        let mut queue = lane_ref.lock_sections();
        if !queue.record_poll(self.ticket, now) {
            self.ticket = queue.enqueue(Arc::clone(&self.wakeup), now);
            self.since = now;
        }
        if queue.is_first(self.ticket) {
            return None;
        }
        if queue.head_idle_time(self.since, now) >= self.idle_timeout {
            let passed = queue.remove_idle_before(self.ticket, self.idle_timeout, now);
            tracing::warn!(lane = %lane_ref.lane(), passed, "idle with_nonce sections lose their exclusivity: the next one starts");
            let count = u64::try_from(passed).expect("a usize has at most 64 bits");
            counter!("lanekeeper_nonce_turns_passed_total").increment(count);
        }
        if queue.is_first(self.ticket) {
            return None;
        }
        let head_idle_time = queue.head_idle_time(self.since, now);
        let left = self.idle_timeout.saturating_sub(head_idle_time);
        // At least twice per idle timeout, because a waiter that is not polled is removed.
        Some(left.min(self.idle_timeout / 2))
    }
}

impl Drop for SectionPermit {
    fn drop(&mut self) {
        if let Some(QueuePosition { ticket, clock, .. }) = &self.position {
            self.lane_ref
                .lock_sections()
                .remove(*ticket, clock.monotonic());
        }
    }
}
