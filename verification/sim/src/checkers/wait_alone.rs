//! One bad lane slows no other: what carries many lanes waits for no row of any of them, and a locked lane is
//! waited for alone. What waits for other rows does so in one order: never in a circle.

use super::Checker;
use crate::event::WorldEvent;

/// What carries many lanes.
const OF_MANY: [&str; 4] = ["gate", "acquire", "renew", "release"];

/// See the module.
#[derive(Default)]
pub struct WaitAlone;

impl Checker for WaitAlone {
    fn name(&self) -> &'static str {
        "a locked lane is waited for alone"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        if let WorldEvent::Waits { verb, row, lane } = event
            && lane.is_some()
            && OF_MANY.contains(verb)
        {
            return Err(format!("{verb} waits for {row}"));
        }
        if let WorldEvent::Deadlocked { verb, row } = event {
            return Err(format!("{verb} waited in a circle at {row}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use domain::LaneId;

    use super::*;

    #[test]
    fn what_carries_many_lanes_may_wait_for_other_rows_only() {
        let waits = |verb, lane| WorldEvent::Waits {
            verb,
            row: String::new(),
            lane,
        };
        let lane = Some(LaneId(1));
        assert_eq!(WaitAlone.after(&waits("regrant", lane)), Ok(()));
        assert_eq!(WaitAlone.after(&waits("gate", None)), Ok(()));
        assert!(WaitAlone.after(&waits("gate", lane)).is_err());
        assert!(WaitAlone.after(&waits("renew", lane)).is_err());
        let circle = WorldEvent::Deadlocked {
            verb: "queue",
            row: String::new(),
        };
        assert!(WaitAlone.after(&circle).is_err());
    }
}
