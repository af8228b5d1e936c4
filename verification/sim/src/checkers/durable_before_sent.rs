//! Durable before sent: every hash that arrives at a node of the chain was committed before.

use std::collections::BTreeSet;

use domain::B256;

use super::{Checker, applied};
use crate::event::WorldEvent;

/// See the module.
#[derive(Default)]
pub struct DurableBeforeSent {
    durable: BTreeSet<B256>,
}

impl Checker for DurableBeforeSent {
    fn name(&self) -> &'static str {
        "durable before sent"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        if let Some((_, batch)) = applied(event) {
            self.durable
                .extend(batch.writes.attempts.iter().map(|attempt| attempt.hash));
        }
        if let WorldEvent::Sent {
            lane, nonce, hash, ..
        } = event
            && !self.durable.contains(hash)
        {
            return Err(format!(
                "{hash} of {lane} at nonce {nonce} was sent, and no store has it"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{applied, attempt, lane, sent};
    use super::*;

    #[test]
    fn bytes_may_leave_only_after_their_commit() {
        let mut checker = DurableBeforeSent::default();
        let bytes = attempt(1, 0);
        let event = sent(lane(1), &bytes);
        assert!(checker.after(&event).is_err());
        assert_eq!(
            checker.after(&applied(lane(1), |w| w.attempts = vec![bytes])),
            Ok(())
        );
        assert_eq!(checker.after(&event), Ok(()));
    }
}
