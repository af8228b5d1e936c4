//! `lane.blockedTimeout` ends the head of a lane and nothing else: the tx with the lowest nonce that no block has used, and
//! only where the rule is set. So it ends one tx at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::{LaneKey, Nonce, Tx, TxId};

use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::event::WorldEvent;

pub struct OnlyHeadsGivenUp {
    timeout: Option<Duration>,
    open: StoreModel<BTreeMap<LaneKey, BTreeMap<TxId, OpenTx>>>,
    /// Nonces that any transaction ever used: the lane need not wait for what it has there.
    used: BTreeSet<(LaneKey, Nonce)>,
}

#[derive(Clone, Copy)]
struct OpenTx {
    nonce: Nonce,
    is_given_up: bool,
}

impl OnlyHeadsGivenUp {
    pub(super) const PROMISE: &'static str = "only heads are given up";

    /// For lanes with this timeout.
    #[must_use]
    pub fn with_timeout(timeout: Option<Duration>) -> Self {
        Self {
            timeout,
            open: StoreModel::default(),
            used: BTreeSet::new(),
        }
    }
}

fn is_given_up(tx: &Tx) -> bool {
    let reason = tx.reason.as_deref().unwrap_or_default();
    reason.contains("lane.blockedTimeout")
}

impl Checker for OnlyHeadsGivenUp {
    fn name(&self) -> &'static str {
        Self::PROMISE
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.open.follow(event);
        if let WorldEvent::Mined { chain_id, txs, .. } = event {
            let used = txs.iter().map(|tx| {
                let signer = tx.envelope.signer;
                let chain_id = *chain_id;
                (LaneKey { chain_id, signer }, tx.envelope.nonce)
            });
            self.used.extend(used);
        }
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        let open = self.open.entry(lane).or_default();
        let mut given_up = Vec::new();
        for tx in batch.writes.inserts.iter().chain(&batch.writes.updates) {
            let Some(nonce) = tx.nonce.filter(|_| tx.is_open()) else {
                open.remove(&tx.id);
                continue;
            };
            let now = OpenTx {
                nonce,
                is_given_up: is_given_up(tx),
            };
            let before = open.insert(tx.id, now);
            if now.is_given_up && !before.is_some_and(|before| before.is_given_up) {
                given_up.push((tx.id, nonce));
            }
        }
        for (tx, nonce) in given_up {
            if self.timeout.is_none() {
                return Err(format!("{lane}: tx {tx} is given up, and no rule says so"));
            }
            let mut others = open.iter();
            let is_used = |other: &OpenTx| self.used.contains(&(lane, other.nonce));
            let lower = others.find(|(_, other)| other.nonce < nonce && !is_used(other));
            if let Some((head, other)) = lower {
                let at = other.nonce;
                return Err(format!(
                    "{lane}: tx {tx} at nonce {nonce} is given up, and tx {head} at {at} is the head"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{applied, block, chain_tx, lane, tx};
    use super::*;

    fn given_up(id: u128, nonce: u64) -> Tx {
        Tx {
            reason: Some("lane.blockedTimeout".into()),
            ..tx(id, Some(nonce))
        }
    }

    /// A foreign transaction has used the nonce of the first.
    fn after_block(timeout: Option<Duration>) -> Result<(), String> {
        let mut checker = OnlyHeadsGivenUp::with_timeout(timeout);
        checker.after(&block(1, vec![chain_tx(lane(1), 4, b"")]))?;
        give_up(&mut checker, 2)
    }

    fn run(timeout: Option<Duration>, id: u128) -> Result<(), String> {
        give_up(&mut OnlyHeadsGivenUp::with_timeout(timeout), id)
    }

    fn give_up(checker: &mut OnlyHeadsGivenUp, id: u128) -> Result<(), String> {
        let two = applied(lane(1), |w| {
            w.inserts = vec![tx(1, Some(4)), tx(2, Some(5))]
        });
        assert_eq!(checker.after(&two), Ok(()));
        let nonce = if id == 1 { 4 } else { 5 };
        checker.after(&applied(lane(1), |w| w.updates = vec![given_up(id, nonce)]))
    }

    #[test]
    fn only_the_lowest_nonce_may_be_given_up_by_a_rule() {
        let timeout = Some(Duration::from_secs(1));
        assert_eq!(run(timeout, 1), Ok(()));
        assert!(run(timeout, 2).is_err(), "there is a lower one");
        assert_eq!(after_block(timeout), Ok(()), "whose nonce is used");
        assert!(run(None, 1).is_err(), "without a rule");
    }
}
