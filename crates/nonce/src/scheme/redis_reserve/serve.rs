//! Handing out through Redis.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{LaneKey, Nonce, Reservation, ReservationState};
use engine::ports::{Clock, ReservationError};
use uuid::Uuid;

use super::super::Borrow;
use super::super::kept::{Aftermath, Grant, Writer};
use super::RedisReserveConfig;
use super::notes::Notes;
use super::scripts::{self, Issued, ReservationTerms, SCRIPT_MAX, Said, State};
use crate::postgres::{Books, Entry, Lease, Wanted, What, Written};
use crate::redis::{Away, Link, Redis};

/// After so many tries PostgreSQL lends by itself.
const TRIES_MAX: usize = 6;

/// How many nonces of a generation are looked for in Redis in one pass.
pub(super) const REPAIRED_MAX: usize = 1_000;

/// What became of a call to Redis, and of the loan that it gave.
type Issue = Result<Said<Result<Reservation, ReservationError>>, Away>;

/// The way to Redis, and what is known of it.
pub(super) struct Server {
    pub(super) books: Arc<Books>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) notes: Notes,
    pub(super) redis: Arc<Redis>,
    pub(super) config: RedisReserveConfig,
}

impl Server {
    pub(super) fn new(
        books: Arc<Books>,
        redis: Arc<Redis>,
        clock: Arc<dyn Clock>,
        config: RedisReserveConfig,
    ) -> Self {
        Self {
            books,
            clock,
            notes: Notes::default(),
            redis,
            config,
        }
    }

    /// Lends through Redis; `None`: it cannot be used at present, and PostgreSQL may lend by itself.
    pub(super) async fn lend(
        self: &Arc<Self>,
        writer: &Arc<Writer>,
        lane: LaneKey,
        borrow: Borrow,
    ) -> Result<Option<Reservation>, ReservationError> {
        if borrow.at_least.0 >= SCRIPT_MAX {
            return Ok(None); // a script cannot count so far
        }
        for _ in 0..TRIES_MAX {
            let link = match self.redis.link().await {
                Ok(link) => link,
                Err(away) => return self.without(away),
            };
            let Some(grant) = self.grant(&link, lane, borrow).await? else {
                return Ok(None);
            };
            let wants_more =
                |note: &mut super::notes::Note| note.has_free || borrow.at_least > note.at_least;
            if self.notes.with(lane, wants_more) {
                let _turn = self.notes.turn(lane).await;
                if self.notes.with(lane, wants_more)
                    && let Err(away) = self.refill(&link, lane, grant, borrow.at_least, 0).await?
                {
                    return self.without(away);
                }
            }
            let said = match self.reserve(&link, writer, lane, grant, borrow).await {
                Ok(Said::Empty) => {
                    self.reserve_in_turn(&link, writer, lane, grant, borrow)
                        .await?
                }
                said => said,
            };
            match said {
                Ok(Said::Ok(lent)) => return Ok(Some(lent?)),
                Ok(Said::Empty) => {} // the generation is over, or Redis did not get the new ones
                Ok(Said::Lost) => self.notes.is_broken(lane, grant.token),
                Ok(Said::Elsewhere) => self.redis.leave(&link),
                Err(away) => return self.without(away),
            }
        }
        Ok(None)
    }

    /// Redis has nothing left: one of this process asks for more, and the others find it.
    async fn reserve_in_turn(
        self: &Arc<Self>,
        link: &Link,
        writer: &Arc<Writer>,
        lane: LaneKey,
        grant: Grant,
        borrow: Borrow,
    ) -> Result<Issue, ReservationError> {
        let _turn = self.notes.turn(lane).await;
        let said = self.reserve(link, writer, lane, grant, borrow).await;
        if said != Ok(Said::Empty) {
            return Ok(said);
        }
        let block = self.config.block;
        let refilled = self.refill(link, lane, grant, borrow.at_least, block);
        match refilled.await? {
            Ok(()) => Ok(self.reserve(link, writer, lane, grant, borrow).await),
            Err(away) => Ok(Err(away)),
        }
    }

    fn without(&self, away: Away) -> Result<Option<Reservation>, ReservationError> {
        match self.redis.config().degrade {
            true => Ok(None),
            false => Err(ReservationError::Unavailable(away.to_string())),
        }
    }

    async fn reserve(
        self: &Arc<Self>,
        link: &Link,
        writer: &Arc<Writer>,
        lane: LaneKey,
        grant: Grant,
        borrow: Borrow,
    ) -> Issue {
        let room = match writer.room() {
            Ok(room) => room,
            Err(busy) => return Ok(Said::Ok(Err(busy))),
        };
        let state = State::of(&self.redis, lane, grant.token);
        let expires_at = grant.deadline(self.clock.monotonic(), borrow.timeout);
        let said = state
            .reserve(link, borrow.at_least, borrow.holder, expires_at)
            .await?;
        let Issued { nonce, stint, left } = match said {
            Said::Ok(issued) => issued,
            Said::Empty => return Ok(Said::Empty),
            Said::Lost => return Ok(Said::Lost),
            Said::Elsewhere => return Ok(Said::Elsewhere),
        };
        let holder = borrow.holder;
        let what = What::LaneReservations {
            token: grant.token,
            stint,
            expires_at,
        };
        let entry = Entry {
            lane,
            nonce,
            holder,
            what,
        };
        writer.hand_out(entry, room);
        // Written down it is in any case; whoever is not told of it lets it become overdue.
        if !grant.is_trusted(self.clock.monotonic()) {
            let late = ReservationError::Unknown("Redis answered too late".into());
            return Ok(Said::Ok(Err(late)));
        }
        if left < self.config.block as u64 / 2 {
            self.refill_aside(link, lane, grant, borrow.at_least);
        }
        Ok(Said::Ok(Ok(Reservation {
            lane,
            nonce,
            holder,
            state: ReservationState::Reserved,
            tx_hash: None,
            was_replaced: false,
            expires_at,
            reason: None,
        })))
    }

    /// The generation of a lane, if it is this server's.
    async fn grant(
        &self,
        link: &Link,
        lane: LaneKey,
        borrow: Borrow,
    ) -> Result<Option<Grant>, ReservationError> {
        let server = server_of(link);
        let loan = borrow.timeout;
        let known = || {
            self.notes
                .grant(lane, &server, loan, self.clock.monotonic())
        };
        if let Some(grant) = known() {
            return Ok(Some(grant));
        }
        let _turn = self.notes.turn(lane).await;
        if let Some(grant) = known() {
            return Ok(Some(grant));
        }
        self.renew(link, lane, borrow.at_least, loan).await
    }

    /// Asks the database for the generation of a lane, and so renews its lease. Under the lane's turn.
    pub(super) async fn renew(
        &self,
        link: &Link,
        lane: LaneKey,
        at_least: Nonce,
        loan: Duration,
    ) -> Result<Option<Grant>, ReservationError> {
        let server = server_of(link);
        let asked_at = self.clock.monotonic();
        let lease = Lease {
            lasts: self.config.permission,
            loan,
        };
        let proposed = Uuid::from_u128(self.clock.random());
        let broken = self.notes.with(lane, |note| note.broken);
        let generation = self.books.generation(
            lane,
            at_least,
            &server,
            (proposed, broken),
            lease,
            self.config.patience,
        );
        let generation = generation.await?;
        let heard_at = self.clock.monotonic();
        let token = generation.token;
        if generation.is_new {
            tracing::info!(%lane, "a new generation of nonces in Redis begins");
            metrics::counter!("lanekeeper_nonce_generations_total").increment(1);
            let state = State::of(&self.redis, lane, token);
            let made = state.push(link, true, at_least, &[]).await;
            if !matches!(made, Ok(Said::Ok(_))) {
                self.notes.is_broken(lane, token);
                return Ok(None);
            }
        }
        if generation.server != server || broken == Some(token) {
            return Ok(None);
        }
        let grant = Grant {
            token,
            asked_at,
            heard_at,
            now: generation.now,
            lasts: self.config.permission,
            loan: generation.loan,
        };
        self.notes.with(lane, |note| {
            let before = note.grant.replace((grant, server.into()));
            // What is free in the database is not known yet.
            note.has_free |= before.is_none_or(|(before, _)| before.token != token);
        });
        Ok(Some(grant))
    }

    /// Sets aside more for Redis: what is free first, then up to `fresh` new ones. Under the lane's turn. What Redis
    /// did not get the last time comes first, and nothing more is set aside while it gets nothing.
    async fn refill(
        &self,
        link: &Link,
        lane: LaneKey,
        grant: Grant,
        at_least: Nonce,
        fresh: usize,
    ) -> Result<Result<(), Away>, ReservationError> {
        if self.notes.with(lane, |note| note.has_unpushed) {
            let kept = self.books.kept_by(grant.token, None, REPAIRED_MAX).await?;
            let pushed = self.push(link, lane, grant.token, at_least, &kept).await;
            // What was not taken the last time may still be free.
            self.notes.with(lane, |note| note.has_free = true);
            return Ok(pushed.map(drop)); // what was drained is for the sweep
        }
        let block = self.config.block;
        let lease = Lease {
            lasts: self.config.permission,
            loan: grant.loan,
        };
        self.notes.with(lane, |note| {
            // What is given back from here on is for the next time.
            note.has_free = false;
            // Whatever ends this half way, a lost answer or a caller who is gone.
            note.has_unpushed = true;
        });
        let wanted = Wanted {
            at_least,
            take_max: block,
            fresh_max: fresh,
            passed: &[],
        };
        let taken = self.books.take(lane, grant.token, false, lease, wanted);
        let Some(taken) = taken.await? else {
            self.notes.with(lane, |note| {
                note.grant = None;
                note.has_unpushed = false;
            });
            return Ok(Ok(()));
        };
        self.notes.with(lane, |note| {
            note.has_unpushed = !taken.nonces.is_empty();
            note.has_free |= fresh == 0 && taken.nonces.len() == block;
            note.at_least = at_least;
        });
        if taken.nonces.is_empty() {
            return Ok(Ok(()));
        }
        let nonces: Vec<_> = taken.nonces.iter().map(|n| (*n, taken.stint)).collect();
        let pushed = self.push(link, lane, grant.token, at_least, &nonces);
        Ok(pushed.await.map(drop))
    }

    /// Gives Redis what is set aside for it. Answers with what it had before and has no more, see [`State::push`].
    pub(super) async fn push(
        &self,
        link: &Link,
        lane: LaneKey,
        token: Uuid,
        at_least: Nonce,
        nonces: &[(Nonce, i64)],
    ) -> Result<Vec<(Nonce, i64)>, Away> {
        let state = State::of(&self.redis, lane, token);
        let pushed = state.push(link, false, at_least, nonces).await;
        self.notes
            .with(lane, |note| note.has_unpushed = pushed.is_err());
        match pushed? {
            Said::Ok(gone) => return Ok(gone),
            Said::Empty => {}
            Said::Lost => self.notes.is_broken(lane, token),
            Said::Elsewhere => self.redis.leave(link),
        }
        Ok(Vec::new())
    }

    /// In advance, and nobody waits for it.
    fn refill_aside(self: &Arc<Self>, link: &Link, lane: LaneKey, grant: Grant, at_least: Nonce) {
        let Some(turn) = self.notes.try_turn(lane) else {
            return;
        };
        let (server, link) = (Arc::clone(self), link.clone());
        // It ends by itself, within the times for both servers.
        tokio::spawn(async move {
            let fresh = server.config.block;
            match server.refill(&link, lane, grant, at_least, fresh).await {
                Ok(Ok(())) => {}
                Ok(Err(away)) => tracing::debug!(why = away.0, "nonces wait to be given to Redis"),
                Err(why) => tracing::debug!(%why, "Redis gets more when it has nothing left"),
            }
            drop(turn);
        });
    }
}

/// Which life of which server, with which history.
pub(super) fn server_of(link: &Link) -> String {
    format!("{}:{}", link.run_id(), link.replication_id())
}

#[async_trait]
impl Aftermath for Server {
    async fn written(&self, lines: &[(Entry, Written)]) {
        let mut loans: BTreeMap<(LaneKey, Uuid), Vec<ReservationTerms>> = BTreeMap::new();
        for (entry, written) in lines {
            match (&entry.what, written) {
                (What::Recyclable { .. }, Written::Done { .. }) => {
                    self.notes.with(entry.lane, |note| note.has_free = true);
                }
                (
                    What::LaneReservations {
                        token,
                        stint,
                        expires_at,
                    },
                    written,
                ) => {
                    if let Written::Refused(why) = written {
                        metrics::counter!("lanekeeper_nonce_late_loans_total").increment(1);
                        let (lane, nonce) = (entry.lane, entry.nonce);
                        tracing::warn!(%lane, %nonce, %why, "a loan was written down too late");
                    }
                    loans
                        .entry((entry.lane, *token))
                        .or_default()
                        .push(ReservationTerms {
                            nonce: entry.nonce,
                            holder: entry.holder,
                            stint: *stint,
                            expires_at: *expires_at,
                        });
                }
                (What::Submitted(_) | What::Used(_) | What::Recyclable { .. }, _) => {}
            }
        }
        if loans.is_empty() {
            return;
        }
        let Ok(link) = self.redis.link().await else {
            return; // the sweep forgets them later
        };
        if let Err(away) = scripts::forget_written(&self.redis, &link, &loans).await {
            tracing::debug!(why = away.0, "written loans stay in Redis for a while");
        }
    }

    /// Marks keep nothing here, and loans are tried again.
    fn lost(&self, _lines: &[Entry]) {}
}
