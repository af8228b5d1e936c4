//! Why a lane does no work: an operator's pause, a chain answer that is not credible, or rows of the wrong kind.
//!
//! Each hold has its own way out: an operator resumes a paused lane, the next credible answer ends a halt, and
//! misplaced rows need another configuration, so that hold lasts until the lane is loaded again.

use super::HeadWait;
use super::head::HeadTracker;
use super::unrecorded::UNRECORDED_MAX;

/// The holds of a lane; it works while none is set.
#[derive(Clone, Debug)]
pub(super) struct Holds {
    pub(super) is_paused: bool,
    /// The verdict on the chain's last answer: `None` when it was credible.
    pub(super) halted: Option<String>,
    misplaced: Option<String>,
    /// What its head waits for: no hold of the lane, but nothing behind it is mined.
    pub(super) head: HeadTracker,
}

impl Holds {
    pub(super) fn new(is_paused: bool, head: Option<HeadWait>) -> Self {
        Self {
            is_paused,
            halted: None,
            misplaced: None,
            head: HeadTracker::load(head),
        }
    }

    pub(super) fn is_free(&self) -> bool {
        !self.is_paused && self.halted.is_none() && self.misplaced.is_none()
    }

    /// More nonces are consumed by unknown transactions than a lane records.
    pub(super) fn note_too_many_unknown(&mut self) {
        self.halted = Some(format!(
            "the database's history changed, and the chain has more than {UNRECORDED_MAX} transactions of this account that \
             the store does not know: restore a newer backup, or use another account"
        ));
    }

    /// Records that a row of the store does not belong in this lane, if there is such a reason.
    pub(super) fn note_misplaced(&mut self, reason: Option<String>) {
        if reason.is_some() {
            self.misplaced = reason;
        }
    }

    /// The reason for people; the one that needs the most work first.
    pub(super) fn reason(&self) -> Option<String> {
        let reason = self.misplaced.as_ref().or(self.halted.as_ref());
        reason.cloned().or_else(|| {
            self.is_paused
                .then(|| "an operator paused the lane".to_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hold_stops_work_and_misplaced_rows_are_named_first() {
        let mut holds = Holds::new(true, None);
        assert!(!holds.is_free());
        holds.halted = Some("halted".into());
        assert_eq!(holds.reason().as_deref(), Some("halted"));
        holds.note_misplaced(Some("misplaced".into()));
        holds.note_misplaced(None);
        assert_eq!(holds.reason().as_deref(), Some("misplaced"));
        holds.is_paused = false;
        holds.halted = None;
        assert!(!holds.is_free());
    }
}
