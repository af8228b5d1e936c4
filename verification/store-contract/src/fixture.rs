//! Test fixture of the clauses: a keeper's in-memory state, and rows with unique names.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::{Address, B256, Bytes, U256};
use domain::lane::{AdmittedRequest, OpenCost};
use domain::{
    Attempt, AttemptKind, ChainId, Event, EventKind, Fees, GrantId, Header, History, Incarnation,
    LaneId, LaneImage, LaneKey, LastWrite, LeaseGrant, NodeName, Nonce, Payload, RequestId,
    SubState, Timestamp, Token, Tx, TxHistory, TxId, TxRequest, TxState, Writes,
};
use engine::ports::{
    AcquireOutcome, CommitOutcome, EventFilter, LaneBatch, LeaseRequest, QueuedRequest, Store,
};
use uuid::Uuid;

use crate::Backend;

/// How long the leases of the suite last.
pub(crate) const LEASE: Duration = Duration::from_secs(10);
/// How long after its expiry another node's lease is still respected.
pub(crate) const SKEW: Duration = Duration::from_secs(5);
/// How deep finals are watched.
pub(crate) const WATCH_DEPTH: u64 = 64;
/// When the rows of the suite are written, by the keeper's own clock.
pub(crate) const AT: Timestamp = Timestamp(1_800_000_000_123);

/// The store under test, and unique names for the rows that a clause writes.
pub(crate) struct Fixture {
    pub(crate) store: Arc<dyn Store>,
    names: Cell<u64>,
    /// The nonces of open txs, as far as their batches were applied through this fixture.
    open: RefCell<Open>,
}

/// Which nonce each open tx of each lane has.
type Open = BTreeMap<(LaneId, TxId), Nonce>;

/// The state that a keeper holds in memory for its lane.
#[derive(Clone, Debug)]
pub(crate) struct Keeper {
    pub(crate) key: LaneKey,
    pub(crate) lease_grant: LeaseGrant,
    pub(crate) node: NodeName,
    pub(crate) batch_seq: u64,
    pub(crate) event_seq: u64,
    pub(crate) next_nonce: Nonce,
}

/// The lane of one of the suite's signers, all on one chain.
pub(crate) fn lane(signer: u8) -> LaneKey {
    LaneKey {
        chain_id: ChainId(31_337),
        signer: Address::repeat_byte(signer),
    }
}

/// A node of this name, in its first incarnation.
pub(crate) fn node(name: &str) -> LeaseRequest {
    node_in_incarnation(name, 1)
}

/// A node of this name, in its n-th incarnation.
pub(crate) fn node_in_incarnation(name: &str, incarnation: u128) -> LeaseRequest {
    let bytes = name.bytes().fold(incarnation << 64, |sum, byte| {
        (sum << 8) ^ u128::from(byte) ^ incarnation
    });
    LeaseRequest {
        node: NodeName(name.into()),
        incarnation: Incarnation(Uuid::from_u128(bytes)),
        duration: LEASE,
        skew: SKEW,
        alive: Vec::new(),
        silent: Vec::new(),
    }
}

pub(crate) fn request_id(text: impl Into<String>) -> RequestId {
    RequestId::parse(text).expect("the suite's request ids are valid")
}

/// A header at a height; `fork` distinguishes blocks of the same height.
pub(crate) fn header(number: u64, fork: u64, parent: Option<&Header>) -> Header {
    Header {
        number,
        hash: B256::left_padding_from(&[fork.to_be_bytes(), number.to_be_bytes()].concat()),
        parent_hash: parent.map_or(B256::ZERO, |parent| parent.hash),
        timestamp: 1_700_000_000 + number,
    }
}

impl Fixture {
    pub(crate) fn new(backend: &dyn Backend) -> Self {
        Self {
            store: backend.store(),
            names: Cell::new(1),
            open: RefCell::default(),
        }
    }

    fn name(&self) -> u64 {
        self.names.replace(self.names.get() + 1)
    }

    pub(crate) fn grant(&self) -> GrantId {
        GrantId(Uuid::from_u128(0xA000_0000 + u128::from(self.name())))
    }

    /// A tx id that is greater than all before.
    pub(crate) fn tx_id(&self) -> TxId {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&(1_800_000_000_000 + self.name()).to_be_bytes());
        TxId(Uuid::from_bytes(name))
    }

    /// The store's history, by a lane that no clause uses otherwise.
    pub(crate) async fn history(&self) -> History {
        match self.acquire(&node("observer"), lane(250)).await {
            AcquireOutcome::Granted { history, .. } => history,
            refused @ (AcquireOutcome::NotKeeper { .. }
            | AcquireOutcome::Halted(_)
            | AcquireOutcome::Busy) => panic!("{refused:?}"),
        }
    }

    /// Requests the lease of one lane.
    pub(crate) async fn acquire(
        &self,
        lease_request: &LeaseRequest,
        key: LaneKey,
    ) -> AcquireOutcome {
        self.acquire_as(lease_request, key, self.grant()).await
    }

    /// Requests the lease of one lane with the given grant id.
    pub(crate) async fn acquire_as(
        &self,
        lease_request: &LeaseRequest,
        key: LaneKey,
        grant: GrantId,
    ) -> AcquireOutcome {
        let mut answers = self
            .store
            .acquire(lease_request, &[(key, grant)])
            .await
            .expect("acquire");
        assert_eq!(answers.len(), 1, "one lane, one answer");
        answers.remove(0)
    }

    /// Makes a node the keeper of a lane; the request must be granted.
    pub(crate) async fn keeper(&self, lease_request: &LeaseRequest, key: LaneKey) -> Keeper {
        match self.acquire(lease_request, key).await {
            AcquireOutcome::Granted { lease_grant, .. } => {
                let image = self.image(key, lease_grant).await;
                Keeper {
                    key,
                    lease_grant,
                    node: lease_request.node.clone(),
                    batch_seq: image.batch_seq,
                    event_seq: image.event_seq,
                    next_nonce: image.next_nonce,
                }
            }
            AcquireOutcome::NotKeeper { lease, .. } => panic!("{key} is held: {lease:?}"),
            AcquireOutcome::Halted(reason) => panic!("{key} is halted: {reason}"),
            AcquireOutcome::Busy => panic!("{key} is locked, although nothing else runs"),
        }
    }

    /// Loads the image of a lane under a grant that is current.
    pub(crate) async fn image(&self, key: LaneKey, lease_grant: LeaseGrant) -> LaneImage {
        let image = self
            .store
            .load(key, lease_grant, WATCH_DEPTH)
            .await
            .expect("load");
        image.expect("the grant is current")
    }

    /// A tx with a nonce that is not signed yet.
    pub(crate) fn tx(&self, nonce: u64) -> Tx {
        Tx {
            nonce: Some(Nonce(nonce)),
            state: TxState::Allocated,
            sub_state: Some(SubState::Waiting),
            ..self.tx_without_nonce()
        }
    }

    /// A tx that waits for a nonce.
    pub(crate) fn tx_without_nonce(&self) -> Tx {
        let id = self.tx_id();
        let payload = Payload::transfer(Address::repeat_byte(9), U256::from(self.name()));
        Tx {
            id,
            request: TxRequest {
                request_id: request_id(format!("request-{id}")),
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
                token: Token(1),
                at: AT,
            },
            confirmed_at: None,
            history: TxHistory::default(),
        }
    }

    /// A signed envelope for a tx with a nonce; the tx becomes TRACKING under its hash.
    pub(crate) fn sign(&self, tx: &mut Tx) -> Attempt {
        let hash = B256::left_padding_from(&(0xC000_0000 + self.name()).to_be_bytes());
        tx.tx_hash = Some(hash);
        tx.state = TxState::Tracking;
        tx.sub_state = Some(SubState::Signed);
        Attempt {
            hash,
            tx_id: tx.id,
            kind: AttemptKind::Original,
            nonce: tx.nonce.expect("only a tx with a nonce is signed"),
            gas: tx.request.gas,
            fees: Fees::Eip1559 {
                max_fee: 2_000_000_000,
                max_priority_fee: 1_000_000_000,
            },
            raw: Bytes::copy_from_slice(hash.as_slice()),
            signed_at: AT,
            first_sent_at: None,
        }
    }

    /// A request for the queue.
    pub(crate) fn new_queued(&self, key: LaneKey, request: &str) -> QueuedRequest {
        let payload = Payload::transfer(Address::repeat_byte(8), U256::from(1));
        QueuedRequest {
            lane: key,
            request: AdmittedRequest {
                id: self.tx_id(),
                request_id: request_id(request),
                fingerprint: payload.fingerprint(),
                payload,
                gas: 21_000,
            },
            at: AT,
        }
    }

    /// The batch that a keeper commits. It assigns the event numbers and adds them to their txs.
    pub(crate) fn batch(&self, keeper: &Keeper, mut writes: Writes) -> LaneBatch {
        for (seq, event) in (keeper.event_seq + 1..).zip(&mut writes.events) {
            event.seq = seq;
            let txs = writes.inserts.iter_mut().chain(&mut writes.updates);
            for tx in txs.filter(|tx| Some(tx.id) == event.tx_id) {
                tx.history.event_seqs.push(seq);
            }
        }
        let rows = || writes.inserts.iter().chain(&writes.updates);
        let highest = rows().filter_map(|tx| tx.nonce).max();
        let next_nonce = keeper.next_nonce.max(highest.map_or(Nonce(0), Nonce::next));
        let lane = keeper.lease_grant.lane;
        let mut open = self.open.borrow().clone();
        rows().for_each(|tx| update_open(&mut open, lane, tx));
        let of_lane = open.iter().filter(|((of, _), _)| *of == lane);
        LaneBatch {
            lease_grant: keeper.lease_grant,
            batch_seq_before: keeper.batch_seq,
            node: keeper.node.clone(),
            at: AT,
            event_seq_before: keeper.event_seq,
            next_nonce,
            floor_nonce: of_lane.map(|(_, nonce)| *nonce).min().unwrap_or(next_nonce),
            open_cost: OpenCost::default(),
            head: None,
            newest_final: None,
            writes,
        }
    }

    /// Commits one batch, and extends the feed when the batch was applied.
    pub(crate) async fn commit(&self, batch: LaneBatch) -> CommitOutcome {
        let lane = batch.lease_grant.lane;
        let outcome = self.commit_without_feed(batch).await;
        if outcome == CommitOutcome::Applied {
            self.store.extend_feed(&[lane]).await.expect("extend_feed");
        }
        outcome
    }

    /// Commits one batch without extending the feed.
    pub(crate) async fn commit_without_feed(&self, batch: LaneBatch) -> CommitOutcome {
        let (lane, writes) = (batch.lease_grant.lane, batch.writes.clone());
        let mut outcomes = self.store.commit(vec![batch.into()]).await;
        assert_eq!(outcomes.len(), 1, "one batch, one outcome");
        if outcomes[0] == CommitOutcome::Applied {
            let mut open = self.open.borrow_mut();
            let rows = writes.inserts.iter().chain(&writes.updates);
            rows.for_each(|tx| update_open(&mut open, lane, tx));
        }
        outcomes.remove(0)
    }

    /// Commits writes that must be applied, and advances the keeper's state. Returns the writes as they
    /// were stored.
    pub(crate) async fn apply(&self, keeper: &mut Keeper, writes: Writes) -> Writes {
        let batch = self.batch(keeper, writes);
        let written = batch.clone();
        assert_eq!(self.commit(batch).await, CommitOutcome::Applied);
        keeper.follow(&written);
        written.writes
    }

    /// Stores headers of the lane's chain.
    pub(crate) async fn put_headers(&self, key: LaneKey, headers: &[Header]) {
        let put = self.store.put_headers(key.chain_id, headers).await;
        put.expect("put_headers");
    }

    /// Accepts `count` txs at the next nonces, signed, each with its event.
    pub(crate) async fn accept(&self, keeper: &mut Keeper, count: u64) -> Vec<(Tx, Attempt)> {
        let from = keeper.next_nonce.0;
        let mut writes = Writes::default();
        for nonce in from..from + count {
            let mut tx = self.tx(nonce);
            writes.attempts.push(self.sign(&mut tx));
            writes.events.push(accepted(&tx));
            writes.inserts.push(tx);
        }
        let written = self.apply(keeper, writes).await;
        written.inserts.into_iter().zip(written.attempts).collect()
    }
}

impl Keeper {
    /// The keeper's state once this batch is durable.
    pub(crate) fn follow(&mut self, batch: &LaneBatch) {
        self.batch_seq += 1;
        self.event_seq += batch.writes.events.len() as u64;
        self.next_nonce = batch.next_nonce;
    }
}

fn update_open(open: &mut Open, lane: LaneId, tx: &Tx) {
    match tx.nonce.filter(|_| tx.is_open()) {
        Some(nonce) => open.insert((lane, tx.id), nonce),
        None => open.remove(&(lane, tx.id)),
    };
}

/// The event of a tx's acceptance; the batch assigns its number.
pub(crate) fn accepted(tx: &Tx) -> Event {
    Event {
        seq: 0,
        at: AT,
        tx_id: Some(tx.id),
        kind: EventKind::TxAccepted { nonce: tx.nonce },
    }
}

/// New rows, and nothing else.
pub(crate) fn inserts(txs: impl Into<Vec<Tx>>) -> Writes {
    Writes {
        inserts: txs.into(),
        ..Writes::default()
    }
}

/// Changed rows, and nothing else.
pub(crate) fn updates(txs: impl Into<Vec<Tx>>) -> Writes {
    Writes {
        updates: txs.into(),
        ..Writes::default()
    }
}

/// A filter that reads the feed from its start.
pub(crate) fn first_events(limit: usize) -> EventFilter {
    EventFilter {
        limit,
        ..EventFilter::default()
    }
}

/// A tx that is accepted, with its event.
pub(crate) fn acceptance(tx: Tx) -> Writes {
    Writes {
        events: vec![accepted(&tx)],
        ..inserts([tx])
    }
}
