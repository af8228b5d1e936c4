//! A deposed keeper sends nothing: from the moment at which a lane is granted to another node, nobody else
//! begins to send its bytes. The chain cannot check a fence, so only the arithmetic of leases prevents it.
//!
//! A store that loses grants in a failover is another matter: whom it has forgotten may still trust a lease. And a
//! lane may be taken before its lease has run out, from a keeper that was silent for a whole lease and comes back in
//! the same moment, or by a node that has just started and knows nobody while the database's clock was set forward:
//! then its keeper sends bytes that its successor has too, until it learns of it.

use std::collections::{BTreeMap, BTreeSet};

use domain::{LaneKey, NodeName};

use super::Checker;
use crate::event::WorldEvent;

/// See the module.
#[derive(Default)]
pub struct KeeperSends {
    keepers: BTreeMap<LaneKey, NodeName>,
    /// From whom a lane was taken early, and has not been since.
    taken_early: BTreeSet<(LaneKey, NodeName)>,
    /// Lanes whose lease was given before the database's clock was set forward.
    outdated: BTreeSet<LaneKey>,
    /// Whether the store may forget grants.
    is_lossy: bool,
}

impl Checker for KeeperSends {
    fn name(&self) -> &'static str {
        "a deposed keeper sends nothing"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        if matches!(event, WorldEvent::StandbyStopped) {
            self.is_lossy = true;
        }
        if let WorldEvent::ClockJumped { by_ms: 1.. } = event {
            self.outdated.extend(self.keepers.keys());
        }
        if let WorldEvent::Granted {
            lane, node, left, ..
        } = event
        {
            let before = self.keepers.insert(*lane, node.clone());
            self.taken_early.remove(&(*lane, node.clone()));
            let is_early = self.outdated.remove(lane) || !left.is_zero();
            let early = before.filter(|before| before != node && is_early);
            self.taken_early.extend(early.map(|before| (*lane, before)));
        }
        if let WorldEvent::Sending { lane, node, nonce } = event
            && let Some(keeper) = self.keepers.get(lane)
            && keeper != node
            && !self.is_lossy
            && !self.taken_early.contains(&(*lane, node.clone()))
        {
            return Err(format!(
                "{node} sends nonce {nonce} of {lane}, which was granted to {keeper}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use domain::Nonce;

    use super::super::testing::{granted, lane};
    use super::*;

    #[test]
    fn whoever_was_granted_a_lane_last_sends_for_it() {
        let sending = |node: &str| WorldEvent::Sending {
            lane: lane(1),
            node: NodeName(node.to_owned()),
            nonce: Nonce(4),
        };
        let mut checker = KeeperSends::default();
        assert_eq!(checker.after(&granted(lane(1), "a", 1)), Ok(()));
        assert_eq!(checker.after(&sending("a")), Ok(()));
        assert_eq!(checker.after(&granted(lane(1), "b", 2)), Ok(()));
        assert!(checker.after(&sending("a")).is_err());
        assert_eq!(checker.after(&sending("b")), Ok(()));
        let jump = WorldEvent::ClockJumped { by_ms: 60_000 };
        assert_eq!(checker.after(&jump), Ok(()));
        assert_eq!(checker.after(&granted(lane(1), "c", 3)), Ok(()));
        assert_eq!(
            checker.after(&sending("b")),
            Ok(()),
            "its lease seemed to be over"
        );
        assert!(checker.after(&sending("a")).is_err());
        assert_eq!(checker.after(&WorldEvent::StandbyStopped), Ok(()));
        assert_eq!(checker.after(&sending("a")), Ok(()), "nobody can tell");
    }
}
