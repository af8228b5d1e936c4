//! Durable before sent: every hash that arrives at an endpoint was committed before.

use std::collections::BTreeSet;

use domain::B256;

use super::{Checker, applied};
use crate::event::WorldEvent;

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
                "{hash} of {lane} at nonce {nonce} was sent, and is not in the store"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{applied, attempt, lane, sent};
    use super::*;

    #[test]
    fn sending_requires_an_earlier_commit() {
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
