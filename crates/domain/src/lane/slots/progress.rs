//! How far a slot is, how it moves from stage to stage, and when it is sent or signed again.
//!
//! Only the slot table makes a slot mined or brings it back, because it counts the unmined ones. All waits share
//! one count of failures, so that a slot whose signer and nodes both fail does not try twice as often.

use std::time::Duration;

use super::Slot;
use crate::{AttemptKind, Timestamp};

/// The first wait after a send or a signature request that failed.
const RETRY_FIRST: Duration = Duration::from_millis(250);
/// The longest wait.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// A node that claims to hold an older attempt is asked again after this time: it may be wrong, or lose it.
const OLDER_RECHECK: Duration = RETRY_MAX;

/// How far a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lane) enum Progress {
    /// Its holder, who signs elsewhere, has named no transaction yet.
    Reserved(ReservedTime),
    /// Its first attempt is at the signer, or is requested again at `retry_at`.
    Signing { retry_at: Option<Timestamp> },
    /// Its newest attempt is durable; no node has confirmed that it has it.
    Sending(Delivery),
    /// A node has it.
    Submitted(Delivery),
    /// In a block of the followed chain.
    Mined,
}

/// How long a nonce has been reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::lane) struct ReservedTime {
    /// As far as this keeper counted; from its first tick on.
    counted: Option<Duration>,
    /// Once it is overdue: how many answers of the chain do not count, because they were requested before.
    pub(in crate::lane) answers_before: Option<u64>,
}

/// An attempt on its way to the nodes or in their pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lane) struct Delivery {
    /// When it was last claimed for sending.
    pub(in crate::lane) claimed_at: Timestamp,
    /// When its bytes are sent again.
    pub(in crate::lane) retry_at: Option<Timestamp>,
    /// The attempt that is to replace it, while it is at the signer.
    replacement: Option<Replacement>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Replacement {
    kind: AttemptKind,
    retry_at: Option<Timestamp>,
}

impl Slot {
    pub(in crate::lane) fn is_mined(&self) -> bool {
        matches!(self.progress, Progress::Mined)
    }

    pub(in crate::lane) fn is_submitted(&self) -> bool {
        matches!(self.progress, Progress::Submitted(_))
    }

    pub(in crate::lane) fn is_sending(&self) -> bool {
        matches!(self.progress, Progress::Sending(_))
    }

    #[cfg(test)]
    pub(in crate::lane) fn is_first_signing(&self) -> bool {
        matches!(self.progress, Progress::Signing { .. })
    }

    #[cfg(test)]
    pub(in crate::lane) fn progress(&self) -> Progress {
        self.progress
    }

    /// The time of a reservation whose holder has named no transaction.
    pub(in crate::lane) fn reserved_time(&mut self) -> Option<&mut ReservedTime> {
        match &mut self.progress {
            Progress::Reserved(time) => Some(time),
            Progress::Signing { .. }
            | Progress::Sending(_)
            | Progress::Submitted(_)
            | Progress::Mined => None,
        }
    }

    /// Its attempt that is on its way or in a pool.
    pub(in crate::lane) fn delivery(&self) -> Option<&Delivery> {
        match &self.progress {
            Progress::Sending(delivery) | Progress::Submitted(delivery) => Some(delivery),
            Progress::Reserved(_) | Progress::Signing { .. } | Progress::Mined => None,
        }
    }

    pub(in crate::lane) fn delivery_mut(&mut self) -> Option<&mut Delivery> {
        match &mut self.progress {
            Progress::Sending(delivery) | Progress::Submitted(delivery) => Some(delivery),
            Progress::Reserved(_) | Progress::Signing { .. } | Progress::Mined => None,
        }
    }

    /// The attempt that is at the signer, or is requested again.
    pub(in crate::lane) fn signature_request(&self) -> Option<AttemptKind> {
        if matches!(self.progress, Progress::Signing { .. }) {
            return Some(self.kind);
        }
        Some(self.delivery()?.replacement?.kind)
    }

    /// An attempt of this kind goes to the signer.
    pub(in crate::lane) fn request_signature(&mut self, kind: AttemptKind) {
        if let Some(delivery) = self.delivery_mut() {
            delivery.replacement = Some(Replacement {
                kind,
                retry_at: None,
            });
        }
    }

    /// No replacement is to be made any more. (The first attempt stays requested.)
    pub(in crate::lane) fn drop_replacement(&mut self) {
        if let Some(delivery) = self.delivery_mut() {
            delivery.replacement = None;
        }
    }

    /// The requested signature is requested again, each time after twice as long.
    pub(in crate::lane) fn retry_signature_later(&mut self, now: Timestamp) {
        let at = now.plus(self.next_wait());
        if let Some(retry_at) = self.signature_retry_at() {
            *retry_at = Some(at);
        }
    }

    /// Its bytes are sent again, each time after twice as long.
    pub(in crate::lane) fn retry_send_later(&mut self, now: Timestamp) {
        let at = now.plus(self.next_wait());
        if let Some(delivery) = self.delivery_mut() {
            delivery.retry_at = Some(at);
        }
    }

    /// Its bytes are sent again, and not later than this.
    pub(in crate::lane) fn retry_send_within(&mut self, most: Duration, now: Timestamp) {
        if let Some(delivery) = self.delivery_mut() {
            delivery.retry_at = delivery.retry_at.map(|at| at.min(now.plus(most)));
        }
    }

    fn next_wait(&mut self) -> Duration {
        let wait = RETRY_FIRST
            .saturating_mul(2_u32.saturating_pow(self.history.failures))
            .min(RETRY_MAX);
        self.history.failures = self.history.failures.saturating_add(1);
        wait
    }

    fn signature_retry_at(&mut self) -> Option<&mut Option<Timestamp>> {
        match &mut self.progress {
            Progress::Signing { retry_at } => Some(retry_at),
            Progress::Sending(delivery) | Progress::Submitted(delivery) => {
                let replacement = delivery.replacement.as_mut();
                replacement.map(|replacement| &mut replacement.retry_at)
            }
            Progress::Reserved(_) | Progress::Mined => None,
        }
    }

    /// Whether it is sent again by now; once.
    pub(in crate::lane) fn take_due_send(&mut self, now: Timestamp) -> bool {
        let retry_at = self.delivery_mut().map(|delivery| &mut delivery.retry_at);
        retry_at.is_some_and(|at| at.take_if(|at| *at <= now).is_some())
    }

    /// The attempt whose signature is requested again by now; once.
    pub(in crate::lane) fn take_due_signature(&mut self, now: Timestamp) -> Option<AttemptKind> {
        self.signature_retry_at()?.take_if(|at| *at <= now)?;
        self.signature_request()
    }

    /// Its newest attempt is durable and is sent for the first time.
    pub(in crate::lane) fn start_sending(&mut self, now: Timestamp) {
        self.progress = Progress::Sending(Delivery::new(now));
        self.history.failures = 0;
        self.history.is_blocked = false;
    }

    /// It is claimed for sending once more, because it was not mined in time.
    pub(in crate::lane) fn claim_again(&mut self, now: Timestamp) {
        let history = &mut self.tx.history;
        history.resubmits = history.resubmits.saturating_add(1);
        self.tx.written.at = now;
        if let Some(delivery) = self.delivery_mut() {
            delivery.claimed_at = now;
        }
    }

    /// A node has its newest attempt.
    pub(in crate::lane) fn mark_submitted(&mut self, now: Timestamp) {
        self.submit(None);
        self.history.last_sent_at = now;
        self.history.failures = 0;
        self.history.is_blocked = false;
        self.history.is_foreign_pending = false;
        self.history.is_reported_used = false;
        self.no_op_wait = None;
    }

    /// A node says that it has an older attempt of ours, and does not replace it. Its word alone is not believed for
    /// ever: the newest attempt is sent again later.
    pub(in crate::lane) fn mark_older_submitted(&mut self, now: Timestamp) {
        // A node that is asked again is no new claim: the next raise of its fees stays due.
        self.submit(self.is_sending().then_some(now));
        self.history.is_blocked = false;
        self.history.is_foreign_pending = false;
        self.no_op_wait = None;
        self.clear_passing_reason();
        if let Some(delivery) = self.delivery_mut() {
            delivery.retry_at = Some(now.plus(OLDER_RECHECK));
        }
    }

    /// Moves to a node's pool, with nothing to send again; claimed anew where a time is given.
    fn submit(&mut self, claimed_at: Option<Timestamp>) {
        if let Some(delivery) = self.delivery() {
            self.progress = Progress::Submitted(Delivery {
                claimed_at: claimed_at.unwrap_or(delivery.claimed_at),
                retry_at: None,
                replacement: delivery.replacement,
            });
        }
    }

    /// Its holder named a transaction, which was made and sent elsewhere. A mined slot stays mined.
    pub(in crate::lane) fn mark_submitted_elsewhere(&mut self, now: Timestamp) {
        if !self.is_mined() {
            let before = self.delivery().copied();
            self.progress = Progress::Submitted(Delivery {
                claimed_at: now,
                ..before.unwrap_or(Delivery::new(now))
            });
        }
    }

    /// Recorded times never lie ahead of a wall clock that was set back, and retries never far ahead.
    pub(in crate::lane) fn clamp_times(&mut self, now: Timestamp) {
        self.history.last_sent_at = self.history.last_sent_at.min(now);
        let soon = |at: Timestamp| at.min(now.plus(RETRY_MAX));
        if let Some(retry_at) = self.signature_retry_at() {
            *retry_at = retry_at.map(soon);
        }
        if let Some(delivery) = self.delivery_mut() {
            delivery.claimed_at = delivery.claimed_at.min(now);
            delivery.retry_at = delivery.retry_at.map(soon);
        }
    }
}

impl ReservedTime {
    /// Counts the time since the last tick; none at its first one, which may have been long after the last.
    pub(in crate::lane) fn count(&mut self, passed: Duration) -> Duration {
        let before = self.counted;
        *self
            .counted
            .insert(before.map_or(Duration::ZERO, |time| time.saturating_add(passed)))
    }
}

impl Delivery {
    pub(super) fn new(claimed_at: Timestamp) -> Self {
        Self {
            claimed_at,
            retry_at: None,
            replacement: None,
        }
    }
}
