//! The store behind a network, as one node sees it.
//!
//! A lost answer means two different things: a reader simply asks again, a writer does not know.
//! [`StoreError`] promises that nothing has happened, but no client of a database can keep that
//! promise for a statement whose answer was lost; the twin does not either.
//!
//! Rows may be locked by somebody: then one lane of a statement is skipped, and its neighbours are not.

use async_trait::async_trait;
use domain::{
    B256, ChainId, GrantId, Header, LaneId, LaneImage, LaneKey, Nonce, RequestId, Right, Tx, TxId,
};
use engine::ports::{
    Acquired, Ask, Beat, CommitOutcome, EventFilter, EventPage, EventRecord, LaneBatch, LaneRecord,
    Member, NewQueued, Regranted, Renewal, Store, StoreError, TxFilter, TxPage, TxRecord, Work,
};

use super::MemoryStore;
use crate::wire::{NoAnswer, Wire};

/// A [`MemoryStore`] at the other end of a [`Wire`].
#[derive(Clone)]
pub struct RemoteStore {
    store: MemoryStore,
    wire: Wire,
}

impl RemoteStore {
    /// `store`, seen through `wire`.
    #[must_use]
    pub fn new(store: MemoryStore, wire: Wire) -> Self {
        Self { store, wire }
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let lost = |why| Err(StoreError::Unavailable(format!("no answer: {why:?}")));
        self.wire.call(question).await.unwrap_or_else(lost)
    }

    /// Takes out those whose rows are locked at this moment.
    fn without_locked<T>(&self, asked: Vec<T>) -> (Vec<T>, Vec<bool>) {
        let locked = self.wire.faults().locked;
        let draws: Vec<bool> = asked
            .iter()
            .map(|_| self.wire.rng().permille(locked))
            .collect();
        let free = asked.into_iter().zip(&draws);
        let free = free.filter(|(_, is_locked)| !**is_locked);
        (free.map(|(asked, _)| asked).collect(), draws)
    }
}

/// Puts the answers of those that were not locked back into the order asked.
fn among_locked<T: Clone>(answers: Vec<T>, draws: &[bool], locked: &T) -> Vec<T> {
    let mut answers = answers.into_iter();
    let next = |is_locked: &bool| {
        if *is_locked {
            locked.clone()
        } else {
            answers.next().expect("the twin answers every lane")
        }
    };
    draws.iter().map(next).collect()
}

/// One verb: its arguments are copied onto the wire, the verb runs at the other end.
macro_rules! over_the_wire {
    ($self:ident.$verb:ident($($argument:expr),*)) => {{
        let store = $self.store.clone();
        $self.ask(async move { store.$verb($($argument),*).await }).await
    }};
}

#[async_trait]
impl Store for RemoteStore {
    async fn acquire(
        &self,
        ask: &Ask,
        lanes: &[(LaneKey, GrantId)],
    ) -> Result<Vec<Acquired>, StoreError> {
        let ask = ask.clone();
        let (lanes, draws) = self.without_locked(lanes.to_vec());
        let answers = over_the_wire!(self.acquire(&ask, &lanes))?;
        Ok(among_locked(answers, &draws, &Acquired::Busy))
    }

    async fn renew(&self, ask: &Ask, rights: &[Right]) -> Result<Vec<Renewal>, StoreError> {
        let ask = ask.clone();
        let (rights, draws) = self.without_locked(rights.to_vec());
        let answers = over_the_wire!(self.renew(&ask, &rights))?;
        Ok(among_locked(answers, &draws, &Renewal::Busy))
    }

    async fn release(&self, ask: &Ask, rights: &[Right]) -> Result<(), StoreError> {
        let (ask, rights) = (ask.clone(), rights.to_vec());
        over_the_wire!(self.release(&ask, &rights))
    }

    async fn load(
        &self,
        key: LaneKey,
        right: Right,
        watch_depth: u64,
    ) -> Result<Option<LaneImage>, StoreError> {
        over_the_wire!(self.load(key, right, watch_depth))
    }

    async fn load_backlog(
        &self,
        lane: LaneId,
        from: Nonce,
        limit: usize,
    ) -> Result<Vec<Tx>, StoreError> {
        over_the_wire!(self.load_backlog(lane, from, limit))
    }

    async fn load_queued(&self, lane: LaneId, limit: usize) -> Result<Vec<Tx>, StoreError> {
        over_the_wire!(self.load_queued(lane, limit))
    }

    async fn put_headers(&self, chain: ChainId, headers: &[Header]) -> Result<(), StoreError> {
        let headers = headers.to_vec();
        over_the_wire!(self.put_headers(chain, &headers))
    }

    async fn commit(&self, batches: Vec<LaneBatch>) -> Vec<CommitOutcome> {
        let (batches, draws) = self.without_locked(batches);
        let (store, lanes) = (self.store.clone(), batches.len());
        let told = self
            .wire
            .call(async move { store.commit(batches).await })
            .await;
        let outcomes = match told {
            Ok(outcomes) => outcomes,
            Err(NoAnswer::Refused) => {
                vec![CommitOutcome::NotApplied("connection refused".to_owned()); lanes]
            }
            Err(NoAnswer::Lost) => {
                vec![CommitOutcome::Unknown("the answer was lost".to_owned()); lanes]
            }
        };
        among_locked(outcomes, &draws, &CommitOutcome::Locked)
    }

    async fn regrant(&self, right: Right, grant: GrantId) -> Result<Regranted, StoreError> {
        over_the_wire!(self.regrant(right, grant))
    }

    async fn find_requests(
        &self,
        requests: &[(LaneId, RequestId)],
    ) -> Result<Vec<Option<Tx>>, StoreError> {
        let requests = requests.to_vec();
        over_the_wire!(self.find_requests(&requests))
    }

    async fn queue(&self, requests: Vec<NewQueued>) -> Result<Vec<Tx>, StoreError> {
        over_the_wire!(self.queue(requests))
    }

    async fn lanes_with_work(&self, ask: &Ask) -> Result<Vec<Work>, StoreError> {
        let ask = ask.clone();
        over_the_wire!(self.lanes_with_work(&ask))
    }

    async fn heartbeat(&self, member: &Member) -> Result<Beat, StoreError> {
        let member = member.clone();
        over_the_wire!(self.heartbeat(&member))
    }

    async fn settle(&self, right: Right) -> Result<(), StoreError> {
        over_the_wire!(self.settle(right))
    }

    async fn halt(&self, right: Right, reason: &str) -> Result<bool, StoreError> {
        let reason = reason.to_owned();
        over_the_wire!(self.halt(right, &reason))
    }

    async fn accept_loss(&self, lane: LaneKey) -> Result<bool, StoreError> {
        over_the_wire!(self.accept_loss(lane))
    }

    async fn extend_feed(&self, lanes: &[LaneId]) -> Result<(), StoreError> {
        let lanes = lanes.to_vec();
        over_the_wire!(self.extend_feed(&lanes))
    }

    async fn members(&self) -> Result<Vec<Member>, StoreError> {
        over_the_wire!(self.members())
    }

    async fn tx(&self, id: TxId) -> Result<Option<TxRecord>, StoreError> {
        over_the_wire!(self.tx(id))
    }

    async fn tx_by_request(
        &self,
        lane: LaneKey,
        request_id: &RequestId,
    ) -> Result<Option<TxRecord>, StoreError> {
        let request_id = request_id.clone();
        over_the_wire!(self.tx_by_request(lane, &request_id))
    }

    async fn tx_by_hash(&self, hash: B256) -> Result<Option<TxRecord>, StoreError> {
        over_the_wire!(self.tx_by_hash(hash))
    }

    async fn txs(&self, filter: &TxFilter) -> Result<TxPage, StoreError> {
        let filter = filter.clone();
        over_the_wire!(self.txs(&filter))
    }

    async fn tx_events(&self, id: TxId) -> Result<Option<Vec<EventRecord>>, StoreError> {
        over_the_wire!(self.tx_events(id))
    }

    async fn events(&self, filter: &EventFilter) -> Result<EventPage, StoreError> {
        let filter = filter.clone();
        over_the_wire!(self.events(&filter))
    }

    async fn lanes(&self, keys: &[LaneKey]) -> Result<Vec<LaneRecord>, StoreError> {
        let keys = keys.to_vec();
        over_the_wire!(self.lanes(&keys))
    }
}
