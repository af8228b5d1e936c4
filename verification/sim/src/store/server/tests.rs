//! Transactions that contend for rows.

use std::sync::Arc;
use std::time::Duration;

use domain::lane::{AdmittedRequest, OpenCost};
use domain::lease::LeaseRequest;
use domain::{
    Address, ChainId, GrantId, Incarnation, LaneKey, LeaseGrant, NodeName, Nonce, Payload,
    RequestId, TxId, U256, Writes,
};
use engine::ports::{
    AcquireOutcome, CommitOutcome, LaneBatch, QueuedRequest, RegrantOutcome, RenewOutcome,
    Store as _,
};
use uuid::Uuid;

use super::locks::Row;
use super::{Abort, Server};
use crate::clock::{EPOCH, SimClock};
use crate::network::{Link, LinkFaults};
use crate::rng::Rng;
use crate::store::MemoryStore;

fn server(faults: LinkFaults) -> Server {
    let store = MemoryStore::new(Arc::new(SimClock::new(1)));
    Server::new(store, Link::new(Rng::new(7), faults))
}

fn lane(number: u8) -> LaneKey {
    LaneKey {
        chain_id: ChainId(1),
        signer: Address::repeat_byte(number),
    }
}

fn node() -> LeaseRequest {
    LeaseRequest {
        node: NodeName("a".to_owned()),
        incarnation: Incarnation(Uuid::from_u128(1)),
        duration: Duration::from_secs(10),
        skew: Duration::ZERO,
        alive: Vec::new(),
        silent: Vec::new(),
    }
}

/// Lanes that node `a` keeps.
async fn kept<const N: usize>(server: &Server) -> [LeaseGrant; N] {
    let requested: [_; N] = std::array::from_fn(|number| {
        let number = u8::try_from(number).expect("few lanes");
        (lane(number), GrantId(Uuid::from_u128(number.into())))
    });
    let answers = server.store().acquire(&node(), &requested).await;
    let lease_grants = answers.expect("acquire").into_iter().map(|answer| {
        let AcquireOutcome::Granted { lease_grant, .. } = answer else {
            panic!("there is no other node: {answer:?}")
        };
        lease_grant
    });
    let lease_grants: Vec<LeaseGrant> = lease_grants.collect();
    lease_grants.try_into().expect("one answer per lane")
}

fn batch(lease_grant: LeaseGrant, batch_seq_before: u64) -> LaneBatch {
    LaneBatch {
        lease_grant,
        batch_seq_before,
        node: node().node,
        at: EPOCH,
        event_seq_before: 0,
        next_nonce: Nonce(0),
        floor_nonce: Nonce(0),
        open_cost: OpenCost::default(),
        head: None,
        newest_final: None,
        writes: Writes::default(),
    }
}

fn request(number: u128) -> QueuedRequest {
    let payload = Payload::transfer(Address::ZERO, U256::from(number));
    QueuedRequest {
        lane: lane(0),
        request: AdmittedRequest {
            id: TxId(Uuid::from_u128(number)),
            request_id: RequestId::parse("r").expect("a valid request id"),
            fingerprint: payload.fingerprint(),
            payload,
            gas: 21_000,
        },
        at: EPOCH,
    }
}

/// Holds rows for a while, as another transaction does.
fn hold(server: &Server, rows: impl IntoIterator<Item = Row>, span: Duration) {
    let mut other = server.begin("other");
    for row in rows {
        assert!(other.try_lock(row));
    }
    drop(tokio::spawn(async move {
        tokio::time::sleep(span).await;
        drop(other);
    }));
}

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn gate_and_renewals_skip_only_locked_lanes() {
    let server = server(LinkFaults::NONE);
    let [one, other] = kept(&server).await;
    hold(&server, [Row::Lane(one.lane)], LONG);
    let outcomes = server
        .commit(vec![batch(one, 0).into(), batch(other, 0).into()])
        .await;
    assert_eq!(outcomes, [CommitOutcome::Locked, CommitOutcome::Applied]);
    hold(&server, [Row::Lease(one.lane)], LONG);
    let renewals = server.renew(&node(), &[other, one]).await;
    assert_eq!(
        renewals,
        Ok(vec![RenewOutcome::Renewed, RenewOutcome::Busy])
    );
    tokio::time::sleep(LONG * 2).await;
    let outcomes = server.commit(vec![batch(one, 0).into()]).await;
    assert_eq!(outcomes, [CommitOutcome::Applied]);
}

#[tokio::test(start_paused = true)]
async fn regrant_waits_for_the_row_until_a_timeout() {
    let server = server(LinkFaults::NONE);
    let [lease_grant] = kept(&server).await;
    let grant = GrantId(Uuid::from_u128(77));
    hold(&server, [Row::Lane(lease_grant.lane)], LONG);
    assert!(server.regrant(lease_grant, grant).await.is_err());
    tokio::time::sleep(LONG).await;
    hold(&server, [Row::Lane(lease_grant.lane)], SHORT);
    let held = RegrantOutcome::Held {
        lease_grant: LeaseGrant {
            grant,
            ..lease_grant
        },
        batch_seq: 0,
    };
    assert_eq!(server.regrant(lease_grant, grant).await, Ok(held));
    let outcomes = server.commit(vec![batch(lease_grant, 0).into()]).await;
    assert_eq!(outcomes, [CommitOutcome::Fenced], "its grant is stale");
}

#[tokio::test(start_paused = true)]
async fn concurrent_insert_of_one_request_is_waited_for() {
    let server = server(LinkFaults::NONE);
    let key = || Row::RequestKey(lane(0), request(1).request.request_id);
    hold(&server, [key()], LONG);
    assert!(server.queue_requests(vec![request(1)]).await.is_err());
    tokio::time::sleep(LONG).await;
    hold(&server, [key()], SHORT);
    let (one, other) = tokio::join!(
        server.queue_requests(vec![request(1)]),
        server.queue_requests(vec![request(2)])
    );
    assert_eq!(one, other, "one of them is the tx of both");
}

#[tokio::test(start_paused = true)]
async fn stalled_transaction_is_rolled_back_and_unlocks() {
    let server = server(LinkFaults {
        slow: 1_000,
        ..LinkFaults::NONE
    });
    let [lease_grant] = kept(&server).await;
    let (mut landed, mut ended) = (0, 0);
    while landed == 0 || ended == 0 {
        match server
            .commit(vec![batch(lease_grant, landed).into()])
            .await
            .remove(0)
        {
            CommitOutcome::Applied => landed += 1,
            CommitOutcome::NotApplied(_) => ended += 1,
            other @ (CommitOutcome::Fenced
            | CommitOutcome::Conflict(_)
            | CommitOutcome::Locked
            | CommitOutcome::Unknown(_)) => panic!("there is no other transaction: {other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn broken_connection_holds_locks_until_noticed() {
    let server = server(LinkFaults {
        refused: 1_000,
        ..LinkFaults::NONE
    });
    let [lease_grant] = kept(&server).await;
    let (mut landed, mut were_locked) = (0, false);
    for _ in 0..100 {
        match server
            .commit(vec![batch(lease_grant, landed).into()])
            .await
            .remove(0)
        {
            CommitOutcome::Applied => landed += 1,
            CommitOutcome::Locked => were_locked = true,
            CommitOutcome::Unknown(_) => {}
            other @ (CommitOutcome::Fenced
            | CommitOutcome::Conflict(_)
            | CommitOutcome::NotApplied(_)) => panic!("there is no other transaction: {other:?}"),
        }
        let batches = server.read(|rows| rows.lane(lease_grant.lane).map(|lane| lane.batch_seq));
        assert_eq!(batches, Some(landed));
    }
    assert!(were_locked && landed > 0);
}

#[tokio::test(start_paused = true)]
async fn failover_ends_every_transaction() {
    let server = server(LinkFaults::NONE);
    let [lease_grant] = kept(&server).await;
    let mut holder = server.begin("holder");
    assert!(holder.try_lock(Row::Lane(lease_grant.lane)));
    let waiting = async {
        let mut waiting = server.begin("waiting");
        waiting.lock(Row::Lane(lease_grant.lane)).await
    };
    let failing = async {
        tokio::time::sleep(SHORT).await;
        server.store().fail_over();
    };
    let gone = Abort::Lost("the server is gone");
    let (waited, ()) = tokio::join!(waiting, failing);
    assert_eq!(waited, Err(gone.clone()));
    assert_eq!(holder.commit(|_, _| ()).await, Err(gone));
    let outcomes = server.commit(vec![batch(lease_grant, 0).into()]).await;
    assert_eq!(outcomes, [CommitOutcome::Applied], "all locks are gone");
}

#[tokio::test(start_paused = true)]
async fn deadlocked_transaction_is_rolled_back() {
    let server = server(LinkFaults::NONE);
    let (one, other) = (Row::Lane(domain::LaneId(1)), Row::Lane(domain::LaneId(2)));
    let meet = |first: Row, second: Row| {
        let mut transaction = server.begin("meet");
        async move {
            assert!(transaction.try_lock(first));
            tokio::time::sleep(SHORT).await;
            transaction.lock(second).await
        }
    };
    let (first, second) = tokio::join!(meet(one.clone(), other.clone()), meet(other, one));
    let ended = [&first, &second].map(|it| matches!(it, Err(Abort::LockTimeout(_))));
    assert_ne!(ended[0], ended[1], "{first:?}, {second:?}");
    assert!([first, second].contains(&Ok(())));
}
