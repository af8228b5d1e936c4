//! A tx, with its attempts, its receipt and its confirmations.

use std::borrow::Cow;

use domain::lane::LaneWait;
use domain::{Attempt, B256, Bytes, Fees, Inclusion, Payload, SubState, TxState, TxType};
use serde::{Serialize, Serializer};

use crate::encoding::{
    ChecksumAddress, Decimal, DecimalU256, HeaderList, Rfc3339Time, TxIdText, execution_status,
};
use engine::ports::TxRecord;

/// A tx in the public JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tx<'a> {
    tx_id: TxIdText,
    chain_id: u64,
    signer: ChecksumAddress,
    request_id: &'a str,
    nonce: Option<u64>,
    state: &'static str,
    sub_state: Option<&'static str>,
    reason: Option<Cow<'a, str>>,
    waiting_for: Option<&'static str>,
    tx_hash: Option<B256>,
    payload: PayloadView<'a>,
    attempts: AttemptList<'a>,
    receipt: Option<ReceiptView<'a>>,
    confirmations: HeaderList<'a>,
    fencing_token: u64,
    created_at: Rfc3339Time,
    updated_at: Rfc3339Time,
    confirmed_at: Option<Rfc3339Time>,
}

impl<'a> From<&'a TxRecord> for Tx<'a> {
    fn from(record: &'a TxRecord) -> Self {
        let tx = &record.tx;
        let (reason, waiting_for) = progress(record);
        Self {
            tx_id: TxIdText(tx.id),
            chain_id: record.lane.chain_id.0,
            signer: ChecksumAddress(record.lane.signer),
            request_id: tx.request.request_id.as_str(),
            nonce: tx.nonce.map(|nonce| nonce.0),
            state: tx.state.as_str(),
            sub_state: tx.sub_state.map(SubState::as_str),
            reason,
            waiting_for,
            tx_hash: tx.tx_hash,
            payload: PayloadView::from(&tx.request.payload),
            attempts: AttemptList(&record.attempts),
            receipt: tx.inclusion.as_ref().map(ReceiptView::from),
            confirmations: HeaderList(&record.confirmations),
            fencing_token: tx.written.token.0,
            created_at: Rfc3339Time(tx.request.created_at),
            updated_at: Rfc3339Time(tx.written.at),
            confirmed_at: tx.confirmed_at.map(Rfc3339Time),
        }
    }
}

/// The tx's own reason and what must happen before it can progress; of one that has no reason of its own, those of the
/// lane that holds it up.
fn progress(record: &TxRecord) -> (Option<Cow<'_, str>>, Option<&'static str>) {
    let tx = &record.tx;
    let own = waiting_for(tx.state, tx.sub_state);
    let is_held_up = tx.is_open() && tx.inclusion.is_none() && tx.reason.is_none();
    match record.lane_wait.as_ref().filter(|_| is_held_up) {
        // The head itself.
        Some(wait) if tx.nonce == Some(wait.nonce) => (Some(Cow::Borrowed(&wait.reason)), own),
        Some(wait) if tx.nonce.is_none_or(|nonce| nonce > wait.nonce) => {
            let LaneWait { nonce, reason } = wait;
            let reason = format!("its lane waits at nonce {nonce}: {reason}");
            (Some(Cow::Owned(reason)), Some("lane"))
        }
        Some(_) | None => (tx.reason.as_deref().map(Cow::Borrowed), own),
    }
}

/// What must happen before the tx can progress; `None` when it is final.
fn waiting_for(state: TxState, sub: Option<SubState>) -> Option<&'static str> {
    match state {
        TxState::Confirmed | TxState::FailedFinal => None,
        TxState::Stuck => Some("decision"),
        TxState::Created => Some("nonce"),
        TxState::Allocated | TxState::Tracking => sub.map(|sub| match sub {
            SubState::Queued => "nonce",
            SubState::Waiting => "turn",
            SubState::SigningFailed => "signature",
            SubState::Signed => "node",
            SubState::Submitted | SubState::Reorged => "block",
            SubState::Underfunded => "funds",
            SubState::Underpriced | SubState::FeeCap => "fee",
            SubState::Refused => "node",
            // A foreign transaction occupies the nonce: the tx continues once that one is mined or dropped.
            SubState::ForeignPending => "foreignTransaction",
            // The signed bytes may still be mined, or the nonce must be consumed at final depth.
            SubState::Mined
            | SubState::Reverted
            | SubState::Rejected
            | SubState::ForeignNonce
            | SubState::Cancelled
            | SubState::DeepFork => "confirmations",
        }),
    }
}

/// The payload as the client sent it: an omitted field is `null`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PayloadView<'a> {
    to: Option<ChecksumAddress>,
    value: DecimalU256,
    data: &'a Bytes,
    gas: Option<Decimal<u64>>,
    max_fee_per_gas: Option<Decimal<u128>>,
    max_priority_fee_per_gas: Option<Decimal<u128>>,
    gas_price: Option<Decimal<u128>>,
    r#type: Option<&'static str>,
}

impl<'a> From<&'a Payload> for PayloadView<'a> {
    fn from(payload: &'a Payload) -> Self {
        Self {
            to: payload.to.map(ChecksumAddress),
            value: DecimalU256(payload.value),
            data: &payload.data,
            gas: payload.gas.map(Decimal),
            max_fee_per_gas: payload.max_fee_per_gas.map(Decimal),
            max_priority_fee_per_gas: payload.max_priority_fee_per_gas.map(Decimal),
            gas_price: payload.gas_price.map(Decimal),
            r#type: payload.tx_type.map(|tx_type| match tx_type {
                TxType::Legacy => LEGACY,
                TxType::Eip1559 => EIP_1559,
            }),
        }
    }
}

/// JSON-RPC's name of a legacy transaction.
const LEGACY: &str = "0x0";
/// JSON-RPC's name of an EIP-1559 transaction.
const EIP_1559: &str = "0x2";

/// Oldest first.
struct AttemptList<'a>(&'a [Attempt]);

impl Serialize for AttemptList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(AttemptView::from))
    }
}

/// One attempt, without its signed bytes: everyone who has them can send them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AttemptView {
    tx_hash: B256,
    kind: &'static str,
    nonce: u64,
    r#type: &'static str,
    gas: Decimal<u64>,
    max_fee_per_gas: Option<Decimal<u128>>,
    max_priority_fee_per_gas: Option<Decimal<u128>>,
    gas_price: Option<Decimal<u128>>,
    signed_at: Rfc3339Time,
    first_sent_at: Option<Rfc3339Time>,
}

impl From<&Attempt> for AttemptView {
    fn from(attempt: &Attempt) -> Self {
        let (r#type, max_fee, tip, gas_price) = match attempt.fees {
            Fees::Legacy { gas_price } => (LEGACY, None, None, Some(gas_price)),
            Fees::Eip1559 {
                max_fee,
                max_priority_fee,
            } => (EIP_1559, Some(max_fee), Some(max_priority_fee), None),
        };
        Self {
            tx_hash: attempt.hash,
            kind: attempt.kind.as_str(),
            nonce: attempt.nonce.0,
            r#type,
            gas: Decimal(attempt.gas),
            max_fee_per_gas: max_fee.map(Decimal),
            max_priority_fee_per_gas: tip.map(Decimal),
            gas_price: gas_price.map(Decimal),
            signed_at: Rfc3339Time(attempt.signed_at),
            first_sent_at: attempt.first_sent_at.map(Rfc3339Time),
        }
    }
}

/// The receipt of the mined attempt.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReceiptView<'a> {
    tx_hash: B256,
    block_number: u64,
    block_hash: B256,
    status: &'static str,
    gas_used: Decimal<u64>,
    effective_gas_price: Decimal<u128>,
    contract_address: Option<ChecksumAddress>,
    revert_reason: Option<&'a str>,
}

impl<'a> From<&'a Inclusion> for ReceiptView<'a> {
    fn from(inclusion: &'a Inclusion) -> Self {
        Self {
            tx_hash: inclusion.tx_hash,
            block_number: inclusion.block_number,
            block_hash: inclusion.block_hash,
            status: execution_status(inclusion.succeeded),
            gas_used: Decimal(inclusion.gas_used),
            effective_gas_price: Decimal(inclusion.effective_gas_price),
            contract_address: inclusion.contract_address.map(ChecksumAddress),
            revert_reason: inclusion.revert_reason.as_deref(),
        }
    }
}
