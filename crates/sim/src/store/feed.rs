//! The feed of all lanes: what the gate wrote gets its place here, later, in one order.
//!
//! PostgreSQL's gate cannot number events across lanes without making all lanes wait for one row, so
//! it is done by another statement, which any node may run at any time. The twin does the same: what
//! nobody has put into the feed is not in it.

use domain::{ChainId, Header, LaneId};

use super::rows::{LaneRow, Rows};

impl Rows {
    /// Gives these lanes' new events their places, in lane order; without lanes: those of all.
    pub(super) fn extend_feed(&mut self, lanes: &[LaneId]) {
        let Self {
            lanes: rows, feed, ..
        } = self;
        let named = |lane: &&mut LaneRow| lanes.is_empty() || lanes.contains(&lane.id);
        for lane in rows.iter_mut().filter(named) {
            let new = lane.events.len() - lane.fed.len();
            for row in &lane.events[lane.fed.len()..] {
                feed.push((lane.id, row.event.seq));
            }
            lane.fed.extend(feed.len() - new..feed.len());
        }
    }

    /// Remembers headers; known ones stay as they are.
    pub(super) fn put_headers(&mut self, chain: ChainId, headers: &[Header]) {
        for header in headers {
            self.headers.entry((chain, header.hash)).or_insert(*header);
        }
    }
}
