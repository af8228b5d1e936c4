//! A deposed keeper cannot write: once a token was granted, nothing under an older one is applied,
//! and tokens rise by one with every change of hands.

use std::collections::BTreeMap;

use domain::{LaneKey, NodeName, Token};

use super::books::Books;
use super::{Checker, applied};
use crate::event::WorldEvent;

/// See the module.
#[derive(Default)]
pub struct TokenOnlyRises {
    newest: Books<BTreeMap<LaneKey, (Token, NodeName)>>,
}

impl TokenOnlyRises {
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

impl Checker for TokenOnlyRises {
    fn name(&self) -> &'static str {
        "no write under an old token"
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
    use super::super::testing::{applied_under, granted, lane};
    use super::*;

    #[test]
    fn only_the_newest_token_writes() {
        let mut checker = TokenOnlyRises::default();
        assert_eq!(checker.after(&granted(lane(1), "a", 1)), Ok(()));
        assert_eq!(checker.after(&applied_under(lane(1), "a", 1)), Ok(()));
        assert_eq!(checker.after(&granted(lane(1), "b", 2)), Ok(()));
        assert!(checker.after(&applied_under(lane(1), "a", 1)).is_err());
        assert_eq!(checker.after(&applied_under(lane(1), "b", 2)), Ok(()));
        assert!(checker.after(&granted(lane(1), "a", 2)).is_err());
    }
}
