//! An event of a lane, with the data of its kind.

use domain::{B256, EventKind, Header};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use crate::encoding::{ChecksumAddress, HeaderList, Rfc3339Time, TxIdText, execution_status};
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
            data: EventData {
                kind: &event.kind,
                headers: &record.confirmations,
            },
        }
    }
}

/// The `data` of an event: the fields of its kind.
struct EventData<'a> {
    kind: &'a EventKind,
    headers: &'a [Header],
}

impl Serialize for EventData<'_> {
    #[expect(clippy::too_many_lines, reason = "a table, one entry per kind")]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut data = serializer.serialize_map(None)?;
        match self.kind {
            EventKind::TxAccepted { nonce } => {
                data.serialize_entry("nonce", &nonce.map(|nonce| nonce.0))?;
            }
            EventKind::TxAllocated { nonce } | EventKind::LaneForeignPending { nonce } => {
                data.serialize_entry("nonce", &nonce.0)?;
            }
            EventKind::LaneForeignNonce { nonce, tx_hash } => {
                data.serialize_entry("nonce", &nonce.0)?;
                data.serialize_entry("txHash", tx_hash)?;
            }
            EventKind::TxSubmitted { tx_hash, nonce } => {
                data.serialize_entry("txHash", tx_hash)?;
                data.serialize_entry("nonce", &nonce.0)?;
            }
            EventKind::TxResubmitted {
                tx_hash,
                nonce,
                kind,
                count,
            } => {
                data.serialize_entry("txHash", tx_hash)?;
                data.serialize_entry("nonce", &nonce.0)?;
                data.serialize_entry("kind", kind.as_str())?;
                data.serialize_entry("count", count)?;
            }
            EventKind::TxReplaced {
                tx_hash,
                nonce,
                kind,
            } => {
                data.serialize_entry("txHash", tx_hash)?;
                data.serialize_entry("nonce", &nonce.0)?;
                data.serialize_entry("kind", kind.as_str())?;
            }
            EventKind::TxRequeued { nonce, foreign } => {
                data.serialize_entry("nonce", &nonce.0)?;
                data.serialize_entry("foreign", foreign)?;
            }
            EventKind::TxFailed { reason } | EventKind::TxStuck { reason } => {
                data.serialize_entry("reason", reason)?;
            }
            EventKind::LaneFenced { from, token } => {
                data.serialize_entry("from", &from.0)?;
                data.serialize_entry("token", &token.0)?;
            }
            EventKind::TxReceiptUpdated {
                tx_hash,
                block_number,
                block_hash,
                succeeded,
            } => {
                data.serialize_entry("txHash", tx_hash)?;
                data.serialize_entry("blockNumber", block_number)?;
                data.serialize_entry("blockHash", block_hash)?;
                data.serialize_entry("status", execution_status(*succeeded))?;
            }
            EventKind::TxConfirmations {
                block_number,
                block_hash,
                counted: _,
                count,
                since,
                new_fork,
            } => {
                let headers = headers_above(self.headers, *since);
                data.serialize_entry("blockNumber", block_number)?;
                data.serialize_entry("blockHash", block_hash)?;
                data.serialize_entry("count", count)?;
                data.serialize_entry("confirmations", &HeaderList(headers))?;
                data.serialize_entry("newFork", new_fork)?;
            }
            EventKind::TxConfirmed {
                tx_hash,
                block_number,
                block_hash,
                counted: _,
                new_fork,
            } => {
                data.serialize_entry("txHash", tx_hash)?;
                data.serialize_entry("blockNumber", block_number)?;
                data.serialize_entry("blockHash", block_hash)?;
                data.serialize_entry("confirmations", &HeaderList(self.headers))?;
                data.serialize_entry("newFork", new_fork)?;
            }
            EventKind::TxReorged {
                block_number,
                block_hash,
                after_final,
            } => {
                data.serialize_entry("blockNumber", block_number)?;
                data.serialize_entry("blockHash", block_hash)?;
                data.serialize_entry("afterFinal", after_final)?;
                // The block that earlier events named was reorged out: a fork by definition.
                data.serialize_entry("newFork", &true)?;
            }
        }
        data.end()
    }
}

/// The headers above `since`, the last one that an earlier event listed. All headers when `since` is not among
/// them: the list then starts again at the tx's block, which shows the consumer that the branch changed.
fn headers_above(headers: &[Header], since: Option<B256>) -> &[Header] {
    let listed = since.and_then(|since| headers.iter().position(|header| header.hash == since));
    let from = listed.map_or(0, |position| position.saturating_add(1));
    headers.get(from..).unwrap_or_default()
}
