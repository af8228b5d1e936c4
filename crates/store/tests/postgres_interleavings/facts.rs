//! Results that the actors observed: the checks compare them with the final content of the database.

use std::sync::{Mutex, MutexGuard, PoisonError};

use domain::{LaneId, LaneImage, LaneKey, LeaseGrant, RequestId, TxId};
use engine::ports::LaneBatch;
use store::postgres::sql::Param;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row};
use uuid::Uuid;

/// A result that an actor observed.
#[derive(Debug)]
pub(crate) enum Fact {
    /// The outcome of a batch.
    Gate {
        batch: Box<LaneBatch>,
        outcome: Outcome,
    },
    /// The contested lane was granted to a contender, or anew to its keeper, with the number of
    /// batches had landed.
    Granted {
        node: String,
        lease_grant: LeaseGrant,
        landed: Option<u64>,
    },
    /// A contender read the contested lane under its right, and it still held.
    Loaded {
        lease_grant: LeaseGrant,
        image: Option<Box<LaneImage>>,
        rows: Vec<TxRow>,
    },
    /// The keeper's lease was extended, or not.
    Renewed(bool),
    /// The keeper released the lane, or had lost it.
    Released(bool),
    /// A request was queued, and this tx has it.
    Queued { request: RequestId, tx: TxId },
    /// Events that a reader received, in its order, and its next cursor.
    Read {
        reader: Uuid,
        events: Vec<(LaneKey, u64)>,
        next: String,
    },
    /// The database refused what it should not.
    Refused { what: &'static str, why: String },
}

/// The outcome of one lane's batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Applied,
    /// The lane is another's, its row was locked again, or memory is old.
    Fenced,
    /// Another tx has the request id.
    Conflict,
}

/// The content that a keeper writes of a tx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TxRow {
    pub(crate) id: TxId,
    pub(crate) request: String,
    pub(crate) nonce: Option<i64>,
    pub(crate) token: i64,
    state: i16,
    sub_state: Option<i16>,
    updated_at: i64,
}

impl TxRow {
    const SQL: &str = "SELECT tx_id, request_id, nonce, token, state, sub_state, updated_at \
         FROM managed_tx WHERE lane_id = $1 ORDER BY tx_id";

    /// All txs of a lane.
    pub(crate) async fn of(client: &Client, lane: LaneId) -> Result<Vec<Self>, Error> {
        let params: [Param<'_>; 1] = [(&lane.0, Type::INT8)];
        let rows = client.query_typed(Self::SQL, &params).await?;
        Ok(rows.iter().map(|row| Self::read(row, 0)).collect())
    }

    /// From seven columns.
    pub(crate) fn read(row: &Row, at: usize) -> Self {
        Self {
            id: TxId(row.get::<_, Uuid>(at)),
            request: row.get(at + 1),
            nonce: row.get(at + 2),
            token: row.get(at + 3),
            state: row.get(at + 4),
            sub_state: row.get(at + 5),
            updated_at: row.get(at + 6),
        }
    }
}

/// All results, in the order of observation.
#[derive(Default)]
pub(crate) struct Facts(Mutex<Vec<Fact>>);

impl Facts {
    pub(crate) fn record_fact(&self, fact: Fact) {
        self.all().push(fact);
    }

    pub(crate) fn refused(&self, what: &'static str, error: &Error) {
        let why = match error.as_db_error() {
            Some(refusal) => format!("{} ({})", refusal.message(), refusal.code().code()),
            None => error.to_string(),
        };
        self.record_fact(Fact::Refused { what, why });
    }

    pub(crate) fn all(&self) -> MutexGuard<'_, Vec<Fact>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
