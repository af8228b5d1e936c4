//! Writes the rows of accepted requests through the gate of a store, without a node.

use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::{Address, B256, Bytes, U256};
use cli::Failure;
use domain::lane::OpenCost;
use domain::{
    Attempt, AttemptKind, Event, EventKind, Fees, GrantId, Inclusion, LaneKey, LastWrite,
    LeaseGrant, NodeName, Nonce, Payload, RequestId, SubState, Timestamp, Tx, TxHistory, TxRequest,
    TxState, Writes,
};
use engine::ports::{AcquireOutcome, Clock, CommitOutcome, LaneBatch, LeaseRequest, Store};
use nonce::SystemClock;

use super::null_chain;

/// The approximate size of a signed transfer.
const ENVELOPE_BYTES: usize = 112;
/// Longer than any benchmark writes.
const LEASE: Duration = Duration::from_secs(24 * 3600);
/// The most lanes that are acquired at once.
const ACQUIRE_MAX: usize = 500;
/// How many finished txs share one block.
const PER_BLOCK: u64 = 50;

/// The state of the written txs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowKind {
    /// Accepted, with a nonce.
    Allocated,
    /// Accepted and signed.
    Signed,
    /// Mined and final.
    Finished,
}

pub(crate) struct RowWriter {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    lease_request: LeaseRequest,
    kind: RowKind,
    lanes: Vec<WrittenLane>,
}

struct WrittenLane {
    lease_grant: LeaseGrant,
    batches: u64,
    next_nonce: u64,
}

impl RowWriter {
    /// Acquires these lanes, which must be new.
    pub(crate) async fn open(
        store: Arc<dyn Store>,
        keys: &[LaneKey],
        kind: RowKind,
    ) -> Result<Self, Failure> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let lease_request = LeaseRequest {
            node: NodeName("bench".into()),
            incarnation: clock.incarnation(),
            duration: LEASE,
            skew: Duration::ZERO,
            alive: Vec::new(),
            silent: Vec::new(),
        };
        let mut lanes = Vec::with_capacity(keys.len());
        for part in keys.chunks(ACQUIRE_MAX) {
            let requested: Vec<(LaneKey, GrantId)> =
                part.iter().map(|key| (*key, clock.grant_id())).collect();
            let acquired = store.acquire(&lease_request, &requested).await;
            let acquired =
                acquired.map_err(|e| Failure::refused("the store without a node", &e))?;
            for answer in acquired {
                lanes.push(WrittenLane {
                    lease_grant: expect_grant(answer)?,
                    batches: 0,
                    next_nonce: 0,
                });
            }
        }
        Ok(Self {
            store,
            clock,
            lease_request,
            kind,
            lanes,
        })
    }

    /// Builds the batches of one commit, for pairs of a lane's index and a number of rows.
    pub(crate) fn build_batches(&mut self, rows_by_lane: &[(usize, usize)]) -> Vec<Arc<LaneBatch>> {
        let mut lanes = std::mem::take(&mut self.lanes);
        let mut batches = Vec::with_capacity(rows_by_lane.len());
        for (index, rows) in rows_by_lane {
            batches.push(self.build_batch(&mut lanes[*index], *rows).into());
        }
        self.lanes = lanes;
        batches
    }

    pub(crate) async fn commit(&self, batches: Vec<Arc<LaneBatch>>) -> Result<(), Failure> {
        let outcomes = self.store.commit(batches).await;
        match outcomes
            .iter()
            .find(|outcome| **outcome != CommitOutcome::Applied)
        {
            None => Ok(()),
            Some(bad) => Err(Failure::Refused(format!("the store refused rows: {bad:?}"))),
        }
    }

    /// Releases the lanes.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        for part in self.lanes.chunks(ACQUIRE_MAX) {
            let lease_grants: Vec<LeaseGrant> = part.iter().map(|lane| lane.lease_grant).collect();
            let released = self.store.release(&self.lease_request, &lease_grants).await;
            released.map_err(|e| Failure::refused("the store without a node", &e))?;
        }
        Ok(())
    }

    fn build_batch(&self, lane: &mut WrittenLane, rows: usize) -> LaneBatch {
        let at = self.clock.now();
        let event_seq_before = lane.next_nonce;
        let mut writes = Writes::default();
        for _ in 0..rows {
            let mut tx = self.build_tx(lane.lease_grant, lane.next_nonce, at);
            lane.next_nonce += 1;
            match self.kind {
                RowKind::Allocated => {}
                RowKind::Signed | RowKind::Finished => {
                    let attempt = self.build_attempt(&tx, at);
                    tx.tx_hash = Some(attempt.hash);
                    writes.attempts.push(attempt);
                }
            }
            if self.kind == RowKind::Finished {
                confirm_tx(&mut tx, at);
            }
            let kind = EventKind::TxAccepted { nonce: tx.nonce };
            writes.events.push(Event {
                seq: lane.next_nonce,
                at,
                tx_id: Some(tx.id),
                kind,
            });
            writes.inserts.push(tx);
        }
        lane.batches += 1;
        let next_nonce = Nonce(lane.next_nonce);
        LaneBatch {
            lease_grant: lane.lease_grant,
            batch_seq_before: lane.batches - 1,
            node: NodeName("bench".into()),
            at,
            event_seq_before,
            next_nonce,
            floor_nonce: match self.kind {
                RowKind::Allocated | RowKind::Signed => Nonce(0),
                RowKind::Finished => next_nonce,
            },
            open_cost: OpenCost::default(),
            head: None,
            newest_final: None,
            writes,
        }
    }

    fn build_tx(&self, lease_grant: LeaseGrant, nonce: u64, at: Timestamp) -> Tx {
        let mut payload = Payload::transfer(Address::repeat_byte(0x0b), U256::from(1));
        payload.gas = Some(21_000);
        let key = format!("{:032x}", self.clock.random());
        let (state, sub_state) = match self.kind {
            RowKind::Allocated => (TxState::Allocated, Some(SubState::Waiting)),
            RowKind::Signed => (TxState::Tracking, Some(SubState::Signed)),
            RowKind::Finished => (TxState::Confirmed, None),
        };
        Tx {
            id: self.clock.tx_id(),
            request: TxRequest {
                request_id: RequestId::parse(key).expect("32 hexadecimal digits are a request id"),
                fingerprint: payload.fingerprint(),
                payload,
                gas: 21_000,
                created_at: at,
            },
            nonce: Some(Nonce(nonce)),
            state,
            sub_state,
            reason: None,
            tx_hash: None,
            inclusion: None,
            counted: None,
            written: LastWrite {
                token: lease_grant.token,
                at,
            },
            history: TxHistory {
                event_seqs: vec![nonce + 1],
                ..TxHistory::default()
            },
            confirmed_at: None,
        }
    }

    fn build_attempt(&self, tx: &Tx, at: Timestamp) -> Attempt {
        let mut hash = [0; 32];
        hash[..16].copy_from_slice(&self.clock.random().to_be_bytes());
        Attempt {
            hash: B256::from(hash),
            tx_id: tx.id,
            kind: AttemptKind::Original,
            nonce: tx.nonce.unwrap_or_default(),
            gas: tx.request.gas,
            fees: Fees::Eip1559 {
                max_fee: 3_000_000_000,
                max_priority_fee: 1_000_000_000,
            },
            raw: Bytes::from(vec![0xab; ENVELOPE_BYTES]),
            signed_at: at,
            first_sent_at: (self.kind == RowKind::Finished).then_some(at),
        }
    }
}

fn expect_grant(answer: AcquireOutcome) -> Result<LeaseGrant, Failure> {
    match answer {
        AcquireOutcome::Granted { lease_grant, .. } => Ok(lease_grant),
        AcquireOutcome::NotKeeper { .. } | AcquireOutcome::Halted(_) | AcquireOutcome::Busy => {
            Err(Failure::Refused("the store did not grant a lane".into()))
        }
    }
}

/// Makes a tx final in a block of the null chain.
fn confirm_tx(tx: &mut Tx, at: Timestamp) {
    let block_number = 1 + tx.nonce.unwrap_or_default().0 / PER_BLOCK;
    let block_hash = null_chain::block_hash(block_number);
    tx.inclusion = Some(Inclusion {
        tx_hash: tx.tx_hash.unwrap_or_default(),
        block_number,
        block_hash,
        succeeded: true,
        gas_used: 21_000,
        effective_gas_price: 2_000_000_000,
        contract_address: None,
        revert_reason: None,
    });
    tx.counted = Some(block_hash);
    tx.confirmed_at = Some(at);
}
