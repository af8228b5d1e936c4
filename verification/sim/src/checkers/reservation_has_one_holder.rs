//! A reserved nonce has one holder: it is free only when the holder recycled it, or when the reservation has expired
//! and the chain shows no transaction with it. A nonce with a marked transaction never expires; marks of others do
//! not count.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::lane::reservations::{RESERVATION_PREFIX, ReservationTerms};
use domain::{Attempt, B256, Holder, LaneKey, Mark, Nonce, Tx, TxId};
use tokio::time::Instant;

use super::{Checker, applied};
use crate::event::WorldEvent;

pub struct ReservationHasOneHolder {
    lane: LaneKey,
    /// A nonce that was consumed this many blocks ago is consumed in the view of every endpoint.
    deep: u64,
    reservations: BTreeMap<TxId, HeldReservation>,
    marks: BTreeMap<Holder, HolderMarks>,
    /// The consumer of each nonce on the canonical chain, and its height.
    consumed: BTreeMap<Nonce, (B256, u64)>,
    /// Every transaction of the account that was ever mined.
    mined: BTreeSet<B256>,
    head: u64,
}

/// A reservation as the store has it.
struct HeldReservation {
    holder: Holder,
    nonce: Option<Nonce>,
    since: Instant,
    timeout: Duration,
    is_named: bool,
}

/// The marks that a holder has sent, whether or not they were accepted.
#[derive(Default)]
struct HolderMarks {
    named: BTreeSet<B256>,
    has_sent_recycle: bool,
    has_recycled: bool,
}

impl ReservationHasOneHolder {
    pub(super) const PROMISE: &'static str = "a reserved nonce has one holder";

    /// Watches the reservations of a lane on whose chain every endpoint knows blocks of this depth.
    #[must_use]
    pub fn for_lane(lane: LaneKey, deep: u64) -> Self {
        Self {
            lane,
            deep,
            reservations: BTreeMap::new(),
            marks: BTreeMap::new(),
            consumed: BTreeMap::new(),
            mined: BTreeSet::new(),
            head: 0,
        }
    }

    fn marked(
        &mut self,
        holder: Holder,
        mark: &Mark,
        accepted: Option<bool>,
    ) -> Result<(), String> {
        let marks = self.marks.entry(holder).or_default();
        match mark {
            Mark::Submitted(hash) | Mark::Used(hash) => {
                marks.named.insert(*hash);
                if marks.has_recycled && accepted == Some(true) {
                    return Err(format!(
                        "{holder:?} recycled its nonce, and its mark for {hash} was accepted"
                    ));
                }
            }
            Mark::Recyclable { .. } => {
                marks.has_sent_recycle = true;
                marks.has_recycled |= accepted == Some(true);
            }
        }
        Ok(())
    }

    fn named(&mut self, attempt: &Attempt) -> Result<(), String> {
        let Some(held) = self.reservations.get_mut(&attempt.tx_id) else {
            return Ok(());
        };
        held.is_named = true;
        let marks = self.marks.get(&held.holder);
        let is_own = marks.is_some_and(|marks| marks.named.contains(&attempt.hash));
        if is_own || self.mined.contains(&attempt.hash) {
            return Ok(());
        }
        Err(format!(
            "{} is recorded for nonce {} of {:?}, which never marked it",
            attempt.hash, attempt.nonce, held.holder
        ))
    }

    fn written(&mut self, tx: &Tx) -> Result<(), String> {
        let holder = tx
            .request
            .request_id
            .as_str()
            .strip_prefix(RESERVATION_PREFIX);
        let holder = holder.and_then(|uuid| uuid.parse().ok()).map(Holder);
        let terms = ReservationTerms::from_payload(self.lane, &tx.request.payload);
        let (Some(holder), Some(terms)) = (holder, terms) else {
            return Err(format!("{} is not a reservation", tx.request.request_id));
        };
        let now = Instant::now();
        let held = self.reservations.entry(tx.id).or_insert(HeldReservation {
            holder,
            nonce: None,
            since: now,
            timeout: terms.timeout,
            is_named: false,
        });
        match (std::mem::replace(&mut held.nonce, tx.nonce), tx.nonce) {
            (None, Some(_)) => held.since = now,
            (Some(nonce), None) => return self.freed(tx.id, nonce, now),
            (Some(_), Some(_)) | (None, None) => {}
        }
        Ok(())
    }

    /// Whether the nonce may be free.
    fn freed(&self, id: TxId, nonce: Nonce, now: Instant) -> Result<(), String> {
        let held = &self.reservations[&id];
        let marks = self.marks.get(&held.holder);
        if marks.is_some_and(|marks| marks.has_sent_recycle) {
            return Ok(());
        }
        let holder = held.holder;
        if held.is_named {
            return Err(format!(
                "nonce {nonce} has expired, and {holder:?} has marked a transaction for it"
            ));
        }
        let reserved_for = now.duration_since(held.since);
        // A keeper's clock may be set, which matters little each time.
        if reserved_for < held.timeout / 2 {
            return Err(format!(
                "nonce {nonce} of {holder:?} is free after {} of {} ms",
                reserved_for.as_millis(),
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

    fn follow_chain(&mut self, event: &WorldEvent) {
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

impl Checker for ReservationHasOneHolder {
    fn name(&self) -> &'static str {
        Self::PROMISE
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.follow_chain(event);
        if let WorldEvent::NonceMarked {
            holder,
            mark,
            accepted,
            ..
        } = event
        {
            return self.marked(*holder, mark, *accepted);
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
    use super::super::test_events::{applied, attempt, block, chain_tx, lane, tx};
    use super::*;
    use domain::lane::reservations::reservation_request_id;
    use uuid::Uuid;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn holder() -> Holder {
        Holder(Uuid::from_u128(1))
    }

    fn reservation(nonce: Option<u64>) -> Tx {
        let terms = ReservationTerms {
            timeout: TIMEOUT,
            at_least: Nonce(0),
        };
        let mut tx = tx(1, nonce);
        tx.request.request_id = reservation_request_id(holder());
        tx.request.payload = terms.payload(lane(1));
        tx
    }

    fn checker_with_reservation() -> ReservationHasOneHolder {
        let mut checker = ReservationHasOneHolder::for_lane(lane(1), 3);
        let first = applied(lane(1), |w| w.inserts = vec![reservation(Some(5))]);
        assert_eq!(checker.after(&first), Ok(()));
        checker
    }

    fn marked(mark: Mark, accepted: Option<bool>) -> WorldEvent {
        WorldEvent::NonceMarked {
            lane: lane(1),
            nonce: Nonce(5),
            holder: holder(),
            mark,
            accepted,
        }
    }

    fn freed() -> WorldEvent {
        applied(lane(1), |w| w.updates = vec![reservation(None)])
    }

    #[tokio::test(start_paused = true)]
    async fn nonce_is_freed_by_recycling_or_expiry_only() {
        let mut checker = checker_with_reservation();
        let free = Mark::Recyclable {
            reason: String::new(),
            asked: None,
        };
        assert_eq!(checker.after(&marked(free, None)), Ok(()));
        assert_eq!(checker.after(&freed()), Ok(()));
        assert!(
            checker_with_reservation().after(&freed()).is_err(),
            "it was not recycled"
        );
        let mut checker = checker_with_reservation();
        tokio::time::sleep(TIMEOUT).await;
        assert_eq!(checker.after(&freed()), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn marked_or_consumed_nonce_never_expires() {
        let mut checker = checker_with_reservation();
        let named = attempt(1, 5);
        let mark = Mark::Submitted(named.hash);
        assert_eq!(checker.after(&marked(mark, None)), Ok(()));
        let submitted = applied(lane(1), |w| w.attempts = vec![named]);
        assert_eq!(checker.after(&submitted), Ok(()));
        tokio::time::sleep(TIMEOUT).await;
        assert!(checker.after(&freed()).is_err());
        for (head, is_right) in [(3, true), (4, false)] {
            let mut checker = checker_with_reservation();
            let sent = chain_tx(lane(1), 5, b"silent");
            assert_eq!(checker.after(&block(1, vec![sent])), Ok(()));
            assert_eq!(checker.after(&block(head, Vec::new())), Ok(()));
            tokio::time::sleep(TIMEOUT).await;
            assert_eq!(checker.after(&freed()).is_ok(), is_right);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_marks_of_the_holder_count() {
        let mut checker = checker_with_reservation();
        let foreign = applied(lane(1), |w| w.attempts = vec![attempt(1, 5)]);
        assert!(checker.after(&foreign).is_err(), "it was never marked");
        let mut checker = checker_with_reservation();
        let free = Mark::Recyclable {
            reason: String::new(),
            asked: None,
        };
        assert_eq!(checker.after(&marked(free, Some(true))), Ok(()));
        let late = Mark::Used(B256::ZERO);
        assert_eq!(checker.after(&marked(late.clone(), Some(false))), Ok(()));
        assert!(checker.after(&marked(late, Some(true))).is_err());
    }
}
