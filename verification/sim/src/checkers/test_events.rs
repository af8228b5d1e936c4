//! Events for the tests of the checkers.

use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::{Address, B256, Bytes, U256};
use domain::lane::OpenCost;
use domain::{
    Attempt, AttemptKind, ChainId, Event, EventKind, Fees, GrantId, Header, LaneId, LaneKey,
    LastWrite, LeaseGrant, NodeName, Nonce, Payload, RequestId, SendOutcome, SubState, Timestamp,
    Token, Tx, TxHistory, TxId, TxRequest, TxState, UnsignedEnvelope, Writes,
};
use engine::ports::{CommitOutcome, LaneBatch};
use uuid::Uuid;

use super::Checker;
use crate::chain::{ChainTx, encode, hash};
use crate::event::{Answer, WorldEvent};

const CHAIN: ChainId = ChainId(1);

/// Empty blocks pass, one every ten seconds.
pub(super) async fn blocks_pass(
    checker: &mut impl Checker,
    from: u8,
    count: u8,
) -> Result<(), String> {
    for number in from..from + count {
        tokio::time::sleep(Duration::from_secs(10)).await;
        checker.after(&block(number, Vec::new()))?;
    }
    Ok(())
}

pub(super) fn lane(number: u8) -> LaneKey {
    LaneKey {
        chain_id: CHAIN,
        signer: Address::repeat_byte(number),
    }
}

pub(super) fn tx(number: u128, nonce: Option<u64>) -> Tx {
    let payload = Payload::transfer(Address::ZERO, U256::from(number));
    Tx {
        id: TxId(Uuid::from_u128(number)),
        request: TxRequest {
            request_id: RequestId::parse(format!("request-{number}")).expect("a valid request id"),
            fingerprint: payload.fingerprint(),
            payload,
            gas: 21_000,
            created_at: Timestamp(0),
        },
        nonce: nonce.map(Nonce),
        state: TxState::Created,
        sub_state: Some(SubState::Queued),
        reason: None,
        tx_hash: None,
        inclusion: None,
        counted: None,
        written: LastWrite {
            token: Token(1),
            at: Timestamp(0),
        },
        confirmed_at: None,
        history: TxHistory::default(),
    }
}

fn unsigned(lane: LaneKey, tx: u128, nonce: u64, data: &'static [u8]) -> UnsignedEnvelope {
    UnsignedEnvelope {
        tx_id: TxId(Uuid::from_u128(tx)),
        kind: AttemptKind::Original,
        chain_id: lane.chain_id,
        signer: lane.signer,
        nonce: Nonce(nonce),
        to: Some(Address::ZERO),
        value: U256::ZERO,
        data: Bytes::from_static(data),
        gas: 100_000,
        fees: Fees::Legacy { gas_price: 5 },
    }
}

pub(super) fn attempt(tx: u128, nonce: u64) -> Attempt {
    let envelope = unsigned(lane(1), tx, nonce, b"");
    let raw = encode(&envelope);
    Attempt {
        hash: hash(&raw),
        tx_id: envelope.tx_id,
        kind: envelope.kind,
        nonce: envelope.nonce,
        gas: envelope.gas,
        fees: envelope.fees,
        raw,
        signed_at: Timestamp(0),
        first_sent_at: None,
    }
}

pub(super) fn chain_tx(lane: LaneKey, nonce: u64, data: &'static [u8]) -> Arc<ChainTx> {
    let raw = encode(&unsigned(lane, 1, nonce, data));
    Arc::new(ChainTx::decode(&raw).expect("just encoded"))
}

pub(super) fn lane_event(seq: u64, tx: u128, kind: EventKind) -> Event {
    Event {
        seq,
        at: Timestamp(0),
        tx_id: Some(TxId(Uuid::from_u128(tx))),
        kind,
    }
}

pub(super) fn applied(lane: LaneKey, fill: impl FnOnce(&mut Writes)) -> WorldEvent {
    applied_by(lane, 1, fill)
}

/// Applied, under this token.
pub(super) fn applied_by(lane: LaneKey, token: u64, fill: impl FnOnce(&mut Writes)) -> WorldEvent {
    let mut writes = Writes::default();
    fill(&mut writes);
    committed(lane, "a", token, writes)
}

/// Applied, with a floor and a cursor.
pub(super) fn applied_above(floor: u64, next: u64, fill: impl FnOnce(&mut Writes)) -> WorldEvent {
    let WorldEvent::Committed {
        lane,
        batch,
        outcome,
    } = applied(lane(1), fill)
    else {
        unreachable!("applied makes a commit")
    };
    let batch = LaneBatch {
        floor_nonce: Nonce(floor),
        next_nonce: Nonce(next),
        ..(*batch).clone()
    };
    WorldEvent::Committed {
        lane,
        batch: Arc::new(batch),
        outcome,
    }
}

/// A failover that lost these txs.
pub(super) fn failed_over(lost: &[u128]) -> WorldEvent {
    WorldEvent::FailedOver {
        history: domain::History {
            store: 1,
            timeline: 2,
            restores: 0,
            suspicions: 0,
        },
        lost: lost
            .iter()
            .map(|number| TxId(Uuid::from_u128(*number)))
            .collect(),
        damaged: vec![lane(1)],
    }
}

pub(super) fn applied_under(lane: LaneKey, node: &str, token: u64) -> WorldEvent {
    committed(lane, node, token, Writes::default())
}

fn committed(lane: LaneKey, node: &str, token: u64, writes: Writes) -> WorldEvent {
    let grant = GrantId(Uuid::from_u128(1));
    let batch = LaneBatch {
        lease_grant: LeaseGrant {
            lane: LaneId(1),
            token: Token(token),
            grant,
        },
        batch_seq_before: 0,
        node: NodeName(node.to_owned()),
        at: Timestamp(0),
        event_seq_before: 0,
        next_nonce: Nonce(0),
        floor_nonce: Nonce(0),
        open_cost: OpenCost::default(),
        head: None,
        newest_final: None,
        writes,
    };
    WorldEvent::Committed {
        lane,
        batch: Arc::new(batch),
        outcome: CommitOutcome::Applied,
    }
}

pub(super) fn granted(lane: LaneKey, node: &str, token: u64) -> WorldEvent {
    let node = NodeName(node.to_owned());
    WorldEvent::Granted {
        lane,
        node,
        token: Token(token),
        grant: GrantId(Uuid::from_u128(1)),
        previous_keeper: None,
        left: Duration::ZERO,
    }
}

pub(super) fn request_sent(lane: LaneKey, number: u128) -> WorldEvent {
    WorldEvent::RequestSent {
        lane,
        request_id: tx(number, None).request.request_id,
        node: NodeName("a".to_owned()),
    }
}

/// A page of the feed.
pub(super) fn feed_read(reader: usize, read: &[(LaneKey, u64)]) -> WorldEvent {
    WorldEvent::FeedRead {
        reader,
        node: NodeName("a".to_owned()),
        read: read.to_vec(),
    }
}

pub(super) fn accepted(lane: LaneKey, number: u128) -> WorldEvent {
    let tx = tx(number, None);
    WorldEvent::RequestAnswered {
        lane,
        request_id: tx.request.request_id,
        node: NodeName("a".to_owned()),
        answer: Answer::Accepted {
            tx_id: tx.id,
            is_new: true,
        },
    }
}

pub(super) fn sent(lane: LaneKey, attempt: &Attempt) -> WorldEvent {
    WorldEvent::Sent {
        lane,
        endpoint: 0,
        nonce: attempt.nonce,
        hash: attempt.hash,
        outcome: SendOutcome::Accepted,
    }
}

/// A pending foreign transaction; its hash is a number.
pub(super) fn foreign(lane: LaneKey, nonce: u64, hash: u8) -> WorldEvent {
    WorldEvent::Foreign {
        lane,
        nonce: Nonce(nonce),
        hash: B256::with_last_byte(hash),
    }
}

pub(super) fn foreign_gone(hash: u8) -> WorldEvent {
    WorldEvent::ForeignGone {
        chain_id: CHAIN,
        hash: B256::with_last_byte(hash),
    }
}

/// A block whose height and hash are its number.
pub(super) fn block(number: u8, txs: Vec<Arc<ChainTx>>) -> WorldEvent {
    WorldEvent::Mined {
        chain_id: CHAIN,
        header: header(number),
        txs,
    }
}

pub(super) fn forked(number: u8) -> WorldEvent {
    WorldEvent::Forked {
        chain_id: CHAIN,
        dropped: vec![header(number)],
    }
}

fn header(number: u8) -> Header {
    Header {
        number: u64::from(number),
        hash: B256::with_last_byte(number),
        parent_hash: B256::with_last_byte(number.saturating_sub(1)),
        timestamp: 0,
    }
}
