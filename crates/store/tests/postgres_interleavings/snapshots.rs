//! Looking at lanes as they are, past the store.

use std::collections::{BTreeMap, BTreeSet};

use domain::{LaneId, TxId};
use tokio_postgres::{Row, Statement};

use crate::facts::TxRow;
use crate::turns::Session;

/// One lane as it is at the end.
pub(crate) struct Ending {
    pub(crate) lease: Lease,
    pub(crate) cursor: Cursor,
    pub(crate) txs: Vec<TxRow>,
    pub(crate) queue_rows: BTreeSet<TxId>,
    pub(crate) attempts: BTreeSet<Vec<u8>>,
    /// Number of the first event, and how many.
    pub(crate) events: Vec<(i64, i32)>,
}

pub(crate) struct Lease {
    pub(crate) token: i64,
    pub(crate) owner: String,
    pub(crate) expires_at: i64,
}

pub(crate) struct Cursor {
    pub(crate) next_nonce: i64,
    pub(crate) event_seq: i64,
    pub(crate) batch_seq: i64,
    pub(crate) token: i64,
    pub(crate) is_busy: bool,
}

impl Ending {
    pub(crate) fn tx(&self, id: TxId) -> Option<&TxRow> {
        self.txs.iter().find(|tx| tx.id == id)
    }
}

/// Looks at lanes, prepared once: every order ends with one.
pub(crate) struct Snapshots {
    session: Session,
    lanes: Statement,
    txs: Statement,
    queue_rows: Statement,
    attempts: Statement,
    events: Statement,
}

impl Snapshots {
    pub(crate) async fn open(url: &str) -> Self {
        const LANES: &str = "SELECT lane_id, token, owner, expires_at, next_nonce, event_seq, \
               batch_seq, fencing_token, busy \
             FROM signer_lease JOIN signer_nonce_cursor USING (lane_id) WHERE lane_id = ANY ($1)";
        const TXS: &str = "SELECT lane_id, tx_id, request_id, nonce, token, state, sub_state, \
               updated_at FROM managed_tx WHERE lane_id = ANY ($1) ORDER BY tx_id";
        const WAKES: &str = "SELECT lane_id, tx_id FROM queued_tx WHERE lane_id = ANY ($1)";
        const ATTEMPTS: &str = "SELECT lane_id, hash FROM tx_attempt WHERE lane_id = ANY ($1)";
        const EVENTS: &str = "SELECT lane_id, first_seq, count FROM lane_event \
             WHERE lane_id = ANY ($1) ORDER BY first_seq";
        let session = Session::open(url).await;
        let prepare = async |sql| session.client.prepare(sql).await.expect("a look");
        Self {
            lanes: prepare(LANES).await,
            txs: prepare(TXS).await,
            queue_rows: prepare(WAKES).await,
            attempts: prepare(ATTEMPTS).await,
            events: prepare(EVENTS).await,
            session,
        }
    }

    /// These lanes as they are.
    pub(crate) async fn endings(&self, lanes: &[LaneId]) -> BTreeMap<LaneId, Ending> {
        let ids: Vec<i64> = lanes.iter().map(|lane| lane.0).collect();
        let lease_request = async |what: &Statement| {
            let rows = self.session.client.query(what, &[&ids]).await;
            rows.expect("a look")
        };
        let (lanes, txs, queue_rows, attempts, events) = futures::join!(
            lease_request(&self.lanes),
            lease_request(&self.txs),
            lease_request(&self.queue_rows),
            lease_request(&self.attempts),
            lease_request(&self.events)
        );
        let mut endings: BTreeMap<LaneId, Ending> = lanes
            .iter()
            .map(|row| (lane_of(row), Ending::read(row)))
            .collect();
        let mut each = |rows: &[Row], add: &dyn Fn(&mut Ending, &Row)| {
            for row in rows {
                let ending = endings.get_mut(&lane_of(row));
                add(ending.expect("every row has a lane"), row);
            }
        };
        each(&txs, &|ending, row| ending.txs.push(TxRow::read(row, 1)));
        each(&queue_rows, &|ending, row| {
            ending.queue_rows.insert(TxId(row.get(1)));
        });
        each(&attempts, &|ending, row| {
            ending.attempts.insert(row.get(1));
        });
        each(&events, &|ending, row| {
            ending.events.push((row.get(1), row.get(2)))
        });
        endings
    }
}

fn lane_of(row: &Row) -> LaneId {
    LaneId(row.get(0))
}

impl Ending {
    fn read(row: &Row) -> Self {
        Self {
            lease: Lease {
                token: row.get(1),
                owner: row.get(2),
                expires_at: row.get(3),
            },
            cursor: Cursor {
                next_nonce: row.get(4),
                event_seq: row.get(5),
                batch_seq: row.get(6),
                token: row.get(7),
                is_busy: row.get(8),
            },
            txs: Vec::new(),
            queue_rows: BTreeSet::new(),
            attempts: BTreeSet::new(),
            events: Vec::new(),
        }
    }
}
