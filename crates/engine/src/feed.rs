//! The feed of all lanes: events that keepers wrote get their place in it.
//!
//! A lane's events are durable and in order with its commit. Their place among those of other lanes is
//! assigned here, a moment later and for many commits at once, so that no commit waits for it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::LaneId;
use tokio::sync::{Notify, watch};

use crate::core::{Core, lock};
use crate::ports::StoreError;

/// How long commits are collected before the feed is extended.
const EXTEND_DELAY: Duration = Duration::from_millis(20);
/// How often the feed is extended by events of keepers that ended before they extended it.
const SWEEP_PERIOD: Duration = Duration::from_secs(30);

/// How often the feed is read for waiters of txs whose lanes other nodes keep.
const TAIL_PERIOD: Duration = Duration::from_millis(250);

#[derive(Default)]
pub(crate) struct Feed {
    /// The lanes that have written events since the last extension.
    written: Mutex<BTreeSet<LaneId>>,
    wakeup: Notify,
    /// Notified when the feed was extended; carries no data.
    readers: watch::Sender<u64>,
}

impl Feed {
    pub(crate) fn mark_written(&self, lanes: impl IntoIterator<Item = LaneId>) {
        lock(&self.written).extend(lanes);
        self.wakeup.notify_one();
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.readers.subscribe()
    }
}

/// Extends the feed whenever events were written, and notifies its readers.
pub(crate) async fn run_feed(core: Arc<Core>) {
    let feed = &core.feed;
    let mut tries = 0;
    loop {
        feed.wakeup.notified().await;
        core.ports.clock.sleep(EXTEND_DELAY).await;
        let lanes = std::mem::take(&mut *lock(&feed.written));
        let lanes: Vec<LaneId> = lanes.into_iter().collect();
        if lanes.is_empty() {
            continue;
        }
        match core.ports.store.extend_feed(&lanes).await {
            Ok(()) => {
                tries = 0;
                feed.readers
                    .send_modify(|count| *count = count.wrapping_add(1));
            }
            Err(error) => {
                tracing::warn!(%error, lanes = lanes.len(), "the feed could not be extended; retrying");
                core.back_off(&mut tries).await;
                feed.mark_written(lanes);
            }
        }
    }
}

/// Extends the feed by events of keepers that ended between their commit and its extension.
pub(crate) async fn run_feed_sweep(core: Arc<Core>) {
    loop {
        if let Err(error) = core.ports.store.extend_feed(&[]).await {
            tracing::warn!(%error, "the feed could not be swept");
        }
        core.ports.clock.sleep(SWEEP_PERIOD).await;
    }
}

/// Reads the end of the feed for all waiters of this node at once, and wakes those whose txs changed. A keeper notifies
/// the waiters of its own lanes by itself, so the feed is read only while a caller waits for a tx of another lane.
pub(crate) async fn run_feed_tail(core: Arc<Core>) {
    let waiters = &core.customers.waiters;
    let mut cursor: Option<String> = None;
    let mut tries = 0;
    loop {
        if waiters.count() == 0 {
            cursor = None;
            waiters.wait_until_any().await;
        }
        if waiters.has_any_outside(|lane| core.leases.holds(lane)) {
            match read_tail(&core, &mut cursor).await {
                Ok(()) => tries = 0,
                Err(error) => {
                    tracing::warn!(%error, "the feed could not be read for waiters; retrying");
                    core.back_off(&mut tries).await;
                }
            }
        } else {
            cursor = None;
        }
        core.ports.clock.sleep(TAIL_PERIOD).await;
    }
}

/// Reads the feed from the cursor to its end. Without a cursor it begins at the end, and wakes the waiters of other
/// nodes' lanes once: what changed before is not read here. A waiter that registers later reads its tx after this.
async fn read_tail(core: &Core, cursor: &mut Option<String>) -> Result<(), StoreError> {
    let waiters = &core.customers.waiters;
    loop {
        let after = cursor.clone();
        let page = match core.ports.store.changed_txs(after.as_deref()).await {
            // The store lost the end of its feed in a failover.
            Err(StoreError::Invalid(_)) if after.is_some() => {
                *cursor = None;
                continue;
            }
            page @ (Ok(_) | Err(_)) => page?,
        };
        match after {
            None => waiters.notify_outside(|lane| core.leases.holds(lane)),
            Some(_) => waiters.notify_waiters_of(page.txs),
        }
        let is_at_end = after.is_none_or(|after| after == page.next);
        *cursor = Some(page.next);
        if is_at_end {
            return Ok(());
        }
    }
}
