//! Event bodies: all events of one lane and turn in one row.
//!
//! Layout 1: the layout's number, then per event its kind (top bit: about a tx), its distance in
//! time from the row, the tx id, and the fields of its kind ([`super::kinds`]). Numbers of events are
//! not written: they follow from the row's first.

use domain::{Event, Timestamp, TxId};
use uuid::Uuid;

use super::Malformed;
use super::bytes::{ByteReader, put_number};
use super::kinds::{kind_number, put_fields, take_fields};

const LAYOUT: u8 = 1;
const ABOUT_TX: u8 = 0x80;

/// The body of a row that was written `at`.
pub(crate) fn events_to_bytes(events: &[Event], at: Timestamp) -> Vec<u8> {
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
    at: Timestamp,
) -> Result<Vec<Event>, Malformed> {
    let mut reader = ByteReader::new(body, "event");
    if reader.byte()? != LAYOUT {
        return Err(reader.malformed());
    }
    let mut events = Vec::new();
    let mut seq = first_seq;
    while !reader.is_empty() {
        let kind = reader.byte()?;
        let at = Timestamp(at.0.wrapping_add(reader.number()?));
        let about_tx = kind & ABOUT_TX != 0;
        let tx_id = about_tx.then(|| reader.array()).transpose()?;
        let tx_id = tx_id.map(|bytes| TxId(Uuid::from_bytes(bytes)));
        let kind = take_fields(&mut reader, kind & !ABOUT_TX)?;
        events.push(Event {
            seq,
            at,
            tx_id,
            kind,
        });
        seq = seq.checked_add(1).ok_or(reader.malformed())?;
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use domain::{B256, EventKind, NodeName, Nonce, Token};

    use super::*;

    fn event(seq: u64, kind: EventKind) -> Event {
        let tx_id = (seq % 2 == 1).then(|| TxId(Uuid::from_u128(seq.into())));
        Event {
            seq,
            at: Timestamp(1_000 + seq),
            tx_id,
            kind,
        }
    }

    #[test]
    fn events_round_trip_with_numbers_and_times() {
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
        // The row may be younger or older than its events.
        for at in [Timestamp(0), Timestamp(1_007), Timestamp(u64::MAX)] {
            let body = events_to_bytes(&events, at);
            assert_eq!(events_from_bytes(&body, 7, at), Ok(events.to_vec()));
        }
    }

    #[test]
    fn truncated_or_unknown_body_is_refused() {
        let kind = EventKind::TxConfirmed {
            tx_hash: B256::repeat_byte(1),
            block_number: 300,
            block_hash: B256::repeat_byte(2),
            counted: B256::repeat_byte(3),
            new_fork: true,
        };
        let body = events_to_bytes(&[event(1, kind)], Timestamp(0));
        for len in (0..body.len()).filter(|len| *len != 1) {
            assert!(
                events_from_bytes(&body[..len], 1, Timestamp(0)).is_err(),
                "{len}"
            );
        }
        assert!(
            events_from_bytes(&[9, 1, 0, 0], 1, Timestamp(0)).is_err(),
            "another layout"
        );
        assert!(
            events_from_bytes(&[LAYOUT, 99], 1, Timestamp(0)).is_err(),
            "another kind"
        );
    }
}
