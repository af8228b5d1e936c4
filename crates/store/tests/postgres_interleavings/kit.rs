//! Helpers of all files: rows with names that never repeat, a keeper's memory, and a
//! migrated database.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use domain::lane::{AdmittedRequest, OpenCost};
use domain::lease::LeaseRequest;
use domain::{
    Address, Attempt, AttemptKind, B256, Bytes, ChainId, Event, EventKind, Fees, GrantId, History,
    Incarnation, LaneKey, LeaseGrant, NodeName, Nonce, Payload, RequestId, SubState, Timestamp,
    Token, Tx, TxId, TxState, U256, Writes,
};
use engine::ports::{AcquireOutcome, HeartbeatOutcome, LaneBatch, Member, QueuedRequest, Store};
use rig::postgres::{Database, Server};
use store::postgres::{PostgresConfig, PostgresStore, migrate};
use uuid::Uuid;

/// From this the role's timeouts follow.
pub(crate) const LEASE: Duration = Duration::from_secs(10);
/// How long leases last that must not run out by themselves.
pub(crate) const LONG: Duration = Duration::from_secs(3_600);
/// When the rows are written, by the keeper's own clock.
pub(crate) const AT: Timestamp = Timestamp(1_800_000_000_123);
/// How deep finals are watched.
pub(crate) const WATCH_DEPTH: u64 = 64;

static NAMES: AtomicU64 = AtomicU64::new(1);

fn name() -> u64 {
    NAMES.fetch_add(1, Ordering::Relaxed)
}

/// A database with the schema in it.
pub(crate) async fn migrated(server: &Server, hint: &str) -> Database {
    let database = server.database(hint);
    migrate(database.url(), None, LEASE).await.expect("migrate");
    database
}

/// The store of one node.
pub(crate) async fn open(url: &str, pool_size: usize) -> Arc<PostgresStore> {
    open_with(url, pool_size, LEASE).await
}

/// The store of one node, with a lease of its own.
pub(crate) async fn open_with(url: &str, pool_size: usize, lease: Duration) -> Arc<PostgresStore> {
    let url = url.to_owned();
    let config = PostgresConfig {
        url,
        pool_size,
        lease,
    };
    Arc::new(PostgresStore::open(config).await.expect("open"))
}

/// A node of this name.
pub(crate) fn node(name: &str) -> LeaseRequest {
    let incarnation = name
        .bytes()
        .fold(7, |sum, byte| (sum << 8) ^ u128::from(byte));
    LeaseRequest {
        node: NodeName(name.into()),
        incarnation: Incarnation(Uuid::from_u128(incarnation)),
        duration: LONG,
        skew: Duration::from_secs(1),
        alive: Vec::new(),
        silent: Vec::new(),
    }
}

/// A node that takes these for dead.
pub(crate) fn node_that_misses(name: &str, others: &[&str]) -> LeaseRequest {
    LeaseRequest {
        silent: others.iter().map(|other| node(other).incarnation).collect(),
        ..node(name)
    }
}

/// An unused lane.
pub(crate) fn new_lane() -> LaneKey {
    let mut signer = [0; 20];
    signer[12..].copy_from_slice(&name().to_be_bytes());
    LaneKey {
        chain_id: ChainId(31_337),
        signer: Address::from(signer),
    }
}

pub(crate) fn new_grant() -> GrantId {
    GrantId(Uuid::from_u128(0xA000_0000 + u128::from(name())))
}

pub(crate) fn new_tx_id() -> TxId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&(1_800_000_000_000 + name()).to_be_bytes());
    TxId(Uuid::from_bytes(id))
}

pub(crate) fn request_id(text: impl Into<String>) -> RequestId {
    RequestId::parse(text).expect("request ids here keep the rule")
}

/// A request for the queue.
pub(crate) fn new_queued(lane: LaneKey, request: &str) -> QueuedRequest {
    let payload = Payload::transfer(Address::repeat_byte(8), U256::from(1));
    QueuedRequest {
        lane,
        request: AdmittedRequest {
            id: new_tx_id(),
            request_id: request_id(request),
            fingerprint: payload.fingerprint(),
            payload,
            gas: 21_000,
        },
        at: AT,
    }
}

/// A tx with a nonce.
pub(crate) fn new_tx(request: &str, nonce: Nonce, token: Token) -> Tx {
    // The lane of a queued request is not part of its row.
    let mut tx = new_queued(new_lane(), request).into_tx();
    tx.nonce = Some(nonce);
    tx.written.token = token;
    tx.transition(TxState::Allocated, SubState::Waiting, AT);
    tx
}

/// A signed envelope for a tx with a nonce; the tx becomes TRACKING under its hash.
pub(crate) fn sign(tx: &mut Tx) -> Attempt {
    let hash = B256::left_padding_from(&(0xC000_0000 + name()).to_be_bytes());
    tx.tx_hash = Some(hash);
    tx.transition(TxState::Tracking, SubState::Signed, AT);
    Attempt {
        hash,
        tx_id: tx.id,
        kind: AttemptKind::Original,
        nonce: tx.nonce.expect("only a tx with a nonce is signed"),
        gas: tx.request.gas,
        fees: Fees::Legacy { gas_price: 7 },
        raw: Bytes::copy_from_slice(hash.as_slice()),
        signed_at: AT,
        first_sent_at: None,
    }
}

/// An event of a tx; its number comes with the batch.
pub(crate) fn event(tx: &Tx, kind: EventKind) -> Event {
    Event {
        seq: 0,
        at: AT,
        tx_id: Some(tx.id),
        kind,
    }
}

/// A new tx at this nonce, signed, with its event.
pub(crate) fn acceptance(request: &str, nonce: Nonce, token: Token) -> Writes {
    let mut tx = new_tx(request, nonce, token);
    let attempt = sign(&mut tx);
    Writes {
        events: vec![event(&tx, EventKind::TxAccepted { nonce: tx.nonce })],
        attempts: vec![attempt],
        inserts: vec![tx],
        ..Writes::default()
    }
}

/// The state of a lane in its keeper's memory. Its txs stay open from nonce 0 on.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) key: LaneKey,
    pub(crate) lease_grant: LeaseGrant,
    pub(crate) node: NodeName,
    pub(crate) batch_seq: u64,
    pub(crate) event_seq: u64,
    pub(crate) next_nonce: Nonce,
}

impl Memory {
    /// Of a lane that was never written.
    pub(crate) fn new(key: LaneKey, lease_grant: LeaseGrant, lease_request: &LeaseRequest) -> Self {
        Self {
            key,
            lease_grant,
            node: lease_request.node.clone(),
            batch_seq: 0,
            event_seq: 0,
            next_nonce: Nonce(0),
        }
    }

    /// The batch that this keeper would commit. Events get their numbers here, and their txs record them.
    pub(crate) fn batch(&self, mut writes: Writes) -> LaneBatch {
        for (seq, event) in (self.event_seq + 1..).zip(&mut writes.events) {
            event.seq = seq;
            let txs = writes.inserts.iter_mut().chain(&mut writes.updates);
            for tx in txs.filter(|tx| Some(tx.id) == event.tx_id) {
                tx.history.event_seqs.push(seq);
            }
        }
        let rows = writes.inserts.iter().chain(&writes.updates);
        let highest = rows.filter_map(|tx| tx.nonce).max();
        LaneBatch {
            lease_grant: self.lease_grant,
            batch_seq_before: self.batch_seq,
            node: self.node.clone(),
            at: AT,
            event_seq_before: self.event_seq,
            next_nonce: self.next_nonce.max(highest.map_or(Nonce(0), Nonce::next)),
            floor_nonce: Nonce(0),
            open_cost: OpenCost::default(),
            head: None,
            newest_final: None,
            writes,
        }
    }

    /// The state once this batch is durable.
    pub(crate) fn follow(&mut self, batch: &LaneBatch) {
        self.batch_seq += 1;
        self.event_seq += batch.writes.events.len() as u64;
        self.next_nonce = batch.next_nonce;
    }
}

/// Makes a node keeper of lanes, which must be possible.
pub(crate) async fn keep(
    store: &dyn Store,
    lease_request: &LeaseRequest,
    lanes: &[LaneKey],
) -> Vec<LeaseGrant> {
    let requested: Vec<_> = lanes.iter().map(|key| (*key, new_grant())).collect();
    let answers = store
        .acquire(lease_request, &requested)
        .await
        .expect("acquire");
    let lease_grants = answers.into_iter().map(|answer| match answer {
        AcquireOutcome::Granted { lease_grant, .. } => lease_grant,
        AcquireOutcome::NotKeeper { .. } | AcquireOutcome::Busy | AcquireOutcome::Halted(_) => {
            panic!("not granted: {answer:?}")
        }
    });
    lease_grants.collect()
}

/// The store's history, as a heartbeat returns it.
pub(crate) async fn present_history(store: &dyn Store) -> History {
    let LeaseRequest {
        node, incarnation, ..
    } = node("observer");
    let observer = Member {
        node,
        incarnation,
        advertise: None,
        started_at: AT,
        seen_at: AT,
        heartbeats: 0,
        draining: false,
    };
    match store.heartbeat(&observer).await {
        Ok(HeartbeatOutcome::Recorded { history, .. }) => history,
        other => panic!("not recorded: {other:?}"),
    }
}
