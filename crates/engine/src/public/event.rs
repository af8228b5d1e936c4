//! An event of a lane, with what its kind adds.

use domain::{B256, EventKind, Header};
use serde::Serialize;

use super::form::{Account, At, Confirmations, Hash, Id, status_word};
use crate::ports::EventRecord;

/// An event as customers see it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event<'a> {
    id: String,
    chain_id: u64,
    signer: Account,
    seq: u64,
    r#type: &'static str,
    tx_id: Option<Id>,
    at: At,
    node: &'a str,
    token: u64,
    data: Detail<'a>,
}

impl<'a> From<&'a EventRecord> for Event<'a> {
    fn from(record: &'a EventRecord) -> Self {
        let event = &record.event;
        Self {
            // Stable for ever: consumers tell repeats by it.
            id: format!("{}:{}", record.lane, event.seq),
            chain_id: record.lane.chain_id.0,
            signer: Account(record.lane.signer),
            seq: event.seq,
            r#type: event.kind.as_str(),
            tx_id: event.tx_id.map(Id),
            at: At(event.at),
            node: &record.node.0,
            token: record.token.0,
            data: Detail::of(&event.kind, &record.confirmations),
        }
    }
}

/// What a kind adds: one shape per kind.
#[derive(Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum Detail<'a> {
    Accepted {
        nonce: Option<u64>,
    },
    Nonce {
        nonce: u64,
    },
    ForeignNonce {
        nonce: u64,
        tx_hash: Option<Hash>,
    },
    Submitted {
        tx_hash: Hash,
        nonce: u64,
    },
    Resubmitted {
        tx_hash: Hash,
        nonce: u64,
        kind: &'static str,
        count: u32,
    },
    Replaced {
        tx_hash: Hash,
        nonce: u64,
        kind: &'static str,
    },
    Requeued {
        nonce: u64,
        foreign: Option<Hash>,
    },
    Receipt {
        tx_hash: Hash,
        block_number: u64,
        block_hash: Hash,
        status: &'static str,
    },
    Confirmations {
        block_number: u64,
        block_hash: Hash,
        count: u64,
        confirmations: Confirmations<'a>,
        new_fork: bool,
    },
    Confirmed {
        tx_hash: Hash,
        block_number: u64,
        block_hash: Hash,
        confirmations: Confirmations<'a>,
        new_fork: bool,
    },
    Reason {
        reason: &'a str,
    },
    Reorged {
        block_number: u64,
        block_hash: Hash,
        after_final: bool,
        new_fork: bool,
    },
    Fenced {
        from: &'a str,
        token: u64,
    },
}

impl<'a> Detail<'a> {
    fn of(kind: &'a EventKind, headers: &'a [Header]) -> Self {
        match kind {
            EventKind::TxAccepted { nonce } => Self::Accepted {
                nonce: nonce.map(|n| n.0),
            },
            EventKind::TxAllocated { nonce } | EventKind::LaneForeignPending { nonce } => {
                Self::Nonce { nonce: nonce.0 }
            }
            EventKind::LaneForeignNonce { nonce, tx_hash } => Self::ForeignNonce {
                nonce: nonce.0,
                tx_hash: tx_hash.map(Hash),
            },
            EventKind::TxSubmitted { tx_hash, nonce } => Self::Submitted {
                tx_hash: Hash(*tx_hash),
                nonce: nonce.0,
            },
            EventKind::TxResubmitted {
                tx_hash,
                nonce,
                kind,
                count,
            } => Self::Resubmitted {
                tx_hash: Hash(*tx_hash),
                nonce: nonce.0,
                kind: kind.as_str(),
                count: *count,
            },
            EventKind::TxReplaced {
                tx_hash,
                nonce,
                kind,
            } => Self::Replaced {
                tx_hash: Hash(*tx_hash),
                nonce: nonce.0,
                kind: kind.as_str(),
            },
            EventKind::TxRequeued { nonce, foreign } => Self::Requeued {
                nonce: nonce.0,
                foreign: foreign.map(Hash),
            },
            EventKind::TxFailed { reason } | EventKind::TxStuck { reason } => {
                Self::Reason { reason }
            }
            EventKind::LaneFenced { from, token } => Self::Fenced {
                from: &from.0,
                token: token.0,
            },
            EventKind::TxReceiptUpdated { .. }
            | EventKind::TxConfirmations { .. }
            | EventKind::TxConfirmed { .. }
            | EventKind::TxReorged { .. } => Self::of_block(kind, headers),
        }
    }

    fn of_block(kind: &'a EventKind, headers: &'a [Header]) -> Self {
        match kind {
            EventKind::TxReceiptUpdated {
                tx_hash,
                block_number,
                block_hash,
                succeeded,
            } => Self::Receipt {
                tx_hash: Hash(*tx_hash),
                block_number: *block_number,
                block_hash: Hash(*block_hash),
                status: status_word(*succeeded),
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
                block_hash: Hash(*block_hash),
                count: *count,
                confirmations: Confirmations(above(headers, *since)),
                new_fork: *new_fork,
            },
            EventKind::TxConfirmed {
                tx_hash,
                block_number,
                block_hash,
                counted: _,
                new_fork,
            } => Self::Confirmed {
                tx_hash: Hash(*tx_hash),
                block_number: *block_number,
                block_hash: Hash(*block_hash),
                confirmations: Confirmations(headers),
                new_fork: *new_fork,
            },
            EventKind::TxReorged {
                block_number,
                block_hash,
                after_final,
            } => Self::Reorged {
                block_number: *block_number,
                block_hash: Hash(*block_hash),
                after_final: *after_final,
                // What was told of this block is taken back: a fork by definition.
                new_fork: true,
            },
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
}

/// The headers above one that was told before; all of them when it is not among them, which is then for
/// the reader to see: they begin with the block again.
fn above(headers: &[Header], since: Option<B256>) -> &[Header] {
    let told = since.and_then(|since| headers.iter().position(|header| header.hash == since));
    let from = told.map_or(0, |place| place.saturating_add(1));
    headers.get(from..).unwrap_or_default()
}
