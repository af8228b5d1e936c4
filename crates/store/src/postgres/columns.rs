//! Rows turned into columns: a statement takes one array per column, whatever the number of rows.

use std::borrow::Cow;

use domain::{Attempt, Tx, TxId};
use engine::ports::LaneBatch;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::pool::Param;
use crate::encoding::{
    attempt_kind_number, bits, bound, events_to_bytes, fees_to_bytes, inclusion_to_bytes,
    seqs_to_bytes, short, state_number, sub_state_number, tx_type_number,
};

/// A table's columns, in the order of the function's parameters.
macro_rules! columns {
    ($(#[$doc:meta])* $name:ident { $($column:ident: $kind:ty => $type:ident,)* }) => {
        $(#[$doc])*
        #[derive(Default)]
        pub(super) struct $name<'a> {
            $($column: $kind,)*
            _rows: std::marker::PhantomData<&'a ()>,
        }

        impl $name<'_> {
            pub(super) fn add_params<'p>(&'p self, params: &mut Vec<Param<'p>>) {
                $(params.push((self.$column.array(), Type::$type));)*
            }
        }
    };
}

/// A column that is never NULL.
type Values<T> = Vec<T>;

/// A column that may be NULL. NULLs at its end are not sent: an unused column is an empty array.
struct Nullable<T> {
    values: Vec<Option<T>>,
    rows: usize,
}

columns! {
    /// One row per lane: its fence, its new row, its events.
    Lanes {
        lane: Values<i64> => INT8_ARRAY,
        token: Values<i64> => INT8_ARRAY,
        grant: Values<Uuid> => UUID_ARRAY,
        batch: Values<i64> => INT8_ARRAY,
        seq: Values<i64> => INT8_ARRAY,
        next: Values<i64> => INT8_ARRAY,
        floor: Values<i64> => INT8_ARRAY,
        paused: Nullable<bool> => BOOL_ARRAY,
        at: Values<i64> => INT8_ARRAY,
        node: Values<&'a str> => TEXT_ARRAY,
        events: Values<i32> => INT4_ARRAY,
        body: Nullable<Vec<u8>> => BYTEA_ARRAY,
    }
}

columns! {
    /// Columns that are written once per tx.
    TxConstants {
        created: Values<i64> => INT8_ARRAY,
        gas: Values<i64> => INT8_ARRAY,
        tx: Values<Uuid> => UUID_ARRAY,
        kind: Nullable<i16> => INT2_ARRAY,
        request: Values<&'a str> => TEXT_ARRAY,
        fingerprint: Values<&'a [u8]> => BYTEA_ARRAY,
        to: Nullable<&'a [u8]> => BYTEA_ARRAY,
        value: Values<Vec<u8>> => BYTEA_ARRAY,
        requested_gas: Nullable<Vec<u8>> => BYTEA_ARRAY,
        max_fee: Nullable<Vec<u8>> => BYTEA_ARRAY,
        max_priority_fee: Nullable<Vec<u8>> => BYTEA_ARRAY,
        gas_price: Nullable<Vec<u8>> => BYTEA_ARRAY,
        data: Values<&'a [u8]> => BYTEA_ARRAY,
    }
}

columns! {
    /// Columns that change with the state of a tx.
    TxChanges {
        state: Values<i16> => INT2_ARRAY,
        sub_state: Nullable<i16> => INT2_ARRAY,
        signed: Values<bool> => BOOL_ARRAY,
        nonce: Nullable<i64> => INT8_ARRAY,
        token: Values<i64> => INT8_ARRAY,
        updated: Values<i64> => INT8_ARRAY,
        confirmed: Nullable<i64> => INT8_ARRAY,
        hash: Nullable<&'a [u8]> => BYTEA_ARRAY,
        inclusion: Nullable<Vec<u8>> => BYTEA_ARRAY,
        counted: Nullable<&'a [u8]> => BYTEA_ARRAY,
        seqs: Values<Vec<u8>> => BYTEA_ARRAY,
        reason: Nullable<Cow<'a, str>> => TEXT_ARRAY,
    }
}

columns! {
    /// New attempts.
    Attempts {
        lane: Values<i64> => INT8_ARRAY,
        nonce: Values<i64> => INT8_ARRAY,
        gas: Values<i64> => INT8_ARRAY,
        signed: Values<i64> => INT8_ARRAY,
        tx: Values<Uuid> => UUID_ARRAY,
        kind: Values<i16> => INT2_ARRAY,
        hash: Values<&'a [u8]> => BYTEA_ARRAY,
        fees: Values<Vec<u8>> => BYTEA_ARRAY,
        raw: Values<&'a [u8]> => BYTEA_ARRAY,
        sent: Nullable<i64> => INT8_ARRAY,
    }
}

columns! {
    /// Attempts that an endpoint has accepted.
    Sent {
        lane: Values<i64> => INT8_ARRAY,
        hash: Values<&'a [u8]> => BYTEA_ARRAY,
        at: Values<i64> => INT8_ARRAY,
    }
}

columns! {
    /// Txs, by their lane and id.
    Ids {
        lane: Values<i64> => INT8_ARRAY,
        tx: Values<Uuid> => UUID_ARRAY,
    }
}

impl<'a> Lanes<'a> {
    pub(super) fn push(&mut self, batch: &'a LaneBatch) {
        let events = &batch.writes.events;
        self.lane.push(batch.lease_grant.lane.0);
        self.token.push(bound(batch.lease_grant.token.0));
        self.grant.push(batch.lease_grant.grant.0);
        self.batch.push(bound(batch.batch_seq_before));
        self.seq.push(bound(batch.event_seq_before));
        self.next.push(bound(batch.next_nonce.0));
        self.floor.push(bound(batch.floor_nonce.0));
        self.paused.push(batch.writes.paused);
        self.at.push(bound(batch.at.0));
        self.node.push(&batch.node.0);
        self.events
            .push(i32::try_from(events.len()).unwrap_or(i32::MAX));
        let body = (!events.is_empty()).then(|| events_to_bytes(events, batch.at));
        self.body.push(body);
    }
}

impl<'a> TxConstants<'a> {
    pub(super) fn push(&mut self, tx: &'a Tx) {
        let payload = &tx.request.payload;
        let wei = |amount: u128| short(&amount.to_be_bytes()).to_vec();
        self.created.push(bound(tx.request.created_at.0));
        self.gas.push(bits(tx.request.gas));
        self.tx.push(tx.id.0);
        self.kind
            .push(payload.tx_type.map(|kind| tx_type_number(kind).into()));
        self.request.push(tx.request.request_id.as_str());
        self.fingerprint.push(tx.request.fingerprint.0.as_slice());
        self.to.push(payload.to.as_ref().map(|to| to.as_slice()));
        self.value
            .push(short(&payload.value.to_be_bytes::<32>()).to_vec());
        self.requested_gas
            .push(payload.gas.map(|gas| short(&gas.to_be_bytes()).to_vec()));
        self.max_fee.push(payload.max_fee_per_gas.map(wei));
        self.max_priority_fee
            .push(payload.max_priority_fee_per_gas.map(wei));
        self.gas_price.push(payload.gas_price.map(wei));
        self.data.push(payload.data.as_ref());
    }
}

impl<'a> TxChanges<'a> {
    pub(super) fn push(&mut self, tx: &'a Tx) {
        self.state.push(state_number(tx.state).into());
        self.sub_state
            .push(tx.sub_state.map(|sub| sub_state_number(sub).into()));
        // A tx that lost its nonce waits unsigned, whatever attempts it had.
        self.signed.push(tx.tx_hash.is_some());
        self.nonce.push(tx.nonce.map(|nonce| bound(nonce.0)));
        self.token.push(bound(tx.written.token.0));
        self.updated.push(bound(tx.written.at.0));
        self.confirmed.push(tx.confirmed_at.map(|at| bound(at.0)));
        self.hash
            .push(tx.tx_hash.as_ref().map(|hash| hash.as_slice()));
        self.inclusion
            .push(tx.inclusion.as_ref().map(inclusion_to_bytes));
        self.counted
            .push(tx.counted.as_ref().map(|hash| hash.as_slice()));
        self.seqs.push(seqs_to_bytes(&tx.event_seqs));
        self.reason.push(tx.reason.as_deref().map(without_nul));
    }

    /// Those of a tx without nonce: state, sub-state and its events.
    pub(super) fn add_params_of_queued<'p>(&'p self, params: &mut Vec<Param<'p>>) {
        params.push((self.state.array(), Type::INT2_ARRAY));
        params.push((self.sub_state.array(), Type::INT2_ARRAY));
        params.push((self.seqs.array(), Type::BYTEA_ARRAY));
    }
}

impl<'a> Attempts<'a> {
    pub(super) fn push(&mut self, lane: i64, attempt: &'a Attempt) {
        self.lane.push(lane);
        self.nonce.push(bound(attempt.nonce.0));
        self.gas.push(bits(attempt.gas));
        self.signed.push(bound(attempt.signed_at.0));
        self.tx.push(attempt.tx_id.0);
        self.kind.push(attempt_kind_number(attempt.kind).into());
        self.hash.push(attempt.hash.as_slice());
        self.fees.push(fees_to_bytes(&attempt.fees));
        self.raw.push(attempt.raw.as_ref());
        self.sent.push(attempt.first_sent_at.map(|at| bound(at.0)));
    }
}

impl<'a> Sent<'a> {
    pub(super) fn push(&mut self, lane: i64, hash: &'a [u8], at: u64) {
        self.lane.push(lane);
        self.hash.push(hash);
        self.at.push(bound(at));
    }
}

impl Ids<'_> {
    pub(super) fn push(&mut self, lane: i64, id: TxId) {
        self.lane.push(lane);
        self.tx.push(id.0);
    }
}

/// Reasons contain texts of endpoints, and the database refuses texts with a NUL.
fn without_nul(text: &str) -> Cow<'_, str> {
    match text.contains('\0') {
        true => Cow::Owned(text.replace('\0', "\u{fffd}")),
        false => Cow::Borrowed(text),
    }
}

/// A column that is sent as an array.
trait Array {
    fn array(&self) -> &(dyn ToSql + Sync);
}

impl<T: ToSql + Sync> Array for Values<T> {
    fn array(&self) -> &(dyn ToSql + Sync) {
        self
    }
}

impl<T: ToSql + Sync> Array for Nullable<T> {
    fn array(&self) -> &(dyn ToSql + Sync) {
        &self.values
    }
}

impl<T> Nullable<T> {
    fn push(&mut self, value: Option<T>) {
        if value.is_some() {
            self.values.resize_with(self.rows, || None);
            self.values.push(value);
        }
        self.rows = self.rows.saturating_add(1);
    }
}

impl<T> Default for Nullable<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            rows: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_nulls_are_not_sent() {
        let mut column = Nullable::default();
        column.push(None);
        assert!(column.values.is_empty());
        column.push(Some(7));
        column.push(None);
        assert_eq!(column.values, [None, Some(7)]);
        column.push(Some(8));
        assert_eq!(column.values, [None, Some(7), None, Some(8)]);
    }

    #[test]
    fn reason_may_contain_nul() {
        assert_eq!(without_nul("a\0b"), "a\u{fffd}b");
        assert_eq!(without_nul("fine"), "fine");
    }
}
