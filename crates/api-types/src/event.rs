//! An event of a lane, with the data of its kind.

use domain::{B256, EventKind, Header};
use serde::Serialize;

use crate::encoding::{
    ChecksumAddress, HeaderList, HexHash, Rfc3339Time, TxIdText, execution_status,
};
use engine::ports::EventRecord;

/// An event in the public JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event<'a> {
    id: String,
    chain_id: u64,
    signer: ChecksumAddress,
    seq: u64,
    r#type: &'static str,
    tx_id: Option<TxIdText>,
    at: Rfc3339Time,
    node: &'a str,
    token: u64,
    data: EventData<'a>,
}

impl<'a> From<&'a EventRecord> for Event<'a> {
    fn from(record: &'a EventRecord) -> Self {
        let event = &record.event;
        Self {
            // Never changes: consumers recognize repeated deliveries by it.
            id: format!("{}:{}", record.lane, event.seq),
            chain_id: record.lane.chain_id.0,
            signer: ChecksumAddress(record.lane.signer),
            seq: event.seq,
            r#type: event.kind.as_str(),
            tx_id: event.tx_id.map(TxIdText),
            at: Rfc3339Time(event.at),
            node: &record.node.0,
            token: record.token.0,
            data: EventData::new(&event.kind, &record.confirmations),
        }
    }
}

/// The `data` of an event: one shape per kind.
#[derive(Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum EventData<'a> {
    Accepted {
        nonce: Option<u64>,
    },
    Nonce {
        nonce: u64,
    },
    ForeignNonce {
        nonce: u64,
        tx_hash: Option<HexHash>,
    },
    Submitted {
        tx_hash: HexHash,
        nonce: u64,
    },
    Resubmitted {
        tx_hash: HexHash,
        nonce: u64,
        kind: &'static str,
        count: u32,
    },
    Replaced {
        tx_hash: HexHash,
        nonce: u64,
        kind: &'static str,
    },
    Requeued {
        nonce: u64,
        foreign: Option<HexHash>,
    },
    Receipt {
        tx_hash: HexHash,
        block_number: u64,
        block_hash: HexHash,
        status: &'static str,
    },
    Confirmations {
        block_number: u64,
        block_hash: HexHash,
        count: u64,
        confirmations: HeaderList<'a>,
        new_fork: bool,
    },
    Confirmed {
        tx_hash: HexHash,
        block_number: u64,
        block_hash: HexHash,
        confirmations: HeaderList<'a>,
        new_fork: bool,
    },
    Reason {
        reason: &'a str,
    },
    Reorged {
        block_number: u64,
        block_hash: HexHash,
        after_final: bool,
        new_fork: bool,
    },
    Fenced {
        from: &'a str,
        token: u64,
    },
}

impl<'a> EventData<'a> {
    #[expect(clippy::too_many_lines, reason = "a table, one entry per kind")]
    fn new(kind: &'a EventKind, headers: &'a [Header]) -> Self {
        match kind {
            EventKind::TxAccepted { nonce } => Self::Accepted {
                nonce: nonce.map(|n| n.0),
            },
            EventKind::TxAllocated { nonce } | EventKind::LaneForeignPending { nonce } => {
                Self::Nonce { nonce: nonce.0 }
            }
            EventKind::LaneForeignNonce { nonce, tx_hash } => Self::ForeignNonce {
                nonce: nonce.0,
                tx_hash: tx_hash.map(HexHash),
            },
            EventKind::TxSubmitted { tx_hash, nonce } => Self::Submitted {
                tx_hash: HexHash(*tx_hash),
                nonce: nonce.0,
            },
            EventKind::TxResubmitted {
                tx_hash,
                nonce,
                kind,
                count,
            } => Self::Resubmitted {
                tx_hash: HexHash(*tx_hash),
                nonce: nonce.0,
                kind: kind.as_str(),
                count: *count,
            },
            EventKind::TxReplaced {
                tx_hash,
                nonce,
                kind,
            } => Self::Replaced {
                tx_hash: HexHash(*tx_hash),
                nonce: nonce.0,
                kind: kind.as_str(),
            },
            EventKind::TxRequeued { nonce, foreign } => Self::Requeued {
                nonce: nonce.0,
                foreign: foreign.map(HexHash),
            },
            EventKind::TxFailed { reason } | EventKind::TxStuck { reason } => {
                Self::Reason { reason }
            }
            EventKind::LaneFenced { from, token } => Self::Fenced {
                from: &from.0,
                token: token.0,
            },
            EventKind::TxReceiptUpdated {
                tx_hash,
                block_number,
                block_hash,
                succeeded,
            } => Self::Receipt {
                tx_hash: HexHash(*tx_hash),
                block_number: *block_number,
                block_hash: HexHash(*block_hash),
                status: execution_status(*succeeded),
            },
            EventKind::TxConfirmations {
                block_number,
                block_hash,
                counted: _,
                count,
                since,
                new_fork,
            } => Self::Confirmations {
                block_number: *block_number,
                block_hash: HexHash(*block_hash),
                count: *count,
                confirmations: HeaderList(headers_above(headers, *since)),
                new_fork: *new_fork,
            },
            EventKind::TxConfirmed {
                tx_hash,
                block_number,
                block_hash,
                counted: _,
                new_fork,
            } => Self::Confirmed {
                tx_hash: HexHash(*tx_hash),
                block_number: *block_number,
                block_hash: HexHash(*block_hash),
                confirmations: HeaderList(headers),
                new_fork: *new_fork,
            },
            EventKind::TxReorged {
                block_number,
                block_hash,
                after_final,
            } => Self::Reorged {
                block_number: *block_number,
                block_hash: HexHash(*block_hash),
                after_final: *after_final,
                // The block that earlier events named was reorged out: a fork by definition.
                new_fork: true,
            },
        }
    }
}

/// The headers above `since`, the last one that an earlier event listed. All headers when `since` is not among
/// them: the list then starts again at the tx's block, which shows the consumer that the branch changed.
fn headers_above(headers: &[Header], since: Option<B256>) -> &[Header] {
    let listed = since.and_then(|since| headers.iter().position(|header| header.hash == since));
    let from = listed.map_or(0, |position| position.saturating_add(1));
    headers.get(from..).unwrap_or_default()
}
