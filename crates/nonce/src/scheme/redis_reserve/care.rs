//! What a generation needs while nobody borrows: it is repaired, renewed, and given back.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::LaneKey;
use engine::ports::ReservationError;
use uuid::Uuid;

use super::super::kept::{Grant, Writer};
use super::scripts::{ReservationTerms, Said, State};
use super::serve::{REPAIRED_MAX, Server, server_of};
use crate::postgres::{Entry, What};
use crate::redis::{Away, Link};

impl Server {
    /// Looks after the generations that this process knows. One that is in use is renewed; what Redis has of an idle
    /// one goes back, for what is set aside is a gap in front of everything above it once its lease is over.
    pub(super) async fn look_after_generations(
        &self,
        writer: &Writer,
    ) -> Result<(), ReservationError> {
        for (lane, grant, server) in self.notes.grants() {
            let Ok(link) = self.redis.link().await else {
                return Ok(()); // it is looked for elsewhere
            };
            if *server != *server_of(&link) {
                continue;
            }
            if grant.is_trusted(self.clock.monotonic()) {
                self.repair(&link, writer, lane, grant).await?;
            }
            let idle = self.config.permission / 3;
            let is_in_use = !self.put_back(&link, lane, grant, idle).await?;
            if is_in_use && grant.is_ageing(self.clock.monotonic()) {
                let _turn = self.notes.turn(lane).await;
                let at_least = self.notes.with(lane, |note| note.at_least);
                self.renew(&link, lane, at_least, grant.loan).await?;
            }
        }
        Ok(())
    }

    /// Gives everything back that Redis has not handed out. Other processes take it again if they need it.
    pub(super) async fn put_all_back(&self) -> Result<(), ReservationError> {
        for (lane, grant, server) in self.notes.grants() {
            let Ok(link) = self.redis.link().await else {
                return Ok(()); // it comes back when the leases are over
            };
            if *server == *server_of(&link) {
                self.put_back(&link, lane, grant, Duration::ZERO).await?;
            }
        }
        Ok(())
    }

    /// Gives back what Redis has of a lane, if nobody has borrowed for so long. Whether it is over with this
    /// generation. What is out of Redis and not free yet, whatever ends this half way, is found by `repair`, in any
    /// process.
    async fn put_back(
        &self,
        link: &Link,
        lane: LaneKey,
        grant: Grant,
        idle: Duration,
    ) -> Result<bool, ReservationError> {
        let token = grant.token;
        // Nothing of ours is between the database and Redis meanwhile.
        let _turn = self.notes.turn(lane).await;
        let unused = match State::of(&self.redis, lane, token).drain(link, idle).await {
            Ok(Said::Ok(unused)) => unused,
            // What it had may be out of Redis: the lease must last until that is repaired.
            Ok(Said::Empty) | Err(_) => return Ok(false),
            Ok(Said::Elsewhere) => {
                self.redis.leave(link);
                return Ok(true);
            }
            Ok(Said::Lost) => {
                self.notes.is_broken(lane, token);
                return Ok(true);
            }
        };
        self.books.put_back(token, &unused).await?;
        self.notes.is_over(lane, token);
        Ok(true)
    }

    /// What somebody who died left half done: nonces that were set aside and not given to Redis, nonces that were
    /// taken out of Redis and not freed, and loans that are in Redis and not written down.
    async fn repair(
        &self,
        link: &Link,
        writer: &Writer,
        lane: LaneKey,
        grant: Grant,
    ) -> Result<(), ReservationError> {
        let token = grant.token;
        if self.give_and_free(link, lane, token).await?.is_err() {
            return Ok(());
        }
        let Ok(loans) = State::of(&self.redis, lane, token).loans(link).await else {
            return Ok(());
        };
        let loans: BTreeSet<ReservationTerms> = loans.into_iter().collect();
        let before = self.notes.with(lane, |note| {
            std::mem::replace(&mut note.unwritten, loans.clone())
        });
        for loan in loans.intersection(&before) {
            let Ok(room) = writer.room() else { break };
            let what = What::LaneReservations {
                token,
                stint: loan.stint,
                expires_at: loan.expires_at,
            };
            let entry = Entry {
                lane,
                nonce: loan.nonce,
                holder: loan.holder,
                what,
            };
            writer.hand_out(entry, room);
        }
        Ok(())
    }

    /// Gives Redis what is set aside for it, and frees what it does not have any more.
    async fn give_and_free(
        &self,
        link: &Link,
        lane: LaneKey,
        token: Uuid,
    ) -> Result<Result<(), Away>, ReservationError> {
        let _turn = self.notes.turn(lane).await;
        let at_least = self.notes.with(lane, |note| note.at_least);
        let kept = self.books.kept_by(token, None, REPAIRED_MAX).await?;
        let gone = match self.push(link, lane, token, at_least, &kept).await {
            Ok(gone) => gone,
            Err(away) => return Ok(Err(away)),
        };
        if !gone.is_empty() {
            // Some may have been lent and written down since they were read: those are not kept any more.
            self.books.put_back(token, &gone).await?;
            self.notes.with(lane, |note| note.has_free = true);
        }
        Ok(Ok(()))
    }
}
