//! Rows turned into columns: a statement takes one array per column, whatever the number of rows.

use std::borrow::Cow;

use domain::{Attempt, Tx, TxId};
use engine::ports::LaneBatch;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::pool::Param;
use crate::encoding::{
    attempt_kind_number, bits, block_to_bytes, bound, events_to_bytes, fees_to_bytes,
    head_to_bytes, inclusion_to_bytes, open_cost_to_bytes, seqs_to_bytes, short, state_number,
    sub_state_number, tx_type_number,
};

/// A table's columns, in the order of the function's parameters: each with its type and its value in a pushed row.
macro_rules! columns {
    ($(#[$doc:meta])* $name:ident($($row:ident: $row_type:ty),*) {
        $($column:ident: $kind:ty => $type:ident = $value:expr,)*
    }) => {
        $(#[$doc])*
        #[derive(Default)]
        pub(super) struct $name<'a> {
            $($column: $kind,)*
            _rows: std::marker::PhantomData<&'a ()>,
        }

        impl<'a> $name<'a> {
            pub(super) fn push(&mut self, $($row: $row_type),*) {
                $(self.$column.push($value);)*
            }

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
    Lanes(batch: &'a LaneBatch) {
        lane: Values<i64> => INT8_ARRAY = batch.lease_grant.lane.0,
        token: Values<i64> => INT8_ARRAY = bound(batch.lease_grant.token.0),
        grant: Values<Uuid> => UUID_ARRAY = batch.lease_grant.grant.0,
        batch: Values<i64> => INT8_ARRAY = bound(batch.batch_seq_before),
        seq: Values<i64> => INT8_ARRAY = bound(batch.event_seq_before),
        next: Values<i64> => INT8_ARRAY = bound(batch.next_nonce.0),
        floor: Values<i64> => INT8_ARRAY = bound(batch.floor_nonce.0),
        cost: Values<Vec<u8>> => BYTEA_ARRAY = open_cost_to_bytes(&batch.open_cost),
        head: Values<Vec<u8>> => BYTEA_ARRAY = head_to_bytes(batch.head.as_ref()),
        newest_final: Values<Vec<u8>> => BYTEA_ARRAY = block_to_bytes(batch.newest_final),
        paused: Nullable<bool> => BOOL_ARRAY = batch.writes.paused,
        at: Values<i64> => INT8_ARRAY = bound(batch.at.0),
        node: Values<&'a str> => TEXT_ARRAY = &batch.node.0,
        events: Values<i32> => INT4_ARRAY =
            i32::try_from(batch.writes.events.len()).unwrap_or(i32::MAX),
        body: Nullable<Vec<u8>> => BYTEA_ARRAY = (!batch.writes.events.is_empty())
            .then(|| events_to_bytes(&batch.writes.events, batch.at)),
    }
}

columns! {
    /// Columns that are written once per tx.
    TxConstants(tx: &'a Tx) {
        created: Values<i64> => INT8_ARRAY = bound(tx.request.created_at.0),
        gas: Values<i64> => INT8_ARRAY = bits(tx.request.gas),
        tx: Values<Uuid> => UUID_ARRAY = tx.id.0,
        kind: Nullable<i16> => INT2_ARRAY =
            tx.request.payload.tx_type.map(|kind| tx_type_number(kind).into()),
        request: Values<&'a str> => TEXT_ARRAY = tx.request.request_id.as_str(),
        fingerprint: Values<&'a [u8]> => BYTEA_ARRAY = tx.request.fingerprint.0.as_slice(),
        to: Nullable<&'a [u8]> => BYTEA_ARRAY =
            tx.request.payload.to.as_ref().map(|to| to.as_slice()),
        value: Values<Vec<u8>> => BYTEA_ARRAY =
            short(&tx.request.payload.value.to_be_bytes::<32>()).to_vec(),
        requested_gas: Nullable<Vec<u8>> => BYTEA_ARRAY =
            tx.request.payload.gas.map(|gas| short(&gas.to_be_bytes()).to_vec()),
        max_fee: Nullable<Vec<u8>> => BYTEA_ARRAY = tx.request.payload.max_fee_per_gas.map(wei),
        max_priority_fee: Nullable<Vec<u8>> => BYTEA_ARRAY =
            tx.request.payload.max_priority_fee_per_gas.map(wei),
        gas_price: Nullable<Vec<u8>> => BYTEA_ARRAY = tx.request.payload.gas_price.map(wei),
        data: Values<&'a [u8]> => BYTEA_ARRAY = tx.request.payload.data.as_ref(),
    }
}

columns! {
    /// Columns that change with the state of a tx.
    TxChanges(tx: &'a Tx) {
        state: Values<i16> => INT2_ARRAY = state_number(tx.state).into(),
        sub_state: Nullable<i16> => INT2_ARRAY =
            tx.sub_state.map(|sub| sub_state_number(sub).into()),
        // A tx that lost its nonce waits unsigned, whatever attempts it had.
        signed: Values<bool> => BOOL_ARRAY = tx.tx_hash.is_some(),
        nonce: Nullable<i64> => INT8_ARRAY = tx.nonce.map(|nonce| bound(nonce.0)),
        token: Values<i64> => INT8_ARRAY = bound(tx.written.token.0),
        updated: Values<i64> => INT8_ARRAY = bound(tx.written.at.0),
        confirmed: Nullable<i64> => INT8_ARRAY = tx.confirmed_at.map(|at| bound(at.0)),
        hash: Nullable<&'a [u8]> => BYTEA_ARRAY = tx.tx_hash.as_ref().map(|hash| hash.as_slice()),
        inclusion: Nullable<Vec<u8>> => BYTEA_ARRAY = tx.inclusion.as_ref().map(inclusion_to_bytes),
        counted: Nullable<&'a [u8]> => BYTEA_ARRAY =
            tx.counted.as_ref().map(|hash| hash.as_slice()),
        seqs: Values<Vec<u8>> => BYTEA_ARRAY = seqs_to_bytes(&tx.history.event_seqs),
        reason: Nullable<Cow<'a, str>> => TEXT_ARRAY = tx.reason.as_deref().map(without_nul),
        resubmits: Nullable<i32> => INT4_ARRAY = (tx.history.resubmits > 0)
            .then(|| i32::try_from(tx.history.resubmits).unwrap_or(i32::MAX)),
    }
}

columns! {
    /// New attempts.
    Attempts(lane: i64, attempt: &'a Attempt) {
        lane: Values<i64> => INT8_ARRAY = lane,
        nonce: Values<i64> => INT8_ARRAY = bound(attempt.nonce.0),
        gas: Values<i64> => INT8_ARRAY = bits(attempt.gas),
        signed: Values<i64> => INT8_ARRAY = bound(attempt.signed_at.0),
        tx: Values<Uuid> => UUID_ARRAY = attempt.tx_id.0,
        kind: Values<i16> => INT2_ARRAY = attempt_kind_number(attempt.kind).into(),
        hash: Values<&'a [u8]> => BYTEA_ARRAY = attempt.hash.as_slice(),
        fees: Values<Vec<u8>> => BYTEA_ARRAY = fees_to_bytes(&attempt.fees),
        raw: Values<&'a [u8]> => BYTEA_ARRAY = attempt.raw.as_ref(),
        sent: Nullable<i64> => INT8_ARRAY = attempt.first_sent_at.map(|at| bound(at.0)),
    }
}

columns! {
    /// Attempts that an endpoint has accepted.
    Sent(lane: i64, hash: &'a [u8], at: u64) {
        lane: Values<i64> => INT8_ARRAY = lane,
        hash: Values<&'a [u8]> => BYTEA_ARRAY = hash,
        at: Values<i64> => INT8_ARRAY = bound(at),
    }
}

columns! {
    /// Txs, by their lane and id.
    Ids(lane: i64, id: TxId) {
        lane: Values<i64> => INT8_ARRAY = lane,
        tx: Values<Uuid> => UUID_ARRAY = id.0,
    }
}

impl TxChanges<'_> {
    /// Those of a tx without nonce: state, sub-state and its events.
    pub(super) fn add_params_of_queued<'p>(&'p self, params: &mut Vec<Param<'p>>) {
        params.push((self.state.array(), Type::INT2_ARRAY));
        params.push((self.sub_state.array(), Type::INT2_ARRAY));
        params.push((self.seqs.array(), Type::BYTEA_ARRAY));
    }
}

fn wei(amount: u128) -> Vec<u8> {
    short(&amount.to_be_bytes()).to_vec()
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
