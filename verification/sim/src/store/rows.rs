//! The rows of the store. One `Rows` is one database; the lock around it is its transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::mutation::{self, Mutation};
use domain::lane::{HeadWait, MinedRows, OpenCost, OpenSummary, UNRECORDED_PREFIX, WatchedBlock};
use domain::lease::Lease;
use domain::{
    Attempt, B256, ChainId, Event, FinalTx, GrantId, Header, History, Incarnation, LaneId,
    LaneImage, LaneKey, LeaseGrant, NodeName, Nonce, RequestId, Token, Tx, TxId,
};
use engine::ports::{Member, QueuedRequest};

/// The tables. A copy of them is a standby.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    /// Its timeline is incremented with every promotion of a standby.
    pub(super) history: History,
    /// The history in which the store was created.
    pub(super) born: History,
    /// By `LaneId - 1`.
    pub(super) lanes: Vec<LaneRow>,
    pub(super) lane_ids: BTreeMap<LaneKey, LaneId>,
    /// Where each tx is.
    pub(super) tx_lanes: BTreeMap<TxId, LaneId>,
    /// The tx of each attempt.
    pub(super) hashes: BTreeMap<B256, TxId>,
    pub(super) headers: BTreeMap<(ChainId, B256), Header>,
    /// The feed of all lanes: position → lane and event. The gate does not write it.
    pub(super) feed: Vec<(LaneId, u64)>,
    pub(super) members: BTreeMap<NodeName, Member>,
    /// Incarnations of nodes that a later one has replaced.
    pub(super) replaced_incarnations: BTreeSet<(NodeName, Incarnation)>,
}

/// A lane with all rows that belong to it.
#[derive(Clone, Debug)]
pub(super) struct LaneRow {
    pub(super) id: LaneId,
    pub(super) key: LaneKey,
    /// The lease row; `None` before the first grant.
    pub(super) lease: Option<Lease>,
    pub(super) token: Token,
    pub(super) grant: Option<GrantId>,
    pub(super) next_nonce: Nonce,
    /// The lane is loaded from here on: no open tx has a nonce below it.
    pub(super) floor_nonce: Nonce,
    /// What the open txs can cost that a keeper has seen.
    pub(super) open_cost: OpenCost,
    /// What the lowest unmined tx waits for.
    pub(super) head: Option<HeadWait>,
    /// The newest block with a final result to watch.
    pub(super) newest_final: Option<WatchedBlock>,
    /// How many batches were applied.
    pub(super) batch_seq: u64,
    /// The history under which the lane was last reconciled; `None` since its loss was accepted.
    pub(super) reconciled_under: Option<History>,
    /// The history in which an operator accepted its loss; `None` when it is reconciled since.
    pub(super) accepted_under: Option<History>,
    /// Why the lane is halted until an operator decides.
    pub(super) halted: Option<String>,
    pub(super) paused: bool,
    pub(super) txs: BTreeMap<TxId, TxRow>,
    pub(super) requests: BTreeMap<RequestId, TxId>,
    /// The holder of each nonce, finished txs included: a unique index without predicate.
    pub(super) nonces: BTreeMap<Nonce, TxId>,
    /// Txs that wait for a nonce.
    pub(super) wakes: BTreeSet<TxId>,
    /// By `seq - 1`.
    pub(super) events: Vec<EventRow>,
    /// The position of each event in the feed, by `seq - 1`; shorter while the feed lacks some.
    pub(super) fed: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct TxRow {
    pub(super) tx: Tx,
    /// Oldest first.
    pub(super) attempts: Vec<Attempt>,
}

#[derive(Clone, Debug)]
pub(super) struct EventRow {
    pub(super) node: NodeName,
    pub(super) token: Token,
    pub(super) event: Event,
}

impl TxRow {
    /// Whether it has an attempt at its present nonce: by its row, since attempts at released nonces stay.
    fn is_signed(&self) -> bool {
        self.tx.tx_hash.is_some()
    }

    /// Its attempts at a nonce, oldest first.
    fn attempts_at(&self, nonce: Nonce) -> Vec<Attempt> {
        let attempts = self.attempts.iter();
        let at_nonce = attempts.filter(|attempt| attempt.nonce == nonce);
        at_nonce.cloned().collect()
    }
}

impl Rows {
    /// An empty store.
    pub(super) fn new() -> Self {
        let born = History {
            store: 1,
            timeline: 1,
            restores: 0,
            suspicions: 0,
        };
        Self {
            history: born,
            born,
            lanes: Vec::new(),
            lane_ids: BTreeMap::new(),
            tx_lanes: BTreeMap::new(),
            hashes: BTreeMap::new(),
            headers: BTreeMap::new(),
            feed: Vec::new(),
            members: BTreeMap::new(),
            replaced_incarnations: BTreeSet::new(),
        }
    }

    pub(super) fn lane(&self, id: LaneId) -> Option<&LaneRow> {
        self.lanes.get(index_of(id)?)
    }

    pub(super) fn lane_mut(&mut self, id: LaneId) -> Option<&mut LaneRow> {
        self.lanes.get_mut(index_of(id)?)
    }

    /// The lane, if this grant is current: token and grant equal those of the lane row.
    pub(super) fn held_by(&self, lease_grant: LeaseGrant) -> Option<&LaneRow> {
        self.lane(lease_grant.lane)
            .filter(|lane| lane.is_held_by(lease_grant))
    }

    /// The lane of a key, created if it is new.
    pub(super) fn lane_of(&mut self, key: LaneKey) -> &mut LaneRow {
        let next = i64::try_from(self.lanes.len()).expect("far fewer than 2^63 lanes");
        let id = *self
            .lane_ids
            .entry(key)
            .or_insert(LaneId(next.saturating_add(1)));
        if id.0 > next {
            self.lanes.push(LaneRow::new(id, key, self.born));
        }
        self.lane_mut(id).expect("every lane id has a row")
    }

    pub(super) fn tx_row(&self, id: TxId) -> Option<(&LaneRow, &TxRow)> {
        let lane = self.lane(*self.tx_lanes.get(&id)?)?;
        Some((lane, lane.txs.get(&id)?))
    }

    /// Queues a request; `false` when its request id exists already.
    pub(super) fn queue(&mut self, queued: QueuedRequest) -> (Tx, bool) {
        let lane = self.lane_of(queued.lane);
        if let Some(known) = lane.requests.get(&queued.request.request_id) {
            return (lane.txs[known].tx.clone(), false);
        }
        let tx = queued.into_tx();
        lane.requests.insert(tx.request.request_id.clone(), tx.id);
        if !mutation::is_on(Mutation::OmitQueueRow) {
            lane.wakes.insert(tx.id);
        }
        lane.txs.insert(
            tx.id,
            TxRow {
                tx: tx.clone(),
                attempts: Vec::new(),
            },
        );
        let lane = lane.id;
        self.tx_lanes.insert(tx.id, lane);
        (tx, true)
    }

    pub(super) fn load(
        &self,
        key: LaneKey,
        lease_grant: LeaseGrant,
        watch_depth: u64,
    ) -> Option<LaneImage> {
        let lane = self.held_by(lease_grant).filter(|lane| lane.key == key)?;
        let mut image = lane.image(lease_grant, watch_depth);
        image.open.reported = self.reported_headers(&image);
        Some(image)
    }

    /// The headers from the blocks of txs in flight up to those that were reported as their confirmations.
    fn reported_headers(&self, image: &LaneImage) -> Vec<Header> {
        let spans = image.in_flight.iter().filter_map(|(tx, _)| {
            let block = tx.inclusion.as_ref()?.block_hash;
            let counted = tx.counted.filter(|counted| *counted != block)?;
            self.walk(image.key.chain_id, block, counted)
        });
        let headers = spans.flatten().map(|header| (header.hash, header));
        let by_hash: BTreeMap<B256, Header> = headers.collect();
        by_hash.into_values().collect()
    }

    pub(super) fn load_backlog(&self, lane: LaneId, from: Nonce, limit: usize) -> Vec<Tx> {
        let Some(lane) = self.lane(lane) else {
            return Vec::new();
        };
        let rows = lane.backlog().skip_while(|(nonce, _)| *nonce < from);
        rows.take(limit).map(|(_, row)| row.tx.clone()).collect()
    }

    pub(super) fn load_queued(&self, lane: LaneId, limit: usize) -> Vec<Tx> {
        let Some(lane) = self.lane(lane) else {
            return Vec::new();
        };
        // Ids are time-ordered: the smallest is the oldest.
        lane.wakes
            .iter()
            .take(limit)
            .map(|id| lane.txs[id].tx.clone())
            .collect()
    }

    pub(super) fn find_request(&self, lane: LaneKey, request: &RequestId) -> Option<Tx> {
        let lane = self.lane_by_key(lane)?;
        lane.requests.get(request).map(|id| lane.txs[id].tx.clone())
    }
}

impl LaneRow {
    /// A lane before its first grant. It is reconciled in the history in which the store was created: in a later one it may
    /// be missing because commits were lost.
    fn new(id: LaneId, key: LaneKey, born: History) -> Self {
        Self {
            id,
            key,
            lease: None,
            token: Token(0),
            grant: None,
            next_nonce: Nonce(0),
            floor_nonce: Nonce(0),
            open_cost: OpenCost::default(),
            head: None,
            newest_final: None,
            batch_seq: 0,
            reconciled_under: Some(born),
            accepted_under: None,
            halted: None,
            paused: false,
            txs: BTreeMap::new(),
            requests: BTreeMap::new(),
            nonces: BTreeMap::new(),
            wakes: BTreeSet::new(),
            events: Vec::new(),
            fed: Vec::new(),
        }
    }

    /// The image that the holder of this grant loads.
    pub(super) fn image(&self, lease_grant: LeaseGrant, watch_depth: u64) -> LaneImage {
        let signed = self.open().filter(|(_, row)| row.is_signed());
        let finished = self.txs.values().filter(|row| !row.tx.is_open());
        LaneImage {
            key: self.key,
            lease_grant,
            next_nonce: self.next_nonce,
            event_seq: self.event_seq(),
            batch_seq: self.batch_seq,
            paused: self.paused,
            in_flight: signed
                .map(|(nonce, row)| (row.tx.clone(), row.attempts_at(nonce)))
                .collect(),
            backlog_from: self.backlog().next().map(|(nonce, _)| nonce),
            held: self.held(),
            // The chain consumes nonces in order: nonces below a finished one are consumed too.
            consumed_below: finished
                .filter_map(|row| row.tx.nonce)
                .max()
                .map_or(Nonce(0), Nonce::next),
            open: OpenSummary {
                queued: count(self.wakes.len()),
                cost: match mutation::is_on(Mutation::ForgetCostOfWaitingTxs) {
                    true => self.cost_in_flight(),
                    false => self.open_cost,
                },
                head: self.head.clone(),
                reported: Vec::new(),
            },
            mined: MinedRows {
                finals: self.finals(watch_depth),
                unrecorded: self.unrecorded(),
            },
        }
    }

    /// The rows of transactions that no tx recorded, by request id.
    fn unrecorded(&self) -> Vec<Tx> {
        let rows = self.requests.iter();
        let rows = rows.filter(|(id, _)| id.as_str().starts_with(UNRECORDED_PREFIX));
        rows.map(|(_, id)| self.txs[id].tx.clone()).collect()
    }

    /// What the txs in flight can cost (`Mutation::ForgetCostOfWaitingTxs`).
    fn cost_in_flight(&self) -> OpenCost {
        let signed = self.open().filter(|(_, row)| row.is_signed());
        let costs = signed.map(|(_, row)| OpenCost::of_tx(&row.tx, &row.attempts));
        costs.fold(OpenCost::default(), OpenCost::plus)
    }

    pub(super) fn event_seq(&self) -> u64 {
        count(self.events.len())
    }

    pub(super) fn is_held_by(&self, lease_grant: LeaseGrant) -> bool {
        self.token == lease_grant.token && self.grant == Some(lease_grant.grant)
    }

    /// Whether an open tx has a nonce: by the lane row, without reading the txs.
    pub(super) fn is_busy(&self) -> bool {
        self.floor_nonce < self.next_nonce
    }

    /// Open txs that have a nonce, in nonce order: read from the floor on, as PostgreSQL does, so that a floor
    /// that is too high loses them here too.
    pub(super) fn open(&self) -> impl Iterator<Item = (Nonce, &TxRow)> {
        let rows = self.nonces.range(self.floor_nonce..);
        let rows = rows.map(|(nonce, id)| (*nonce, &self.txs[id]));
        rows.filter(|(_, row)| row.tx.is_open())
    }

    /// Those of them that have no attempt at their nonce.
    fn backlog(&self) -> impl Iterator<Item = (Nonce, &TxRow)> {
        self.open().filter(|(_, row)| !row.is_signed())
    }

    /// Finished txs whose block is at most this deep below the newest of them, in nonce order.
    fn finals(&self, watch_depth: u64) -> Vec<FinalTx> {
        let rows = self.nonces.iter();
        let rows = rows.map(|(nonce, id)| (*nonce, &self.txs[id].tx));
        let finals = rows.filter(|(_, tx)| !tx.is_open());
        let finals = finals.filter_map(|(nonce, tx)| {
            let mined = tx.inclusion.as_ref()?;
            Some(FinalTx {
                id: tx.id,
                nonce,
                block_number: mined.block_number,
                block_hash: mined.block_hash,
            })
        });
        let finals: Vec<FinalTx> = finals.collect();
        let newest = finals.last().map_or(0, |tx| tx.block_number);
        let is_watched = |tx: &FinalTx| tx.block_number.saturating_add(watch_depth) >= newest;
        finals.into_iter().filter(is_watched).collect()
    }

    /// The nonces of open txs as ranges, merged.
    fn held(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (nonce, _) in self.open() {
            match ranges.last_mut() {
                Some(last) if last.end == nonce.0 => last.end = nonce.next().0,
                Some(_) | None => ranges.push(nonce.0..nonce.next().0),
            }
        }
        ranges
    }
}

fn index_of(id: LaneId) -> Option<usize> {
    usize::try_from(id.0.checked_sub(1)?).ok()
}

pub(super) fn count(len: usize) -> u64 {
    u64::try_from(len).expect("a length fits")
}
