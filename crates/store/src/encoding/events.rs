//! Event bodies: all events of one lane and turn in one row.
//!
//! Layout 1: the layout's number, then per event its kind (top bit: about a tx), its distance in
//! time from the row, the tx id, and the fields in the order below. Numbers of events are not
//! written: they follow from the row's first.

use domain::{B256, Event, EventKind, NodeName, Nonce, Time, Token, TxId};
use uuid::Uuid;

use super::Malformed;
use super::bytes::{Take, put_number, put_text};

const LAYOUT: u8 = 1;
const ABOUT_TX: u8 = 0x80;

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

/// The body of a row that was written `at`.
pub(crate) fn events_to_bytes(events: &[Event], at: Time) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + events.len() * 64);
    out.push(LAYOUT);
    for event in events {
        let about = if event.tx_id.is_some() { ABOUT_TX } else { 0 };
        out.push(kind_number(&event.kind) | about);
        put_number(&mut out, event.at.0.wrapping_sub(at.0));
        if let Some(tx_id) = event.tx_id {
            out.extend_from_slice(tx_id.0.as_bytes());
        }
        put_fields(&mut out, &event.kind);
    }
    out
}

/// The events of a row, the first of which has the number `first_seq`.
pub(crate) fn events_from_bytes(
    body: &[u8],
    first_seq: u64,
    at: Time,
) -> Result<Vec<Event>, Malformed> {
    let mut take = Take::new(body, "event");
    if take.byte()? != LAYOUT {
        return Err(take.malformed());
    }
    let mut events = Vec::new();
    let mut seq = first_seq;
    while !take.is_empty() {
        let kind = take.byte()?;
        let at = Time(at.0.wrapping_add(take.number()?));
        let about_tx = kind & ABOUT_TX != 0;
        let tx_id = about_tx.then(|| take.array()).transpose()?;
        let tx_id = tx_id.map(|bytes| TxId(Uuid::from_bytes(bytes)));
        let kind = take_fields(&mut take, kind & !ABOUT_TX)?;
        events.push(Event {
            seq,
            at,
            tx_id,
            kind,
        });
        seq = seq.checked_add(1).ok_or(take.malformed())?;
    }
    Ok(events)
}

fn kind_number(kind: &EventKind) -> u8 {
    match kind {
        EventKind::TxAccepted { .. } => TX_ACCEPTED,
        EventKind::TxAllocated { .. } => TX_ALLOCATED,
        EventKind::TxSubmitted { .. } => TX_SUBMITTED,
        EventKind::TxReceiptUpdated { .. } => TX_RECEIPT_UPDATED,
        EventKind::TxConfirmations { .. } => TX_CONFIRMATIONS,
        EventKind::TxConfirmed { .. } => TX_CONFIRMED,
        EventKind::TxFailed { .. } => TX_FAILED,
        EventKind::TxStuck { .. } => TX_STUCK,
        EventKind::TxReorged { .. } => TX_REORGED,
        EventKind::LaneFenced { .. } => LANE_FENCED,
        EventKind::LaneForeignNonce { .. } => LANE_FOREIGN_NONCE,
    }
}

fn put_fields(out: &mut Vec<u8>, kind: &EventKind) {
    match kind {
        EventKind::TxAccepted { nonce } => match nonce {
            // Shifted by one, so that a nonce of 0 differs from none. (2^64 - 1 is no legal nonce.)
            Some(nonce) => put_number(out, nonce.0.saturating_add(1)),
            None => put_number(out, 0),
        },
        EventKind::TxAllocated { nonce } | EventKind::LaneForeignNonce { nonce } => {
            put_number(out, nonce.0);
        }
        EventKind::TxSubmitted { tx_hash, nonce } => {
            put_hash(out, tx_hash);
            put_number(out, nonce.0);
        }
        EventKind::TxReceiptUpdated {
            tx_hash,
            block_number,
            block_hash,
            succeeded,
        } => {
            put_hash(out, tx_hash);
            put_number(out, *block_number);
            put_hash(out, block_hash);
            out.push((*succeeded).into());
        }
        EventKind::TxConfirmations {
            block_number,
            block_hash,
            counted,
            count,
            new_fork,
        } => {
            put_number(out, *block_number);
            put_hash(out, block_hash);
            put_hash(out, counted);
            put_number(out, *count);
            out.push((*new_fork).into());
        }
        EventKind::TxConfirmed {
            tx_hash,
            block_number,
            block_hash,
            counted,
            new_fork,
        } => {
            put_hash(out, tx_hash);
            put_number(out, *block_number);
            put_hash(out, block_hash);
            put_hash(out, counted);
            out.push((*new_fork).into());
        }
        EventKind::TxFailed { reason } | EventKind::TxStuck { reason } => put_text(out, reason),
        EventKind::TxReorged {
            block_number,
            block_hash,
            after_final,
        } => {
            put_number(out, *block_number);
            put_hash(out, block_hash);
            out.push((*after_final).into());
        }
        EventKind::LaneFenced { from, token } => {
            put_text(out, &from.0);
            put_number(out, token.0);
        }
    }
}

fn take_fields(take: &mut Take<'_>, kind: u8) -> Result<EventKind, Malformed> {
    Ok(match kind {
        TX_ACCEPTED => EventKind::TxAccepted {
            nonce: take.number()?.checked_sub(1).map(Nonce),
        },
        TX_ALLOCATED => EventKind::TxAllocated {
            nonce: Nonce(take.number()?),
        },
        TX_SUBMITTED => EventKind::TxSubmitted {
            tx_hash: take_hash(take)?,
            nonce: Nonce(take.number()?),
        },
        TX_RECEIPT_UPDATED => EventKind::TxReceiptUpdated {
            tx_hash: take_hash(take)?,
            block_number: take.number()?,
            block_hash: take_hash(take)?,
            succeeded: take.flag()?,
        },
        TX_CONFIRMATIONS => EventKind::TxConfirmations {
            block_number: take.number()?,
            block_hash: take_hash(take)?,
            counted: take_hash(take)?,
            count: take.number()?,
            new_fork: take.flag()?,
        },
        TX_CONFIRMED => EventKind::TxConfirmed {
            tx_hash: take_hash(take)?,
            block_number: take.number()?,
            block_hash: take_hash(take)?,
            counted: take_hash(take)?,
            new_fork: take.flag()?,
        },
        TX_FAILED => EventKind::TxFailed {
            reason: take.text()?,
        },
        TX_STUCK => EventKind::TxStuck {
            reason: take.text()?,
        },
        TX_REORGED => EventKind::TxReorged {
            block_number: take.number()?,
            block_hash: take_hash(take)?,
            after_final: take.flag()?,
        },
        LANE_FENCED => EventKind::LaneFenced {
            from: NodeName(take.text()?),
            token: Token(take.number()?),
        },
        LANE_FOREIGN_NONCE => EventKind::LaneForeignNonce {
            nonce: Nonce(take.number()?),
        },
        0 | 12.. => return Err(take.malformed()),
    })
}

fn put_hash(out: &mut Vec<u8>, hash: &B256) {
    out.extend_from_slice(hash.as_slice());
}

fn take_hash(take: &mut Take<'_>) -> Result<B256, Malformed> {
    take.array().map(B256::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(seq: u64, kind: EventKind) -> Event {
        let tx_id = (seq % 2 == 1).then(|| TxId(Uuid::from_u128(seq.into())));
        Event {
            seq,
            at: Time(1_000 + seq),
            tx_id,
            kind,
        }
    }

    #[test]
    fn a_row_comes_back_with_its_numbers_and_times() {
        let hash = B256::repeat_byte(9);
        let events = [
            event(7, EventKind::TxAccepted { nonce: None }),
            event(
                8,
                EventKind::TxAccepted {
                    nonce: Some(Nonce(0)),
                },
            ),
            event(
                9,
                EventKind::TxSubmitted {
                    tx_hash: hash,
                    nonce: Nonce(300),
                },
            ),
            event(
                10,
                EventKind::TxStuck {
                    reason: "zu wenig ✗".into(),
                },
            ),
            event(
                11,
                EventKind::LaneFenced {
                    from: NodeName("b".into()),
                    token: Token(3),
                },
            ),
        ];
        // The row may be younger or older than what it tells of.
        for at in [Time(0), Time(1_007), Time(u64::MAX)] {
            let body = events_to_bytes(&events, at);
            assert_eq!(events_from_bytes(&body, 7, at), Ok(events.to_vec()));
        }
    }

    #[test]
    fn a_cut_or_foreign_body_is_refused_wherever_it_is_cut() {
        let kind = EventKind::TxConfirmed {
            tx_hash: B256::repeat_byte(1),
            block_number: 300,
            block_hash: B256::repeat_byte(2),
            counted: B256::repeat_byte(3),
            new_fork: true,
        };
        let body = events_to_bytes(&[event(1, kind)], Time(0));
        for len in (0..body.len()).filter(|len| *len != 1) {
            assert!(
                events_from_bytes(&body[..len], 1, Time(0)).is_err(),
                "{len}"
            );
        }
        assert!(
            events_from_bytes(&[9, 1, 0, 0], 1, Time(0)).is_err(),
            "another layout"
        );
        assert!(
            events_from_bytes(&[LAYOUT, 99], 1, Time(0)).is_err(),
            "another kind"
        );
    }
}
