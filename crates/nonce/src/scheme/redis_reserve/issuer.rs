//! Issues nonces through Redis.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{LaneKey, Mark, Nonce, Reservation};
use engine::ports::{Clock, ReservationError};
use uuid::Uuid;

use super::super::write_behind::{
    BlockLease, WriteObserver, Writer, enqueue_handout, warn_late_reservation,
};
use super::super::{ReservationKey, ReserveRequest};
use super::RedisReserveConfig;
use super::lane_states::LaneStates;
use super::scripts::{self, GenerationKeys, IssuedNonce, ScriptAnswer, UnrecordedReservation};
use crate::Result;
use crate::postgres::{
    BlockLeaseTerms, BlockRequest, EntryKind, Handout, Ledger, LedgerEntry, WriteOutcome,
};
use crate::redis::{Redis, RedisConnection, RedisUnavailable, SCRIPT_INTEGER_MAX};

/// After so many tries PostgreSQL reserves alone.
const TRIES_MAX: usize = 6;

/// Nonces of a generation that are repaired per pass.
pub(super) const REPAIRED_MAX: i32 = 1_000;

/// Outcome of a call to Redis, with the reservation that it made.
type ReserveAttempt = Result<ScriptAnswer<Result<Reservation>>, RedisUnavailable>;

/// Redis, the ledger, and what is known of each lane.
pub(super) struct RedisIssuer {
    pub(super) ledger: Arc<Ledger>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) lane_states: LaneStates,
    pub(super) redis: Arc<Redis>,
    pub(super) config: RedisReserveConfig,
}

impl RedisIssuer {
    /// Reserves through Redis. `None`: Redis cannot be used at present, and PostgreSQL may reserve alone.
    pub(super) async fn try_reserve(
        self: &Arc<Self>,
        writer: &Arc<Writer>,
        lane: LaneKey,
        request: ReserveRequest,
    ) -> Result<Option<Reservation>> {
        if request.at_least.0 >= SCRIPT_INTEGER_MAX {
            return Ok(None); // beyond the integer range of Lua scripts
        }
        for _ in 0..TRIES_MAX {
            let connection = match self.redis.connection().await {
                Ok(connection) => connection,
                Err(unavailable) => return self.redis.fall_back(unavailable),
            };
            let Some(lease) = self.current_lease(&connection, lane, request).await? else {
                return Ok(None);
            };
            let wants_more = |state: &mut super::lane_states::LaneState| {
                state.has_free || request.at_least > state.at_least
            };
            if self.lane_states.with(lane, wants_more) {
                let _refill_lock = self.lane_states.lock_refill(lane).await;
                if self.lane_states.with(lane, wants_more)
                    && let Err(unavailable) = self
                        .refill(&connection, lane, lease, request.at_least, 0)
                        .await?
                {
                    return self.redis.fall_back(unavailable);
                }
            }
            let answer = match self
                .reserve(&connection, writer, lane, lease, request)
                .await
            {
                Ok(ScriptAnswer::Empty) => {
                    self.refill_and_reserve(&connection, writer, lane, lease, request)
                        .await?
                }
                answer => answer,
            };
            match answer {
                Ok(ScriptAnswer::Ok(reservation)) => return Ok(Some(reservation?)),
                Ok(ScriptAnswer::Empty) => {} // the generation ended, or the push to Redis failed
                Ok(ScriptAnswer::StateLost) => self.lane_states.mark_broken(lane, lease.token),
                Ok(ScriptAnswer::ServerChanged) => self.redis.discard(&connection),
                Err(unavailable) => return self.redis.fall_back(unavailable),
            }
        }
        Ok(None)
    }

    /// Redis has nothing left: one call of this process refills, and the others find its nonces.
    async fn refill_and_reserve(
        self: &Arc<Self>,
        connection: &RedisConnection,
        writer: &Arc<Writer>,
        lane: LaneKey,
        lease: BlockLease,
        request: ReserveRequest,
    ) -> Result<ReserveAttempt> {
        let _refill_lock = self.lane_states.lock_refill(lane).await;
        let answer = self.reserve(connection, writer, lane, lease, request).await;
        if answer != Ok(ScriptAnswer::Empty) {
            return Ok(answer);
        }
        let block = self.config.block_size;
        let refilled = self.refill(connection, lane, lease, request.at_least, block);
        match refilled.await? {
            Ok(()) => Ok(self.reserve(connection, writer, lane, lease, request).await),
            Err(unavailable) => Ok(Err(unavailable)),
        }
    }

    async fn reserve(
        self: &Arc<Self>,
        connection: &RedisConnection,
        writer: &Arc<Writer>,
        lane: LaneKey,
        lease: BlockLease,
        request: ReserveRequest,
    ) -> ReserveAttempt {
        let slot = match writer.acquire_slot() {
            Ok(slot) => slot,
            Err(busy) => return Ok(ScriptAnswer::Ok(Err(busy))),
        };
        let keys = GenerationKeys::of(&self.redis, lane, lease.token);
        let expires_at = lease.reservation_deadline(self.clock.monotonic(), request.timeout);
        let answer = keys
            .reserve(connection, request.at_least, request.holder, expires_at)
            .await?;
        let IssuedNonce {
            nonce,
            allocation_id,
            left,
        } = match answer {
            ScriptAnswer::Ok(issued) => issued,
            ScriptAnswer::Empty => return Ok(ScriptAnswer::Empty),
            ScriptAnswer::StateLost => return Ok(ScriptAnswer::StateLost),
            ScriptAnswer::ServerChanged => return Ok(ScriptAnswer::ServerChanged),
        };
        let key = ReservationKey {
            lane,
            nonce,
            holder: request.holder,
        };
        let handout = Handout {
            token: lease.token,
            allocation_id,
            expires_at,
        };
        let reservation = enqueue_handout(writer, slot, key, handout);
        // The reservation is recorded in any case; a caller without an answer lets it expire.
        if !lease.is_trusted(self.clock.monotonic()) {
            let late = ReservationError::Unknown("Redis answered after the lease".into());
            return Ok(ScriptAnswer::Ok(Err(late)));
        }
        if left < self.config.block_size as u64 / 2 {
            self.refill_in_background(connection, lane, lease, request.at_least);
        }
        Ok(ScriptAnswer::Ok(Ok(reservation)))
    }

    /// The lease of a lane's generation, if it belongs to this server.
    async fn current_lease(
        &self,
        connection: &RedisConnection,
        lane: LaneKey,
        request: ReserveRequest,
    ) -> Result<Option<BlockLease>> {
        let server = server_identity(connection);
        let reservation_max = request.timeout;
        let known = || {
            self.lane_states
                .current_lease(lane, &server, reservation_max, self.clock.monotonic())
        };
        if let Some(lease) = known() {
            return Ok(Some(lease));
        }
        let _refill_lock = self.lane_states.lock_refill(lane).await;
        if let Some(lease) = known() {
            return Ok(Some(lease));
        }
        self.renew_lease(connection, lane, request.at_least, reservation_max)
            .await
    }

    /// Renews the generation of a lane in the database, or starts a new one. Needs the lane's refill lock.
    pub(super) async fn renew_lease(
        &self,
        connection: &RedisConnection,
        lane: LaneKey,
        at_least: Nonce,
        reservation_max: Duration,
    ) -> Result<Option<BlockLease>> {
        let server = server_identity(connection);
        let requested_at = self.clock.monotonic();
        let lease = BlockLeaseTerms {
            duration: self.config.lease,
            reservation_max,
        };
        let proposed = Uuid::from_u128(self.clock.random());
        let broken = self.lane_states.with(lane, |state| state.broken);
        let generation = self.ledger.renew_generation(
            lane,
            at_least,
            &server,
            (proposed, broken),
            lease,
            self.config.generation_age_min,
        );
        let generation = generation.await?;
        let answered_at = self.clock.monotonic();
        let token = generation.token;
        if generation.is_new {
            tracing::info!(%lane, "a new generation of nonces starts in Redis");
            metrics::counter!("lanekeeper_nonce_generations_total").increment(1);
            let keys = GenerationKeys::of(&self.redis, lane, token);
            let made = keys.push(connection, true, at_least, &[]).await;
            if !matches!(made, Ok(ScriptAnswer::Ok(_))) {
                self.lane_states.mark_broken(lane, token);
                return Ok(None);
            }
        }
        if generation.server != server || broken == Some(token) {
            return Ok(None);
        }
        let lease = BlockLease {
            token,
            requested_at,
            answered_at,
            now: generation.now,
            duration: self.config.lease,
            reservation_max: generation.reservation_max,
        };
        self.lane_states.with(lane, |state| {
            let before = state.lease.replace((lease, server.into()));
            // Whether the ledger has recyclable nonces is not known yet.
            state.has_free |= before.is_none_or(|(before, _)| before.token != token);
        });
        Ok(Some(lease))
    }

    /// Takes more nonces for Redis: recyclable ones first, then up to `fresh` new ones. Needs the lane's refill lock.
    /// Nonces of a failed push come first, and no more are taken until that push succeeds.
    async fn refill(
        &self,
        connection: &RedisConnection,
        lane: LaneKey,
        lease: BlockLease,
        at_least: Nonce,
        fresh: usize,
    ) -> Result<Result<(), RedisUnavailable>> {
        if self.lane_states.with(lane, |state| state.has_unpushed) {
            let unpushed = self.ledger.list_block(lease.token, REPAIRED_MAX).await?;
            let pushed = self
                .push(connection, lane, lease.token, at_least, &unpushed)
                .await;
            // What was not taken the last time may still be recyclable.
            self.lane_states.with(lane, |state| state.has_free = true);
            return Ok(pushed.map(drop)); // drained nonces are left to the sweep
        }
        let block = self.config.block_size;
        let terms = BlockLeaseTerms {
            duration: self.config.lease,
            reservation_max: lease.reservation_max,
        };
        self.lane_states.with(lane, |state| {
            // Nonces that are recycled from here on are for the next refill.
            state.has_free = false;
            // Set first: the answer may be lost, or the caller cancelled.
            state.has_unpushed = true;
        });
        let wanted = BlockRequest {
            at_least,
            take_max: block,
            fresh_max: fresh,
            skipped: &[],
        };
        let taken = self
            .ledger
            .take_block(lane, lease.token, false, terms, wanted);
        let Some(taken) = taken.await? else {
            self.lane_states.with(lane, |state| {
                state.lease = None;
                state.has_unpushed = false;
            });
            return Ok(Ok(()));
        };
        self.lane_states.with(lane, |state| {
            state.has_unpushed = !taken.nonces.is_empty();
            state.has_free |= fresh == 0 && taken.nonces.len() == block;
            state.at_least = at_least;
        });
        if taken.nonces.is_empty() {
            return Ok(Ok(()));
        }
        let nonces: Vec<_> = taken
            .nonces
            .iter()
            .map(|n| (*n, taken.allocation_id))
            .collect();
        let pushed = self.push(connection, lane, lease.token, at_least, &nonces);
        Ok(pushed.await.map(drop))
    }

    /// Pushes taken nonces to Redis. Returns those that it had before and no longer has, see [`GenerationKeys::push`].
    pub(super) async fn push(
        &self,
        connection: &RedisConnection,
        lane: LaneKey,
        token: Uuid,
        at_least: Nonce,
        nonces: &[(Nonce, i64)],
    ) -> Result<Vec<(Nonce, i64)>, RedisUnavailable> {
        let keys = GenerationKeys::of(&self.redis, lane, token);
        let pushed = keys.push(connection, false, at_least, nonces).await;
        self.lane_states
            .with(lane, |state| state.has_unpushed = pushed.is_err());
        match pushed? {
            ScriptAnswer::Ok(gone) => return Ok(gone),
            ScriptAnswer::Empty => {}
            ScriptAnswer::StateLost => self.lane_states.mark_broken(lane, token),
            ScriptAnswer::ServerChanged => self.redis.discard(connection),
        }
        Ok(Vec::new())
    }

    /// Refills in advance, without a waiting caller.
    fn refill_in_background(
        self: &Arc<Self>,
        connection: &RedisConnection,
        lane: LaneKey,
        lease: BlockLease,
        at_least: Nonce,
    ) {
        let Some(refill_lock) = self.lane_states.try_lock_refill(lane) else {
            return;
        };
        let (server, connection) = (Arc::clone(self), connection.clone());
        // It ends within the timeouts of both servers.
        tokio::spawn(async move {
            let fresh = server.config.block_size;
            match server
                .refill(&connection, lane, lease, at_least, fresh)
                .await
            {
                Ok(Ok(())) => {}
                Ok(Err(unavailable)) => {
                    tracing::debug!(why = unavailable.0, "nonces wait to be pushed to Redis")
                }
                Err(why) => {
                    tracing::debug!(%why, "the refill of Redis failed and is retried on demand")
                }
            }
            drop(refill_lock);
        });
    }
}

/// Identifies one incarnation of one server (`run_id`) and its data set (replication id).
pub(super) fn server_identity(connection: &RedisConnection) -> String {
    format!("{}:{}", connection.run_id(), connection.replication_id())
}

#[async_trait]
impl WriteObserver for RedisIssuer {
    async fn on_written(&self, lines: &[(LedgerEntry, WriteOutcome)]) {
        let mut reservations: BTreeMap<(LaneKey, Uuid), Vec<UnrecordedReservation>> =
            BTreeMap::new();
        for (entry, written) in lines {
            match &entry.kind {
                EntryKind::Marked { mark, .. } => {
                    if let (Mark::Recyclable { .. }, WriteOutcome::Done { .. }) = (mark, written) {
                        self.lane_states
                            .with(entry.key.lane, |state| state.has_free = true);
                    }
                }
                EntryKind::Reserved(handout) => {
                    if let WriteOutcome::Refused(why) = written {
                        warn_late_reservation(entry, why);
                    }
                    let reservation = UnrecordedReservation {
                        nonce: entry.key.nonce,
                        holder: entry.key.holder,
                        allocation_id: handout.allocation_id,
                        expires_at: handout.expires_at,
                    };
                    let of_generation = reservations
                        .entry((entry.key.lane, handout.token))
                        .or_default();
                    of_generation.push(reservation);
                }
            }
        }
        if reservations.is_empty() {
            return;
        }
        let Ok(connection) = self.redis.connection().await else {
            return; // the sweep removes them later
        };
        if let Err(unavailable) =
            scripts::forget_recorded(&self.redis, &connection, &reservations).await
        {
            tracing::debug!(
                why = unavailable.0,
                "recorded reservations stay in Redis until the next sweep"
            );
        }
    }

    /// Marks add nothing to a block here, and reservations are retried.
    fn on_outcome_unknown(&self, _lines: &[LedgerEntry]) {}
}
