//! The mempool of an endpoint: by account in nonce order, with gaps, replaced only for 10 % more.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes};
use domain::fee::REPLACEMENT_PERCENT_MIN;
use domain::lane::{MinedTransaction, NonceConsumer};
use domain::{EffectDigest, Fees, Nonce, Payload, SendOutcome, UnsignedEnvelope};

use super::envelope;

/// The default number of transactions of one account in a mempool.
const SLOTS_DEFAULT: u64 = 4_096;

/// The account and the nonce of a transaction.
pub(super) type Place = (Address, Nonce);

/// A decoded transaction.
#[derive(Debug, PartialEq, Eq)]
pub struct ChainTx {
    pub hash: B256,
    pub envelope: UnsignedEnvelope,
}

impl ChainTx {
    /// The transaction of these bytes; `None` when they are not one.
    #[must_use]
    pub fn decode(raw: &Bytes) -> Option<Self> {
        Some(Self {
            hash: envelope::hash(raw),
            envelope: envelope::decode(raw)?,
        })
    }

    /// This transaction as the consumer of its nonce.
    pub(super) fn find_consumer(&self) -> NonceConsumer {
        let UnsignedEnvelope {
            to, value, data, ..
        } = &self.envelope;
        NonceConsumer::Transaction {
            hash: self.hash,
            effect_digest: EffectDigest::of(*to, *value, data),
        }
    }

    /// This transaction in a block.
    pub(super) fn to_mined(&self) -> MinedTransaction {
        let mut payload = Payload::transfer(Address::ZERO, self.envelope.value);
        payload.to = self.envelope.to;
        payload.data = self.envelope.data.clone();
        MinedTransaction {
            hash: self.hash,
            payload,
        }
    }

    pub(super) fn place(&self) -> Place {
        (self.envelope.signer, self.envelope.nonce)
    }

    /// The maximum price of one unit of gas, and the tip in it.
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
    /// How many transactions of one account it holds.
    pub(super) slots: u64,
    /// Whether it reports its depth when it is full.
    pub(super) reports_depth: bool,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            slots: SLOTS_DEFAULT,
            reports_depth: false,
        }
    }
}

impl Pool {
    /// Adds a transaction whose nonce is not consumed and whose account can pay.
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
                    most: self.reports_depth.then_some(self.slots),
                };
            }
            None => {}
        }
        self.waiting.insert(tx.place(), tx);
        SendOutcome::Accepted
    }

    /// Puts back a transaction that was reorged out, unless its nonce is taken.
    pub(super) fn put_back(&mut self, tx: Arc<ChainTx>) {
        self.waiting.entry(tx.place()).or_insert(tx);
    }

    /// All transactions, by account, in nonce order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<ChainTx>> {
        self.waiting.values()
    }

    /// The transaction at a place.
    pub(super) fn get(&self, place: Place) -> Option<&ChainTx> {
        self.waiting.get(&place).map(Arc::as_ref)
    }

    pub(super) fn contains(&self, tx: &ChainTx) -> bool {
        let held = self.get(tx.place());
        held.is_some_and(|held| held.hash == tx.hash)
    }

    /// Drops a transaction; returns whether it was there.
    pub(super) fn drop_tx(&mut self, hash: B256) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|_, tx| tx.hash != hash);
        self.waiting.len() < before
    }

    /// Drops everything, as an endpoint does that restarts.
    pub(super) fn lose_all(&mut self) {
        self.waiting.clear();
    }

    /// Drops transactions that can never be mined any more: `next` is the account's nonce.
    pub(super) fn prune(&mut self, next: impl Fn(Address) -> Nonce) {
        self.waiting
            .retain(|(account, nonce), _| *nonce >= next(*account));
    }

    /// The nonce after the consecutive run that starts at `from`.
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
