//! A grant ends with the next one, also under the same token: no write under an older grant is applied. So a
//! keeper that learns by a regrant that a batch was not applied can rely on it.

use std::collections::BTreeMap;

use domain::{GrantId, LaneKey};
use engine::ports::RegrantOutcome;

use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::event::WorldEvent;

#[derive(Default)]
pub struct StaleGrantsFenced {
    newest: StoreModel<BTreeMap<LaneKey, GrantId>>,
}

impl Checker for StaleGrantsFenced {
    fn name(&self) -> &'static str {
        "no write under a stale grant"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.newest.follow(event);
        if let WorldEvent::Granted { lane, grant, .. } = event {
            self.newest.insert(*lane, *grant);
        }
        if let WorldEvent::Regranted {
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

    use super::super::test_events::{applied_under, granted, lane};
    use super::*;

    #[test]
    fn grant_ends_with_the_next_one_under_the_same_token() {
        let mut checker = StaleGrantsFenced::default();
        assert_eq!(checker.after(&granted(lane(1), "a", 1)), Ok(()));
        assert_eq!(checker.after(&applied_under(lane(1), "a", 1)), Ok(()));
        let lease_grant = LeaseGrant {
            lane: LaneId(1),
            token: Token(1),
            grant: GrantId(Uuid::from_u128(2)),
        };
        let regranted = WorldEvent::Regranted {
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
