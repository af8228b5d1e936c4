//! A lent nonce has one holder: it is free only when he said so, or when his time is over and the chain shows
//! nothing of it. What he named is never free by time; nobody else's word counts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::lane::reserve::{RESERVATION_PREFIX, ReservationTerms};
use domain::{Attempt, B256, Holder, LaneKey, Mark, Nonce, Tx, TxId};
use tokio::time::Instant;

use super::{Checker, applied};
use crate::event::WorldEvent;

/// See the module.
pub struct LoansHold {
    lane: LaneKey,
    /// A nonce that was consumed so many blocks ago is consumed in the eyes of every node.
    deep: u64,
    loans: BTreeMap<TxId, Held>,
    said: BTreeMap<Holder, Said>,
    /// Who consumed which nonce on the present chain, and at which height.
    consumed: BTreeMap<Nonce, (B256, u64)>,
    /// Whatever of the account was ever in a block.
    mined: BTreeSet<B256>,
    head: u64,
}

/// A loan as the store has it.
struct Held {
    holder: Holder,
    nonce: Option<Nonce>,
    since: Instant,
    timeout: Duration,
    is_named: bool,
}

/// What a holder has said, whoever heard it.
#[derive(Default)]
struct Said {
    named: BTreeSet<B256>,
    wants_to_give_back: bool,
    gave_back: bool,
}

impl LoansHold {
    pub(super) const PROMISE: &'static str = "a lent nonce has one holder";

    /// Watches the loans of a lane on whose chain every node knows what is so many blocks deep.
    #[must_use]
    pub fn of(lane: LaneKey, deep: u64) -> Self {
        Self {
            lane,
            deep,
            loans: BTreeMap::new(),
            said: BTreeMap::new(),
            consumed: BTreeMap::new(),
            mined: BTreeSet::new(),
            head: 0,
        }
    }

    fn hears(&mut self, holder: Holder, mark: &Mark, taken: Option<bool>) -> Result<(), String> {
        let said = self.said.entry(holder).or_default();
        match mark {
            Mark::Submitted(hash) | Mark::Used(hash) => {
                said.named.insert(*hash);
                if said.gave_back && taken == Some(true) {
                    return Err(format!(
                        "{holder:?} gave his nonce back, and his word for {hash} was taken"
                    ));
                }
            }
            Mark::Recyclable { .. } => {
                said.wants_to_give_back = true;
                said.gave_back |= taken == Some(true);
            }
        }
        Ok(())
    }

    fn named(&mut self, attempt: &Attempt) -> Result<(), String> {
        let Some(held) = self.loans.get_mut(&attempt.tx_id) else {
            return Ok(());
        };
        held.is_named = true;
        let said = self.said.get(&held.holder);
        let is_his = said.is_some_and(|said| said.named.contains(&attempt.hash));
        if is_his || self.mined.contains(&attempt.hash) {
            return Ok(());
        }
        Err(format!(
            "{} stands for nonce {} of {:?}, who never named it",
            attempt.hash, attempt.nonce, held.holder
        ))
    }

    fn written(&mut self, tx: &Tx) -> Result<(), String> {
        let holder = tx.request_id.as_str().strip_prefix(RESERVATION_PREFIX);
        let holder = holder.and_then(|uuid| uuid.parse().ok()).map(Holder);
        let loan = ReservationTerms::of(self.lane, &tx.payload);
        let (Some(holder), Some(loan)) = (holder, loan) else {
            return Err(format!("{} is no loan", tx.request_id));
        };
        let now = Instant::now();
        let held = self.loans.entry(tx.id).or_insert(Held {
            holder,
            nonce: None,
            since: now,
            timeout: loan.timeout,
            is_named: false,
        });
        match (std::mem::replace(&mut held.nonce, tx.nonce), tx.nonce) {
            (None, Some(_)) => held.since = now,
            (Some(nonce), None) => return self.freed(tx.id, nonce, now),
            (Some(_), Some(_)) | (None, None) => {}
        }
        Ok(())
    }

    /// Whether it was right to free a nonce.
    fn freed(&self, id: TxId, nonce: Nonce, now: Instant) -> Result<(), String> {
        let held = &self.loans[&id];
        let said = self.said.get(&held.holder);
        if said.is_some_and(|said| said.wants_to_give_back) {
            return Ok(());
        }
        let holder = held.holder;
        if held.is_named {
            return Err(format!(
                "nonce {nonce} is free by time, and {holder:?} has named a transaction for it"
            ));
        }
        let lent_for = now.duration_since(held.since);
        // A keeper's clock may be set, which counts for little each time.
        if lent_for < held.timeout / 2 {
            return Err(format!(
                "nonce {nonce} of {holder:?} is free after {} of {} ms",
                lent_for.as_millis(),
                held.timeout.as_millis()
            ));
        }
        match self.consumed.get(&nonce) {
            Some((hash, height)) if self.head.saturating_sub(*height) >= self.deep => Err(format!(
                "nonce {nonce} of {holder:?} is free, and {hash} consumed it at {height}; the head is {}",
                self.head
            )),
            Some(_) | None => Ok(()),
        }
    }

    fn look_at_chain(&mut self, event: &WorldEvent) {
        if let WorldEvent::Mined { header, txs, .. } = event {
            self.head = header.number;
            let ours = txs
                .iter()
                .filter(|tx| tx.envelope.signer == self.lane.signer);
            for tx in ours {
                self.mined.insert(tx.hash);
                let place = (tx.hash, header.number);
                self.consumed.insert(tx.envelope.nonce, place);
            }
        }
        if let WorldEvent::Forked { dropped, .. } = event
            && let Some(lowest) = dropped.iter().map(|header| header.number).min()
        {
            self.consumed.retain(|_, (_, height)| *height < lowest);
        }
    }
}

impl Checker for LoansHold {
    fn name(&self) -> &'static str {
        Self::PROMISE
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.look_at_chain(event);
        if let WorldEvent::Said {
            holder,
            mark,
            taken,
            ..
        } = event
        {
            return self.hears(*holder, mark, *taken);
        }
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        if lane != self.lane {
            return Ok(());
        }
        let rows = batch.writes.inserts.iter().chain(&batch.writes.updates);
        let written: Vec<_> = rows.map(|tx| self.written(tx)).collect();
        let attempts = batch.writes.attempts.iter();
        let named: Vec<_> = attempts.map(|attempt| self.named(attempt)).collect();
        written.into_iter().chain(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{applied, attempt, block, chain_tx, lane, tx};
    use super::*;
    use domain::lane::reserve::reservation_request_id;
    use uuid::Uuid;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn holder() -> Holder {
        Holder(Uuid::from_u128(1))
    }

    fn loan(nonce: Option<u64>) -> Tx {
        let loan = ReservationTerms {
            timeout: TIMEOUT,
            at_least: Nonce(0),
        };
        let mut tx = tx(1, nonce);
        tx.request_id = reservation_request_id(holder());
        tx.payload = loan.payload(lane(1));
        tx
    }

    fn lent() -> LoansHold {
        let mut checker = LoansHold::of(lane(1), 3);
        let first = applied(lane(1), |w| w.inserts = vec![loan(Some(5))]);
        assert_eq!(checker.after(&first), Ok(()));
        checker
    }

    fn says(mark: Mark, taken: Option<bool>) -> WorldEvent {
        WorldEvent::Said {
            lane: lane(1),
            nonce: Nonce(5),
            holder: holder(),
            mark,
            taken,
        }
    }

    fn freed() -> WorldEvent {
        applied(lane(1), |w| w.updates = vec![loan(None)])
    }

    #[tokio::test(start_paused = true)]
    async fn free_by_word_at_once_and_by_time_when_it_is_over() {
        let mut checker = lent();
        let free = Mark::Recyclable {
            reason: String::new(),
            asked: None,
        };
        assert_eq!(checker.after(&says(free, None)), Ok(()));
        assert_eq!(checker.after(&freed()), Ok(()));
        assert!(lent().after(&freed()).is_err(), "nobody said so");
        let mut checker = lent();
        tokio::time::sleep(TIMEOUT).await;
        assert_eq!(checker.after(&freed()), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_named_or_consumed_is_never_free_by_time() {
        let mut checker = lent();
        let named = attempt(1, 5);
        let word = Mark::Submitted(named.hash);
        assert_eq!(checker.after(&says(word, None)), Ok(()));
        let submitted = applied(lane(1), |w| w.attempts = vec![named]);
        assert_eq!(checker.after(&submitted), Ok(()));
        tokio::time::sleep(TIMEOUT).await;
        assert!(checker.after(&freed()).is_err());
        for (head, is_right) in [(3, true), (4, false)] {
            let mut checker = lent();
            let sent = chain_tx(lane(1), 5, b"silent");
            assert_eq!(checker.after(&block(1, vec![sent])), Ok(()));
            assert_eq!(checker.after(&block(head, Vec::new())), Ok(()));
            tokio::time::sleep(TIMEOUT).await;
            assert_eq!(checker.after(&freed()).is_ok(), is_right);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_word_counts_for_the_holder_alone() {
        let mut checker = lent();
        let foreign = applied(lane(1), |w| w.attempts = vec![attempt(1, 5)]);
        assert!(checker.after(&foreign).is_err(), "he never named it");
        let mut checker = lent();
        let free = Mark::Recyclable {
            reason: String::new(),
            asked: None,
        };
        assert_eq!(checker.after(&says(free, Some(true))), Ok(()));
        let late = Mark::Used(B256::ZERO);
        assert_eq!(checker.after(&says(late.clone(), Some(false))), Ok(()));
        assert!(checker.after(&says(late, Some(true))).is_err());
    }
}
