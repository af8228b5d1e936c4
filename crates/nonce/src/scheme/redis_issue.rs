//! Scheme `redis-issue`: a counter in Redis allocates the nonce, PostgreSQL reserves it.
//!
//! The reservation is an insert under the unique key (lane, nonce), without the lane's row lock, so processes do not
//! wait for each other. Redis is never trusted: a counter that is lost, behind or far ahead collides with the key or is
//! refused, and is then set to the value that PostgreSQL gives. So a nonce is not reserved twice, whatever Redis lost.
//! A nonce that was allocated and not reserved, because its process died in between, is a hole: the sweep finds it and
//! frees it after a grace. While Redis is unavailable PostgreSQL allocates alone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::redis::Script;
use async_trait::async_trait;
use domain::{LaneKey, Mark, Nonce, Reservation};
use engine::ports::LaneReservations;
use parking_lot::Mutex;

use super::{
    ConditionalVerdict, ReservationKey, ReserveRequest, Scheme, SchemeKind, WatchedReservation,
};
use crate::Result;
use crate::postgres::{Ledger, Pool, ReserveOutcome};
use crate::redis::{Redis, RedisConnection, RedisUnavailable, SCRIPT_INTEGER_MAX};

static ISSUE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../redis/scripts/issue.lua")));

/// After so many refused nonces PostgreSQL allocates alone.
const TRIES_MAX: usize = 6;

/// How far above all reserved nonces an allocated one may be: more than can be in progress at any time.
const AHEAD_MAX: i64 = 4_096;

/// Number of lanes with a hint; beyond it, all hints are dropped.
const HINTS_MAX: usize = 10_000;

/// The scheme `redis-issue`.
pub struct RedisIssue {
    ledger: Ledger,
    redis: Arc<Redis>,
    grace: Duration,
    hints: Mutex<BTreeMap<LaneKey, LaneHint>>,
    /// The last lane that was searched for holes.
    holes_after: AtomicI32,
    is_closed: AtomicBool,
}

/// What this process remembers of a lane.
#[derive(Clone, Copy, Debug, Default)]
struct LaneHint {
    /// The connection on which the counter was checked: another connection may lead to another server.
    connection: u64,
    /// Whether a nonce is recyclable, so that none needs to be allocated. Only a hint.
    has_free: bool,
}

impl RedisIssue {
    /// Uses the ledger in this database. A nonce that was allocated and is not reserved after the grace is freed; the
    /// grace must exceed the duration of an allocation, which otherwise has to retry.
    #[must_use]
    pub fn new(db: Arc<Pool>, redis: Arc<Redis>, grace: Duration) -> Self {
        Self {
            ledger: Ledger::new(db, SchemeKind::RedisIssue),
            redis,
            grace,
            hints: Mutex::new(BTreeMap::new()),
            holes_after: AtomicI32::new(0),
            is_closed: AtomicBool::new(false),
        }
    }

    async fn try_allocate(
        &self,
        lane: LaneKey,
        request: ReserveRequest,
    ) -> Result<Option<Reservation>> {
        let mut known = None;
        if self.hint(lane).has_free {
            match self.reserve(lane, request, None).await? {
                ReserveOutcome::Reserved { reservation, .. } => return Ok(Some(reservation)),
                ReserveOutcome::Refused { next } => known = Some(next),
            }
        }
        for _ in 0..TRIES_MAX {
            let connection = match self.redis.connection().await {
                Ok(connection) => connection,
                Err(unavailable) => return self.redis.fall_back(unavailable),
            };
            if known.is_none() && self.hint(lane).connection != connection.number() {
                known = Some(self.ledger.query_next_nonce(lane, request.at_least).await?);
            }
            let issued = match self.issue(&connection, lane, request.at_least, known).await {
                Ok(issued) => issued,
                Err(unavailable) => return self.redis.fall_back(unavailable),
            };
            let Some(issued) = issued else {
                known = Some(self.ledger.query_next_nonce(lane, request.at_least).await?);
                continue;
            };
            self.update_hint(lane, |hint| hint.connection = connection.number());
            match self.reserve(lane, request, Some(issued)).await? {
                ReserveOutcome::Reserved { reservation, .. } => return Ok(Some(reservation)),
                ReserveOutcome::Refused { next } => known = Some(next),
            }
        }
        Ok(None)
    }

    async fn issue(
        &self,
        connection: &RedisConnection,
        lane: LaneKey,
        at_least: Nonce,
        known: Option<Nonce>,
    ) -> Result<Option<Nonce>, RedisUnavailable> {
        if at_least.max(known.unwrap_or_default()).0 >= SCRIPT_INTEGER_MAX {
            return Err(RedisUnavailable(
                "the nonce exceeds the integer range of Lua scripts".into(),
            ));
        }
        let mut script = ISSUE.key(self.redis.key(lane, "next"));
        script.arg(at_least.0);
        match known {
            Some(next) => script.arg(next.0),
            None => script.arg(""),
        };
        script.arg(AHEAD_MAX);
        let issued: Option<u64> = self.redis.run(connection, &script).await?;
        Ok(issued.map(Nonce))
    }

    async fn reserve(
        &self,
        lane: LaneKey,
        request: ReserveRequest,
        issued: Option<Nonce>,
    ) -> Result<ReserveOutcome> {
        let reserved = self
            .ledger
            .reserve_issued(lane, request, issued, AHEAD_MAX)
            .await?;
        let has_free = match &reserved {
            ReserveOutcome::Reserved { has_free, .. } => *has_free,
            ReserveOutcome::Refused { .. } => false,
        };
        self.update_hint(lane, |hint| hint.has_free = has_free);
        Ok(reserved)
    }

    fn hint(&self, lane: LaneKey) -> LaneHint {
        self.hints.lock().get(&lane).copied().unwrap_or_default()
    }

    fn update_hint(&self, lane: LaneKey, change: impl FnOnce(&mut LaneHint)) {
        let mut hints = self.hints.lock();
        if hints.len() >= HINTS_MAX && !hints.contains_key(&lane) {
            hints.clear();
        }
        change(hints.entry(lane).or_default());
    }
}

#[async_trait]
impl Scheme for RedisIssue {
    fn kind(&self) -> SchemeKind {
        SchemeKind::RedisIssue
    }

    async fn allocate(&self, lane: LaneKey, request: ReserveRequest) -> Result<Reservation> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(super::closed_error());
        }
        match self.try_allocate(lane, request).await? {
            Some(reservation) => Ok(reservation),
            // The unique key decides, so both ways may run at the same time.
            None => self.ledger.reserve_next(lane, request).await,
        }
    }

    async fn mark(&self, key: ReservationKey, mark: Mark) -> Result<Reservation> {
        let marked = self.ledger.mark(key, &mark).await?;
        match mark {
            Mark::Recyclable { .. } => self.update_hint(key.lane, |hint| hint.has_free = true),
            Mark::Submitted(_) | Mark::Used(_) => {}
        }
        Ok(marked)
    }

    async fn find_reservation(&self, key: ReservationKey) -> Result<Option<Reservation>> {
        self.ledger.find_reservation(key).await
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations> {
        self.ledger.list_reservations(lane).await
    }

    async fn list_watched(&self, limit: usize) -> Result<Vec<WatchedReservation>> {
        let after = self.holes_after.load(Ordering::Relaxed);
        let (last, closed) = self.ledger.close_gaps(after, self.grace).await?;
        self.holes_after.store(last, Ordering::Relaxed);
        if closed > 0 {
            metrics::counter!("lanekeeper_nonce_holes_closed_total").increment(closed);
            tracing::info!(
                closed,
                "freed nonces that were allocated and never reserved"
            );
        }
        self.ledger.list_watched(limit).await
    }

    async fn list_overdue(&self, limit: usize) -> Result<Vec<WatchedReservation>> {
        self.ledger.list_overdue(limit).await
    }

    async fn apply_verdicts(&self, verdicts: &[ConditionalVerdict]) -> Result<()> {
        self.ledger.apply_verdicts(verdicts).await
    }

    async fn close(&self) -> Result<()> {
        // PostgreSQL has everything already.
        self.is_closed.store(true, Ordering::Release);
        Ok(())
    }
}
