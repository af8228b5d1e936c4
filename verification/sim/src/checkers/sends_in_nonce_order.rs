//! A lane's attempts are sent in nonce order: a node that gets a higher nonce first may drop it, or charge it as a gap.

use super::Checker;
use crate::event::WorldEvent;

#[derive(Default)]
pub struct SendsInNonceOrder;

impl Checker for SendsInNonceOrder {
    fn name(&self) -> &'static str {
        "sends are in nonce order"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        if let WorldEvent::Sending { lane, node, nonces } = event
            && !nonces.is_sorted_by(|one, next| one < next)
        {
            return Err(format!(
                "{node} sends nonces {nonces:?} of {lane} in this order"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use domain::{NodeName, Nonce};

    use super::super::test_events::lane;
    use super::*;

    #[test]
    fn nonces_of_a_send_rise() {
        let send = |nonces: &[u64]| {
            SendsInNonceOrder.after(&WorldEvent::Sending {
                lane: lane(1),
                node: NodeName("a".to_owned()),
                nonces: nonces.iter().copied().map(Nonce).collect(),
            })
        };
        assert_eq!(send(&[]), Ok(()));
        assert_eq!(
            send(&[3, 4, 9]),
            Ok(()),
            "not all of them are sent each time"
        );
        assert!(send(&[4, 3]).is_err());
        assert!(send(&[3, 3]).is_err());
    }
}
