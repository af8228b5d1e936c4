//! Readers of the feed, as consumers have them: each reads page by page with its cursor during the run,
//! from any node that answers, and continues after the last event that it has processed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::LaneKey;
use engine::ports::{EventFilter, EventPage, StoreError};
use futures::future::join_all;

use super::WorkloadContext;
use crate::event::WorldEvent;
use crate::world::features::Feature;

/// The most readers of a world.
const READERS_MAX: u64 = 3;
/// The largest page.
const PAGE_MAX: u64 = 20;
/// The longest pause at the end of the feed.
const END_PAUSE_MS_MAX: u64 = 3_000;
/// The longest pause after a page.
const PAGE_PAUSE_MS_MAX: u64 = 200;

/// The position of each reader: the last number of each lane. Clones share the positions.
#[derive(Clone, Default)]
pub(in crate::world) struct ReaderProgress {
    last: Arc<Mutex<BTreeMap<usize, ReaderPosition>>>,
}

/// The position of one reader.
#[derive(Clone, Debug, Default)]
pub(in crate::world) struct ReaderPosition {
    /// The only lane that it reads, if any.
    pub(in crate::world) only: Option<LaneKey>,
    /// The last number of each lane.
    pub(in crate::world) last: BTreeMap<LaneKey, u64>,
}

impl ReaderProgress {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, ReaderPosition>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many events all readers have read.
    pub(in crate::world) fn events(&self) -> u64 {
        let positions = self.lock();
        positions.values().flat_map(|seen| seen.last.values()).sum()
    }

    /// The positions of all readers.
    pub(in crate::world) fn all(&self) -> BTreeMap<usize, ReaderPosition> {
        self.lock().clone()
    }
}

pub(super) async fn read_feed(context: WorkloadContext) {
    let count = context.rng.between(1, READERS_MAX);
    let readers = (0..count).map(|number| {
        let number = usize::try_from(number).unwrap_or(0);
        // Some read one lane only, as a client with one account does.
        let only = context.rng.permille(300);
        let only = only.then(|| *context.rng.pick(&context.plan.lanes()));
        let reader = Reader {
            number,
            only,
            after: None,
            context: context.split(),
        };
        context.progress.lock().entry(number).or_default().only = only;
        reader.read_feed()
    });
    join_all(readers).await;
}

struct Reader {
    number: usize,
    only: Option<LaneKey>,
    /// Its cursor: moves only with the events that it has processed.
    after: Option<String>,
    context: WorkloadContext,
}

impl Reader {
    async fn read_feed(mut self) {
        loop {
            let machine = self.context.pick_running_node().clone();
            let filter = EventFilter {
                after: self.after.clone(),
                chain_id: self.only.map(|lane| lane.chain_id),
                signer: self.only.map(|lane| lane.signer),
                kinds: Vec::new(),
                limit: usize::try_from(self.context.rng.between(1, PAGE_MAX)).unwrap_or(1),
            };
            let answer = self
                .context
                .call_node(&machine, |node| async move { node.events(&filter).await });
            let is_end = match answer.await {
                Some(Ok(page)) => self.process_page(&machine, &page),
                Some(Err(StoreError::Invalid(_))) => {
                    self.restart();
                    false
                }
                Some(Err(_)) | None => true, // treated as the end: it retries later
            };
            let rest = if is_end {
                END_PAUSE_MS_MAX
            } else {
                PAGE_PAUSE_MS_MAX
            };
            self.context.pause(0, rest).await;
        }
    }

    /// Processes a page, or only its first events: the rest is read again. Returns whether it was the end.
    fn process_page(&mut self, machine: &super::Machine, page: &EventPage) -> bool {
        let is_end = self.after.as_ref() == Some(&page.next);
        let count = u64::try_from(page.events.len()).unwrap_or(0);
        let cut = self.context.rng.between(0, count);
        let cut = usize::try_from(cut).unwrap_or(0);
        let (processed, next) = match page.events[..cut].last() {
            Some(last) if self.context.rng.permille(300) => (&page.events[..cut], &last.cursor),
            Some(_) | None => (&page.events[..], &page.next),
        };
        let read: Vec<(LaneKey, u64)> = processed
            .iter()
            .map(|recorded| (recorded.lane, recorded.event.seq))
            .collect();
        self.after = Some(next.clone());
        if !read.is_empty() {
            let mut positions = self.context.progress.lock();
            let seen = positions.entry(self.number).or_default();
            seen.last.extend(read.iter().copied());
            drop(positions);
            self.context.trace.fire(Feature::Readers);
            self.context.trace.record(WorldEvent::FeedRead {
                reader: self.number,
                node: machine.name().clone(),
                read,
            });
        }
        is_end
    }

    /// Its cursor belongs to a feed that was lost.
    fn restart(&mut self) {
        self.after = None;
        let reader = self.number;
        self.context
            .trace
            .record(WorldEvent::FeedRestarted { reader });
    }
}
