//! Frequent queries are walks along an index, however large the tables are.

use domain::Timestamp;
use rusqlite::Connection;

use super::migrations::migrate;
use super::{events, lane_lists, lanes, rows, txs};

/// SQLite's query plan, line by line.
fn plan(conn: &Connection, sql: &str) -> Vec<String> {
    let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let lines = statement.raw_query().mapped(|row| row.get(3));
    lines.map(Result::unwrap).collect()
}

#[test]
fn no_frequent_query_scans_or_sorts_a_table() {
    let mut conn = Connection::open_in_memory().unwrap();
    migrate(&mut conn, Timestamp(0)).unwrap();
    let questions = [
        (
            "what is out",
            lanes::IN_FLIGHT,
            "managed_tx_open (lane_id=? AND signed=? AND nonce>?)",
        ),
        (
            "backlog",
            lanes::BACKLOG,
            "managed_tx_open (lane_id=? AND signed=? AND nonce>?)",
        ),
        ("waiting", lanes::QUEUED, "managed_tx_id (tx_id=?)"),
        (
            "held nonces",
            lanes::OPEN_NONCES,
            "COVERING INDEX managed_tx_open",
        ),
        (
            "highest nonce",
            lanes::HIGHEST_NONCE,
            "COVERING INDEX managed_tx_nonce",
        ),
        (
            "count of what is out",
            lanes::COUNT_IN_FLIGHT,
            "COVERING INDEX managed_tx_open",
        ),
        (
            "lanes with work",
            lanes::WITH_WORK,
            "COVERING INDEX managed_tx_open (lane_id=? AND signed=? AND nonce>?)",
        ),
        ("by id", txs::BY_ID, "managed_tx_id (tx_id=?)"),
        (
            "by key",
            txs::BY_REQUEST,
            "managed_tx_request (lane_id=? AND request_id=?)",
        ),
        ("by hash", txs::BY_HASH, "tx_attempt_hash (hash=?)"),
        ("list", txs::PAGE, "managed_tx_id (tx_id<?)"),
        ("attempts", rows::ATTEMPTS, "tx_attempt_tx (tx_id=?)"),
        ("feed", events::PAGE, "INTEGER PRIMARY KEY (rowid>?)"),
        (
            "an event's turn",
            events::TURN_OF_EVENT,
            "lane_event_seq (lane_id=? AND first_seq<?)",
        ),
    ];
    check(&conn, &questions);
}

#[test]
fn lists_of_a_lane_walk_its_keys() {
    let mut conn = Connection::open_in_memory().unwrap();
    migrate(&mut conn, Timestamp(0)).unwrap();
    let questions = [
        (
            "without nonce",
            lane_lists::WITHOUT_NONCE,
            "managed_tx_without_nonce (lane_id=? AND tx_id<?)",
        ),
        (
            "by nonce",
            lane_lists::WITH_NONCE,
            "managed_tx_nonce (lane_id=? AND nonce>? AND nonce<?)",
        ),
        (
            "lowest open nonce",
            lane_lists::LOWEST_OPEN,
            "managed_tx_open (lane_id=? AND signed=? AND nonce>?)",
        ),
    ];
    check(&conn, &questions);
}

/// Checks that every query (name, SQL, a part of its plan) uses the index, and neither scans nor sorts a table.
fn check(conn: &Connection, questions: &[(&str, &str, &str)]) {
    for (question, sql, expected) in questions {
        let plan = plan(conn, sql);
        assert!(
            plan.iter().any(|line| line.contains(expected)),
            "{question}: {plan:#?}"
        );
        for line in plan {
            // Lanes are few; everything else grows with every tx.
            assert!(
                !line.starts_with("SCAN") || line == "SCAN lane",
                "{question}: {line}"
            );
            assert!(!line.contains("TEMP B-TREE"), "{question}: {line}");
        }
    }
}
