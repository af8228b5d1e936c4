//! The readable views: their columns, and one row each.

use rusqlite::Connection;
use rusqlite::types::Value;

use domain::Timestamp;

use super::migrations::migrate;
use crate::encoding::{inclusion_to_bytes, state_number, sub_state_number};

fn database() -> Connection {
    let mut conn = Connection::open_in_memory().unwrap();
    migrate(&mut conn, Timestamp(0)).unwrap();
    conn.execute_batch(
        "INSERT INTO lane VALUES (1, 31337, x'00000000000000000000000000000000000000AA');
         INSERT INTO signer_lease VALUES (1, 'a', x'00', 7, 3, 1800000010000, 1800000000000, '0000000000000001.0.0', NULL, NULL);
         INSERT INTO signer_nonce_cursor
           (lane_id, next_nonce, event_seq, fencing_token, grant_id, paused, updated_at)
           VALUES (1, 5, 9, 7, x'00', 0, 1800000000500);",
    )
    .unwrap();
    conn
}

fn insert_tx(conn: &Connection, tx_id: &[u8], state: u8, rest: &str) {
    let sql = format!(
        "INSERT INTO managed_tx (tx_id, lane_id, request_id, state, open, signed, token, \
           created_at, updated_at, fingerprint, event_seqs, gas, value, data{rest}"
    );
    conn.execute(&sql, (tx_id, state)).unwrap();
}

/// The one row of a query, as column names and values.
fn row(conn: &Connection, sql: &str) -> Vec<(String, Value)> {
    let mut statement = conn.prepare(sql).unwrap();
    let names: Vec<String> = statement.column_names().map(String::from).collect();
    statement
        .query_row([], |row| {
            (0..names.len())
                .map(|n| Ok((names[n].clone(), row.get(n)?)))
                .collect()
        })
        .unwrap()
}

fn text(value: &str) -> Value {
    Value::Text(value.into())
}

#[test]
fn lease_view_and_lane_view_show_one_lane() {
    let conn = database();
    let lane = || {
        [
            ("chain_id".to_owned(), Value::Integer(31_337)),
            (
                "signer".to_owned(),
                text("0x00000000000000000000000000000000000000aa"),
            ),
        ]
    };
    let lease = [
        ("keeper".into(), text("a")),
        ("token".into(), Value::Integer(7)),
        ("expires_at".into(), text("2027-01-15T08:00:10.000Z")),
        ("halted".into(), Value::Null),
        ("updated_at".into(), text("2027-01-15T08:00:00.000Z")),
    ];
    let expected: Vec<_> = lane().into_iter().chain(lease).collect();
    assert_eq!(row(&conn, "SELECT * FROM lease_view"), expected);
    let cursor = [
        ("lane_id".into(), Value::Integer(1)),
        ("keeper".into(), text("a")),
        ("token".into(), Value::Integer(7)),
        ("next_nonce".into(), Value::Integer(5)),
        ("queued".into(), Value::Integer(0)),
        ("event_seq".into(), Value::Integer(9)),
        ("paused".into(), Value::Integer(0)),
        ("halted".into(), Value::Null),
        ("updated_at".into(), text("2027-01-15T08:00:00.500Z")),
    ];
    let expected: Vec<_> = lane().into_iter().chain(cursor).collect();
    assert_eq!(row(&conn, "SELECT * FROM lane_view"), expected);
}

#[test]
fn tx_view_shows_a_new_tx() {
    let conn = database();
    insert_tx(
        &conn,
        &[0xab; 16],
        state_number(domain::TxState::Created),
        ") VALUES (?1, 1, 'r1', ?2, 1, 0, 7, 1800000000000, 1800000000000, x'', x'', 1, x'', x'01')",
    );
    let row = row(&conn, "SELECT * FROM tx_view");
    let names: Vec<&str> = row.iter().map(|(name, _)| name.as_str()).collect();
    let expected = "tx_id chain_id signer request_id nonce payload tx_hash state sub_state reason \
         last_sent_at receipt confirmations confirmed_at token created_at updated_at";
    assert_eq!(names, expected.split_whitespace().collect::<Vec<_>>());
    assert_eq!(row[0].1, text("abababab-abab-abab-abab-abababababab"));
    let payload = r#"{"to":null,"value":"0x0","data":"0x01","gas":null,"maxFeePerGas":null,"maxPriorityFeePerGas":null,"gasPrice":null,"type":null}"#;
    assert_eq!(row[5].1, text(payload));
    assert_eq!(row[7].1, text("CREATED"));
    for (name, value) in [4, 6, 8, 9, 10, 11, 12, 13].map(|n| &row[n]) {
        assert_eq!(*value, Value::Null, "{name}");
    }
}

#[test]
fn tx_view_shows_receipt_and_confirmations_of_a_mined_tx() {
    let conn = database();
    insert_tx(
        &conn,
        &[1; 16],
        state_number(domain::TxState::Tracking),
        ", max_fee) VALUES (?1, 1, 'r1', ?2, 1, 1, 7, 0, 0, x'', x'', 1, x'0A', x'', x'')",
    );
    let block = [2_u8; 32];
    let inclusion = inclusion_to_bytes(&domain::Inclusion {
        tx_hash: domain::B256::repeat_byte(3),
        block_number: 16,
        block_hash: block.into(),
        succeeded: true,
        gas_used: 21_000,
        effective_gas_price: 0,
        contract_address: None,
        revert_reason: Some("no".into()),
    });
    let above = [4_u8; 32];
    conn.execute(
        "UPDATE managed_tx SET inclusion = ?1, counted = ?2",
        (&inclusion, above),
    )
    .unwrap();
    let header = "INSERT INTO chain_header VALUES (31337, ?1, ?2, ?3, 0)";
    for (hash, parent, number) in [
        (above, block, 17),
        (block, [9; 32], 16),
        ([9; 32], [8; 32], 15),
    ] {
        conn.execute(header, (hash, parent, number)).unwrap();
    }
    let attempt =
        "INSERT INTO tx_attempt VALUES (NULL, ?1, ?2, 1, 0, 0, 1, x'', 0, 1800000000000, x'')";
    conn.execute(attempt, ([3_u8; 32], [1_u8; 16])).unwrap();

    let shown = [
        ("json_extract(receipt, '$.blockNumber')", "0x10"),
        ("json_extract(receipt, '$.gasUsed')", "0x5208"),
        ("json_extract(receipt, '$.effectiveGasPrice')", "0x0"),
        ("json_extract(receipt, '$.status')", "1"),
        (
            "substr(json_extract(receipt, '$.blockHash'), 1, 8)",
            "0x020202",
        ),
        ("json_extract(payload, '$.value')", "0xa"),
        ("json_extract(payload, '$.maxFeePerGas')", "0x0"),
        ("last_sent_at", "2027-01-15T08:00:00.000Z"),
        // From its block upwards.
        ("json_extract(confirmations, '$[0].number')", "16"),
        ("json_extract(confirmations, '$[1].number')", "17"),
        ("json_array_length(confirmations)", "2"),
    ];
    for (expression, expected) in shown {
        let sql = format!("SELECT CAST({expression} AS TEXT) FROM tx_view");
        let value: String = conn.query_row(&sql, [], |row| row.get(0)).unwrap();
        assert_eq!(value, expected, "{expression}");
    }
}

#[test]
fn tx_view_names_every_state() {
    let conn = database();
    for (n, state) in (0_u8..).zip(domain::TxState::ALL) {
        for (m, sub) in (0_u8..).zip(domain::SubState::ALL) {
            let sub_state = sub_state_number(sub);
            let rest = format!(
                ", sub_state) VALUES (?1, 1, 'r-{n}-{m}', ?2, 1, 0, 7, 0, 0, x'', x'', 1, x'', \
                 x'', {sub_state})"
            );
            insert_tx(&conn, &[n, m], state_number(state), &rest);
            let sql = format!(
                "SELECT state || ' ' || sub_state FROM tx_view \
                 WHERE request_id = 'r-{n}-{m}'"
            );
            let shown: String = conn.query_row(&sql, [], |row| row.get(0)).unwrap();
            assert_eq!(shown, format!("{} {}", state.as_str(), sub.as_str()));
        }
    }
}
