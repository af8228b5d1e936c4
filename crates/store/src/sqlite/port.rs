//! The port: which thread answers which question.

use async_trait::async_trait;
use domain::{
    B256, ChainId, GrantId, Header, LaneId, LaneImage, LaneKey, Nonce, RequestId, Right, Tx, TxId,
};
use engine::ports::{
    Acquired, Ask, Beat, CommitOutcome, EventFilter, EventPage, EventRecord, LaneBatch, LaneRecord,
    Member, NewQueued, Regranted, Renewal, Store, StoreError, TxFilter, TxPage, TxRecord, Work,
};

use super::writer::Lost;
use super::{SqliteStore, events, gate, headers, lanes, lease, nodes, queue, txs};

#[async_trait]
impl Store for SqliteStore {
    async fn acquire(
        &self,
        ask: &Ask,
        lanes: &[(LaneKey, GrantId)],
    ) -> Result<Vec<Acquired>, StoreError> {
        let (ask, lanes) = (ask.clone(), lanes.to_vec());
        self.writer
            .write(0, move |conn, now| lease::acquire(conn, now, &ask, &lanes))
            .await
    }

    async fn renew(&self, ask: &Ask, rights: &[Right]) -> Result<Vec<Renewal>, StoreError> {
        let (ask, rights) = (ask.clone(), rights.to_vec());
        self.writer
            .write(0, move |conn, now| lease::renew(conn, now, &ask, &rights))
            .await
    }

    async fn release(&self, ask: &Ask, rights: &[Right]) -> Result<(), StoreError> {
        let (ask, rights) = (ask.clone(), rights.to_vec());
        self.writer
            .write(0, move |conn, now| lease::release(conn, now, &ask, &rights))
            .await
    }

    async fn load(
        &self,
        key: LaneKey,
        right: Right,
        watch_depth: u64,
    ) -> Result<Option<LaneImage>, StoreError> {
        self.readers
            .read(move |conn| lanes::load(conn, key, right, watch_depth))
            .await
    }

    async fn load_backlog(
        &self,
        lane: LaneId,
        from: Nonce,
        limit: usize,
    ) -> Result<Vec<Tx>, StoreError> {
        self.readers
            .read(move |conn| lanes::load_backlog(conn, lane, from, limit))
            .await
    }

    async fn load_queued(&self, lane: LaneId, limit: usize) -> Result<Vec<Tx>, StoreError> {
        self.readers
            .read(move |conn| lanes::load_queued(conn, lane, limit))
            .await
    }

    async fn put_headers(&self, chain: ChainId, headers: &[Header]) -> Result<(), StoreError> {
        let headers = headers.to_vec();
        self.writer
            .write(0, move |conn, _now| {
                headers::put_headers(conn, chain, &headers)
            })
            .await
    }

    async fn commit(&self, batches: Vec<LaneBatch>) -> Vec<CommitOutcome> {
        let lanes = batches.len();
        if lanes == 0 {
            return Vec::new();
        }
        let txs = batches
            .iter()
            .map(|batch| batch.writes.inserts.len() + batch.writes.updates.len())
            .sum();
        match self
            .writer
            .submit(txs, move |conn, _now| gate::commit(conn, &batches))
            .await
        {
            Ok(outcomes) => outcomes,
            Err(Lost::NotDone(error)) => vec![CommitOutcome::NotApplied(error.to_string()); lanes],
            Err(Lost::Unknown(text)) => vec![CommitOutcome::Unknown(text); lanes],
        }
    }

    async fn regrant(&self, right: Right, grant: GrantId) -> Result<Regranted, StoreError> {
        self.writer
            .write(0, move |conn, _now| gate::regrant(conn, right, grant))
            .await
    }

    async fn find_requests(
        &self,
        requests: &[(LaneId, RequestId)],
    ) -> Result<Vec<Option<Tx>>, StoreError> {
        let requests = requests.to_vec();
        self.readers
            .read(move |conn| queue::find_requests(conn, &requests))
            .await
    }

    async fn queue(&self, requests: Vec<NewQueued>) -> Result<Vec<Tx>, StoreError> {
        let txs = requests.len();
        self.writer
            .write(txs, move |conn, _now| queue::queue(conn, &requests))
            .await
    }

    async fn lanes_with_work(&self, ask: &Ask) -> Result<Vec<Work>, StoreError> {
        let (ask, now) = (ask.clone(), (self.now)());
        self.readers
            .read(move |conn| lanes::lanes_with_work(conn, now, &ask))
            .await
    }

    async fn heartbeat(&self, member: &Member) -> Result<Beat, StoreError> {
        let member = member.clone();
        self.writer
            .write(0, move |conn, _now| nodes::heartbeat(conn, &member))
            .await
    }

    async fn settle(&self, _right: Right) -> Result<(), StoreError> {
        Ok(()) // one history: every lane is settled
    }

    async fn halt(&self, right: Right, reason: &str) -> Result<bool, StoreError> {
        let reason = reason.to_owned();
        self.writer
            .write(0, move |conn, _now| lease::halt(conn, right, &reason))
            .await
    }

    async fn accept_loss(&self, lane: LaneKey) -> Result<bool, StoreError> {
        self.writer
            .write(0, move |conn, _now| lease::accept_loss(conn, lane))
            .await
    }

    async fn extend_feed(&self, _lanes: &[LaneId]) -> Result<(), StoreError> {
        Ok(()) // the gate does it
    }

    async fn members(&self) -> Result<Vec<Member>, StoreError> {
        self.readers.read(nodes::members).await
    }

    async fn tx(&self, id: TxId) -> Result<Option<TxRecord>, StoreError> {
        self.readers.read(move |conn| txs::tx(conn, id)).await
    }

    async fn tx_by_request(
        &self,
        lane: LaneKey,
        request_id: &RequestId,
    ) -> Result<Option<TxRecord>, StoreError> {
        let request_id = request_id.clone();
        self.readers
            .read(move |conn| txs::tx_by_request(conn, lane, &request_id))
            .await
    }

    async fn tx_by_hash(&self, hash: B256) -> Result<Option<TxRecord>, StoreError> {
        self.readers
            .read(move |conn| txs::tx_by_hash(conn, hash))
            .await
    }

    async fn txs(&self, filter: &TxFilter) -> Result<TxPage, StoreError> {
        let filter = filter.clone();
        self.readers.read(move |conn| txs::txs(conn, &filter)).await
    }

    async fn tx_events(&self, id: TxId) -> Result<Option<Vec<EventRecord>>, StoreError> {
        let tag = self.tag;
        self.readers
            .read(move |conn| events::tx_events(conn, tag, id))
            .await
    }

    async fn events(&self, filter: &EventFilter) -> Result<EventPage, StoreError> {
        let (filter, tag) = (filter.clone(), self.tag);
        self.readers
            .read(move |conn| events::events(conn, tag, &filter))
            .await
    }

    async fn lanes(&self, keys: &[LaneKey]) -> Result<Vec<LaneRecord>, StoreError> {
        let keys = keys.to_vec();
        self.readers
            .read(move |conn| lanes::lanes(conn, &keys))
            .await
    }
}
