//! What a lane shows of itself: to its shard, to the gate and to operators.

use alloy_primitives::B256;

use super::slots::Slot;
use super::{AccountNonces, ChainQuery, Lane, WatchedBlock};
use crate::{LaneKey, LeaseGrant, Nonce, Tx};

impl Lane {
    /// Which lane it is.
    #[must_use]
    pub fn key(&self) -> LaneKey {
        self.key
    }

    /// The grant under which it is kept.
    #[must_use]
    pub fn lease_grant(&self) -> LeaseGrant {
        self.journal.lease_grant
    }

    /// The cursor: the next nonce that was never allocated.
    #[must_use]
    pub fn next_nonce(&self) -> Nonce {
        self.ledger.cursor()
    }

    /// The sequence number of its last event.
    #[must_use]
    pub fn event_seq(&self) -> u64 {
        self.journal.event_seq()
    }

    /// How many batches became durable.
    #[must_use]
    pub fn batch_seq(&self) -> u64 {
        self.journal.batch_seq
    }

    /// No open tx has a nonce below this one; the cursor when none is open. The next load starts here, however many
    /// finished txs lie below.
    #[must_use]
    pub fn floor_nonce(&self) -> Nonce {
        let backlog = self.paging.backlog_from();
        let lowest = self.slots.lowest().into_iter().chain(backlog).min();
        let cursor = self.ledger.cursor();
        lowest.map_or(cursor, |nonce| nonce.min(cursor))
    }

    /// Whether the row may show a lower floor than the lane has by now. Where nothing is open that would look like work,
    /// and the lane would be opened again and again.
    #[must_use]
    pub fn has_unstored_floor(&self) -> bool {
        // So would a final result in the row that needs no watching any more.
        let shows_old_final = self.journal.has_stored_final && self.finals.is_empty();
        self.journal.stored_floor != Some(self.floor_nonce()) || shows_old_final
    }

    /// The newest block with a final result that is watched for reorgs. Whatever reorgs an older one out takes this one
    /// too, so it stands for all of them.
    #[must_use]
    pub fn newest_final(&self) -> Option<WatchedBlock> {
        self.finals.newest()
    }

    /// The txs that are being signed or sent, or are mined and not final.
    pub fn in_flight(&self) -> impl Iterator<Item = &Tx> {
        self.slots.iter().map(|(_, slot)| &slot.tx)
    }

    /// The account's nonces as the chain last reported them.
    #[must_use]
    pub fn chain_nonces(&self) -> Option<AccountNonces> {
        self.chain.nonces().map(|known| known.nonces)
    }

    /// The nonces that the chain waits for and no tx holds.
    #[must_use]
    pub fn gaps(&self) -> Vec<Nonce> {
        self.ledger.gaps().collect()
    }

    /// The hashes of all attempts that may be mined.
    pub fn hashes(&self) -> impl Iterator<Item = B256> {
        self.slots.hashes()
    }

    /// Whether it allocates nothing until the chain's answer is credible, or an operator decides.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.holds.halted.is_some()
    }

    /// Whether nothing is open and no result is watched for reorgs, so that the lane may be released.
    #[must_use]
    pub fn can_be_released(&self) -> bool {
        self.is_idle() && self.finals.is_empty()
    }

    /// Whether nothing is open. A gap without txs behind it is no work: the next load finds it again.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.slots.is_empty()
            && !self.paging.has_backlog()
            && !self.paging.has_queued()
            && !self.finals.is_reopening()
    }

    /// Why it does not move, for people; `None` when it does or has nothing to do.
    #[must_use]
    pub fn waiting_for(&self) -> Option<String> {
        if let Some(reason) = self.holds.reason() {
            return Some(reason);
        }
        if let Some(reason) = self.search_reason() {
            return Some(reason);
        }
        if self.is_idle() {
            return None;
        }
        if self.chain.nonces().is_none() && self.rules.nonce.chain_query != ChainQuery::Off {
            return Some("no endpoint has reported the account's nonce yet".into());
        }
        if self.chain.view.is_none() {
            return Some("the chain's head is not known yet".into());
        }
        let (_, head) = self.head()?;
        // While a no-op is to take its nonce, its own reason says only why.
        let own = head.tx.reason.clone();
        let (now, why) = match head.is_being_cancelled() {
            true => (None, own),
            false => (own, None),
        };
        let no_op_wait = head.no_op_wait.clone();
        no_op_wait.or(now).or_else(|| self.fee_wait(head)).or(why)
    }

    /// Which fee the chain demands of an attempt that it cannot include at present.
    fn fee_wait(&self, head: &Slot) -> Option<String> {
        let view = self.chain.view.as_ref()?;
        let newest = head.attempts().last()?;
        let (offered, demanded) = (newest.fees.max_per_gas(), view.fee.base_fee?);
        let is_made_here = !newest.raw.is_empty();
        (is_made_here && offered < demanded).then(|| {
            format!("it offers {offered} wei per gas, and the chain demands {demanded} at present")
        })
    }
}
