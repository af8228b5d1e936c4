//! A deposed keeper sends nothing: after a lane is granted to another node, the previous keeper does not begin to
//! send its attempts. The chain cannot check a fence, so only the lease arithmetic prevents it.
//!
//! A store that loses grants in a failover is excluded: a node with a lost grant may still trust its lease. And a lane
//! may be taken over before its lease has expired: from a keeper that was silent for a whole lease and returns at the
//! same time, or by a node that has just started and knows no member while the database's clock was set forward. Then
//! the previous keeper sends attempts that its successor has too, until it notices.

use std::collections::{BTreeMap, BTreeSet};

use domain::{LaneKey, NodeName};

use super::Checker;
use crate::event::WorldEvent;

#[derive(Default)]
pub struct OnlyKeeperSends {
    keepers: BTreeMap<LaneKey, NodeName>,
    /// The keepers from which lanes were taken over early, until the next grant.
    early_takeovers: BTreeSet<(LaneKey, NodeName)>,
    /// Lanes that were leased before the database's clock was set forward.
    outdated: BTreeSet<LaneKey>,
    /// Whether the store may lose grants.
    is_lossy: bool,
}

impl Checker for OnlyKeeperSends {
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
            self.early_takeovers.remove(&(*lane, node.clone()));
            let is_early = self.outdated.remove(lane) || !left.is_zero();
            let early = before.filter(|before| before != node && is_early);
            self.early_takeovers
                .extend(early.map(|before| (*lane, before)));
        }
        if let WorldEvent::Sending { lane, node, nonces } = event
            && let Some(keeper) = self.keepers.get(lane)
            && keeper != node
            && !self.is_lossy
            && !self.early_takeovers.contains(&(*lane, node.clone()))
        {
            return Err(format!(
                "{node} sends nonces {nonces:?} of {lane}, which is granted to {keeper}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use domain::Nonce;

    use super::super::test_events::{granted, lane};
    use super::*;

    #[test]
    fn only_the_last_grantee_may_send() {
        let sending = |node: &str| WorldEvent::Sending {
            lane: lane(1),
            node: NodeName(node.to_owned()),
            nonces: vec![Nonce(4)],
        };
        let mut checker = OnlyKeeperSends::default();
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
            "its lease seemed to have expired"
        );
        assert!(checker.after(&sending("a")).is_err());
        assert_eq!(checker.after(&WorldEvent::StandbyStopped), Ok(()));
        assert_eq!(checker.after(&sending("a")), Ok(()), "it cannot be decided");
    }
}
