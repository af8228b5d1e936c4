//! Rows that another session holds, so that a statement stops in its middle.

use crate::scene::Scene;
use crate::turns::Session;

/// A row, or a key that a row is about to get, which statements of the store touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lock {
    LeaseRow,
    LaneRow,
    NeighbourLaneRow,
    TxRow,
    WaitingTxRow,
    RequestKey,
    NonceKey,
    AttemptKey,
    AttemptRow,
    QueueRow,
    EventKey,
    FeedHead,
    FeedKey,
    LaneFeedRow,
}

impl Lock {
    pub(crate) const ALL: [Self; 14] = [
        Self::LeaseRow,
        Self::LaneRow,
        Self::NeighbourLaneRow,
        Self::TxRow,
        Self::WaitingTxRow,
        Self::RequestKey,
        Self::NonceKey,
        Self::AttemptKey,
        Self::AttemptRow,
        Self::QueueRow,
        Self::EventKey,
        Self::FeedHead,
        Self::FeedKey,
        Self::LaneFeedRow,
    ];

    /// Locks it, in a transaction that stays open. No other session is active yet, so nothing waits.
    pub(crate) async fn take(self, session: &Session, scene: &Scene) {
        let sql = format!("BEGIN; {}", self.sql(scene));
        session
            .client
            .batch_execute(&sql)
            .await
            .expect("it is free");
    }

    fn sql(self, scene: &Scene) -> String {
        let lane = scene.lane().0;
        let batch = &scene.batches[0];
        let new = &batch.writes.attempts[0];
        let row =
            |table: &str, which: String| format!("SELECT FROM {table} WHERE {which} FOR UPDATE");
        let of_lane = |table: &str| row(table, format!("lane_id = {lane}"));
        let tx = |request: &str, nonce: &str| {
            format!(
                "INSERT INTO managed_tx (lane_id, created_at, gas, tx_id, request_id, fingerprint, \
                   value, data, state, signed, nonce, token, updated_at, event_seqs) \
                 VALUES ({lane}, 0, 0, gen_random_uuid(), '{request}', '', '', '', 0, false, {nonce}, \
                         0, 0, '')"
            )
        };
        match self {
            Self::LeaseRow => of_lane("signer_lease"),
            Self::LaneRow => of_lane("signer_nonce_cursor"),
            Self::NeighbourLaneRow => row(
                "signer_nonce_cursor",
                format!("lane_id = {}", scene.of_a.lease_grant.lane.0),
            ),
            Self::TxRow => row("managed_tx", format!("tx_id = '{}'", scene.sent.id)),
            Self::WaitingTxRow => row("managed_tx", format!("tx_id = '{}'", scene.waiting.id)),
            Self::RequestKey => tx(crate::scene::SHARED_REQUEST, "NULL"),
            Self::NonceKey => tx("of nobody", &new.nonce.to_string()),
            Self::AttemptKey => format!(
                "INSERT INTO tx_attempt (lane_id, nonce, gas, signed_at, tx_id, kind, hash, fees, raw) \
                 VALUES ({lane}, 0, 0, 0, gen_random_uuid(), 0, '\\x{}', '', '')",
                hex(new.hash.as_slice())
            ),
            Self::AttemptRow => of_lane("tx_attempt"),
            Self::QueueRow => of_lane("queued_tx"),
            Self::EventKey => format!(
                "INSERT INTO lane_event (lane_id, first_seq, at, token, count, node, body) \
                 VALUES ({lane}, {}, 0, 0, 1, '', '')",
                batch.event_seq_before + 1
            ),
            Self::FeedHead => row("feed_head", "true".into()),
            Self::FeedKey => {
                let next = "SELECT position + 1, -1, position, position FROM feed_head";
                format!("INSERT INTO event_feed (position, lane_id, first_seq, last_seq) {next}")
            }
            Self::LaneFeedRow => of_lane("lane_feed"),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
