//! The twin's transaction bytes: every field of an envelope, with a fixed width or a presence byte, so that
//! no two envelopes share bytes. No cryptography: the signer field is trusted.

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use domain::{AttemptKind, ChainId, Fees, Nonce, TxId, UnsignedEnvelope};

const MAGIC: &[u8; 4] = b"twin";

/// The bytes of an envelope.
#[must_use]
pub fn encode(envelope: &UnsignedEnvelope) -> Bytes {
    let mut raw = Vec::with_capacity(192 + envelope.data.len());
    raw.extend_from_slice(MAGIC);
    raw.push(kind_number(envelope.kind));
    raw.extend_from_slice(envelope.tx_id.0.as_bytes());
    raw.extend_from_slice(&envelope.chain_id.0.to_be_bytes());
    raw.extend_from_slice(envelope.signer.as_slice());
    raw.extend_from_slice(&envelope.nonce.0.to_be_bytes());
    match envelope.to {
        Some(to) => {
            raw.push(1);
            raw.extend_from_slice(to.as_slice());
        }
        None => raw.push(0),
    }
    raw.extend_from_slice(&envelope.value.to_be_bytes::<32>());
    raw.extend_from_slice(&envelope.gas.to_be_bytes());
    let (tag, first, second) = match envelope.fees {
        Fees::Legacy { gas_price } => (0, gas_price, 0),
        Fees::Eip1559 {
            max_fee,
            max_priority_fee,
        } => (2, max_fee, max_priority_fee),
    };
    raw.push(tag);
    raw.extend_from_slice(&first.to_be_bytes());
    raw.extend_from_slice(&second.to_be_bytes());
    raw.extend_from_slice(&envelope.data);
    raw.into()
}

/// The envelope of these bytes; `None` when they are not an envelope.
#[must_use]
pub fn decode(raw: &[u8]) -> Option<UnsignedEnvelope> {
    let mut reader = Reader { rest: raw };
    if reader.read_array::<4>()? != *MAGIC {
        return None;
    }
    let kind = *AttemptKind::ALL.get(usize::from(reader.byte()?))?;
    let tx_id = TxId(uuid::Uuid::from_bytes(reader.read_array()?));
    let chain_id = ChainId(u64::from_be_bytes(reader.read_array()?));
    let signer = Address::from(reader.read_array::<20>()?);
    let nonce = Nonce(u64::from_be_bytes(reader.read_array()?));
    let to = match reader.byte()? {
        0 => None,
        1 => Some(Address::from(reader.read_array::<20>()?)),
        _ => return None,
    };
    let value = U256::from_be_bytes(reader.read_array::<32>()?);
    let gas = u64::from_be_bytes(reader.read_array()?);
    let tag = reader.byte()?;
    let first = u128::from_be_bytes(reader.read_array()?);
    let second = u128::from_be_bytes(reader.read_array()?);
    let fees = match (tag, second) {
        (0, 0) => Fees::Legacy { gas_price: first },
        (2, tip) => Fees::Eip1559 {
            max_fee: first,
            max_priority_fee: tip,
        },
        _ => return None,
    };
    let data = Bytes::copy_from_slice(reader.rest);
    Some(UnsignedEnvelope {
        tx_id,
        kind,
        chain_id,
        signer,
        nonce,
        to,
        value,
        data,
        gas,
        fees,
    })
}

/// The hash of these bytes on chain.
#[must_use]
pub fn hash(raw: &[u8]) -> B256 {
    keccak256(raw)
}

fn kind_number(kind: AttemptKind) -> u8 {
    let place = AttemptKind::ALL.iter().position(|known| *known == kind);
    place
        .and_then(|place| u8::try_from(place).ok())
        .expect("ALL has every kind")
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn read_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.read_array::<1>().map(|[byte]| byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelope_round_trips_and_garbage_is_refused() {
        let mut envelope = UnsignedEnvelope {
            tx_id: TxId(uuid::Uuid::from_u128(7)),
            kind: AttemptKind::Bump,
            chain_id: ChainId(31_337),
            signer: Address::repeat_byte(1),
            nonce: Nonce(9),
            to: Some(Address::repeat_byte(2)),
            value: U256::from(3),
            data: Bytes::from_static(b"hello"),
            gas: 21_000,
            fees: Fees::Eip1559 {
                max_fee: 5,
                max_priority_fee: 4,
            },
        };
        let raw = encode(&envelope);
        assert_eq!(decode(&raw), Some(envelope.clone()));
        assert_eq!(decode(&raw[..40]), None);
        assert_eq!(decode(b""), None);
        envelope.to = None;
        envelope.fees = Fees::Legacy { gas_price: 8 };
        assert_eq!(decode(&encode(&envelope)), Some(envelope));
    }
}
