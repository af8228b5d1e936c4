//! Scheme 2: Redis issues, PostgreSQL reserves under the unique key, without the lane's row lock.
//!
//! Redis is never believed. A counter that is lost, behind or far ahead meets the key, or what is there already, and
//! is put where PostgreSQL says; so a nonce that was lent is not lent again, whatever Redis forgot. What was issued
//! and not reserved, because somebody died in between, is found by the sweep and is free after the grace.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::Script;
use async_trait::async_trait;
use domain::{Holder, LaneKey, Mark, Nonce, Reservation};
use engine::ports::{LaneReservations, ReservationError};

use super::{Borrow, Scheme, SchemeKind, Settlement, Watched};
use crate::postgres::{Books, Db, Reserved};
use crate::redis::{Away, Link, Redis};

static ISSUE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../redis/scripts/issue.lua")));

/// After so many issued nonces that could not be reserved PostgreSQL issues by itself.
const TRIES_MAX: usize = 6;

/// How far above all lent nonces an issued one may be: more than can be issued and not yet reserved at any moment.
const AHEAD_MAX: i64 = 4_096;

/// Scripts count in doubles, which are exact up to here.
const SCRIPT_MAX: u64 = 1 << 52;

/// Of how many lanes it is known that their counter is in order; then all are asked for again.
const NOTES_MAX: usize = 10_000;

/// Redis issues, PostgreSQL reserves.
pub struct RedisIssue {
    books: Books,
    redis: Arc<Redis>,
    grace: Duration,
    notes: Mutex<BTreeMap<LaneKey, Note>>,
    /// The last lane whose holes were looked for.
    holes_after: AtomicI32,
    is_closed: AtomicBool,
}

/// What is known of a lane.
#[derive(Clone, Copy, Debug, Default)]
struct Note {
    /// On which connection its counter was put in order: another one may lead to another counter.
    link: u64,
    /// Whether one is free, so that none need be issued. Only a hint.
    has_free: bool,
}

impl RedisIssue {
    /// With books in this database. A nonce that was issued and is not reserved after the grace is free: it must
    /// be longer than any allocation takes, or that one has to try again.
    #[must_use]
    pub fn new(db: Arc<Db>, redis: Arc<Redis>, grace: Duration) -> Self {
        Self {
            books: Books::new(db, SchemeKind::RedisIssue),
            redis,
            grace,
            notes: Mutex::new(BTreeMap::new()),
            holes_after: AtomicI32::new(0),
            is_closed: AtomicBool::new(false),
        }
    }

    async fn try_allocate(
        &self,
        lane: LaneKey,
        borrow: Borrow,
    ) -> Result<Option<Reservation>, ReservationError> {
        let mut known = None;
        if self.note(lane).has_free {
            match self.reserve(lane, borrow, None).await? {
                Reserved::LaneReservations { reservation, .. } => return Ok(Some(reservation)),
                Reserved::Refused { next } => known = Some(next),
            }
        }
        for _ in 0..TRIES_MAX {
            let link = match self.redis.link().await {
                Ok(link) => link,
                Err(away) => return self.without(away),
            };
            if known.is_none() && self.note(lane).link != link.number() {
                known = Some(self.books.next(lane, borrow.at_least).await?);
            }
            let issued = match self.issue(&link, lane, borrow.at_least, known).await {
                Ok(issued) => issued,
                Err(away) => return self.without(away),
            };
            let Some(issued) = issued else {
                known = Some(self.books.next(lane, borrow.at_least).await?);
                continue;
            };
            self.change_note(lane, |note| note.link = link.number());
            match self.reserve(lane, borrow, Some(issued)).await? {
                Reserved::LaneReservations { reservation, .. } => return Ok(Some(reservation)),
                Reserved::Refused { next } => known = Some(next),
            }
        }
        Ok(None)
    }

    /// Redis is away: PostgreSQL issues alone, if that is allowed.
    fn without(&self, away: Away) -> Result<Option<Reservation>, ReservationError> {
        match self.redis.config().degrade {
            true => Ok(None),
            false => Err(ReservationError::Unavailable(away.to_string())),
        }
    }

    async fn issue(
        &self,
        link: &Link,
        lane: LaneKey,
        at_least: Nonce,
        known: Option<Nonce>,
    ) -> Result<Option<Nonce>, Away> {
        if at_least.max(known.unwrap_or_default()).0 >= SCRIPT_MAX {
            return Err(Away("a script cannot count so far".into()));
        }
        let mut script = ISSUE.key(self.redis.key(lane, "next"));
        script.arg(at_least.0);
        match known {
            Some(next) => script.arg(next.0),
            None => script.arg(""),
        };
        script.arg(AHEAD_MAX);
        let issued: Option<u64> = self.redis.run(link, &script).await?;
        Ok(issued.map(Nonce))
    }

    async fn reserve(
        &self,
        lane: LaneKey,
        borrow: Borrow,
        issued: Option<Nonce>,
    ) -> Result<Reserved, ReservationError> {
        let reserved = self.books.reserve(lane, borrow, issued, AHEAD_MAX).await?;
        let has_free = match &reserved {
            Reserved::LaneReservations { has_free, .. } => *has_free,
            Reserved::Refused { .. } => false,
        };
        self.change_note(lane, |note| note.has_free = has_free);
        Ok(reserved)
    }

    fn note(&self, lane: LaneKey) -> Note {
        self.notes().get(&lane).copied().unwrap_or_default()
    }

    fn change_note(&self, lane: LaneKey, change: impl FnOnce(&mut Note)) {
        let mut notes = self.notes();
        if notes.len() >= NOTES_MAX && !notes.contains_key(&lane) {
            notes.clear();
        }
        change(notes.entry(lane).or_default());
    }

    fn notes(&self) -> MutexGuard<'_, BTreeMap<LaneKey, Note>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Scheme for RedisIssue {
    fn kind(&self) -> SchemeKind {
        SchemeKind::RedisIssue
    }

    async fn allocate(
        &self,
        lane: LaneKey,
        borrow: Borrow,
    ) -> Result<Reservation, ReservationError> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(super::closed());
        }
        match self.try_allocate(lane, borrow).await? {
            Some(reservation) => Ok(reservation),
            // The key is the same whoever issues, so both may at once.
            None => self.books.lend(lane, borrow).await,
        }
    }

    async fn mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: Mark,
    ) -> Result<Reservation, ReservationError> {
        let marked = self.books.mark(lane, nonce, holder, &mark).await?;
        match mark {
            Mark::Recyclable { .. } => self.change_note(lane, |note| note.has_free = true),
            Mark::Submitted(_) | Mark::Used(_) => {}
        }
        Ok(marked)
    }

    async fn reservation(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
    ) -> Result<Option<Reservation>, ReservationError> {
        self.books.reservation(lane, nonce, holder).await
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations, ReservationError> {
        self.books.list_reservations(lane).await
    }

    async fn to_watch(&self, limit: usize) -> Result<Vec<Watched>, ReservationError> {
        let after = self.holes_after.load(Ordering::Relaxed);
        let (last, closed) = self.books.close_holes(after, self.grace).await?;
        self.holes_after.store(last, Ordering::Relaxed);
        if closed > 0 {
            metrics::counter!("lanekeeper_nonce_holes_closed_total").increment(closed);
            tracing::info!(
                closed,
                "nonces were issued and never reserved: they are free"
            );
        }
        self.books.to_watch(limit).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<(), ReservationError> {
        self.books.settle(settlements).await
    }

    async fn close(&self) -> Result<(), ReservationError> {
        // Everything is in PostgreSQL already.
        self.is_closed.store(true, Ordering::Release);
        Ok(())
    }
}
