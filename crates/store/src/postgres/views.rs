//! The readable views: their columns, and one row each.

use std::fmt::Write as _;
use std::time::Duration;

use domain::{B256, Inclusion, SubState, TxState};
use rig::postgres::{Database, majors, shared};

use super::migrate;
use crate::encoding::{inclusion_to_bytes, state_number, sub_state_number};

const SIGNER: &str = "0x00000000000000000000000000000000000000aa";

/// A database with one lane.
async fn database() -> Database {
    let database = shared(majors()[0]).database("views");
    let applied = migrate(database.url(), None, Duration::from_secs(10)).await;
    applied.expect("an empty database is migrated");
    database.exec(
        "SET timezone = 'UTC';
         INSERT INTO lane (chain_id, signer)
         VALUES (31337, '\\x00000000000000000000000000000000000000aa');
         INSERT INTO signer_lease
           (lane_id, owner, incarnation, token, renew_seq, expires_at, updated_at, history)
         VALUES (1, 'a', gen_random_uuid(), 7, 3, 1800000010000, 1800000000000, lanekeeper_history());
         INSERT INTO signer_nonce_cursor
           (lane_id, next_nonce, floor_nonce, event_seq, batch_seq, fencing_token, updated_at,
            grant_id, paused, busy)
         VALUES (1, 5, 5, 9, 9, 7, 1800000000500, gen_random_uuid(), false, false);
         INSERT INTO queued_tx (lane_id, tx_id) VALUES (1, gen_random_uuid());",
    );
    database
}

/// A tx of the lane with these columns besides those that every tx has.
fn insert_tx(database: &Database, tx_id: u128, state: TxState, more: &[(&str, String)]) {
    let mut names = String::new();
    let mut values = String::new();
    for (name, value) in more {
        write!(names, ", {name}").unwrap();
        write!(values, ", {value}").unwrap();
    }
    let (tx_id, state) = (uuid::Uuid::from_u128(tx_id), state_number(state));
    database.exec(&format!(
        "INSERT INTO managed_tx
           (tx_id, lane_id, request_id, state, signed, token, created_at, updated_at, fingerprint,
            event_seqs, gas, value, data{names})
         VALUES ('{tx_id}', 1, 'r-{tx_id}', {state}, false, 7, 1800000000000, 1800000000000, '', '',
                 1, '\\x0a', '\\x01'{values})"
    ));
}

fn bytea(bytes: &[u8]) -> String {
    let mut text = String::from("'\\x");
    for byte in bytes {
        write!(text, "{byte:02x}").unwrap();
    }
    text + "'"
}

/// The names and types of a view's columns.
fn columns(database: &Database, view: &str) -> String {
    let sql = format!(
        "SELECT string_agg(column_name || ' ' || data_type, ', ' ORDER BY ordinal_position)
         FROM information_schema.columns WHERE table_name = '{view}'"
    );
    database.query_value(&sql).expect("the view is there")
}

/// Compares expressions over a view's only row.
fn assert_shown(database: &Database, view: &str, shown: &[(&str, Option<&str>)]) {
    for (expression, expected) in shown {
        let sql = format!("SET timezone = 'UTC'; SELECT ({expression})::text FROM {view}");
        assert_eq!(
            database.query_value(&sql).as_deref(),
            *expected,
            "{expression}"
        );
    }
}

#[tokio::test]
async fn lease_view_and_lane_view_show_one_lane() {
    let database = database().await;
    assert_eq!(
        columns(&database, "lease_view"),
        "chain_id bigint, signer text, keeper text, incarnation uuid, token bigint, \
         expires_at timestamp with time zone, halted text, updated_at timestamp with time zone"
    );
    let lease = [
        ("signer", Some(SIGNER)),
        ("chain_id", Some("31337")),
        ("keeper", Some("a")),
        ("token", Some("7")),
        ("halted", None),
        ("expires_at", Some("2027-01-15 08:00:10+00")),
        ("updated_at", Some("2027-01-15 08:00:00+00")),
    ];
    assert_shown(&database, "lease_view", &lease);
    assert_eq!(
        columns(&database, "lane_view"),
        "chain_id bigint, signer text, lane_id bigint, keeper text, token bigint, next_nonce bigint, \
         floor_nonce bigint, queued bigint, event_seq bigint, paused boolean, halted text, \
         updated_at timestamp with time zone"
    );
    let lane = [
        ("signer", Some(SIGNER)),
        ("keeper", Some("a")),
        ("token", Some("7")),
        ("next_nonce", Some("5")),
        ("floor_nonce", Some("5")),
        ("queued", Some("1")),
        ("paused", Some("false")),
        ("updated_at", Some("2027-01-15 08:00:00.5+00")),
    ];
    assert_shown(&database, "lane_view", &lane);
}

#[tokio::test]
async fn tx_view_shows_a_new_tx() {
    let database = database().await;
    insert_tx(&database, 0xab, TxState::Created, &[]);
    assert_eq!(
        columns(&database, "tx_view"),
        "tx_id uuid, chain_id bigint, signer text, request_id text, nonce bigint, payload jsonb, \
         tx_hash text, state text, sub_state text, reason text, \
         last_sent_at timestamp with time zone, receipt jsonb, confirmations jsonb, \
         confirmed_at timestamp with time zone, token bigint, \
         created_at timestamp with time zone, updated_at timestamp with time zone"
    );
    let payload = r#"{"to": null, "gas": null, "data": "0x01", "type": null, "value": "0xa", "gasPrice": null, "maxFeePerGas": null, "maxPriorityFeePerGas": null}"#;
    let mut shown = vec![
        ("tx_id", Some("00000000-0000-0000-0000-0000000000ab")),
        ("signer", Some(SIGNER)),
        ("payload", Some(payload)),
        ("state", Some("CREATED")),
        ("created_at", Some("2027-01-15 08:00:00+00")),
    ];
    let not_yet_set = "nonce tx_hash sub_state reason last_sent_at receipt \
         confirmations confirmed_at";
    shown.extend(not_yet_set.split_whitespace().map(|name| (name, None)));
    assert_shown(&database, "tx_view", &shown);
}

#[tokio::test]
async fn tx_view_shows_receipt_and_confirmations_of_a_mined_tx() {
    let database = database().await;
    let (below, block, above) = ([9_u8; 32], [2_u8; 32], [4_u8; 32]);
    let inclusion = inclusion_to_bytes(&Inclusion {
        tx_hash: B256::repeat_byte(3),
        block_number: 16,
        block_hash: block.into(),
        succeeded: true,
        gas_used: 21_000,
        effective_gas_price: 0,
        contract_address: None,
        revert_reason: Some("no".into()),
    });
    let mined = [
        ("nonce", "4".into()),
        ("past_nonces", "'{2}'".into()),
        ("max_fee", "''".into()),
        ("inclusion", bytea(&inclusion)),
        ("counted", bytea(&above)),
    ];
    insert_tx(&database, 1, TxState::Tracking, &mined);
    for (hash, parent, number) in [(above, block, 17), (block, below, 16), (below, [8; 32], 15)] {
        let (hash, parent) = (bytea(&hash), bytea(&parent));
        database.exec(&format!(
            "INSERT INTO chain_header (chain_id, hash, parent_hash, number, timestamp)
             VALUES (31337, {hash}, {parent}, {number}, 0)"
        ));
    }
    // The second attempt belongs to another tx with the same nonce.
    for (n, tx_id, nonce, sent_at) in [(1_u8, 1_u128, 2, 1_800_000_000_000_u64), (2, 7, 2, 1)] {
        let (hash, tx_id) = (bytea(&[n; 32]), uuid::Uuid::from_u128(tx_id));
        database.exec(&format!(
            "INSERT INTO tx_attempt
               (lane_id, nonce, gas, signed_at, tx_id, kind, hash, fees, raw, first_sent_at)
             VALUES (1, {nonce}, 0, 0, '{tx_id}', 0, {hash}, '', '', {sent_at})"
        ));
    }
    let shown = [
        ("receipt->>'blockNumber'", "0x10"),
        ("receipt->>'gasUsed'", "0x5208"),
        ("receipt->>'effectiveGasPrice'", "0x0"),
        ("receipt->>'status'", "1"),
        ("left(receipt->>'blockHash', 8)", "0x020202"),
        ("left(receipt->>'transactionHash', 8)", "0x030303"),
        ("payload->>'value'", "0xa"),
        ("payload->>'maxFeePerGas'", "0x0"),
        ("last_sent_at", "2027-01-15 08:00:00+00"),
        // From its block upwards.
        ("confirmations->0->>'number'", "16"),
        ("confirmations->1->>'number'", "17"),
        ("jsonb_array_length(confirmations)", "2"),
    ];
    assert_shown(
        &database,
        "tx_view",
        &shown.map(|(expression, value)| (expression, Some(value))),
    );
}

#[tokio::test]
async fn tx_view_names_every_state() {
    let database = database().await;
    let mut expected = Vec::new();
    for (n, state) in (0_u128..).zip(TxState::ALL) {
        for (m, sub) in (0_u128..).zip(SubState::ALL) {
            let number = sub_state_number(sub).to_string();
            insert_tx(&database, n << 8 | m, state, &[("sub_state", number)]);
            expected.push(format!("{} {}", state.as_str(), sub.as_str()));
        }
    }
    let sql = "SELECT string_agg(state || ' ' || sub_state, ',' ORDER BY tx_id) FROM tx_view";
    assert_eq!(database.query_value(sql), Some(expected.join(",")));
}
