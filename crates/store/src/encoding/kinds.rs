//! The kinds of events: the number under which each is stored, and its fields in their order.
//!
//! A field that was added to a kind later has a second number for it: events without the field are
//! written as before, and every row that was ever written can be read.

use domain::{AttemptKind, B256, EventKind, NodeName, Nonce, Token};

use super::Malformed;
use super::bytes::{ByteReader, put_number, put_text};
use super::enum_numbers::{attempt_kind, attempt_kind_number};

const TX_ACCEPTED: u8 = 1;
const TX_ALLOCATED: u8 = 2;
const TX_SUBMITTED: u8 = 3;
const TX_RECEIPT_UPDATED: u8 = 4;
const TX_CONFIRMATIONS: u8 = 5;
const TX_CONFIRMED: u8 = 6;
const TX_FAILED: u8 = 7;
const TX_STUCK: u8 = 8;
const TX_REORGED: u8 = 9;
const LANE_FENCED: u8 = 10;
const LANE_FOREIGN_NONCE: u8 = 11;
const TX_RESUBMITTED: u8 = 12;
const TX_REPLACED: u8 = 13;
const TX_REQUEUED: u8 = 14;
const LANE_FOREIGN_PENDING: u8 = 15;
/// [`TX_CONFIRMATIONS`] that continue above a header: that one follows.
const TX_CONFIRMATIONS_SINCE: u8 = 16;
/// [`LANE_FOREIGN_NONCE`] of a transaction that was found: its hash follows.
const LANE_FOREIGN_NONCE_BY: u8 = 17;

pub(super) fn kind_number(kind: &EventKind) -> u8 {
    match kind {
        EventKind::TxAccepted { .. } => TX_ACCEPTED,
        EventKind::TxAllocated { .. } => TX_ALLOCATED,
        EventKind::TxSubmitted { .. } => TX_SUBMITTED,
        EventKind::TxReceiptUpdated { .. } => TX_RECEIPT_UPDATED,
        EventKind::TxConfirmations { since: None, .. } => TX_CONFIRMATIONS,
        EventKind::TxConfirmations { since: Some(_), .. } => TX_CONFIRMATIONS_SINCE,
        EventKind::TxConfirmed { .. } => TX_CONFIRMED,
        EventKind::TxFailed { .. } => TX_FAILED,
        EventKind::TxStuck { .. } => TX_STUCK,
        EventKind::TxReorged { .. } => TX_REORGED,
        EventKind::LaneFenced { .. } => LANE_FENCED,
        EventKind::LaneForeignNonce { tx_hash: None, .. } => LANE_FOREIGN_NONCE,
        EventKind::LaneForeignNonce {
            tx_hash: Some(_), ..
        } => LANE_FOREIGN_NONCE_BY,
        EventKind::TxResubmitted { .. } => TX_RESUBMITTED,
        EventKind::TxReplaced { .. } => TX_REPLACED,
        EventKind::TxRequeued { .. } => TX_REQUEUED,
        EventKind::LaneForeignPending { .. } => LANE_FOREIGN_PENDING,
    }
}

pub(super) fn put_fields(out: &mut Vec<u8>, kind: &EventKind) {
    match kind {
        // Shifted by one, so that a nonce of 0 differs from none. (2^64 - 1 is no legal nonce.)
        EventKind::TxAccepted { nonce } => {
            put_number(out, nonce.map_or(0, |nonce| nonce.0.saturating_add(1)));
        }
        EventKind::TxAllocated { nonce } | EventKind::LaneForeignPending { nonce } => {
            put_number(out, nonce.0);
        }
        EventKind::TxSubmitted { tx_hash, nonce } => {
            put_hash(out, tx_hash);
            put_number(out, nonce.0);
        }
        EventKind::TxResubmitted {
            tx_hash,
            nonce,
            kind,
            count,
        } => {
            put_attempt(out, tx_hash, *nonce, *kind);
            put_number(out, (*count).into());
        }
        EventKind::TxReplaced {
            tx_hash,
            nonce,
            kind,
        } => put_attempt(out, tx_hash, *nonce, *kind),
        EventKind::TxRequeued { nonce, foreign } => {
            put_number(out, nonce.0);
            out.push(foreign.is_some().into());
            put_hash_if(out, foreign.as_ref());
        }
        EventKind::LaneForeignNonce { nonce, tx_hash } => {
            put_number(out, nonce.0);
            put_hash_if(out, tx_hash.as_ref());
        }
        EventKind::TxFailed { reason } | EventKind::TxStuck { reason } => put_text(out, reason),
        EventKind::LaneFenced { from, token } => {
            put_text(out, &from.0);
            put_number(out, token.0);
        }
        EventKind::TxReceiptUpdated { .. }
        | EventKind::TxConfirmations { .. }
        | EventKind::TxConfirmed { .. }
        | EventKind::TxReorged { .. } => put_fields_of_block(out, kind),
    }
}

fn put_fields_of_block(out: &mut Vec<u8>, kind: &EventKind) {
    match kind {
        EventKind::TxReceiptUpdated {
            tx_hash,
            block_number,
            block_hash,
            succeeded,
        } => {
            put_hash(out, tx_hash);
            put_block(out, *block_number, block_hash);
            out.push((*succeeded).into());
        }
        EventKind::TxConfirmations {
            block_number,
            block_hash,
            counted,
            count,
            since,
            new_fork,
        } => {
            put_block(out, *block_number, block_hash);
            put_hash(out, counted);
            put_number(out, *count);
            out.push((*new_fork).into());
            put_hash_if(out, since.as_ref());
        }
        EventKind::TxConfirmed {
            tx_hash,
            block_number,
            block_hash,
            counted,
            new_fork,
        } => {
            put_hash(out, tx_hash);
            put_block(out, *block_number, block_hash);
            put_hash(out, counted);
            out.push((*new_fork).into());
        }
        EventKind::TxReorged {
            block_number,
            block_hash,
            after_final,
        } => {
            put_block(out, *block_number, block_hash);
            out.push((*after_final).into());
        }
        EventKind::TxAccepted { .. }
        | EventKind::TxAllocated { .. }
        | EventKind::TxSubmitted { .. }
        | EventKind::TxFailed { .. }
        | EventKind::TxStuck { .. }
        | EventKind::LaneFenced { .. }
        | EventKind::LaneForeignNonce { .. }
        | EventKind::TxResubmitted { .. }
        | EventKind::TxReplaced { .. }
        | EventKind::TxRequeued { .. }
        | EventKind::LaneForeignPending { .. } => unreachable!("these name no block"),
    }
}

pub(super) fn take_fields(reader: &mut ByteReader<'_>, number: u8) -> Result<EventKind, Malformed> {
    Ok(match number {
        TX_ACCEPTED => EventKind::TxAccepted {
            nonce: reader.number()?.checked_sub(1).map(Nonce),
        },
        TX_ALLOCATED => EventKind::TxAllocated {
            nonce: take_nonce(reader)?,
        },
        TX_SUBMITTED => EventKind::TxSubmitted {
            tx_hash: take_hash(reader)?,
            nonce: take_nonce(reader)?,
        },
        TX_FAILED => EventKind::TxFailed {
            reason: reader.text()?,
        },
        TX_STUCK => EventKind::TxStuck {
            reason: reader.text()?,
        },
        LANE_FENCED => EventKind::LaneFenced {
            from: NodeName(reader.text()?),
            token: Token(reader.number()?),
        },
        LANE_FOREIGN_NONCE | LANE_FOREIGN_NONCE_BY => EventKind::LaneForeignNonce {
            nonce: take_nonce(reader)?,
            tx_hash: take_hash_if(reader, number == LANE_FOREIGN_NONCE_BY)?,
        },
        TX_RESUBMITTED => EventKind::TxResubmitted {
            tx_hash: take_hash(reader)?,
            nonce: take_nonce(reader)?,
            kind: take_kind(reader)?,
            count: u32::try_from(reader.number()?).map_err(|_too_large| reader.malformed())?,
        },
        TX_REPLACED => EventKind::TxReplaced {
            tx_hash: take_hash(reader)?,
            nonce: take_nonce(reader)?,
            kind: take_kind(reader)?,
        },
        TX_REQUEUED => {
            let (nonce, is_found) = (take_nonce(reader)?, reader.flag()?);
            let foreign = take_hash_if(reader, is_found)?;
            EventKind::TxRequeued { nonce, foreign }
        }
        LANE_FOREIGN_PENDING => EventKind::LaneForeignPending {
            nonce: take_nonce(reader)?,
        },
        TX_RECEIPT_UPDATED
        | TX_CONFIRMATIONS
        | TX_CONFIRMATIONS_SINCE
        | TX_CONFIRMED
        | TX_REORGED => take_fields_of_block(reader, number)?,
        0 | 18.. => return Err(reader.malformed()),
    })
}

fn take_fields_of_block(reader: &mut ByteReader<'_>, number: u8) -> Result<EventKind, Malformed> {
    Ok(match number {
        TX_RECEIPT_UPDATED => EventKind::TxReceiptUpdated {
            tx_hash: take_hash(reader)?,
            block_number: reader.number()?,
            block_hash: take_hash(reader)?,
            succeeded: reader.flag()?,
        },
        TX_CONFIRMATIONS | TX_CONFIRMATIONS_SINCE => EventKind::TxConfirmations {
            block_number: reader.number()?,
            block_hash: take_hash(reader)?,
            counted: take_hash(reader)?,
            count: reader.number()?,
            new_fork: reader.flag()?,
            since: take_hash_if(reader, number == TX_CONFIRMATIONS_SINCE)?,
        },
        TX_CONFIRMED => EventKind::TxConfirmed {
            tx_hash: take_hash(reader)?,
            block_number: reader.number()?,
            block_hash: take_hash(reader)?,
            counted: take_hash(reader)?,
            new_fork: reader.flag()?,
        },
        TX_REORGED => EventKind::TxReorged {
            block_number: reader.number()?,
            block_hash: take_hash(reader)?,
            after_final: reader.flag()?,
        },
        _ => return Err(reader.malformed()),
    })
}

fn put_attempt(out: &mut Vec<u8>, hash: &B256, nonce: Nonce, kind: AttemptKind) {
    put_hash(out, hash);
    put_number(out, nonce.0);
    let kind = attempt_kind_number(kind);
    out.push(u8::try_from(kind).expect("the kinds of attempts are few"));
}

fn take_kind(reader: &mut ByteReader<'_>) -> Result<AttemptKind, Malformed> {
    attempt_kind(reader.byte()?.into())
}

fn take_nonce(reader: &mut ByteReader<'_>) -> Result<Nonce, Malformed> {
    reader.number().map(Nonce)
}

fn put_block(out: &mut Vec<u8>, number: u64, hash: &B256) {
    put_number(out, number);
    put_hash(out, hash);
}

fn put_hash(out: &mut Vec<u8>, hash: &B256) {
    out.extend_from_slice(hash.as_slice());
}

fn put_hash_if(out: &mut Vec<u8>, hash: Option<&B256>) {
    if let Some(hash) = hash {
        put_hash(out, hash);
    }
}

fn take_hash(reader: &mut ByteReader<'_>) -> Result<B256, Malformed> {
    reader.array().map(B256::from)
}

fn take_hash_if(reader: &mut ByteReader<'_>, is_there: bool) -> Result<Option<B256>, Malformed> {
    is_there.then(|| take_hash(reader)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(kind: &EventKind) -> Vec<u8> {
        let mut bytes = vec![kind_number(kind)];
        put_fields(&mut bytes, kind);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<EventKind, Malformed> {
        let mut reader = ByteReader::new(&bytes[1..], "event");
        let kind = take_fields(&mut reader, bytes[0])?;
        assert!(reader.is_empty(), "{kind:?}");
        Ok(kind)
    }

    /// A row from its parts.
    fn bytes(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    #[test]
    fn rows_from_before_a_field_was_added_are_read_without_it() {
        let (two, three) = ([2; 32], [3; 32]);
        let foreign = EventKind::LaneForeignNonce {
            nonce: Nonce(7),
            tx_hash: None,
        };
        let confirmations = EventKind::TxConfirmations {
            block_number: 300,
            block_hash: two.into(),
            counted: three.into(),
            count: 20,
            since: None,
            new_fork: true,
        };
        let rows = [
            (bytes(&[&[11, 7]]), foreign),
            (
                bytes(&[&[5, 0xac, 2], &two, &three, &[20, 1]]),
                confirmations,
            ),
        ];
        for (bytes, kind) in rows {
            assert_eq!(read(&bytes), Ok(kind.clone()));
            assert_eq!(
                written(&kind),
                bytes,
                "older programs read what has no new field"
            );
        }
    }

    #[test]
    fn stored_form_is_stable() {
        let (one, two, three) = ([1; 32], [2; 32], [3; 32]);
        let (tx_hash, nonce) = (B256::from(one), Nonce(7));
        let rows = [
            (
                EventKind::TxResubmitted {
                    tx_hash,
                    nonce,
                    kind: AttemptKind::Bump,
                    count: 300,
                },
                bytes(&[&[12], &one, &[7, 1, 0xac, 2]]),
            ),
            (
                EventKind::TxReplaced {
                    tx_hash,
                    nonce,
                    kind: AttemptKind::Cancel,
                },
                bytes(&[&[13], &one, &[7, 2]]),
            ),
            (
                EventKind::TxRequeued {
                    nonce,
                    foreign: None,
                },
                bytes(&[&[14, 7, 0]]),
            ),
            (
                EventKind::TxRequeued {
                    nonce,
                    foreign: Some(two.into()),
                },
                bytes(&[&[14, 7, 1], &two]),
            ),
            (EventKind::LaneForeignPending { nonce }, bytes(&[&[15, 7]])),
            (
                EventKind::TxConfirmations {
                    block_number: 9,
                    block_hash: two.into(),
                    counted: three.into(),
                    count: 20,
                    since: Some(one.into()),
                    new_fork: false,
                },
                bytes(&[&[16, 9], &two, &three, &[20, 0], &one]),
            ),
            (
                EventKind::LaneForeignNonce {
                    nonce,
                    tx_hash: Some(two.into()),
                },
                bytes(&[&[17, 7], &two]),
            ),
        ];
        for (kind, bytes) in rows {
            assert_eq!(written(&kind), bytes, "{kind:?}");
            assert_eq!(read(&bytes), Ok(kind));
            for len in 1..bytes.len() {
                assert!(read(&bytes[..len]).is_err(), "cut at {len}");
            }
        }
    }

    #[test]
    fn unknown_kind_number_is_refused() {
        for number in [0, 18, 127] {
            assert_eq!(read(&[number; 200]), Err(Malformed("event")));
        }
        let flag_of_two = [14, 7, 2];
        assert_eq!(read(&flag_of_two), Err(Malformed("event")));
        let kind_of_nine = bytes(&[&[13], &[1; 32], &[7, 9]]);
        assert_eq!(read(&kind_of_nine), Err(Malformed("kind of attempt")));
        let count_beyond_32_bits = bytes(&[&[12], &[1; 32], &[7, 1], &[0xff; 5], &[1]]);
        assert_eq!(read(&count_beyond_32_bits), Err(Malformed("event")));
    }
}
