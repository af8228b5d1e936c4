//! What a client asked to send, unchanged, and its fingerprint.

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};

/// The envelope type, when the client fixes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxType {
    /// Type 0, with a gas price.
    Legacy,
    /// Type 2, with a fee cap and a tip.
    Eip1559,
}

/// A client's request, normalised but not completed: what it left out stays `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// The recipient; `None` deploys `data` as a contract.
    pub to: Option<Address>,
    /// Wei to move.
    pub value: U256,
    /// Call data or init code.
    pub data: Bytes,
    /// Gas limit, when the client sets it.
    pub gas: Option<u64>,
    /// EIP-1559 fee cap in wei, when the client sets it.
    pub max_fee_per_gas: Option<u128>,
    /// EIP-1559 tip in wei, when the client sets it.
    pub max_priority_fee_per_gas: Option<u128>,
    /// Legacy gas price in wei, when the client sets it.
    pub gas_price: Option<u128>,
    /// The envelope type, when the client sets it.
    pub tx_type: Option<TxType>,
}

/// A digest of the normalised payload: the same request sent twice has the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub B256);

/// What a transaction does when it is mined, whatever it costs: all attempts of a tx share it, but for those
/// that cancel it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EffectDigest(B256);

impl EffectDigest {
    /// Of a transaction with this recipient, value and call data.
    #[must_use]
    pub fn of(to: Option<Address>, value: U256, data: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(data.len().saturating_add(53));
        write_effect(&mut bytes, to, value);
        bytes.extend_from_slice(data);
        Self(keccak256(&bytes))
    }
}

fn write_effect(bytes: &mut Vec<u8>, to: Option<Address>, value: U256) {
    match to {
        Some(to) => {
            bytes.push(1);
            bytes.extend_from_slice(to.as_slice());
        }
        None => bytes.push(0),
    }
    bytes.extend_from_slice(&value.to_be_bytes::<32>());
}

impl Payload {
    /// A plain transfer.
    #[must_use]
    pub fn transfer(to: Address, value: U256) -> Self {
        Self {
            to: Some(to),
            value,
            ..Self::default()
        }
    }

    /// The digest that distinguishes a repeated request from a reused request id.
    ///
    /// Every field is written with its presence and a fixed width or length, so that no two
    /// payloads share an encoding.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let mut bytes = Vec::with_capacity(self.data.len().saturating_add(160));
        write_effect(&mut bytes, self.to, self.value);
        let amounts = [
            self.gas.map(u128::from),
            self.max_fee_per_gas,
            self.max_priority_fee_per_gas,
            self.gas_price,
        ];
        for amount in amounts {
            match amount {
                Some(wei) => {
                    bytes.push(1);
                    bytes.extend_from_slice(&wei.to_be_bytes());
                }
                None => bytes.push(0),
            }
        }
        bytes.push(match self.tx_type {
            None => 0,
            Some(TxType::Legacy) => 1,
            Some(TxType::Eip1559) => 2,
        });
        bytes.extend_from_slice(&self.data);
        Fingerprint(keccak256(&bytes))
    }

    /// The most that it may pay per gas, where the request says so.
    #[must_use]
    pub fn fee_limit(&self) -> Option<u128> {
        self.max_fee_per_gas.or(self.gas_price)
    }

    /// What it does when it is mined.
    #[must_use]
    pub fn effect_digest(&self) -> EffectDigest {
        EffectDigest::of(self.to, self.value, &self.data)
    }

    /// The least gas that a node of any chain demands for this payload: calldata at 4 and 16 gas, and creation. Newer
    /// rules of a chain may demand more.
    #[must_use]
    pub fn intrinsic_gas_min(&self) -> u64 {
        let creation = if self.to.is_none() { 32_000_u64 } else { 0 };
        let calldata = self.calldata_tokens().saturating_mul(4);
        calldata.saturating_add(creation).saturating_add(21_000)
    }

    /// A zero byte of calldata is one token, any other four (EIP-7623).
    fn calldata_tokens(&self) -> u64 {
        let len = u64::try_from(self.data.len()).unwrap_or(u64::MAX);
        let zeros = self.data.iter().filter(|b| **b == 0).count();
        let zeros = u64::try_from(zeros).unwrap_or(u64::MAX);
        let others = len.saturating_sub(zeros);
        others.saturating_mul(4).saturating_add(zeros)
    }

    /// The least gas that nodes of a chain with the rules of Prague demand for this payload: also the floor of EIP-7623,
    /// and init code by the word.
    #[must_use]
    pub fn intrinsic_gas(&self) -> u64 {
        let len = u64::try_from(self.data.len()).unwrap_or(u64::MAX);
        let tokens = self.calldata_tokens();
        let creation = match self.to {
            Some(_) => 0,
            None => 32_000_u64.saturating_add(len.div_ceil(32).saturating_mul(2)),
        };
        let standard = tokens.saturating_mul(4).saturating_add(creation);
        let floor = tokens.saturating_mul(10);
        standard.max(floor).saturating_add(21_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Payload {
        Payload::transfer(Address::repeat_byte(7), U256::from(1))
    }

    #[test]
    fn every_field_changes_the_fingerprint() {
        let changes: [fn(&mut Payload); 8] = [
            |p| p.to = None,
            |p| p.value = U256::from(2),
            |p| p.data = Bytes::from_static(&[0]),
            |p| p.gas = Some(21_000),
            |p| p.max_fee_per_gas = Some(21_000),
            |p| p.max_priority_fee_per_gas = Some(21_000),
            |p| p.gas_price = Some(21_000),
            |p| p.tx_type = Some(TxType::Legacy),
        ];
        let mut seen = vec![base().fingerprint().0];
        for change in changes {
            let mut changed = base();
            change(&mut changed);
            assert!(!seen.contains(&changed.fingerprint().0));
            seen.push(changed.fingerprint().0);
        }
        assert_eq!(base().fingerprint(), base().fingerprint());
    }

    #[test]
    fn intrinsic_gas_follows_prague() {
        assert_eq!(base().intrinsic_gas(), 21_000);
        let mut call = base();
        call.data = Bytes::from_static(&[0, 1]);
        // 1 zero + 1 non-zero byte = 5 tokens: 20 gas by the standard rule, 50 by the floor.
        assert_eq!(call.intrinsic_gas(), 21_050);
        let mut creation = base();
        creation.to = None;
        creation.data = Bytes::from_static(&[1]);
        assert_eq!(creation.intrinsic_gas(), 21_000 + 32_000 + 16 + 2);
    }
}
