//! Blocks, receipts and transactions as nodes write them, with no more fields than are used.
//!
//! Smaller than the types of alloy on purpose: chains add tx and receipt types of their own, and one unknown
//! receipt must not make a whole block undecodable.

use alloy_primitives::{Address, B256, Bytes, U256};
use domain::lane::{ConsumedNonce, MinedTransaction, NonceConsumer};
use domain::{EffectDigest, Header, Inclusion, Nonce, Payload};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::value::RawValue;

use super::failure::Failure;

/// A number as JSON-RPC writes it: `0x` and at least one hexadecimal digit. Libraries accept `0x` as 0, which
/// would turn an empty answer into a nonce.
macro_rules! quantity {
    ($name:ident, $number:ty) => {
        #[derive(Clone, Copy, Default)]
        pub(super) struct $name(pub(super) $number);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                let digits = text
                    .strip_prefix("0x")
                    .filter(|rest| !rest.starts_with('+'));
                digits
                    .and_then(|digits| <$number>::from_str_radix(digits, 16).ok())
                    .map(Self)
                    .ok_or_else(|| D::Error::custom("a number is not a 0x quantity, or too large"))
            }
        }
    };
}

quantity!(Quantity, u64);
quantity!(Wei, u128);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Block {
    number: Quantity,
    hash: B256,
    parent_hash: B256,
    timestamp: Quantity,
    /// Missing on chains without EIP-1559.
    pub(super) base_fee_per_gas: Option<Wei>,
    /// Missing in blocks of light nodes.
    pub(super) gas_used: Option<Quantity>,
    pub(super) gas_limit: Option<Quantity>,
    /// Hashes, or complete txs where they were requested.
    #[serde(default)]
    transactions: Vec<Box<RawValue>>,
}

impl Block {
    pub(super) fn header(&self) -> Header {
        Header {
            number: self.number.0,
            hash: self.hash,
            parent_hash: self.parent_hash,
            timestamp: self.timestamp.0,
        }
    }

    fn texts(&self) -> impl Iterator<Item = &RawValue> {
        self.transactions.iter().map(AsRef::as_ref)
    }

    /// The hashes of its transactions.
    pub(super) fn hashes(&self) -> Result<Vec<B256>, Failure> {
        let hash = |raw: &RawValue| serde_json::from_str(raw.get()).ok();
        let hashes: Option<Vec<B256>> = self.texts().map(hash).collect();
        hashes.ok_or_else(|| Failure::Malformed("a block without its hashes".to_owned()))
    }

    /// An account's txs. Undecodable ones (chains have types of their own) are skipped.
    pub(super) fn transactions_of(&self, account: Address) -> impl Iterator<Item = SenderTx> {
        let read = |raw: &RawValue| serde_json::from_str::<SenderTx>(raw.get()).ok();
        let all = self.texts().filter_map(read);
        all.filter(move |tx| tx.from == account)
    }
}

/// A tx with its sender and effect.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SenderTx {
    hash: B256,
    from: Address,
    pub(super) nonce: Quantity,
    to: Option<Address>,
    value: U256,
    input: Bytes,
    /// Missing while it is in no block.
    block_number: Option<Quantity>,
}

impl SenderTx {
    /// Whether the account sent it and it is in a block up to this height.
    pub(super) fn is_mined(&self, account: Address, up_to: u64) -> bool {
        let height = self.block_number.as_ref();
        self.from == account && height.is_some_and(|height| height.0 <= up_to)
    }

    pub(super) fn to_consumer(&self) -> NonceConsumer {
        NonceConsumer::Transaction {
            hash: self.hash,
            effect_digest: EffectDigest::of(self.to, self.value, &self.input),
        }
    }

    pub(super) fn into_consumed_nonce(self) -> ConsumedNonce {
        let mut payload = Payload::transfer(Address::ZERO, self.value);
        payload.to = self.to;
        payload.data = self.input;
        ConsumedNonce {
            nonce: Nonce(self.nonce.0),
            transaction: Some(MinedTransaction {
                hash: self.hash,
                payload,
            }),
        }
    }
}

/// A transaction that a node has, mined or not.
#[derive(Deserialize)]
pub(super) struct KnownTx {
    pub(super) hash: B256,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Receipt {
    transaction_hash: B256,
    /// Missing, with its number, while the tx is pending (some nodes return a receipt even then).
    block_hash: Option<B256>,
    block_number: Option<Quantity>,
    status: Option<Quantity>,
    gas_used: Quantity,
    effective_gas_price: Option<Wei>,
    contract_address: Option<Address>,
}

impl Receipt {
    /// The inclusion of this tx; `None` while it is in no block.
    pub(super) fn inclusion_of(self, hash: B256) -> Result<Option<Inclusion>, Failure> {
        if self.transaction_hash != hash {
            return Err(Failure::Malformed(
                "a receipt of another transaction".to_owned(),
            ));
        }
        self.inclusion()
    }

    /// The inclusion in this block.
    pub(super) fn inclusion_in(self, block: B256) -> Result<Inclusion, Failure> {
        match self.inclusion()? {
            Some(inclusion) if inclusion.block_hash == block => Ok(inclusion),
            Some(_) | None => Err(Failure::Malformed("a receipt of another block".to_owned())),
        }
    }

    fn inclusion(self) -> Result<Option<Inclusion>, Failure> {
        let (Some(block_hash), Some(block_number)) = (self.block_hash, self.block_number) else {
            return Ok(None);
        };
        // Without a status (before Byzantium, 2017) success is unknown.
        let status = self
            .status
            .ok_or_else(|| Failure::Malformed("a receipt without a status".to_owned()))?;
        Ok(Some(Inclusion {
            tx_hash: self.transaction_hash,
            block_number: block_number.0,
            block_hash,
            succeeded: status.0 != 0,
            gas_used: self.gas_used.0,
            // Old nodes of chains without EIP-1559 omit it: 0 means unknown there.
            effective_gas_price: self.effective_gas_price.unwrap_or_default().0,
            contract_address: self.contract_address,
            revert_reason: None,
        }))
    }
}

/// The parts of a mined tx that executing it again needs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MinedTx {
    pub(super) from: Address,
    pub(super) to: Option<Address>,
    pub(super) value: U256,
    pub(super) input: Bytes,
    pub(super) gas: Quantity,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FeeHistory {
    #[serde(default)]
    pub(super) reward: Option<Vec<Option<Vec<Wei>>>>,
    #[serde(default)]
    pub(super) base_fee_per_gas: Option<Vec<Wei>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hex_quantities_are_numbers() {
        let read = |text: &str| {
            serde_json::from_str::<Quantity>(text)
                .ok()
                .map(|read| read.0)
        };
        assert_eq!(read(r#""0x0""#), Some(0));
        assert_eq!(read(r#""0x00ff""#), Some(255));
        assert_eq!(read(r#""0xffffffffffffffff""#), Some(u64::MAX));
        let bad = [
            r#""0x""#,
            r#""""#,
            r#""0x+1""#,
            r#""0x-1""#,
            r#""10""#,
            r#""0x1ffffffffffffffff""#,
            r#""0xg""#,
            r#""0x 1""#,
            "null",
            "7",
            "[]",
        ];
        for text in bad {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
