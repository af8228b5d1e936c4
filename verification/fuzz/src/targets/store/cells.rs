//! Cells of the database, changed behind the store's back and put right again.

use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{Connection, params};

/// What a column holds. The tables are strict: another type is refused.
#[derive(Clone, Copy)]
enum Holds {
    Number,
    Bytes,
    Text,
}

use Holds::{Bytes, Number, Text};

/// Every column that is decoded. (Keys that rows are found by stay as they are.)
const COLUMNS: [(&str, &str, Holds); 47] = [
    ("lane", "chain_id", Number),
    ("lane", "signer", Bytes),
    ("signer_lease", "owner", Text),
    ("signer_lease", "incarnation", Bytes),
    ("signer_lease", "token", Number),
    ("signer_lease", "expires_at", Number),
    ("signer_nonce_cursor", "next_nonce", Number),
    ("signer_nonce_cursor", "event_seq", Number),
    ("signer_nonce_cursor", "paused", Number),
    ("signer_nonce_cursor", "head_wait", Bytes),
    ("signer_nonce_cursor", "newest_final", Bytes),
    ("node", "name", Text),
    ("node", "incarnation", Bytes),
    ("node", "seen_at", Number),
    ("managed_tx", "nonce", Number),
    ("managed_tx", "state", Number),
    ("managed_tx", "sub_state", Number),
    ("managed_tx", "open", Number),
    ("managed_tx", "signed", Number),
    ("managed_tx", "token", Number),
    ("managed_tx", "created_at", Number),
    ("managed_tx", "confirmed_at", Number),
    ("managed_tx", "request_id", Text),
    ("managed_tx", "fingerprint", Bytes),
    ("managed_tx", "tx_hash", Bytes),
    ("managed_tx", "counted", Bytes),
    ("managed_tx", "event_seqs", Bytes),
    ("managed_tx", "resubmits", Number),
    ("managed_tx", "inclusion", Bytes),
    ("managed_tx", "gas", Number),
    ("managed_tx", "to_address", Bytes),
    ("managed_tx", "value", Bytes),
    ("managed_tx", "requested_gas", Bytes),
    ("managed_tx", "max_fee", Bytes),
    ("managed_tx", "gas_price", Bytes),
    ("managed_tx", "tx_type", Number),
    ("tx_attempt", "kind", Number),
    ("tx_attempt", "nonce", Number),
    ("tx_attempt", "fees", Bytes),
    ("tx_attempt", "signed_at", Number),
    ("tx_attempt", "raw", Bytes),
    ("lane_event", "first_seq", Number),
    ("lane_event", "count", Number),
    ("lane_event", "at", Number),
    ("lane_event", "node", Text),
    ("lane_event", "token", Number),
    ("lane_event", "body", Bytes),
];
/// Columns of headers, whose rows have no number: all of them change at once.
const OF_HEADERS: [(&str, Holds); 3] = [
    ("parent_hash", Bytes),
    ("number", Number),
    ("timestamp", Number),
];
/// Rows that can be named.
const ROWS_MAX: i64 = 64;

pub(super) struct Cells {
    conn: Connection,
    /// What to do to put everything right, in the order it was changed.
    undo: Vec<(String, Vec<Value>)>,
}

impl Cells {
    pub(super) fn open(database: &Path) -> Self {
        let conn = Connection::open(database).expect("the database can be opened");
        conn.pragma_update(None, "synchronous", "OFF")
            .expect("a pragma of SQLite");
        Self {
            conn,
            undo: Vec::new(),
        }
    }

    /// Changes the cell that the words name; what is no cell, or does not fit, changes nothing.
    pub(super) fn change(&mut self, place: &str, value: &[u8]) {
        let mut words = place.split(' ');
        let (table, column) = (
            words.next().unwrap_or_default(),
            words.next().unwrap_or_default(),
        );
        let row = words.next().and_then(|row| row.parse().ok()).unwrap_or(1);
        if table == "chain_header" {
            self.change_headers(column, value);
            return;
        }
        let Some((table, column, holds)) = COLUMNS
            .into_iter()
            .find(|(of, name, _)| (*of, *name) == (table, column))
        else {
            return;
        };
        let row: i64 = i64::min(row, ROWS_MAX);
        let read = format!("SELECT {column} FROM {table} WHERE rowid = ?1");
        let Ok(old) = self.conn.query_row(&read, [row], |row| row.get(0)) else {
            return;
        };
        let write = format!("UPDATE {table} SET {column} = ?2 WHERE rowid = ?1");
        if self
            .conn
            .execute(&write, params![row, holds.value(value)])
            .is_ok()
        {
            self.undo.push((write, vec![Value::Integer(row), old]));
        }
    }

    fn change_headers(&mut self, column: &str, value: &[u8]) {
        let Some((column, holds)) = OF_HEADERS.into_iter().find(|(name, _)| *name == column) else {
            return;
        };
        let rows = self.headers(column);
        let write = format!("UPDATE chain_header SET {column} = ?1");
        if self.conn.execute(&write, [holds.value(value)]).is_ok() {
            let put_right = format!("UPDATE chain_header SET {column} = ?2 WHERE hash = ?1");
            for row in rows {
                self.undo.push((put_right.clone(), row));
            }
        }
    }

    /// Every header's hash, and its value in this column.
    fn headers(&self, column: &str) -> Vec<Vec<Value>> {
        let read = format!("SELECT hash, {column} FROM chain_header");
        let mut statement = self
            .conn
            .prepare_cached(&read)
            .expect("a column of headers");
        let rows = statement
            .query_map([], |row| Ok(vec![row.get(0)?, row.get(1)?]))
            .expect("headers can be read");
        rows.map(|row| row.expect("a header can be read")).collect()
    }

    /// Puts everything right again.
    pub(super) fn restore(&mut self) {
        while let Some((write, values)) = self.undo.pop() {
            self.conn
                .execute(&write, rusqlite::params_from_iter(values))
                .expect("what was there before fits");
        }
    }
}

impl Holds {
    fn value(self, bytes: &[u8]) -> Value {
        let text = || String::from_utf8_lossy(bytes).into_owned();
        match self {
            Number => text().trim().parse().map_or(Value::Null, Value::Integer),
            Bytes => Value::Blob(bytes.to_vec()),
            Text => Value::Text(text()),
        }
    }
}
