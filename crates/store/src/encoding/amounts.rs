//! Amounts of wei: big-endian without leading zeros, so that they sort, print and stay small.

use domain::Fees;

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

#[cfg(test)]
mod tests {
    use super::*;

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
