//! A tx, with its attempts, its receipt and its confirmations.

use domain::{Attempt, Fees, Inclusion, Payload, SubState, TxState, TxType};
use serde::{Serialize, Serializer};

use super::form::{Account, Amount, At, Confirmations, Data, Hash, Id, Wei, status_word};
use crate::ports::TxRecord;

/// A tx as customers see it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tx<'a> {
    tx_id: Id,
    chain_id: u64,
    signer: Account,
    request_id: &'a str,
    nonce: Option<u64>,
    state: &'static str,
    sub_state: Option<&'static str>,
    reason: Option<&'a str>,
    waiting_for: Option<&'static str>,
    tx_hash: Option<Hash>,
    payload: Wish<'a>,
    attempts: Attempts<'a>,
    receipt: Option<Receipt<'a>>,
    confirmations: Confirmations<'a>,
    fencing_token: u64,
    created_at: At,
    updated_at: At,
    confirmed_at: Option<At>,
}

impl<'a> From<&'a TxRecord> for Tx<'a> {
    fn from(record: &'a TxRecord) -> Self {
        let tx = &record.tx;
        Self {
            tx_id: Id(tx.id),
            chain_id: record.lane.chain_id.0,
            signer: Account(record.lane.signer),
            request_id: tx.request_id.as_str(),
            nonce: tx.nonce.map(|nonce| nonce.0),
            state: tx.state.as_str(),
            sub_state: tx.sub_state.map(SubState::as_str),
            reason: tx.reason.as_deref(),
            waiting_for: waiting_for(tx.state, tx.sub_state),
            tx_hash: tx.tx_hash.map(Hash),
            payload: Wish::from(&tx.payload),
            attempts: Attempts(&record.attempts),
            receipt: tx.inclusion.as_ref().map(Receipt::from),
            confirmations: Confirmations(&record.confirmations),
            fencing_token: tx.token.0,
            created_at: At(tx.created_at),
            updated_at: At(tx.updated_at),
            confirmed_at: tx.confirmed_at.map(At),
        }
    }
}

/// What must happen next for it to move, in one word; `None` when it is final.
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
            // Somebody else's transaction stands at its nonce: mined or dropped, then it can go on.
            SubState::ForeignPending => "foreignTransaction",
            // Its bytes may still be mined, or its nonce must be consumed at final depth.
            SubState::Mined
            | SubState::Reverted
            | SubState::Rejected
            | SubState::ForeignNonce
            | SubState::Cancelled
            | SubState::DeepFork => "confirmations",
        }),
    }
}

/// The payload as the business sent it: what it left out is `null`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wish<'a> {
    to: Option<Account>,
    value: Wei,
    data: Data<'a>,
    gas: Option<Amount<u64>>,
    max_fee_per_gas: Option<Amount<u128>>,
    max_priority_fee_per_gas: Option<Amount<u128>>,
    gas_price: Option<Amount<u128>>,
    r#type: Option<&'static str>,
}

impl<'a> From<&'a Payload> for Wish<'a> {
    fn from(payload: &'a Payload) -> Self {
        Self {
            to: payload.to.map(Account),
            value: Wei(payload.value),
            data: Data(&payload.data),
            gas: payload.gas.map(Amount),
            max_fee_per_gas: payload.max_fee_per_gas.map(Amount),
            max_priority_fee_per_gas: payload.max_priority_fee_per_gas.map(Amount),
            gas_price: payload.gas_price.map(Amount),
            r#type: payload.tx_type.map(|tx_type| match tx_type {
                TxType::Legacy => LEGACY,
                TxType::Eip1559 => EIP_1559,
            }),
        }
    }
}

/// How JSON-RPC calls an envelope of type 0.
const LEGACY: &str = "0x0";
/// How JSON-RPC calls an envelope of type 2.
const EIP_1559: &str = "0x2";

/// All attempts, oldest first.
struct Attempts<'a>(&'a [Attempt]);

impl Serialize for Attempts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(Envelope::from))
    }
}

/// One attempt. Its signed bytes are not shown: who has them can send them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    tx_hash: Hash,
    kind: &'static str,
    nonce: u64,
    r#type: &'static str,
    gas: Amount<u64>,
    max_fee_per_gas: Option<Amount<u128>>,
    max_priority_fee_per_gas: Option<Amount<u128>>,
    gas_price: Option<Amount<u128>>,
    signed_at: At,
    first_sent_at: Option<At>,
}

impl From<&Attempt> for Envelope {
    fn from(attempt: &Attempt) -> Self {
        let (r#type, max_fee, tip, gas_price) = match attempt.fees {
            Fees::Legacy { gas_price } => (LEGACY, None, None, Some(gas_price)),
            Fees::Eip1559 {
                max_fee,
                max_priority_fee,
            } => (EIP_1559, Some(max_fee), Some(max_priority_fee), None),
        };
        Self {
            tx_hash: Hash(attempt.hash),
            kind: attempt.kind.as_str(),
            nonce: attempt.nonce.0,
            r#type,
            gas: Amount(attempt.gas),
            max_fee_per_gas: max_fee.map(Amount),
            max_priority_fee_per_gas: tip.map(Amount),
            gas_price: gas_price.map(Amount),
            signed_at: At(attempt.signed_at),
            first_sent_at: attempt.first_sent_at.map(At),
        }
    }
}

/// Where and how it was mined.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Receipt<'a> {
    tx_hash: Hash,
    block_number: u64,
    block_hash: Hash,
    status: &'static str,
    gas_used: Amount<u64>,
    effective_gas_price: Amount<u128>,
    contract_address: Option<Account>,
    revert_reason: Option<&'a str>,
}

impl<'a> From<&'a Inclusion> for Receipt<'a> {
    fn from(inclusion: &'a Inclusion) -> Self {
        Self {
            tx_hash: Hash(inclusion.tx_hash),
            block_number: inclusion.block_number,
            block_hash: Hash(inclusion.block_hash),
            status: status_word(inclusion.succeeded),
            gas_used: Amount(inclusion.gas_used),
            effective_gas_price: Amount(inclusion.effective_gas_price),
            contract_address: inclusion.contract_address.map(Account),
            revert_reason: inclusion.revert_reason.as_deref(),
        }
    }
}
