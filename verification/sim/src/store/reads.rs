//! Reads: txs, events and lanes, at present.

use std::cmp::Reverse;
use std::collections::btree_map::Range;

use domain::lane::HeadWait;
use domain::{B256, ChainId, Header, LaneId, LaneKey, Nonce, RequestId, Tx, TxId};
use engine::ports::{
    ChangedTxs, EventFilter, EventPage, EventRecord, LanePlace, LaneRecord, StoreError, TxCursor,
    TxFilter, TxPage, TxRecord,
};
use uuid::Uuid;

use super::rows::{LaneRow, Rows, TxRow, count};

/// The most events of one page that is read for waiters.
const CHANGED_MAX: usize = 1_000;

impl Rows {
    pub(super) fn tx(&self, id: TxId) -> Option<TxRecord> {
        self.tx_row(id).map(|(lane, row)| self.record(lane, row))
    }

    pub(super) fn tx_by_request(&self, lane: LaneKey, request_id: &RequestId) -> Option<TxRecord> {
        let lane = self.lane(*self.lane_ids.get(&lane)?)?;
        self.tx(*lane.requests.get(request_id)?)
    }

    pub(super) fn tx_by_hash(&self, hash: B256) -> Option<TxRecord> {
        self.tx(*self.hashes.get(&hash)?)
    }

    pub(super) fn txs(&self, filter: &TxFilter) -> Result<TxPage, StoreError> {
        let foreign = |cursor: TxCursor| {
            StoreError::Invalid(format!("{cursor:?} is not a place in this list"))
        };
        if let Some(cursor) = filter.after.filter(|cursor| !filter.has_place(*cursor)) {
            return Err(foreign(cursor));
        }
        let listed: Vec<(&LaneRow, &TxRow)> = match filter.after {
            Some(TxCursor::After(after)) => self.txs_below(self.tx_lanes.range(..after)),
            Some(cursor @ TxCursor::InLane(key, place)) => {
                let first = self.lane_ids.get(&key).ok_or_else(|| foreign(cursor))?;
                let lanes = self.lanes.iter().filter(|lane| lane.id >= *first);
                let mut listed: Vec<_> = lanes.flat_map(LaneRow::in_list_order).collect();
                let is_behind = |(lane, row): &(&LaneRow, &TxRow)| {
                    lane.key != key || list_rank(&row.tx) > place_rank(place)
                };
                listed.retain(is_behind);
                listed
            }
            None if filter.is_by_lane() => {
                let lanes = self.lanes.iter();
                lanes.flat_map(LaneRow::in_list_order).collect()
            }
            None => self.txs_below(self.tx_lanes.range::<TxId, _>(..)),
        };
        let mut wanted = listed.into_iter().filter(|(lane, row)| {
            filter.has_lane(lane.key) && filter.state.is_none_or(|state| state == row.tx.state)
        });
        let page = wanted.by_ref().take(filter.limit);
        let page: Vec<(&LaneRow, &TxRow)> = page.collect();
        let has_more = wanted.next().is_some();
        let next = page.last().filter(|_| has_more).map(|(lane, row)| {
            let tx = &row.tx;
            match filter.is_by_lane() {
                true => TxCursor::InLane(lane.key, LanePlace::of(tx.id, tx.nonce)),
                false => TxCursor::After(tx.id),
            }
        });
        let page = page.into_iter();
        Ok(TxPage {
            txs: page.map(|(lane, row)| self.record(lane, row)).collect(),
            next,
        })
    }

    /// The rows of these txs, newest first.
    fn txs_below(&self, older: Range<'_, TxId, LaneId>) -> Vec<(&LaneRow, &TxRow)> {
        let rows = older.rev().filter_map(|(id, _)| self.tx_row(*id));
        rows.collect()
    }

    pub(super) fn tx_events(&self, id: TxId) -> Result<Option<Vec<EventRecord>>, StoreError> {
        let Some((lane, row)) = self.tx_row(id) else {
            return Ok(None);
        };
        let history = row.tx.history.event_seqs.iter().map(|seq| {
            let event = self.event(lane, *seq);
            event.ok_or_else(|| {
                StoreError::Corrupt(format!("tx {id} names event {seq}, which does not exist"))
            })
        });
        history.collect::<Result<Vec<_>, _>>().map(Some)
    }

    pub(super) fn events(&self, filter: &EventFilter) -> Result<EventPage, StoreError> {
        let from = filter
            .after
            .as_deref()
            .map_or(Ok(0), |after| self.position(after))?;
        let mut events = Vec::new();
        let mut next = from;
        for (position, (lane, seq)) in self.feed.iter().enumerate().skip(from) {
            if events.len() >= filter.limit {
                break;
            }
            let lane = self.lane(*lane).expect("the feed names lanes");
            // A position that was reserved for an event that is not written yet, or never was.
            if !lane.is_at(*seq, position) {
                continue;
            }
            next = position + 1;
            let event = self.event(lane, *seq).expect("the feed names events");
            if is_wanted(&event, filter) {
                events.push(event);
            }
        }
        Ok(EventPage {
            events,
            next: cursor(next),
        })
    }

    pub(super) fn changed_txs(&self, after: Option<&str>) -> Result<ChangedTxs, StoreError> {
        let Some(after) = after else {
            let mut positions = self.feed.iter().enumerate().rev();
            let last = positions.find(|(position, (lane, seq))| {
                self.lane(*lane)
                    .is_some_and(|lane| lane.is_at(*seq, *position))
            });
            return Ok(ChangedTxs {
                txs: Vec::new(),
                next: cursor(last.map_or(0, |(position, _)| position + 1)),
            });
        };
        let page = self.events(&EventFilter {
            after: Some(after.to_owned()),
            limit: CHANGED_MAX,
            ..EventFilter::default()
        })?;
        let txs = page.events.iter();
        Ok(ChangedTxs {
            txs: txs.filter_map(|record| record.event.tx_id).collect(),
            next: page.next,
        })
    }

    pub(super) fn lane_record(&self, key: LaneKey) -> Option<LaneRecord> {
        let lane = self.lane(*self.lane_ids.get(&key)?)?;
        Some(LaneRecord {
            key,
            lease: lane.lease.clone(),
            next_nonce: lane.next_nonce,
            batch_seq: lane.batch_seq,
            paused: lane.paused,
            halted: lane.halted.clone(),
            wait: lane.head.clone().and_then(HeadWait::into_lane_wait),
            in_flight: count(lane.open().count()),
            queued: count(lane.wakes.len()),
        })
    }

    /// The position in the feed that a cursor names.
    fn position(&self, text: &str) -> Result<usize, StoreError> {
        let position = text
            .strip_prefix('m')
            .and_then(|digits| digits.parse::<usize>().ok());
        position
            .filter(|position| *position <= self.feed.len())
            .ok_or_else(|| StoreError::Invalid(format!("{text:?} is not a cursor of this feed")))
    }

    /// An event of a lane. One that is not in the feed gets the feed's end as its cursor: reading from there
    /// returns it (again), and skips nothing.
    fn event(&self, lane: &LaneRow, seq: u64) -> Option<EventRecord> {
        let place = usize::try_from(seq.checked_sub(1)?).ok()?;
        let row = lane.events.get(place)?;
        let position = lane.fed.get(place).map(|position| position + 1);
        let walk = row.event.kind.counted();
        let confirmations =
            walk.and_then(|(block, counted)| self.walk(lane.key.chain_id, block, counted));
        Some(EventRecord {
            lane: lane.key,
            node: row.node.clone(),
            token: row.token,
            event: row.event.clone(),
            confirmations: confirmations.unwrap_or_default(),
            cursor: cursor(position.unwrap_or(self.feed.len())),
        })
    }

    fn record(&self, lane: &LaneRow, row: &TxRow) -> TxRecord {
        let confirmations = confirmed_span(&row.tx)
            .and_then(|(block, counted)| self.walk(lane.key.chain_id, block, counted));
        TxRecord {
            lane: lane.key,
            tx: row.tx.clone(),
            attempts: row.attempts.clone(),
            confirmations: confirmations.unwrap_or_default(),
            lane_wait: lane.head.clone().and_then(HeadWait::into_lane_wait),
        }
    }

    /// The headers from `block` up to `counted`, oldest first: the walk along parents, reversed.
    /// `None` when a header on the way is missing.
    pub(super) fn walk(&self, chain: ChainId, block: B256, counted: B256) -> Option<Vec<Header>> {
        let mut walked = Vec::new();
        let mut at = counted;
        loop {
            let header = self.headers.get(&(chain, at))?;
            walked.push(*header);
            if at == block {
                walked.reverse();
                return Some(walked);
            }
            at = header.parent_hash;
        }
    }
}

/// The order of a lane's txs in a list: without a nonce first, the newest first, then the highest nonce first.
fn list_rank(tx: &Tx) -> (bool, Reverse<Option<Nonce>>, Reverse<TxId>) {
    (tx.nonce.is_some(), Reverse(tx.nonce), Reverse(tx.id))
}

fn place_rank(place: LanePlace) -> (bool, Reverse<Option<Nonce>>, Reverse<TxId>) {
    match place {
        LanePlace::WithoutNonce(id) => (false, Reverse(None), Reverse(id)),
        // Behind any tx that has this nonce.
        LanePlace::WithNonce(nonce) => (true, Reverse(Some(nonce)), Reverse(TxId(Uuid::nil()))),
    }
}

impl LaneRow {
    /// Its txs in the order of a list.
    fn in_list_order(&self) -> Vec<(&Self, &TxRow)> {
        let mut rows: Vec<_> = self.txs.values().map(|row| (self, row)).collect();
        rows.sort_by_key(|(_, row)| list_rank(&row.tx));
        rows
    }

    /// Whether an event is at this position of the feed.
    fn is_at(&self, seq: u64, position: usize) -> bool {
        let place = usize::try_from(seq.saturating_sub(1)).ok();
        place.and_then(|place| self.fed.get(place)) == Some(&position)
    }
}

fn is_wanted(record: &EventRecord, filter: &EventFilter) -> bool {
    let EventRecord { lane, event, .. } = record;
    filter.chain_id.is_none_or(|id| id == lane.chain_id)
        && filter.signer.is_none_or(|signer| signer == lane.signer)
        && (filter.kinds.is_empty() || filter.kinds.iter().any(|kind| kind == event.kind.as_str()))
}

fn confirmed_span(tx: &Tx) -> Option<(B256, B256)> {
    Some((tx.inclusion.as_ref()?.block_hash, tx.counted?))
}

fn cursor(position: usize) -> String {
    format!("m{position}")
}
