//! Stores in databases of their own, lanes with their keepers, and a connection to get in the way with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use domain::lane::{AdmittedRequest, OpenCost};
use domain::{
    Address, Attempt, AttemptKind, B256, Bytes, ChainId, Event, EventKind, Fees, GrantId,
    Incarnation, LaneKey, LastWrite, LeaseGrant, NodeName, Nonce, Payload, RequestId, SubState,
    Timestamp, Token, Tx, TxHistory, TxId, TxRequest, TxState, U256, Writes,
};
use engine::ports::{AcquireOutcome, CommitOutcome, LaneBatch, LeaseRequest, QueuedRequest, Store};
use rig::postgres::{Database, majors, shared};
use store::postgres::{PostgresConfig, PostgresStore, migrate};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

/// How long the leases last, unless a test needs short timeouts.
pub(crate) const LEASE: Duration = Duration::from_secs(10);

static NAMES: AtomicU64 = AtomicU64::new(1);

/// A number that is unique in this process.
pub(crate) fn name() -> u64 {
    NAMES.fetch_add(1, Ordering::Relaxed)
}

/// Bytes that are as good as random: index entries of hashes and keys of strangers land anywhere.
fn spread() -> [[u8; 8]; 4] {
    let seed = name();
    [1, 3, 5, 7].map(|n: u64| {
        let mixed = (seed + n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 29))
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
            .to_be_bytes()
    })
}

/// A store, and the database below it.
pub(crate) struct World {
    pub(crate) store: Arc<PostgresStore>,
    pub(crate) database: Database,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::on(shared(majors()[0]).database("cluster")).await
    }

    pub(crate) async fn on(database: Database) -> Self {
        let url = database.url().to_owned();
        migrate(&url, None, LEASE).await.expect("migrate");
        let store = open(&url, LEASE).await;
        Self { store, database }
    }

    /// Another connection.
    pub(crate) async fn client(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(self.database.url(), NoTls)
            .await
            .expect("connect");
        // A broken connection is seen by the next call.
        tokio::spawn(async move { connection.await.ok() });
        // The role's timeouts are for the store, not for connections that hold locks on purpose.
        client
            .batch_execute("SET idle_in_transaction_session_timeout = 0; SET statement_timeout = 0")
            .await
            .expect("set");
        if majors()[0] >= 17 {
            let set = client.batch_execute("SET transaction_timeout = 0").await;
            set.expect("set");
        }
        client
    }

    pub(crate) fn count(&self, sql: &str) -> u64 {
        let count = self.database.query_value(sql).expect("a count");
        count.parse().expect("a number")
    }
}

pub(crate) async fn open(url: &str, lease: Duration) -> Arc<PostgresStore> {
    let config = PostgresConfig {
        url: url.to_owned(),
        pool_size: 9,
        lease,
    };
    Arc::new(PostgresStore::open(config).await.expect("open"))
}

pub(crate) fn lane(n: u64) -> LaneKey {
    LaneKey {
        chain_id: ChainId(31_337),
        signer: Address::left_padding_from(&n.to_be_bytes()),
    }
}

pub(crate) fn node(name: &str) -> LeaseRequest {
    LeaseRequest {
        node: NodeName(name.into()),
        incarnation: Incarnation(Uuid::from_u128(name.bytes().map(u128::from).sum())),
        duration: LEASE,
        skew: Duration::from_secs(5),
        alive: Vec::new(),
        silent: Vec::new(),
    }
}

pub(crate) fn grant() -> GrantId {
    GrantId(Uuid::from_u128(u128::from(name())))
}

/// The state of a lane in its keeper's memory.
#[derive(Clone, Debug)]
pub(crate) struct Keeper {
    pub(crate) key: LaneKey,
    pub(crate) lease_grant: LeaseGrant,
    pub(crate) batch_seq: u64,
    pub(crate) event_seq: u64,
    pub(crate) next_nonce: u64,
}

impl Keeper {
    pub(crate) fn follow(&mut self, batch: &LaneBatch) {
        self.batch_seq += 1;
        self.event_seq += batch.writes.events.len() as u64;
        self.next_nonce = batch.next_nonce.0;
    }
}

/// Makes a node keeper of fresh lanes.
pub(crate) async fn keepers(
    store: &dyn Store,
    lease_request: &LeaseRequest,
    lanes: &[LaneKey],
) -> Vec<Keeper> {
    let requested: Vec<(LaneKey, GrantId)> = lanes.iter().map(|key| (*key, grant())).collect();
    let answers = store
        .acquire(lease_request, &requested)
        .await
        .expect("acquire");
    let keepers = lanes.iter().zip(answers).map(|(key, answer)| match answer {
        AcquireOutcome::Granted { lease_grant, .. } => Keeper {
            key: *key,
            lease_grant,
            batch_seq: 0,
            event_seq: 0,
            next_nonce: 0,
        },
        AcquireOutcome::NotKeeper { .. } | AcquireOutcome::Halted(_) | AcquireOutcome::Busy => {
            panic!("{key}: {answer:?}")
        }
    });
    keepers.collect()
}

pub(crate) async fn keeper(
    store: &dyn Store,
    lease_request: &LeaseRequest,
    key: LaneKey,
) -> Keeper {
    keepers(store, lease_request, &[key]).await.remove(0)
}

/// A signed tx at a nonce, with its attempt and event.
pub(crate) fn accept(keeper: &Keeper, count: u64) -> LaneBatch {
    let mut writes = Writes::default();
    for n in 0..count {
        let id = TxId(Uuid::from_u128(
            (0x0190_0000_u128 << 96) | u128::from(name()),
        ));
        let payload = Payload {
            data: Bytes::copy_from_slice(&[5; 68]),
            ..Payload::transfer(Address::repeat_byte(9), U256::from(1))
        };
        let hash = B256::new(spread().as_flattened().try_into().expect("32 bytes"));
        let nonce = Nonce(keeper.next_nonce + n);
        let seq = keeper.event_seq + 1 + n;
        writes.inserts.push(Tx {
            id,
            request: TxRequest {
                request_id: RequestId::parse(key()).expect("visible ASCII"),
                fingerprint: payload.fingerprint(),
                payload,
                gas: 21_000,
                created_at: AT,
            },
            nonce: Some(nonce),
            state: TxState::Tracking,
            sub_state: Some(SubState::Signed),
            reason: None,
            tx_hash: Some(hash),
            inclusion: None,
            counted: None,
            written: LastWrite {
                token: keeper.lease_grant.token,
                at: AT,
            },
            confirmed_at: None,
            history: TxHistory {
                event_seqs: vec![seq],
                ..TxHistory::default()
            },
        });
        writes.attempts.push(Attempt {
            hash,
            tx_id: id,
            kind: AttemptKind::Original,
            nonce,
            gas: 21_000,
            fees: Fees::Legacy { gas_price: 1 },
            raw: Bytes::copy_from_slice(&[7; 190]),
            signed_at: AT,
            first_sent_at: None,
        });
        writes.events.push(Event {
            seq,
            at: AT,
            tx_id: Some(id),
            kind: EventKind::TxAccepted { nonce: Some(nonce) },
        });
    }
    batch_of(keeper, count, writes)
}

fn batch_of(keeper: &Keeper, count: u64, writes: Writes) -> LaneBatch {
    LaneBatch {
        lease_grant: keeper.lease_grant,
        batch_seq_before: keeper.batch_seq,
        node: NodeName("a".into()),
        at: AT,
        event_seq_before: keeper.event_seq,
        next_nonce: Nonce(keeper.next_nonce + count),
        floor_nonce: Nonce(0),
        open_cost: OpenCost {
            wei: U256::from(1_000_000_000_000_000_000_u64),
            unpriced_gas: 2_100_000,
        },
        head: None,
        newest_final: None,
        writes,
    }
}

const AT: Timestamp = Timestamp(1_800_000_000_000);

pub(crate) async fn commit(store: &dyn Store, batch: &LaneBatch) -> CommitOutcome {
    let mut outcomes = store.commit(vec![batch.clone().into()]).await;
    assert_eq!(outcomes.len(), 1);
    outcomes.remove(0)
}

/// A key of 36 characters, as most businesses use.
fn key() -> String {
    let [a, b, ..] = spread().map(u64::from_be_bytes);
    format!("{a:016x}-{b:016x}-{:02x}", a % 256)
}

/// A request for the queue; its tx is new, whatever its key.
pub(crate) fn queued(key: LaneKey, request: &str) -> QueuedRequest {
    let payload = Payload::transfer(Address::repeat_byte(8), U256::from(1));
    QueuedRequest {
        lane: key,
        request: AdmittedRequest {
            id: TxId(Uuid::from_u128(u128::from(name()))),
            request_id: RequestId::parse(request).expect("visible ASCII"),
            fingerprint: payload.fingerprint(),
            payload,
            gas: 21_000,
        },
        at: AT,
    }
}

/// Waits until a session of this database waits for a lock.
pub(crate) async fn wait_until_blocked(world: &World) {
    let waits = "SELECT count(*) FROM pg_stat_activity \
                 WHERE datname = current_database() AND wait_event_type = 'Lock'";
    wait_until("a session waits for a lock", || world.count(waits) > 0).await;
}

/// Looks again and again, without standing in the way of other tasks.
pub(crate) async fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn token(n: u64) -> Token {
    Token(n)
}
