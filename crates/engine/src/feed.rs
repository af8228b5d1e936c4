//! From lanes to the feed of all lanes: what keepers wrote is put in line for readers.
//!
//! A lane's events are durable and in order with its commit. Their place among those of other lanes is
//! given here, a moment later and for many commits at once, so that no commit waits for it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::LaneId;
use tokio::sync::Notify;

use crate::core::Core;

/// What was written meanwhile goes along.
const PACE: Duration = Duration::from_millis(20);
/// How often is looked for what keepers wrote that ended before they said so.
const SWEEP_PERIOD: Duration = Duration::from_secs(30);

/// The lanes that have written since the last time.
#[derive(Default)]
pub(crate) struct Feed {
    written: Mutex<BTreeSet<LaneId>>,
    bell: Notify,
}

impl Feed {
    /// A lane has written events.
    pub(crate) fn wrote(&self, lane: LaneId) {
        self.put([lane]);
        self.bell.notify_one();
    }

    fn put(&self, lanes: impl IntoIterator<Item = LaneId>) {
        let mut written = self
            .written
            .lock()
            .expect("nothing panics while it holds this lock");
        written.extend(lanes);
    }

    fn take(&self) -> Vec<LaneId> {
        let mut written = self
            .written
            .lock()
            .expect("nothing panics while it holds this lock");
        std::mem::take(&mut *written).into_iter().collect()
    }
}

/// Extends the feed whenever something was written, and rings the bell of its readers.
pub(crate) async fn extend_for_ever(core: Arc<Core>) {
    let mut tries = 0;
    loop {
        core.feed.bell.notified().await;
        core.ports.clock.sleep(PACE).await;
        let lanes = core.feed.take();
        if lanes.is_empty() {
            continue;
        }
        match core.ports.store.extend_feed(&lanes).await {
            Ok(()) => {
                tries = 0;
                core.ring_events();
            }
            Err(error) => {
                tracing::warn!(%error, lanes = lanes.len(), "the feed was not extended; trying again");
                core.feed.put(lanes);
                core.back_off(&mut tries).await;
                core.feed.bell.notify_one();
            }
        }
    }
}

/// Puts into the feed what keepers wrote that ended in the moment between.
pub(crate) async fn sweep_for_ever(core: Arc<Core>) {
    loop {
        if let Err(error) = core.ports.store.extend_feed(&[]).await {
            tracing::warn!(%error, "the feed was not swept");
        }
        core.ports.clock.sleep(SWEEP_PERIOD).await;
    }
}
