//! The feed of all lanes: what the gate wrote gets its place here, later, in one order.
//!
//! PostgreSQL's gate cannot number events across lanes without making all lanes wait for one row, so
//! it is done by another statement, which any node may run at any time. The twin does the same: what
//! nobody has put into the feed is not in it.

use domain::{ChainId, Header, LaneId};
use engine::ports::LaneBatch;

use super::rows::{LaneRow, Rows};

impl Rows {
    /// Gives these lanes' new events their places, in lane order; without lanes: those of all.
    pub(super) fn extend_feed(&mut self, lanes: &[LaneId]) {
        let unfed = self.unfed(lanes);
        self.feed(&unfed);
    }

    /// Up to where the feed of these lanes goes, once what they lack is in it; without lanes: of all.
    pub(super) fn unfed(&self, lanes: &[LaneId]) -> Vec<(LaneId, usize)> {
        let named = |lane: &&LaneRow| lanes.is_empty() || lanes.contains(&lane.id);
        let named = self.lanes.iter().filter(named);
        let behind = named.filter(|lane| lane.fed.len() < lane.events.len());
        behind.map(|lane| (lane.id, lane.events.len())).collect()
    }

    /// Gives events their places, in this order.
    pub(super) fn feed(&mut self, until: &[(LaneId, usize)]) {
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

    /// Deals places to events that are about to be written, whether or not they ever are: what an id from
    /// a sequence does (`Mutation::ReadEventsByGlobalId`). The first of them.
    pub(super) fn deal_places(&mut self, batch: &LaneBatch) -> usize {
        let place = self.feed.len();
        let seqs = batch.writes.events.iter().map(|event| event.seq);
        self.feed
            .extend(seqs.map(|seq| (batch.lease_grant.lane, seq)));
        place
    }

    /// The events of a lane that were just written stand where they were dealt their places.
    pub(super) fn take_places(&mut self, lane: LaneId, first: usize) {
        if let Some(lane) = self.lane_mut(lane) {
            let new = lane.events.len() - lane.fed.len();
            lane.fed.extend(first..first + new);
        }
    }

    /// Remembers headers; known ones stay as they are.
    pub(super) fn put_headers(&mut self, chain: ChainId, headers: &[Header]) {
        for header in headers {
            self.headers.entry((chain, header.hash)).or_insert(*header);
        }
    }
}
