//! A node's pool: by account in nonce order, gaps queued, replaced only for 10 % more.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes};
use domain::fee::REPLACEMENT_PERCENT_MIN;
use domain::lane::NonceConsumer;
use domain::{EffectDigest, Fees, Nonce, SendOutcome, UnsignedEnvelope};

use super::envelope;

/// How many transactions of one account a pool holds unless told otherwise.
const SLOTS_DEFAULT: u64 = 4_096;

/// Whose transaction, and where in the account's order.
pub(super) type Place = (Address, Nonce);

/// A transaction that a node has.
#[derive(Debug, PartialEq, Eq)]
pub struct ChainTx {
    /// Its hash.
    pub hash: B256,
    /// What it says.
    pub envelope: UnsignedEnvelope,
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

    /// As the one that consumed its nonce.
    pub(super) fn find_consumer(&self) -> NonceConsumer {
        let UnsignedEnvelope {
            to, value, data, ..
        } = &self.envelope;
        NonceConsumer::By {
            hash: self.hash,
            effect_digest: EffectDigest::of(*to, *value, data),
        }
    }

    pub(super) fn place(&self) -> Place {
        (self.envelope.signer, self.envelope.nonce)
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
    waiting: BTreeMap<Place, Arc<ChainTx>>,
    /// How many of one account it holds.
    pub(super) slots: u64,
    /// Whether it says so when it has no room.
    pub(super) tells_slots: bool,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            slots: SLOTS_DEFAULT,
            tells_slots: false,
        }
    }
}

impl Pool {
    /// Takes a transaction whose nonce is not used up and whose account can pay.
    pub(super) fn add(&mut self, tx: Arc<ChainTx>, next: Nonce) -> SendOutcome {
        match self.waiting.get(&tx.place()) {
            Some(held) if held.hash == tx.hash => return SendOutcome::Accepted,
            Some(held) if !replaces(&tx, held) => {
                return SendOutcome::ReplacementUnderpriced(
                    "replacement transaction underpriced".to_owned(),
                );
            }
            Some(_) => {}
            None if next.until(tx.envelope.nonce) >= self.slots => {
                return SendOutcome::Full {
                    text: "txpool is full".to_owned(),
                    most: self.tells_slots.then_some(self.slots),
                };
            }
            None => {}
        }
        self.waiting.insert(tx.place(), tx);
        SendOutcome::Accepted
    }

    /// Puts back what a fork took out of its block, unless something else took its place.
    pub(super) fn put_back(&mut self, tx: Arc<ChainTx>) {
        self.waiting.entry(tx.place()).or_insert(tx);
    }

    /// Everything that waits, by account, in nonce order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<ChainTx>> {
        self.waiting.values()
    }

    /// What waits at a place.
    pub(super) fn at(&self, place: Place) -> Option<&ChainTx> {
        self.waiting.get(&place).map(Arc::as_ref)
    }

    pub(super) fn contains(&self, tx: &ChainTx) -> bool {
        let held = self.at(tx.place());
        held.is_some_and(|held| held.hash == tx.hash)
    }

    /// Forgets a transaction; whether it was there.
    pub(super) fn drop_tx(&mut self, hash: B256) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|_, tx| tx.hash != hash);
        self.waiting.len() < before
    }

    /// Forgets everything, as a node that is started again.
    pub(super) fn lose_all(&mut self) {
        self.waiting.clear();
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

/// Both fee fields must rise by 10 %.
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
