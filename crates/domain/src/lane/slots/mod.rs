//! The in-flight slots of a lane: the txs that are being signed or sent, wait in pools, or are mined and not final.
//!
//! Invariants: one slot per nonce. The index of hashes holds exactly the attempts of the slots, and the count of
//! unmined slots is true: every change of either goes through [`SlotTable`].

mod progress;
mod reason;
mod slot;

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use alloy_primitives::B256;

use progress::{Delivery, Progress};
pub(super) use slot::Slot;

use crate::{Attempt, LaneKey, Nonce, Timestamp};

/// The in-flight slots, by nonce and by the hashes of their attempts.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotTable {
    /// Boxed: nonces ascend, so half of each of the map's leaves stays empty.
    by_nonce: BTreeMap<Nonce, Box<Slot>>,
    by_hash: BTreeMap<B256, Nonce>,
    /// How many slots are not mined yet.
    unmined: u64,
}

impl SlotTable {
    pub(super) fn is_empty(&self) -> bool {
        self.by_nonce.is_empty()
    }

    pub(super) fn len(&self) -> u64 {
        self.by_nonce.len() as u64
    }

    pub(super) fn unmined_len(&self) -> u64 {
        self.unmined
    }

    pub(super) fn lowest(&self) -> Option<Nonce> {
        self.by_nonce.first_key_value().map(|(nonce, _)| *nonce)
    }

    pub(super) fn highest(&self) -> Option<Nonce> {
        self.by_nonce.last_key_value().map(|(nonce, _)| *nonce)
    }

    pub(super) fn highest_mined(&self) -> Option<Nonce> {
        let mined = self.by_nonce.iter().rfind(|(_, slot)| slot.is_mined());
        mined.map(|(nonce, _)| *nonce)
    }

    /// The slots in nonce order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Nonce, &Slot)> {
        self.by_nonce.iter().map(|(nonce, slot)| (*nonce, &**slot))
    }

    pub(super) fn range_mut(
        &mut self,
        nonces: impl RangeBounds<Nonce>,
    ) -> impl Iterator<Item = (Nonce, &mut Slot)> {
        let slots = self.by_nonce.range_mut::<Nonce, _>(nonces);
        slots.map(|(nonce, slot)| (*nonce, &mut **slot))
    }

    pub(super) fn nonces_from(&self, from: Nonce) -> impl Iterator<Item = Nonce> {
        self.by_nonce.range(from..).map(|(nonce, _)| *nonce)
    }

    /// The slots at these nonces that are not mined, in nonce order.
    pub(super) fn unmined(
        &self,
        nonces: impl RangeBounds<Nonce>,
    ) -> impl Iterator<Item = (Nonce, &Slot)> {
        let slots = self.by_nonce.range::<Nonce, _>(nonces);
        let unmined = slots.filter(|(_, slot)| !slot.is_mined());
        unmined.map(|(nonce, slot)| (*nonce, &**slot))
    }

    pub(super) fn get(&self, nonce: Nonce) -> Option<&Slot> {
        self.by_nonce.get(&nonce).map(|slot| &**slot)
    }

    pub(super) fn get_mut(&mut self, nonce: Nonce) -> Option<&mut Slot> {
        self.by_nonce.get_mut(&nonce).map(|slot| &mut **slot)
    }

    /// Which slot an attempt belongs to.
    pub(super) fn nonce_of(&self, hash: B256) -> Option<Nonce> {
        self.by_hash.get(&hash).copied()
    }

    /// The hashes of all attempts that may be mined.
    pub(super) fn hashes(&self) -> impl Iterator<Item = B256> {
        self.by_hash.keys().copied()
    }

    /// Adds a slot with its attempts.
    ///
    /// # Panics
    /// When the nonce is held: two txs at one nonce are a bug of the lane.
    pub(super) fn insert(&mut self, lane: LaneKey, nonce: Nonce, slot: Slot) {
        self.unmined = self.unmined.saturating_add(u64::from(!slot.is_mined()));
        self.by_hash.extend(slot.hashes().map(|hash| (hash, nonce)));
        let before = self.by_nonce.insert(nonce, Box::new(slot));
        assert!(before.is_none(), "lane {lane}: nonce {nonce} is held twice");
    }

    /// Removes a slot with its attempts.
    pub(super) fn remove(&mut self, nonce: Nonce) -> Option<Box<Slot>> {
        let slot = self.by_nonce.remove(&nonce)?;
        self.unmined = self.unmined.saturating_sub(u64::from(!slot.is_mined()));
        for hash in slot.hashes() {
            self.by_hash.remove(&hash);
        }
        Some(slot)
    }

    /// Adds the newest attempt of a slot.
    pub(super) fn add_attempt(&mut self, nonce: Nonce, attempt: Attempt) {
        if let Some(slot) = self.by_nonce.get_mut(&nonce) {
            self.by_hash.insert(attempt.hash, nonce);
            slot.attempts.reserve_exact(1); // most txs have one attempt only
            slot.attempts.push(attempt);
        }
    }

    /// An attempt of the slot is in a block: it is neither sent nor signed any more.
    pub(super) fn mark_mined(&mut self, nonce: Nonce) -> Option<&mut Slot> {
        let slot = self.by_nonce.get_mut(&nonce)?;
        self.unmined = self.unmined.saturating_sub(u64::from(!slot.is_mined()));
        slot.progress = Progress::Mined;
        Some(slot)
    }

    /// The slot's block was reorged out: its attempts are in pools, or are to be sent there again.
    pub(super) fn mark_reorged(&mut self, nonce: Nonce, now: Timestamp) -> Option<&mut Slot> {
        let slot = self.by_nonce.get_mut(&nonce)?;
        self.unmined = self.unmined.saturating_add(u64::from(slot.is_mined()));
        slot.progress = Progress::Submitted(Delivery::new(now));
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::tests::{KEY, START, request};
    use crate::{AttemptKind, Bytes, Fees, Token, Tx};

    fn attempt(slot: &Slot, nonce: Nonce, name: u8) -> Attempt {
        Attempt {
            hash: B256::repeat_byte(name),
            tx_id: slot.tx.id,
            kind: AttemptKind::Original,
            nonce,
            gas: 0,
            fees: Fees::Legacy { gas_price: 1 },
            raw: Bytes::from_static(b"signed"),
            signed_at: START,
            first_sent_at: None,
        }
    }

    fn slot(number: u64) -> Slot {
        let tx = Tx::created(request(number), Token(1), START);
        Slot::signing(tx, AttemptKind::Original, START)
    }

    /// A table with one slot at nonce 3, whose only attempt is on its way.
    fn sending() -> SlotTable {
        let mut slots = SlotTable::default();
        let first = slot(1);
        let attempt = attempt(&first, Nonce(3), 1);
        slots.insert(KEY, Nonce(3), first);
        slots.add_attempt(Nonce(3), attempt);
        slots.get_mut(Nonce(3)).expect("there").start_sending(START);
        slots
    }

    #[test]
    fn count_and_index_follow_every_change() {
        let mut slots = sending();
        slots.insert(KEY, Nonce(4), slot(2));
        assert_eq!((slots.unmined_len(), slots.len()), (2, 2));
        assert_eq!(slots.nonce_of(B256::repeat_byte(1)), Some(Nonce(3)));
        for _ in 0..2 {
            slots.mark_mined(Nonce(3));
            assert_eq!(slots.unmined_len(), 1, "counted once");
        }
        slots.mark_reorged(Nonce(3), START);
        assert_eq!(slots.unmined_len(), 2);
        slots.remove(Nonce(3));
        assert_eq!((slots.unmined_len(), slots.hashes().count()), (1, 0));
    }

    #[test]
    fn mined_slot_is_neither_sent_nor_signed_again() {
        let mut slots = sending();
        let slot = slots.get_mut(Nonce(3)).expect("there");
        slot.retry_send_later(START);
        slot.request_signature(AttemptKind::Bump);
        slot.retry_signature_later(START);
        let later = Timestamp(u64::MAX);
        assert!(
            slot.clone().take_due_send(later) && slot.clone().take_due_signature(later).is_some()
        );
        let slot = slots.mark_mined(Nonce(3)).expect("there");
        assert!(!slot.take_due_send(later) && slot.take_due_signature(later).is_none());
        assert!(slot.signature_request().is_none());
    }

    #[test]
    fn waits_double_until_a_node_accepts() {
        let mut slots = sending();
        let slot = slots.get_mut(Nonce(3)).expect("there");
        let waits: Vec<u64> = (0..9)
            .map(|_| {
                slot.retry_send_later(Timestamp(0));
                let retry_at = slot.delivery().and_then(|delivery| delivery.retry_at);
                retry_at.map_or(0, |at| at.0)
            })
            .collect();
        assert_eq!(
            waits,
            [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]
        );
        slot.mark_submitted(START);
        assert_eq!(slot.history.failures, 0);
        assert!(slot.is_submitted() && !slot.take_due_send(Timestamp(u64::MAX)));
    }
}
