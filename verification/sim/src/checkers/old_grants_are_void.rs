//! A grant ends with the next one, also under the same token: nothing under an older grant is applied. So
//! whoever is told by a new grant that a batch did not land can rely on that.

use std::collections::BTreeMap;

use domain::{GrantId, LaneKey};
use engine::ports::RegrantOutcome;

use super::books::Books;
use super::{Checker, applied};
use crate::event::WorldEvent;

/// See the module.
#[derive(Default)]
pub struct OldGrantsAreVoid {
    newest: Books<BTreeMap<LaneKey, GrantId>>,
}

impl Checker for OldGrantsAreVoid {
    fn name(&self) -> &'static str {
        "no write under an old grant"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.newest.follow(event);
        if let WorldEvent::Granted { lane, grant, .. } = event {
            self.newest.insert(*lane, *grant);
        }
        if let WorldEvent::RegrantOutcome {
            lane,
            outcome: RegrantOutcome::Held { lease_grant, .. },
        } = event
        {
            self.newest.insert(*lane, lease_grant.grant);
        }
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        let (shown, newest) = (batch.lease_grant.grant, self.newest.get(&lane));
        if newest == Some(&shown) {
            return Ok(());
        }
        let node = &batch.node;
        Err(format!(
            "{node} wrote {lane} under grant {shown:?}, the newest is {newest:?}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use domain::{LaneId, LeaseGrant, Token};
    use uuid::Uuid;

    use super::super::testing::{applied_under, granted, lane};
    use super::*;

    #[test]
    fn a_grant_ends_with_the_next_one_under_the_same_token() {
        let mut checker = OldGrantsAreVoid::default();
        assert_eq!(checker.after(&granted(lane(1), "a", 1)), Ok(()));
        assert_eq!(checker.after(&applied_under(lane(1), "a", 1)), Ok(()));
        let lease_grant = LeaseGrant {
            lane: LaneId(1),
            token: Token(1),
            grant: GrantId(Uuid::from_u128(2)),
        };
        let regranted = WorldEvent::RegrantOutcome {
            lane: lane(1),
            outcome: RegrantOutcome::Held {
                lease_grant,
                batch_seq: 1,
            },
        };
        assert_eq!(checker.after(&regranted), Ok(()));
        assert!(checker.after(&applied_under(lane(1), "a", 1)).is_err());
        assert!(checker.after(&applied_under(lane(2), "a", 1)).is_err());
    }
}
