//! Reads: txs, events and lanes, at present.

use domain::{B256, ChainId, Header, LaneKey, RequestId, Tx, TxId};
use engine::ports::{
    EventFilter, EventPage, EventRecord, LaneRecord, StoreError, TxFilter, TxPage, TxRecord,
};

use super::rows::{LaneRow, Rows, TxRow, count};

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

    pub(super) fn txs(&self, filter: &TxFilter) -> TxPage {
        let older = match filter.after {
            Some(after) => self.tx_lanes.range(..after),
            None => self.tx_lanes.range::<TxId, _>(..),
        };
        let rows = older.rev().filter_map(|(id, _)| self.tx_row(*id));
        let mut wanted = rows.filter(|(lane, row)| {
            filter.chain_id.is_none_or(|id| id == lane.key.chain_id)
                && filter.signer.is_none_or(|signer| signer == lane.key.signer)
                && filter.state.is_none_or(|state| state == row.tx.state)
        });
        let page = wanted
            .by_ref()
            .take(filter.limit)
            .map(|(lane, row)| self.record(lane, row));
        let txs: Vec<TxRecord> = page.collect();
        let has_more = wanted.next().is_some();
        let next = txs.last().filter(|_| has_more).map(|record| record.tx.id);
        TxPage { txs, next }
    }

    pub(super) fn tx_events(&self, id: TxId) -> Result<Option<Vec<EventRecord>>, StoreError> {
        let Some((lane, row)) = self.tx_row(id) else {
            return Ok(None);
        };
        let history = row.tx.event_seqs.iter().map(|seq| {
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

    pub(super) fn lane_record(&self, key: LaneKey) -> Option<LaneRecord> {
        let lane = self.lane(*self.lane_ids.get(&key)?)?;
        Some(LaneRecord {
            key,
            lease: lane.lease.clone(),
            next_nonce: lane.next_nonce,
            paused: lane.paused,
            halted: lane.halted.clone(),
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
        }
    }

    /// The headers from `block` up to `counted`, oldest first: the walk along parents, reversed.
    /// `None` when a header on the way is missing.
    fn walk(&self, chain: ChainId, block: B256, counted: B256) -> Option<Vec<Header>> {
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

impl LaneRow {
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
