//! The feed of all lanes: events that the gate wrote get their positions here, later, in one order.
//!
//! PostgreSQL's gate cannot number events across lanes without making all lanes wait for one row, so
//! another statement does it, which any node may run at any time. The twin does the same: events are in the
//! feed only after that call.

use domain::{ChainId, Header, LaneId};
use engine::ports::LaneBatch;

use super::rows::{LaneRow, Rows};

impl Rows {
    /// Assigns positions to new events of these lanes, in lane order; without lanes: of all lanes.
    pub(super) fn extend_feed(&mut self, lanes: &[LaneId]) {
        let unfed = self.missing_from_feed(lanes);
        self.append_to_feed(&unfed);
    }

    /// Up to which event the feed must be extended for these lanes; without lanes: for all lanes.
    pub(super) fn missing_from_feed(&self, lanes: &[LaneId]) -> Vec<(LaneId, usize)> {
        let named = |lane: &&LaneRow| lanes.is_empty() || lanes.contains(&lane.id);
        let named = self.lanes.iter().filter(named);
        let behind = named.filter(|lane| lane.fed.len() < lane.events.len());
        behind.map(|lane| (lane.id, lane.events.len())).collect()
    }

    /// Assigns positions to events, in this order.
    pub(super) fn append_to_feed(&mut self, until: &[(LaneId, usize)]) {
        for (id, end) in until {
            let place = self.feed.len();
            let Some(lane) = self.lane_mut(*id) else {
                continue;
            };
            let Some(new) = lane.events.get(lane.fed.len()..*end) else {
                continue;
            };
            let seqs: Vec<u64> = new.iter().map(|row| row.event.seq).collect();
            lane.fed.extend(place..place + seqs.len());
            self.feed.extend(seqs.into_iter().map(|seq| (*id, seq)));
        }
    }

    /// Reserves positions for events that are about to be written, whether or not they ever are: what an id from
    /// a sequence does (`Mutation::ReadEventsByGlobalId`). Returns the first position.
    pub(super) fn reserve_feed_positions(&mut self, batch: &LaneBatch) -> usize {
        let place = self.feed.len();
        let seqs = batch.writes.events.iter().map(|event| event.seq);
        self.feed
            .extend(seqs.map(|seq| (batch.lease_grant.lane, seq)));
        place
    }

    /// Puts the events of a lane that were just written at their reserved positions.
    pub(super) fn fill_feed_positions(&mut self, lane: LaneId, first: usize) {
        if let Some(lane) = self.lane_mut(lane) {
            let new = lane.events.len() - lane.fed.len();
            lane.fed.extend(first..first + new);
        }
    }

    /// Stores headers; known ones stay unchanged.
    pub(super) fn put_headers(&mut self, chain: ChainId, headers: &[Header]) {
        for header in headers {
            self.headers.entry((chain, header.hash)).or_insert(*header);
        }
    }
}
