//! A deposed keeper cannot write: once a token was granted, no write under an older one is applied, and
//! tokens rise by one with every ownership change.

use std::collections::BTreeMap;

use domain::{LaneKey, NodeName, Token};

use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::event::WorldEvent;

#[derive(Default)]
pub struct StaleTokensFenced {
    newest: StoreModel<BTreeMap<LaneKey, (Token, NodeName)>>,
}

impl StaleTokensFenced {
    fn granted(&mut self, lane: LaneKey, token: Token, node: &NodeName) -> Result<(), String> {
        let before = self.newest.insert(lane, (token, node.clone()));
        let (held, keeper) = before.unwrap_or((Token(0), node.clone()));
        if token == held.next() || (token == held && keeper == *node) {
            return Ok(());
        }
        Err(format!(
            "{lane} was granted to {node} under {token}, {keeper} had it under {held}"
        ))
    }

    fn written(&self, lane: LaneKey, token: Token, node: &NodeName) -> Result<(), String> {
        match self.newest.get(&lane) {
            Some((newest, keeper)) if *newest == token && keeper == node => Ok(()),
            other => Err(format!(
                "{node} wrote {lane} under {token}, it was granted to {other:?}"
            )),
        }
    }
}

impl Checker for StaleTokensFenced {
    fn name(&self) -> &'static str {
        "no write under a stale token"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.newest.follow(event);
        if let WorldEvent::Granted {
            lane, node, token, ..
        } = event
        {
            self.granted(*lane, *token, node)?;
        }
        if let Some((lane, batch)) = applied(event) {
            self.written(lane, batch.lease_grant.token, &batch.node)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{applied_under, granted, lane};
    use super::*;

    #[test]
    fn only_the_newest_token_may_write() {
        let mut checker = StaleTokensFenced::default();
        assert_eq!(checker.after(&granted(lane(1), "a", 1)), Ok(()));
        assert_eq!(checker.after(&applied_under(lane(1), "a", 1)), Ok(()));
        assert_eq!(checker.after(&granted(lane(1), "b", 2)), Ok(()));
        assert!(checker.after(&applied_under(lane(1), "a", 1)).is_err());
        assert_eq!(checker.after(&applied_under(lane(1), "b", 2)), Ok(()));
        assert!(checker.after(&granted(lane(1), "a", 2)).is_err());
    }
}
