//! The node's pool: by account in nonce order, gaps queued, replaced only for 10 % more.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes};
use domain::fee::REPLACEMENT_PERCENT_MIN;
use domain::{Fees, Nonce, SendOutcome, Unsigned};

use super::envelope;

/// How many transactions of one account the pool holds unless told otherwise.
pub(super) const SLOTS_DEFAULT: u64 = 4_096;

/// A transaction that a node has.
#[derive(Debug, PartialEq, Eq)]
pub struct ChainTx {
    /// Its hash.
    pub hash: B256,
    /// What it says.
    pub envelope: Unsigned,
}

impl ChainTx {
    /// The transaction of these bytes; `None` when they are none.
    #[must_use]
    pub fn decode(raw: &Bytes) -> Option<Self> {
        Some(Self {
            hash: envelope::hash(raw),
            envelope: envelope::decode(raw)?,
        })
    }

    /// The most that one unit of gas can cost, and the tip in it.
    pub(super) fn offer(&self) -> (u128, u128) {
        match self.envelope.fees {
            Fees::Legacy { gas_price } => (gas_price, gas_price),
            Fees::Eip1559 {
                max_fee,
                max_priority_fee,
            } => (max_fee, max_priority_fee),
        }
    }
}

#[derive(Debug)]
pub(super) struct Pool {
    waiting: BTreeMap<(Address, Nonce), Arc<ChainTx>>,
    pub(super) slots: u64,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            slots: SLOTS_DEFAULT,
        }
    }
}

impl Pool {
    /// Takes a transaction whose nonce is not used up and whose account can pay.
    pub(super) fn add(&mut self, tx: Arc<ChainTx>, next: Nonce) -> SendOutcome {
        let place = (tx.envelope.signer, tx.envelope.nonce);
        match self.waiting.get(&place) {
            Some(held) if held.hash == tx.hash => return SendOutcome::Accepted,
            Some(held) if !replaces(&tx, held) => {
                return SendOutcome::ReplacementUnderpriced(
                    "replacement transaction underpriced".to_owned(),
                );
            }
            Some(_) => {}
            None if next.until(tx.envelope.nonce) >= self.slots => {
                return SendOutcome::Busy("txpool is full".to_owned());
            }
            None => {}
        }
        self.waiting.insert(place, tx);
        SendOutcome::Accepted
    }

    /// Puts back what a fork took out of its block, unless something else took its place.
    pub(super) fn put_back(&mut self, tx: Arc<ChainTx>) {
        self.waiting
            .entry((tx.envelope.signer, tx.envelope.nonce))
            .or_insert(tx);
    }

    /// Everything that waits, by account, in nonce order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<ChainTx>> {
        self.waiting.values()
    }

    /// Forgets a transaction; whether it was there.
    pub(super) fn drop_tx(&mut self, hash: B256) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|_, tx| tx.hash != hash);
        self.waiting.len() < before
    }

    /// Forgets what can never be mined any more: `next` is the account's nonce.
    pub(super) fn prune(&mut self, next: impl Fn(Address) -> Nonce) {
        self.waiting
            .retain(|(account, nonce), _| *nonce >= next(*account));
    }

    /// The nonce after the unbroken run that starts at `from`.
    pub(super) fn pending(&self, account: Address, from: Nonce) -> Nonce {
        let mut nonce = from;
        while self.waiting.contains_key(&(account, nonce)) {
            nonce = nonce.next();
        }
        nonce
    }
}

fn replaces(new: &ChainTx, held: &ChainTx) -> bool {
    let enough = |new: u128, held: u128| {
        let least = held
            .saturating_mul(100 + REPLACEMENT_PERCENT_MIN)
            .div_ceil(100);
        new >= least && new > held
    };
    let (new, held) = (new.offer(), held.offer());
    enough(new.0, held.0) && enough(new.1, held.1)
}
