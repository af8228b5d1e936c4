//! Makes the rows of requests and puts them into a store through its gate, without a node.

use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::{Address, B256, Bytes, U256};
use domain::{
    Attempt, AttemptKind, Event, EventKind, Fees, GrantId, Inclusion, LaneKey, LeaseGrant,
    NodeName, Nonce, Payload, RequestId, SubState, Timestamp, Tx, TxState, Writes,
};
use engine::ports::{AcquireOutcome, Clock, CommitOutcome, LaneBatch, LeaseRequest, Store};

use super::null_chain;
use crate::clock::SystemClock;
use crate::failure::Failure;

/// A signed transfer has about so many bytes.
const ENVELOPE_BYTES: usize = 112;
/// The filler keeps its lanes for longer than any filling takes.
const LEASE: Duration = Duration::from_secs(24 * 3600);
/// The most lanes of one acquisition.
const ACQUIRE_MAX: usize = 500;
/// How many finished txs stand in one block.
const PER_BLOCK: u64 = 50;

/// How far the txs have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    /// Accepted, with a nonce.
    Allocated,
    /// Accepted and signed.
    Signed,
    /// Mined and final.
    Finished,
}

pub(crate) struct Filler {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    ask: LeaseRequest,
    rows: Rows,
    lanes: Vec<FilledLane>,
}

struct FilledLane {
    lease_grant: LeaseGrant,
    batches: u64,
    next_nonce: u64,
}

impl Filler {
    /// Takes these lanes, which must be new.
    pub(crate) async fn open(
        store: Arc<dyn Store>,
        keys: &[LaneKey],
        rows: Rows,
    ) -> Result<Self, Failure> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let ask = LeaseRequest {
            node: NodeName("bench".into()),
            incarnation: clock.incarnation(),
            duration: LEASE,
            skew: Duration::ZERO,
            alive: Vec::new(),
            silent: Vec::new(),
        };
        let mut lanes = Vec::with_capacity(keys.len());
        for part in keys.chunks(ACQUIRE_MAX) {
            let wanted: Vec<(LaneKey, GrantId)> =
                part.iter().map(|key| (*key, clock.grant_id())).collect();
            let acquired = store.acquire(&ask, &wanted).await;
            let acquired = acquired.map_err(|e| Failure::refused("the bare store", &e))?;
            for answer in acquired {
                lanes.push(FilledLane {
                    lease_grant: granted(answer)?,
                    batches: 0,
                    next_nonce: 0,
                });
            }
        }
        Ok(Self {
            store,
            clock,
            ask,
            rows,
            lanes,
        })
    }

    /// One commit's worth: so many rows for each of these lanes, which are given by their place.
    pub(crate) fn batches(&mut self, wanted: &[(usize, usize)]) -> Vec<LaneBatch> {
        let mut lanes = std::mem::take(&mut self.lanes);
        let mut batches = Vec::with_capacity(wanted.len());
        for (place, rows) in wanted {
            batches.push(self.batch(&mut lanes[*place], *rows));
        }
        self.lanes = lanes;
        batches
    }

    /// Puts them into the store.
    pub(crate) async fn commit(&self, batches: Vec<LaneBatch>) -> Result<(), Failure> {
        let outcomes = self.store.commit(batches).await;
        match outcomes
            .iter()
            .find(|outcome| **outcome != CommitOutcome::Applied)
        {
            None => Ok(()),
            Some(bad) => Err(Failure::Refused(format!(
                "the bare store refused rows: {bad:?}"
            ))),
        }
    }

    /// Gives the lanes back.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        for part in self.lanes.chunks(ACQUIRE_MAX) {
            let lease_grants: Vec<LeaseGrant> = part.iter().map(|lane| lane.lease_grant).collect();
            let released = self.store.release(&self.ask, &lease_grants).await;
            released.map_err(|e| Failure::refused("the bare store", &e))?;
        }
        Ok(())
    }

    fn batch(&self, lane: &mut FilledLane, rows: usize) -> LaneBatch {
        let at = self.clock.now();
        let event_seq_before = lane.next_nonce;
        let mut writes = Writes::default();
        for _ in 0..rows {
            let mut tx = self.tx(lane.lease_grant, lane.next_nonce, at);
            lane.next_nonce += 1;
            match self.rows {
                Rows::Allocated => {}
                Rows::Signed | Rows::Finished => {
                    let attempt = self.attempt(&tx, at);
                    tx.tx_hash = Some(attempt.hash);
                    writes.attempts.push(attempt);
                }
            }
            if self.rows == Rows::Finished {
                finish(&mut tx, at);
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
            floor_nonce: match self.rows {
                Rows::Allocated | Rows::Signed => Nonce(0),
                Rows::Finished => next_nonce,
            },
            writes,
        }
    }

    fn tx(&self, lease_grant: LeaseGrant, nonce: u64, at: Timestamp) -> Tx {
        let mut payload = Payload::transfer(Address::repeat_byte(0x0b), U256::from(1));
        payload.gas = Some(21_000);
        let key = format!("{:032x}", self.clock.random());
        let (state, sub_state) = match self.rows {
            Rows::Allocated => (TxState::Allocated, Some(SubState::Waiting)),
            Rows::Signed => (TxState::Tracking, Some(SubState::Signed)),
            Rows::Finished => (TxState::Confirmed, None),
        };
        Tx {
            id: self.clock.tx_id(),
            request_id: RequestId::parse(key).expect("32 hexadecimal digits are a request id"),
            fingerprint: payload.fingerprint(),
            payload,
            gas: 21_000,
            created_at: at,
            nonce: Some(Nonce(nonce)),
            state,
            sub_state,
            reason: None,
            tx_hash: None,
            inclusion: None,
            counted: None,
            token: lease_grant.token,
            event_seqs: vec![nonce + 1],
            updated_at: at,
            confirmed_at: None,
        }
    }

    fn attempt(&self, tx: &Tx, at: Timestamp) -> Attempt {
        let mut hash = [0; 32];
        hash[..16].copy_from_slice(&self.clock.random().to_be_bytes());
        Attempt {
            hash: B256::from(hash),
            tx_id: tx.id,
            kind: AttemptKind::Original,
            nonce: tx.nonce.unwrap_or_default(),
            gas: tx.gas,
            fees: Fees::Eip1559 {
                max_fee: 3_000_000_000,
                max_priority_fee: 1_000_000_000,
            },
            raw: Bytes::from(vec![0xab; ENVELOPE_BYTES]),
            signed_at: at,
            first_sent_at: (self.rows == Rows::Finished).then_some(at),
        }
    }
}

fn granted(answer: AcquireOutcome) -> Result<LeaseGrant, Failure> {
    match answer {
        AcquireOutcome::Granted { lease_grant, .. } => Ok(lease_grant),
        AcquireOutcome::NotKeeper { .. } | AcquireOutcome::Halted(_) | AcquireOutcome::Busy => {
            Err(Failure::Refused("the bare store gave no lane".into()))
        }
    }
}

/// Mined long ago on the null chain, and final.
fn finish(tx: &mut Tx, at: Timestamp) {
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
