//! Loading a lane: several statements; the answer is valid only if the lane was not written in between.

use std::sync::Arc;

use crate::mutation::{self, Mutation};
use domain::{LaneImage, LaneKey, LeaseGrant};

use super::Server;
use crate::event::WorldEvent;

impl Server {
    /// Loads a lane that was granted; `None` when the grant is stale, or a batch was applied in between.
    pub(in crate::store) async fn load(
        &self,
        key: LaneKey,
        lease_grant: LeaseGrant,
        watch_depth: u64,
    ) -> Option<LaneImage> {
        let image = self.read_lane(key, lease_grant, watch_depth).await?;
        self.store.record(|| WorldEvent::Loaded {
            lane: key,
            image: Arc::new(image.clone()),
        });
        Some(image)
    }

    async fn read_lane(
        &self,
        key: LaneKey,
        lease_grant: LeaseGrant,
        watch_depth: u64,
    ) -> Option<LaneImage> {
        let lane_row = || self.read(|rows| rows.load(key, lease_grant, watch_depth));
        let rows = || {
            self.read(|rows| {
                let lane = rows.lane(lease_grant.lane)?;
                Some(lane.image(lease_grant, watch_depth))
            })
        };
        let before = lane_row()?;
        if mutation::is_on(Mutation::LoadInTakeover) {
            let kept = self.store.read_in_takeover();
            let read = kept.get(&lease_grant.grant);
            return read.map(|lane| lane.image(lease_grant, watch_depth));
        }
        self.pause().await;
        let nonces = rows()?;
        self.pause().await;
        let in_flight = rows()?.in_flight;
        self.pause().await;
        let mined = rows()?.mined;
        self.pause().await;
        let after = lane_row()?;
        if (after.batch_seq, after.event_seq) != (before.batch_seq, before.event_seq) {
            return None;
        }
        Some(LaneImage {
            in_flight,
            backlog_from: nonces.backlog_from,
            held: nonces.held,
            consumed_below: nonces.consumed_below,
            mined,
            ..after
        })
    }
}
