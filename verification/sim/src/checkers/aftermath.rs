//! What the end of the faults means for promises about progress: from then on they hold, except for lanes that lost commits.

use std::collections::BTreeSet;

use domain::LaneKey;

use crate::event::WorldEvent;

#[derive(Default)]
pub(super) struct Aftermath {
    is_healed: bool,
    /// Lanes that lost commits in a failover: they may halt.
    damaged: BTreeSet<LaneKey>,
}

impl Aftermath {
    /// Every checker of progress passes each event to it before it inspects it.
    pub(super) fn follow(&mut self, event: &WorldEvent) {
        if let WorldEvent::Phase(name) = event {
            self.is_healed |= *name == "heal";
        }
        if let WorldEvent::FailedOver { damaged, .. } = event {
            self.damaged.extend(damaged);
        }
    }

    /// Whether the faults have ended.
    pub(super) fn is_healed(&self) -> bool {
        self.is_healed
    }

    /// Whether a lane may halt.
    pub(super) fn is_damaged(&self, lane: &LaneKey) -> bool {
        self.damaged.contains(lane)
    }
}
