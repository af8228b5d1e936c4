//! The public JSON of the HTTP API and the sinks. A change here is a change of the contract.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]

use std::collections::BTreeSet;
use std::time::Duration;

use domain::lane::{AccountNonces, LaneWait};
use domain::lease::Lease;
use domain::{
    Address, Attempt, AttemptKind, B256, Bytes, ChainId, Event, EventKind, Fees, Header,
    Incarnation, Inclusion, LaneKey, LastWrite, NodeName, Nonce, Payload, RequestId, SubState,
    Timestamp, Token, Tx, TxHistory, TxId, TxRequest, TxState, TxType, U256,
};
use engine::node::{ChainStatus, LaneStatus, Readiness};
use engine::ports::{EventRecord, LaneRecord, Member, TxRecord};
use expect_test::{Expect, expect, expect_file};
use serde::Serialize;
use uuid::Uuid;

const AT: Timestamp = Timestamp(1_767_225_600_000);

fn check(value: impl Serialize, expected: &Expect) {
    expected.assert_eq(&serde_json::to_string_pretty(&value).unwrap());
}

fn lane() -> LaneKey {
    let signer = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266"
        .parse()
        .unwrap();
    LaneKey {
        chain_id: ChainId(31_337),
        signer,
    }
}

fn header(number: u64) -> Header {
    let byte = u8::try_from(number).unwrap();
    Header {
        number,
        hash: B256::repeat_byte(byte),
        parent_hash: B256::repeat_byte(byte - 1),
        timestamp: 0,
    }
}

/// Newly accepted, without a nonce.
fn fresh() -> TxRecord {
    let payload = Payload::transfer(Address::repeat_byte(0xab), U256::from(10_u64.pow(18)));
    let tx = Tx {
        id: TxId(Uuid::from_u128(0x0192_b2a4_5f7e_7cc1_8d59_4d5d_3f6a_1c11)),
        request: TxRequest {
            request_id: RequestId::parse("payout-7").unwrap(),
            fingerprint: payload.fingerprint(),
            payload,
            gas: 21_000,
            created_at: AT,
        },
        nonce: None,
        state: TxState::Created,
        sub_state: Some(SubState::Queued),
        reason: None,
        tx_hash: None,
        inclusion: None,
        counted: None,
        written: LastWrite {
            token: Token(3),
            at: AT,
        },
        confirmed_at: None,
        history: TxHistory::default(),
    };
    TxRecord {
        lane: lane(),
        tx,
        attempts: Vec::new(),
        confirmations: Vec::new(),
        lane_wait: None,
    }
}

fn attempt(byte: u8, kind: AttemptKind, fees: Fees) -> Attempt {
    Attempt {
        hash: B256::repeat_byte(byte),
        tx_id: fresh().tx.id,
        kind,
        nonce: Nonce(7),
        gas: 60_000,
        fees,
        raw: Bytes::from_static(&[1]),
        signed_at: AT,
        first_sent_at: None,
    }
}

/// Bumped, mined, reverted and final.
fn finished() -> TxRecord {
    let mut record = fresh();
    let legacy = Fees::Legacy { gas_price: 5 };
    let priced = Fees::Eip1559 {
        max_fee: 3_000_000_000,
        max_priority_fee: 1,
    };
    let first = attempt(1, AttemptKind::Original, legacy);
    let sent = Some(AT.plus(Duration::from_millis(7)));
    record.attempts = vec![
        Attempt {
            first_sent_at: sent,
            ..first
        },
        attempt(2, AttemptKind::Bump, priced),
    ];
    record.confirmations = vec![header(9), header(10)];
    let tx = &mut record.tx;
    tx.request.payload.data = Bytes::from_static(&[0xde, 0xad]);
    tx.request.payload.gas = Some(60_000);
    tx.request.payload.max_fee_per_gas = Some(u128::MAX);
    tx.request.payload.max_priority_fee_per_gas = Some(0);
    tx.request.payload.tx_type = Some(TxType::Eip1559);
    tx.nonce = Some(Nonce(7));
    tx.state = TxState::FailedFinal;
    tx.sub_state = Some(SubState::Reverted);
    tx.reason = Some("execution reverted: \"no\"".into());
    tx.tx_hash = Some(B256::repeat_byte(2));
    tx.confirmed_at = Some(AT.plus(Duration::from_secs(61)));
    tx.inclusion = Some(Inclusion {
        tx_hash: B256::repeat_byte(2),
        block_number: 9,
        block_hash: B256::repeat_byte(9),
        succeeded: false,
        gas_used: 59_999,
        effective_gas_price: 2_000_000_001,
        contract_address: None,
        revert_reason: Some("no".into()),
    });
    record
}

#[test]
fn newly_accepted_tx() {
    check(
        api_types::Tx::from(&fresh()),
        &expect![[r#"
        {
          "txId": "0192b2a4-5f7e-7cc1-8d59-4d5d3f6a1c11",
          "chainId": 31337,
          "signer": "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266",
          "requestId": "payout-7",
          "nonce": null,
          "state": "CREATED",
          "subState": "queued",
          "reason": null,
          "waitingFor": "nonce",
          "txHash": null,
          "payload": {
            "to": "0xABaBaBaBABabABabAbAbABAbABabababaBaBABaB",
            "value": "1000000000000000000",
            "data": "0x",
            "gas": null,
            "maxFeePerGas": null,
            "maxPriorityFeePerGas": null,
            "gasPrice": null,
            "type": null
          },
          "attempts": [],
          "receipt": null,
          "confirmations": [],
          "fencingToken": 3,
          "createdAt": "2026-01-01T00:00:00.000Z",
          "updatedAt": "2026-01-01T00:00:00.000Z",
          "confirmedAt": null
        }"#]],
    );
}

#[test]
fn final_tx() {
    let json = serde_json::to_string_pretty(&api_types::Tx::from(&finished())).unwrap();
    expect_file!["./json/final_tx.json"].assert_eq(&(json + "\n"));
}

#[test]
fn deployment_has_no_recipient() {
    let mut record = finished();
    record.tx.request.payload.to = None;
    let inclusion = record.tx.inclusion.as_mut().unwrap();
    inclusion.contract_address = Some(Address::repeat_byte(0xcd));
    inclusion.succeeded = true;
    let json = serde_json::to_value(api_types::Tx::from(&record)).unwrap();
    assert_eq!(json["payload"]["to"], serde_json::Value::Null);
    assert_eq!(json["receipt"]["status"], "success");
    assert_eq!(
        json["receipt"]["contractAddress"],
        Address::repeat_byte(0xcd).to_checksum(None).as_str()
    );
}

#[test]
fn every_state_names_what_the_tx_waits_for() {
    use SubState::{
        DeepFork, FeeCap, ForeignNonce, ForeignPending, Mined, Queued, Refused, Rejected, Reorged,
        Signed, SigningFailed, Submitted, Underfunded, Underpriced, Waiting,
    };
    let cases = [
        (TxState::Created, Queued, Some("nonce")),
        (TxState::Allocated, Waiting, Some("turn")),
        (TxState::Allocated, SigningFailed, Some("signature")),
        (TxState::Tracking, Signed, Some("node")),
        (TxState::Tracking, Submitted, Some("block")),
        (TxState::Tracking, Reorged, Some("block")),
        (TxState::Tracking, Underfunded, Some("funds")),
        (TxState::Tracking, Underpriced, Some("fee")),
        (TxState::Tracking, FeeCap, Some("fee")),
        (TxState::Tracking, Refused, Some("node")),
        (
            TxState::Tracking,
            ForeignPending,
            Some("foreignTransaction"),
        ),
        (TxState::Tracking, ForeignNonce, Some("confirmations")),
        (TxState::Tracking, Mined, Some("confirmations")),
        (TxState::Tracking, Rejected, Some("confirmations")),
        (TxState::Stuck, Rejected, Some("decision")),
        (TxState::Stuck, DeepFork, Some("decision")),
        (TxState::Stuck, ForeignNonce, Some("decision")),
        (TxState::Confirmed, Mined, None),
        (TxState::FailedFinal, Rejected, None),
    ];
    for (state, sub_state, expected) in cases {
        let mut record = fresh();
        record.tx.state = state;
        record.tx.sub_state = Some(sub_state);
        let json = serde_json::to_value(api_types::Tx::from(&record)).unwrap();
        assert_eq!(
            json["waitingFor"].as_str(),
            expected,
            "{state:?} {sub_state:?}"
        );
    }
}

#[test]
fn tx_behind_a_blocked_head_shows_why_its_lane_waits() {
    let lane_wait = Some(LaneWait {
        nonce: Nonce(7),
        reason: "the account cannot pay".into(),
    });
    let behind = "its lane waits at nonce 7: the account cannot pay";
    let cases = [
        (None, None, Some(behind), "lane"),
        (Some(8), None, Some(behind), "lane"),
        (Some(7), None, Some("the account cannot pay"), "node"),
        (Some(8), Some("its own"), Some("its own"), "node"),
        (Some(6), None, None, "node"),
    ];
    for (nonce, own, reason, waiting_for) in cases {
        let mut record = fresh();
        record.tx.state = TxState::Tracking;
        record.tx.sub_state = Some(SubState::Signed);
        record.tx.nonce = nonce.map(Nonce);
        record.tx.reason = own.map(str::to_owned);
        record.lane_wait.clone_from(&lane_wait);
        let json = serde_json::to_value(api_types::Tx::from(&record)).unwrap();
        let shown = (json["reason"].as_str(), json["waitingFor"].as_str());
        assert_eq!(shown, (reason, Some(waiting_for)), "{nonce:?} {own:?}");
    }
    let mut done = finished();
    done.lane_wait = lane_wait;
    let json = serde_json::to_value(api_types::Tx::from(&done)).unwrap();
    assert_eq!(json["waitingFor"], serde_json::Value::Null);
}

fn event(kind: EventKind) -> EventRecord {
    let is_of_tx = kind.as_str().starts_with("Tx");
    EventRecord {
        lane: lane(),
        node: NodeName("a".into()),
        token: Token(3),
        event: Event {
            seq: 12,
            at: AT,
            tx_id: is_of_tx.then(|| fresh().tx.id),
            kind,
        },
        confirmations: vec![header(9)],
        cursor: "12".into(),
    }
}

#[test]
fn event_envelope() {
    let kind = EventKind::TxSubmitted {
        tx_hash: B256::repeat_byte(2),
        nonce: Nonce(7),
    };
    check(
        api_types::Event::from(&event(kind)),
        &expect![[r#"
        {
          "id": "31337:0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266:12",
          "chainId": 31337,
          "signer": "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266",
          "seq": 12,
          "type": "TxSubmitted",
          "txId": "0192b2a4-5f7e-7cc1-8d59-4d5d3f6a1c11",
          "at": "2026-01-01T00:00:00.000Z",
          "node": "a",
          "token": 3,
          "data": {
            "txHash": "0x0202020202020202020202020202020202020202020202020202020202020202",
            "nonce": 7
          }
        }"#]],
    );
}

/// One of each kind; those with a field that may be missing with it and without it.
fn kinds() -> Vec<EventKind> {
    let mut kinds = usual_kinds();
    kinds.extend(troubled_kinds());
    let words: BTreeSet<&str> = kinds.iter().map(EventKind::as_str).collect();
    assert_eq!(words, BTreeSet::from(EventKind::NAMES));
    kinds
}

/// What a tx goes through.
fn usual_kinds() -> Vec<EventKind> {
    let (tx_hash, block_hash) = (B256::repeat_byte(2), B256::repeat_byte(9));
    let (block_number, counted) = (9, block_hash);
    vec![
        EventKind::TxAccepted {
            nonce: Some(Nonce(7)),
        },
        EventKind::TxAccepted { nonce: None },
        EventKind::TxAllocated { nonce: Nonce(7) },
        EventKind::TxSubmitted {
            tx_hash,
            nonce: Nonce(7),
        },
        EventKind::TxReceiptUpdated {
            tx_hash,
            block_number,
            block_hash,
            succeeded: true,
        },
        EventKind::TxConfirmations {
            block_number,
            block_hash,
            counted,
            count: 1,
            since: None,
            new_fork: true,
        },
        EventKind::TxConfirmed {
            tx_hash,
            block_number,
            block_hash,
            counted,
            new_fork: false,
        },
        EventKind::TxFailed {
            reason: "reverted".into(),
        },
        EventKind::TxStuck {
            reason: "deep fork".into(),
        },
        EventKind::TxReorged {
            block_number,
            block_hash,
            after_final: false,
        },
    ]
}

/// What happens when others are at the lane or at its account, or nothing is mined.
fn troubled_kinds() -> Vec<EventKind> {
    let (tx_hash, foreign) = (B256::repeat_byte(2), B256::repeat_byte(9));
    vec![
        EventKind::LaneFenced {
            from: NodeName("b".into()),
            token: Token(2),
        },
        EventKind::LaneForeignNonce {
            nonce: Nonce(7),
            tx_hash: None,
        },
        EventKind::LaneForeignNonce {
            nonce: Nonce(7),
            tx_hash: Some(foreign),
        },
        EventKind::TxResubmitted {
            tx_hash,
            nonce: Nonce(7),
            kind: AttemptKind::Original,
            count: 3,
        },
        EventKind::TxReplaced {
            tx_hash,
            nonce: Nonce(7),
            kind: AttemptKind::Bump,
        },
        EventKind::TxRequeued {
            nonce: Nonce(7),
            foreign: None,
        },
        EventKind::TxRequeued {
            nonce: Nonce(7),
            foreign: Some(foreign),
        },
        EventKind::LaneForeignPending { nonce: Nonce(7) },
    ]
}

#[test]
fn data_of_every_event_kind() {
    let mut page = String::new();
    for kind in kinds() {
        let json = serde_json::to_value(api_types::Event::from(&event(kind))).unwrap();
        page.push_str(&format!(
            "{} {} {}\n",
            json["type"],
            json["txId"].is_string(),
            json["data"]
        ));
    }
    let short = page
        .replace(&"02".repeat(32), "..02")
        .replace(&"09".repeat(32), "..09");
    expect![[r#"
        "TxAccepted" true {"nonce":7}
        "TxAccepted" true {"nonce":null}
        "TxAllocated" true {"nonce":7}
        "TxSubmitted" true {"nonce":7,"txHash":"0x..02"}
        "TxReceiptUpdated" true {"blockHash":"0x..09","blockNumber":9,"status":"success","txHash":"0x..02"}
        "TxConfirmations" true {"blockHash":"0x..09","blockNumber":9,"confirmations":[{"hash":"0x..09","number":9,"parentHash":"0x..08"}],"count":1,"newFork":true}
        "TxConfirmed" true {"blockHash":"0x..09","blockNumber":9,"confirmations":[{"hash":"0x..09","number":9,"parentHash":"0x..08"}],"newFork":false,"txHash":"0x..02"}
        "TxFailed" true {"reason":"reverted"}
        "TxStuck" true {"reason":"deep fork"}
        "TxReorged" true {"afterFinal":false,"blockHash":"0x..09","blockNumber":9,"newFork":true}
        "LaneFenced" false {"from":"b","token":2}
        "LaneForeignNonce" false {"nonce":7,"txHash":null}
        "LaneForeignNonce" false {"nonce":7,"txHash":"0x..09"}
        "TxResubmitted" true {"count":3,"kind":"original","nonce":7,"txHash":"0x..02"}
        "TxReplaced" true {"kind":"bump","nonce":7,"txHash":"0x..02"}
        "TxRequeued" true {"foreign":null,"nonce":7}
        "TxRequeued" true {"foreign":"0x..09","nonce":7}
        "LaneForeignPending" false {"nonce":7}
    "#]].assert_eq(&short.replace(&"08".repeat(32), "..08"));
}

#[test]
fn confirmations_continue_above_the_last_listed_header() {
    let numbers = |since: Option<u64>| -> Vec<u64> {
        let mut record = event(EventKind::TxConfirmations {
            block_number: 9,
            block_hash: header(9).hash,
            counted: header(12).hash,
            count: 3,
            since: since.map(|number| header(number).hash),
            new_fork: false,
        });
        record.confirmations = (9..=12).map(header).collect();
        let json = serde_json::to_value(api_types::Event::from(&record)).unwrap();
        assert_eq!(json["data"]["count"], 3, "counts all headers on the block");
        let list = json["data"]["confirmations"].as_array().unwrap().clone();
        list.iter()
            .map(|header| header["number"].as_u64().unwrap())
            .collect()
    };
    assert_eq!(numbers(None), [9, 10, 11, 12], "complete");
    assert_eq!(numbers(Some(10)), [11, 12], "the increment");
    assert_eq!(numbers(Some(12)), [0_u64; 0], "nothing new");
    assert_eq!(numbers(Some(77)), [9, 10, 11, 12], "not on this branch");
}

fn lane_status() -> LaneStatus {
    LaneStatus {
        record: LaneRecord {
            key: lane(),
            lease: Some(Lease {
                owner: NodeName("a".into()),
                incarnation: Incarnation(Uuid::from_u128(1)),
                token: Token(3),
                expires_at: AT,
            }),
            next_nonce: Nonce(9),
            batch_seq: 12,
            paused: false,
            halted: None,
            in_flight: 2,
            wait: None,
            queued: 1,
        },
        chain_nonces: Some(AccountNonces {
            latest: Nonce(5),
            pending: Nonce(6),
        }),
        gaps: vec![Nonce(6)],
        waiting_for: Some("funds".into()),
    }
}

#[test]
fn lane_with_keeper() {
    check(
        api_types::Lane::new(&lane_status(), Timestamp(AT.0 - 1)),
        &expect![[r#"
            {
              "chainId": 31337,
              "signer": "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266",
              "keeper": {
                "node": "a",
                "token": 3,
                "expiresAt": "2026-01-01T00:00:00.000Z"
              },
              "nextNonce": 9,
              "chainNonce": {
                "latest": 5,
                "pending": 6
              },
              "inFlight": 2,
              "queued": 1,
              "gaps": [
                6
              ],
              "paused": false,
              "waitingFor": "funds"
            }"#]],
    );
}

#[test]
fn expired_or_released_lease_shows_no_keeper() {
    let mut status = lane_status();
    let json = serde_json::to_value(api_types::Lane::new(&status, AT)).unwrap();
    assert_eq!(json["keeper"], serde_json::Value::Null);
    let lease = status.record.lease.as_mut().unwrap();
    lease.expires_at = Lease::RELEASED;
    let json = serde_json::to_value(api_types::Lane::new(&status, Timestamp(1))).unwrap();
    assert_eq!(json["keeper"], serde_json::Value::Null);
}

#[test]
fn node_of_the_cluster() {
    let member = Member {
        node: NodeName("a".into()),
        incarnation: Incarnation(Uuid::from_u128(1)),
        advertise: None,
        started_at: AT,
        seen_at: AT,
        heartbeats: 7,
        draining: false,
    };
    check(
        api_types::Node::from(&member),
        &expect![[r#"
        {
          "node": "a",
          "incarnation": "00000000-0000-0000-0000-000000000001",
          "advertise": null,
          "startedAt": "2026-01-01T00:00:00.000Z",
          "seenAt": "2026-01-01T00:00:00.000Z",
          "draining": false
        }"#]],
    );
}

#[test]
fn only_store_and_drain_decide_readiness() {
    let chain = ChainStatus {
        chain_id: ChainId(1),
        head: None,
        endpoints: vec![("http://127.0.0.1:8646".into(), false)],
    };
    let mut readiness = Readiness {
        store: Ok(()),
        draining: false,
        chains: vec![chain],
    };
    assert!(api_types::NodeReadiness::from(&readiness).is_ready());
    check(
        api_types::NodeReadiness::from(&readiness),
        &expect![[r#"
        {
          "ready": true,
          "store": "ok",
          "draining": false,
          "chains": [
            {
              "chainId": 1,
              "head": null,
              "endpoints": [
                {
                  "name": "http://127.0.0.1:8646",
                  "answers": false
                }
              ]
            }
          ]
        }"#]],
    );
    readiness.draining = true;
    assert!(!api_types::NodeReadiness::from(&readiness).is_ready());
    readiness = Readiness {
        store: Err("down".into()),
        draining: false,
        chains: Vec::new(),
    };
    assert!(!api_types::NodeReadiness::from(&readiness).is_ready());
}
