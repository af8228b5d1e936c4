//! Amounts of wei: big-endian without leading zeros, so that they sort, print and stay small.

use domain::lane::OpenCost;
use domain::{Fees, U256};

use super::Malformed;
use super::bytes::ByteReader;

const LEGACY: u8 = 0;
const EIP_1559: u8 = 2;

/// Without leading zero bytes. Zero has no bytes.
pub(crate) fn short(big_endian: &[u8]) -> &[u8] {
    let zeros = big_endian.iter().take_while(|byte| **byte == 0).count();
    &big_endian[zeros..]
}

/// Restores the full width.
pub(crate) fn widen<const N: usize>(
    bytes: &[u8],
    what: &'static str,
) -> Result<[u8; N], Malformed> {
    let zeros = N.checked_sub(bytes.len()).ok_or(Malformed(what))?;
    let mut wide = [0; N];
    wide[zeros..].copy_from_slice(bytes);
    Ok(wide)
}

/// Fee fields: the envelope's type, then its amounts, each but the last with its length before it.
pub(crate) fn fees_to_bytes(fees: &Fees) -> Vec<u8> {
    match fees {
        Fees::Legacy { gas_price } => {
            let mut out = vec![LEGACY];
            out.extend_from_slice(short(&gas_price.to_be_bytes()));
            out
        }
        Fees::Eip1559 {
            max_fee,
            max_priority_fee,
        } => {
            let max_fee = max_fee.to_be_bytes();
            let max_fee = short(&max_fee);
            let len = u8::try_from(max_fee.len()).expect("an amount has at most 16 bytes");
            let mut out = vec![EIP_1559, len];
            out.extend_from_slice(max_fee);
            out.extend_from_slice(short(&max_priority_fee.to_be_bytes()));
            out
        }
    }
}

pub(crate) fn fees_from_bytes(bytes: &[u8]) -> Result<Fees, Malformed> {
    let mut reader = ByteReader::new(bytes, "fees");
    let wei = |bytes| widen(bytes, "fees").map(u128::from_be_bytes);
    match reader.byte()? {
        LEGACY => Ok(Fees::Legacy {
            gas_price: wei(reader.rest())?,
        }),
        EIP_1559 => {
            let len = reader.byte()?;
            let max_fee = wei(reader.bytes(len.into())?)?;
            Ok(Fees::Eip1559 {
                max_fee,
                max_priority_fee: wei(reader.rest())?,
            })
        }
        1 | 3.. => Err(reader.malformed()),
    }
}

/// What open txs can cost: nothing for nothing, else the gas with its length before it, then the wei.
pub(crate) fn open_cost_to_bytes(cost: &OpenCost) -> Vec<u8> {
    if *cost == OpenCost::default() {
        return Vec::new();
    }
    let (gas, wei) = (
        cost.unpriced_gas.to_be_bytes(),
        cost.wei.to_be_bytes::<32>(),
    );
    let (gas, wei) = (short(&gas), short(&wei));
    let mut out = Vec::with_capacity(1 + gas.len() + wei.len());
    out.push(u8::try_from(gas.len()).expect("an amount has at most 16 bytes"));
    out.extend_from_slice(gas);
    out.extend_from_slice(wei);
    out
}

pub(crate) fn open_cost_from_bytes(bytes: &[u8]) -> Result<OpenCost, Malformed> {
    const WHAT: &str = "cost of open txs";
    if bytes.is_empty() {
        return Ok(OpenCost::default());
    }
    let mut reader = ByteReader::new(bytes, WHAT);
    let len = reader.byte()?;
    let gas = widen(reader.bytes(len.into())?, WHAT)?;
    Ok(OpenCost {
        wei: U256::from_be_bytes(widen::<32>(reader.rest(), WHAT)?),
        unpriced_gas: u128::from_be_bytes(gas),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_round_trip_and_nothing_takes_no_bytes() {
        for unpriced_gas in [0, 1, 256, u128::MAX] {
            for wei in [U256::ZERO, U256::from(255), U256::MAX] {
                let cost = OpenCost { wei, unpriced_gas };
                assert_eq!(open_cost_from_bytes(&open_cost_to_bytes(&cost)), Ok(cost));
            }
        }
        assert!(open_cost_to_bytes(&OpenCost::default()).is_empty());
        let some = OpenCost {
            wei: U256::from(7),
            unpriced_gas: 0x0102,
        };
        assert_eq!(open_cost_to_bytes(&some), [2, 1, 2, 7], "stored form");
        for bad in [&[9, 1][..], &[17; 18], &[0; 34]] {
            let refused = Err(Malformed("cost of open txs"));
            assert_eq!(open_cost_from_bytes(bad), refused, "{bad:?}");
        }
    }

    #[test]
    fn fees_round_trip() {
        for wei in [0, 1, 255, 256, 2_000_000_000, u128::MAX] {
            for fees in [
                Fees::Legacy { gas_price: wei },
                Fees::Eip1559 {
                    max_fee: wei,
                    max_priority_fee: 0,
                },
                Fees::Eip1559 {
                    max_fee: u128::MAX,
                    max_priority_fee: wei,
                },
            ] {
                assert_eq!(fees_from_bytes(&fees_to_bytes(&fees)), Ok(fees));
            }
        }
    }

    #[test]
    fn stored_form_is_stable() {
        let fees = Fees::Eip1559 {
            max_fee: 0x0102,
            max_priority_fee: 3,
        };
        assert_eq!(fees_to_bytes(&fees), [2, 2, 1, 2, 3]);
        assert_eq!(fees_to_bytes(&Fees::Legacy { gas_price: 7 }), [0, 7]);
    }

    #[test]
    fn malformed_fees_are_refused() {
        for bad in [&[][..], &[1], &[2], &[2, 9, 1], &[0; 18]] {
            assert_eq!(fees_from_bytes(bad), Err(Malformed("fees")), "{bad:?}");
        }
    }
}
