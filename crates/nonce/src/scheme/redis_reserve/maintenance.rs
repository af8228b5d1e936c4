//! Maintenance of generations, run by the sweep: repair, renewal, and the return of idle ones.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::LaneKey;
use uuid::Uuid;

use super::super::ReservationKey;
use super::super::write_behind::{BlockLease, Writer, enqueue_handout};
use super::issuer::{REPAIRED_MAX, RedisIssuer, server_identity};
use super::scripts::{GenerationKeys, ScriptAnswer, UnrecordedReservation};
use crate::Result;
use crate::postgres::Handout;
use crate::redis::{RedisConnection, RedisUnavailable};

impl RedisIssuer {
    /// Maintains the generations that this process knows. One in use is renewed; the unissued nonces of an idle one
    /// are returned, because they are a gap for all nonces above them once its lease is over.
    pub(super) async fn maintain_generations(&self, writer: &Writer) -> Result<()> {
        for (lane, lease, server) in self.lane_states.leases() {
            let Ok(connection) = self.redis.connection().await else {
                return Ok(()); // the circuit breaker probes for it
            };
            if *server != *server_identity(&connection) {
                continue;
            }
            if lease.is_trusted(self.clock.monotonic()) {
                self.repair_generation(&connection, writer, lane, lease)
                    .await?;
            }
            let idle = self.config.lease / 3;
            let is_in_use = !self.return_unused(&connection, lane, lease, idle).await?;
            if is_in_use && lease.needs_renewal(self.clock.monotonic()) {
                let _refill_lock = self.lane_states.lock_refill(lane).await;
                let at_least = self.lane_states.with(lane, |state| state.at_least);
                self.renew_lease(&connection, lane, at_least, lease.reservation_max)
                    .await?;
            }
        }
        Ok(())
    }

    /// Returns everything that Redis has not issued. Other processes take it again if they need it.
    pub(super) async fn return_all_unused(&self) -> Result<()> {
        for (lane, lease, server) in self.lane_states.leases() {
            let Ok(connection) = self.redis.connection().await else {
                return Ok(()); // it is recycled after the leases
            };
            if *server == *server_identity(&connection) {
                self.return_unused(&connection, lane, lease, Duration::ZERO)
                    .await?;
            }
        }
        Ok(())
    }

    /// Returns the unissued nonces of a lane if it was idle for so long, and whether the generation is done. If this is
    /// interrupted, `repair_generation` of any process finds the nonces that left Redis and are not free yet.
    async fn return_unused(
        &self,
        connection: &RedisConnection,
        lane: LaneKey,
        lease: BlockLease,
        idle: Duration,
    ) -> Result<bool> {
        let token = lease.token;
        // This process pushes nothing to Redis in the meantime.
        let _refill_lock = self.lane_states.lock_refill(lane).await;
        let unused = match GenerationKeys::of(&self.redis, lane, token)
            .drain(connection, idle)
            .await
        {
            Ok(ScriptAnswer::Ok(unused)) => unused,
            // Its nonces may have been removed from Redis: the lease must last until they are repaired.
            Ok(ScriptAnswer::Empty) | Err(_) => return Ok(false),
            Ok(ScriptAnswer::ServerChanged) => {
                self.redis.discard(connection);
                return Ok(true);
            }
            Ok(ScriptAnswer::StateLost) => {
                self.lane_states.mark_broken(lane, token);
                return Ok(true);
            }
        };
        self.ledger.return_unused(token, &unused).await?;
        self.lane_states.clear_lease(lane, token);
        Ok(true)
    }

    /// Repairs what a dead process left unfinished: nonces that were taken and not pushed to Redis, nonces that were
    /// drained from Redis and not freed, and reservations in Redis that are not recorded.
    async fn repair_generation(
        &self,
        connection: &RedisConnection,
        writer: &Writer,
        lane: LaneKey,
        lease: BlockLease,
    ) -> Result<()> {
        let token = lease.token;
        if self
            .push_and_release(connection, lane, token)
            .await?
            .is_err()
        {
            return Ok(());
        }
        let Ok(reservations) = GenerationKeys::of(&self.redis, lane, token)
            .list_unrecorded(connection)
            .await
        else {
            return Ok(());
        };
        let reservations: BTreeSet<UnrecordedReservation> = reservations.into_iter().collect();
        let before = self.lane_states.with(lane, |state| {
            std::mem::replace(&mut state.unwritten, reservations.clone())
        });
        for reservation in reservations.intersection(&before) {
            let Ok(slot) = writer.acquire_slot() else {
                break;
            };
            let key = ReservationKey {
                lane,
                nonce: reservation.nonce,
                holder: reservation.holder,
            };
            let handout = Handout {
                token,
                allocation_id: reservation.allocation_id,
                expires_at: reservation.expires_at,
            };
            enqueue_handout(writer, slot, key, handout);
        }
        Ok(())
    }

    /// Pushes taken nonces to Redis, and frees those that it no longer has.
    async fn push_and_release(
        &self,
        connection: &RedisConnection,
        lane: LaneKey,
        token: Uuid,
    ) -> Result<Result<(), RedisUnavailable>> {
        let _refill_lock = self.lane_states.lock_refill(lane).await;
        let at_least = self.lane_states.with(lane, |state| state.at_least);
        let unpushed = self.ledger.list_block(token, REPAIRED_MAX).await?;
        let gone = match self
            .push(connection, lane, token, at_least, &unpushed)
            .await
        {
            Ok(gone) => gone,
            Err(unavailable) => return Ok(Err(unavailable)),
        };
        if !gone.is_empty() {
            // Some may have been reserved and recorded since they were read: those are not in the block any more.
            self.ledger.return_unused(token, &gone).await?;
            self.lane_states.with(lane, |state| state.has_free = true);
        }
        Ok(Ok(()))
    }
}
