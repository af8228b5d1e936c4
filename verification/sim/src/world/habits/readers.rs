//! Readers of the feed, as a business has them: each pages along with its cursor while things happen, from
//! whichever node answers, and goes on from the last event that it has dealt with.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::LaneKey;
use engine::ports::{EventFilter, EventPage, StoreError};
use futures::future::join_all;

use super::Scene;
use crate::event::WorldEvent;

/// The most readers of a world.
const READERS_MAX: u64 = 3;
/// The largest page.
const PAGE_MAX: u64 = 20;
/// How long a reader rests at the end of the feed, at most.
const REST_MS_MAX: u64 = 3_000;
/// How long after a page, at most.
const BREATH_MS_MAX: u64 = 200;

/// How far each reader is: the last number of each lane. Clones are the same book.
#[derive(Clone, Default)]
pub(in crate::world) struct Progress {
    last: Arc<Mutex<BTreeMap<usize, Seen>>>,
}

/// What one reader has seen.
#[derive(Clone, Debug, Default)]
pub(in crate::world) struct Seen {
    /// It reads only this lane.
    pub(in crate::world) only: Option<LaneKey>,
    /// The last number of each lane.
    pub(in crate::world) last: BTreeMap<LaneKey, u64>,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Seen>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many events all of them have read.
    pub(in crate::world) fn events(&self) -> u64 {
        let books = self.lock();
        books.values().flat_map(|seen| seen.last.values()).sum()
    }

    /// How far all of them are.
    pub(in crate::world) fn all(&self) -> BTreeMap<usize, Seen> {
        self.lock().clone()
    }
}

pub(super) async fn read_for_ever(scene: Scene) {
    let count = scene.rng.between(1, READERS_MAX);
    let readers = (0..count).map(|number| {
        let number = usize::try_from(number).unwrap_or(0);
        // Some read one lane only, as a business with one account does.
        let only = scene.rng.permille(300);
        let only = only.then(|| *scene.rng.pick(&scene.plan.lanes()));
        let reader = Reader {
            number,
            only,
            after: None,
            scene: scene.split(),
        };
        scene.progress.lock().entry(number).or_default().only = only;
        reader.read_for_ever()
    });
    join_all(readers).await;
}

struct Reader {
    number: usize,
    only: Option<LaneKey>,
    /// Its cursor: moves only with what it has read.
    after: Option<String>,
    scene: Scene,
}

impl Reader {
    async fn read_for_ever(mut self) {
        loop {
            let machine = self.scene.some_node().clone();
            let filter = EventFilter {
                after: self.after.clone(),
                chain_id: self.only.map(|lane| lane.chain_id),
                signer: self.only.map(|lane| lane.signer),
                kinds: Vec::new(),
                limit: usize::try_from(self.scene.rng.between(1, PAGE_MAX)).unwrap_or(1),
            };
            let asked = self
                .scene
                .lease_request(&machine, |node| async move { node.events(&filter).await });
            let is_end = match asked.await {
                Some(Ok(page)) => self.take(&machine, &page),
                Some(Err(StoreError::Invalid(_))) => {
                    self.begin_anew();
                    false
                }
                Some(Err(_)) | None => true, // as if there were nothing: it asks again later
            };
            let rest = if is_end { REST_MS_MAX } else { BREATH_MS_MAX };
            self.scene.rest(0, rest).await;
        }
    }

    /// Takes a page, or the first events of it: the rest comes again. Says whether it was the end.
    fn take(&mut self, machine: &super::Machine, page: &EventPage) -> bool {
        let is_end = self.after.as_ref() == Some(&page.next);
        let count = u64::try_from(page.events.len()).unwrap_or(0);
        let cut = self.scene.rng.between(0, count);
        let cut = usize::try_from(cut).unwrap_or(0);
        let (taken, next) = match page.events[..cut].last() {
            Some(last) if self.scene.rng.permille(300) => (&page.events[..cut], &last.cursor),
            Some(_) | None => (&page.events[..], &page.next),
        };
        let read: Vec<(LaneKey, u64)> = taken
            .iter()
            .map(|told| (told.lane, told.event.seq))
            .collect();
        self.after = Some(next.clone());
        if !read.is_empty() {
            let mut books = self.scene.progress.lock();
            let seen = books.entry(self.number).or_default();
            seen.last.extend(read.iter().copied());
            drop(books);
            self.scene.trace.tell(WorldEvent::FeedRead {
                reader: self.number,
                node: machine.name().clone(),
                read,
            });
        }
        is_end
    }

    /// Its cursor is of a feed that was lost.
    fn begin_anew(&mut self) {
        self.after = None;
        let reader = self.number;
        self.scene.trace.tell(WorldEvent::FeedBegun { reader });
    }
}
