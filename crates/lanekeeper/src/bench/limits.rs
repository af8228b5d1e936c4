//! What nothing of ours could exceed: HTTP alone, and the store alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use alloy_primitives::{Address, B256, Bytes, U256};
use axum::Json;
use axum::http::StatusCode;
use axum::routing::post;
use domain::{
    Attempt, AttemptKind, ChainId, Event, EventKind, Fees, LaneKey, NodeName, Nonce, Payload,
    RequestId, Right, SubState, Time, Tx, TxState, Writes,
};
use engine::ports::{Acquired, Ask, Clock, CommitOutcome, LaneBatch, Store};
use serde_json::{Value, json};
use store::sqlite::SqliteStore;

use crate::clock::SystemClock;
use crate::failure::Failure;
use crate::open;
use crate::output::say;
use crate::signals::Signals;

/// Rows in one commit.
const BATCH: usize = 500;
/// A signed transfer has about so many bytes.
const ENVELOPE_BYTES: usize = 112;

/// Serves POSTs of JSON with 202 and does nothing else.
pub(crate) async fn serve_http() -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let listener = open::bind(([127, 0, 0, 1], 0).into(), "nothing").await?;
    let address = listener
        .local_addr()
        .map_err(|e| Failure::refused("the listener", &e))?;
    let taken = |Json(_): Json<Value>| async { (StatusCode::ACCEPTED, Json(json!({}))) };
    let router = axum::Router::new().route("/api/v1/tx", post(taken));
    let (closing, closed) = tokio::sync::watch::channel(false);
    // The same serving loop as the node's: only the work behind it is left out.
    let server = tokio::spawn(api::serve(listener, router, closed));
    say!(
        "{}",
        json!({ "ready": true, "api": format!("http://{address}") })
    );
    signals.stop().await;
    closing.send_replace(true);
    let ended = server
        .await
        .map_err(|e| Failure::refused("the server", &e))?;
    ended.map_err(|e| Failure::refused("the server", &e))
}

/// Rows per second that the bare store takes: those that accepting makes, in batches of
/// [`BATCH`] over as many lanes, for about `duration`.
pub(crate) async fn store_rate(
    lanes: u32,
    with_attempts: bool,
    duration: Duration,
) -> Result<f64, Failure> {
    let store =
        SqliteStore::temporary().map_err(|e| Failure::refused("the store cannot be opened", &e))?;
    let mut filler = Filler::open(Arc::new(store), lanes, with_attempts).await?;
    let mut rows = 0_usize;
    let mut spent = Duration::ZERO;
    while spent < duration {
        // Making rows is not the store's work, so it is not measured.
        let batches = filler.batches();
        rows += batches
            .iter()
            .map(|batch| batch.writes.inserts.len())
            .sum::<usize>();
        let started = Instant::now();
        let outcomes = filler.store.commit(batches).await;
        spent += started.elapsed();
        if let Some(bad) = outcomes
            .iter()
            .find(|outcome| **outcome != CommitOutcome::Applied)
        {
            return Err(Failure::Refused(format!(
                "the bare store refused rows: {bad:?}"
            )));
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rows = rows as f64;
    Ok(rows / spent.as_secs_f64())
}

/// Makes the rows of accepted requests.
struct Filler {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    with_attempts: bool,
    lanes: Vec<FilledLane>,
}

struct FilledLane {
    right: Right,
    next_nonce: u64,
}

impl Filler {
    async fn open(store: Arc<dyn Store>, lanes: u32, with_attempts: bool) -> Result<Self, Failure> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let ask = Ask {
            node: NodeName("bench".into()),
            incarnation: clock.incarnation(),
            duration: Duration::from_secs(3600),
            skew: Duration::ZERO,
        };
        let keys: Vec<_> = (0..lanes)
            .map(|n| {
                let signer = Address::left_padding_from(&n.to_be_bytes());
                (
                    LaneKey {
                        chain_id: ChainId(1),
                        signer,
                    },
                    clock.grant_id(),
                )
            })
            .collect();
        let acquired = store.acquire(&ask, &keys).await;
        let acquired = acquired.map_err(|e| Failure::refused("the bare store", &e))?;
        let lanes = acquired
            .into_iter()
            .map(|acquired| match acquired {
                Acquired::Granted { right, .. } => Ok(FilledLane {
                    right,
                    next_nonce: 0,
                }),
                Acquired::NotKeeper { .. } => {
                    Err(Failure::Refused("the bare store gave no lane".into()))
                }
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            store,
            clock,
            with_attempts,
            lanes,
        })
    }

    /// One commit's worth: [`BATCH`] rows, spread evenly.
    fn batches(&mut self) -> Vec<LaneBatch> {
        let lanes = self.lanes.len().min(BATCH);
        let share = BATCH / lanes;
        let mut lanes: Vec<FilledLane> = std::mem::take(&mut self.lanes);
        let batches = lanes
            .iter_mut()
            .take(BATCH)
            .map(|lane| self.batch(lane, share))
            .collect();
        self.lanes = lanes;
        batches
    }

    fn batch(&self, lane: &mut FilledLane, rows: usize) -> LaneBatch {
        let at = self.clock.now();
        let event_seq_before = lane.next_nonce;
        let mut writes = Writes::default();
        for _ in 0..rows {
            let tx = self.tx(lane.right, lane.next_nonce, at);
            lane.next_nonce += 1;
            if self.with_attempts {
                writes.attempts.push(self.attempt(&tx, at));
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
        LaneBatch {
            right: lane.right,
            batch: self.clock.batch_id(),
            node: NodeName("bench".into()),
            at,
            event_seq_before,
            next_nonce: Nonce(lane.next_nonce),
            writes,
        }
    }

    fn tx(&self, right: Right, nonce: u64, at: Time) -> Tx {
        let mut payload = Payload::transfer(Address::repeat_byte(0x0b), U256::from(1));
        payload.gas = Some(21_000);
        let key = format!("{:032x}", self.clock.random());
        let (state, sub_state) = if self.with_attempts {
            (TxState::Tracking, SubState::Signed)
        } else {
            (TxState::Allocated, SubState::Waiting)
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
            sub_state: Some(sub_state),
            reason: None,
            tx_hash: None,
            inclusion: None,
            counted: None,
            token: right.token,
            event_seqs: vec![nonce + 1],
            updated_at: at,
            confirmed_at: None,
        }
    }

    fn attempt(&self, tx: &Tx, at: Time) -> Attempt {
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
            first_sent_at: None,
        }
    }
}
