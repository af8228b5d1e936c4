//! Receipts. The front has fixed offsets, so that the view `tx_view` can read it in SQL:
//! flags 1 · tx hash 32 · block hash 32 · height 8 · gas used 8 · gas price 16 · contract 20? · reason?

use domain::{Address, B256, Inclusion};

use super::Malformed;
use super::bytes::ByteReader;

const SUCCEEDED: u8 = 1;
const HAS_CONTRACT: u8 = 2;
const HAS_REASON: u8 = 4;

pub(crate) fn inclusion_to_bytes(inclusion: &Inclusion) -> Vec<u8> {
    let reason = inclusion.revert_reason.as_deref().unwrap_or_default();
    let mut out = Vec::with_capacity(117 + reason.len());
    let mut flags = 0;
    if inclusion.succeeded {
        flags |= SUCCEEDED;
    }
    if inclusion.contract_address.is_some() {
        flags |= HAS_CONTRACT;
    }
    if inclusion.revert_reason.is_some() {
        flags |= HAS_REASON;
    }
    out.push(flags);
    out.extend_from_slice(inclusion.tx_hash.as_slice());
    out.extend_from_slice(inclusion.block_hash.as_slice());
    out.extend_from_slice(&inclusion.block_number.to_be_bytes());
    out.extend_from_slice(&inclusion.gas_used.to_be_bytes());
    out.extend_from_slice(&inclusion.effective_gas_price.to_be_bytes());
    if let Some(contract) = &inclusion.contract_address {
        out.extend_from_slice(contract.as_slice());
    }
    out.extend_from_slice(reason.as_bytes());
    out
}

pub(crate) fn inclusion_from_bytes(bytes: &[u8]) -> Result<Inclusion, Malformed> {
    let mut reader = ByteReader::new(bytes, "receipt");
    let flags = reader.byte()?;
    if flags & !(SUCCEEDED | HAS_CONTRACT | HAS_REASON) != 0 {
        return Err(reader.malformed());
    }
    let tx_hash = B256::from(reader.array()?);
    let block_hash = B256::from(reader.array()?);
    let block_number = u64::from_be_bytes(reader.array()?);
    let gas_used = u64::from_be_bytes(reader.array()?);
    let effective_gas_price = u128::from_be_bytes(reader.array()?);
    let has_contract = flags & HAS_CONTRACT != 0;
    let contract_address = has_contract
        .then(|| reader.array())
        .transpose()?
        .map(Address::new);
    let reason = String::from_utf8(reader.rest().into()).map_err(|_not_utf8| reader.malformed())?;
    let has_reason = flags & HAS_REASON != 0;
    if !has_reason && !reason.is_empty() {
        return Err(reader.malformed());
    }
    Ok(Inclusion {
        tx_hash,
        block_number,
        block_hash,
        succeeded: flags & SUCCEEDED != 0,
        gas_used,
        effective_gas_price,
        contract_address,
        revert_reason: has_reason.then_some(reason),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_round_trip() {
        let plain = Inclusion {
            tx_hash: B256::repeat_byte(1),
            block_number: u64::MAX,
            block_hash: B256::repeat_byte(2),
            succeeded: true,
            gas_used: 21_000,
            effective_gas_price: u128::MAX,
            contract_address: None,
            revert_reason: None,
        };
        let contract_address = Some(Address::repeat_byte(3));
        let cases = [
            plain.clone(),
            Inclusion {
                contract_address,
                ..plain.clone()
            },
            Inclusion {
                succeeded: false,
                revert_reason: Some("ü".into()),
                ..plain.clone()
            },
            Inclusion {
                contract_address,
                revert_reason: Some(String::new()),
                ..plain
            },
        ];
        for inclusion in cases {
            let bytes = inclusion_to_bytes(&inclusion);
            assert_eq!(inclusion_from_bytes(&bytes), Ok(inclusion));
            assert!(inclusion_from_bytes(&bytes[..96]).is_err());
        }
        assert!(inclusion_from_bytes(&[0xff; 200]).is_err());
    }
}
