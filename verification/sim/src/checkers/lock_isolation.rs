//! A locked lane blocks no other lane: a verb for many lanes waits for no row of any of them; a locked lane is
//! waited for separately. Waits for other rows follow one order: there is never a deadlock.

use super::Checker;
use crate::event::WorldEvent;

/// The verbs for many lanes.
const MULTI_LANE_VERBS: [&str; 4] = ["gate", "acquire", "renew", "release"];

#[derive(Default)]
pub struct LockIsolation;

impl Checker for LockIsolation {
    fn name(&self) -> &'static str {
        "a locked lane blocks no other lane"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        if let WorldEvent::LockWait { verb, row, lane } = event
            && lane.is_some()
            && MULTI_LANE_VERBS.contains(verb)
        {
            return Err(format!("{verb} waits for {row}"));
        }
        if let WorldEvent::Deadlocked { verb, row } = event {
            return Err(format!("{verb} was in a deadlock at {row}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use domain::LaneId;

    use super::*;

    #[test]
    fn multi_lane_verbs_may_not_wait_for_lane_rows() {
        let waits = |verb, lane| WorldEvent::LockWait {
            verb,
            row: String::new(),
            lane,
        };
        let lane = Some(LaneId(1));
        assert_eq!(LockIsolation.after(&waits("regrant", lane)), Ok(()));
        assert_eq!(LockIsolation.after(&waits("gate", None)), Ok(()));
        assert!(LockIsolation.after(&waits("gate", lane)).is_err());
        assert!(LockIsolation.after(&waits("renew", lane)).is_err());
        let circle = WorldEvent::Deadlocked {
            verb: "queue",
            row: String::new(),
        };
        assert!(LockIsolation.after(&circle).is_err());
    }
}
