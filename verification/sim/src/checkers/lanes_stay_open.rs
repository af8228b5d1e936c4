//! A lane stays open: where nothing fails, its keeper reads it once. A repeated request, a flood of reverts or a slow reader
//! never make it leave memory and be read again, which would send everything in flight once more.

use std::collections::BTreeMap;

use domain::{LaneKey, NodeName, Token};

use super::Checker;
use crate::event::WorldEvent;

/// The checker of worlds in which no node, link or clock fails.
#[derive(Default)]
pub struct LanesStayOpen {
    keepers: BTreeMap<LaneKey, (NodeName, Token)>,
}

impl LanesStayOpen {
    pub(super) const PROMISE: &'static str = "a lane stays open";
}

impl Checker for LanesStayOpen {
    fn name(&self) -> &'static str {
        Self::PROMISE
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        if let WorldEvent::Released { lane, .. } = event {
            self.keepers.remove(lane);
        }
        if let WorldEvent::Granted {
            lane, node, token, ..
        } = event
        {
            let keeper = (node.clone(), *token);
            if self.keepers.insert(*lane, keeper.clone()) == Some(keeper) {
                return Err(format!("{node} opens {lane} again, which it keeps"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use domain::GrantId;
    use uuid::Uuid;

    use super::super::test_events::lane;
    use super::*;

    fn granted(node: &str, token: u64) -> WorldEvent {
        WorldEvent::Granted {
            lane: lane(1),
            node: NodeName(node.to_owned()),
            token: Token(token),
            grant: GrantId(Uuid::nil()),
            previous_keeper: None,
            left: Duration::ZERO,
        }
    }

    #[test]
    fn only_a_released_lane_is_opened_again() {
        let mut checker = LanesStayOpen::default();
        let mut step = |event: WorldEvent| checker.after(&event);
        assert_eq!(step(granted("a", 1)), Ok(()));
        let released = WorldEvent::Released {
            lane: lane(1),
            node: NodeName("a".to_owned()),
        };
        assert_eq!(step(released), Ok(()));
        assert_eq!(step(granted("a", 1)), Ok(()));
        assert_eq!(step(granted("b", 2)), Ok(()), "another node");
        assert!(step(granted("b", 2)).is_err());
    }
}
