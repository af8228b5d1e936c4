//! Handing out through Redis.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use domain::{LaneKey, Nonce, Reservation, ReservationState};
use engine::ports::{Clock, LendError};
use uuid::Uuid;

use super::super::Borrow;
use super::super::kept::{Aftermath, Grant, Writer};
use super::RedisReserveConfig;
use super::notes::Notes;
use super::scripts::{Issued, Loan, SCRIPT_MAX, Said, State};
use crate::postgres::{Books, Entry, Lease, What, Written};
use crate::redis::{Away, Link, Redis};

/// After so many tries PostgreSQL lends by itself.
const TRIES_MAX: usize = 6;

/// How many nonces of a generation are looked for in Redis in one pass.
const REPAIRED_MAX: usize = 1_000;

/// What became of a call to Redis, and of the loan that it gave.
type Issue = Result<Said<Result<Reservation, LendError>>, Away>;

/// The way to Redis, and what is known of it.
pub(super) struct Server {
    pub(super) books: Arc<Books>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) notes: Notes,
    redis: Arc<Redis>,
    config: RedisReserveConfig,
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
    ) -> Result<Option<Reservation>, LendError> {
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
                if self.notes.with(lane, wants_more) {
                    self.refill(&link, lane, grant, borrow.at_least, 0).await?;
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
    ) -> Result<Issue, LendError> {
        let _turn = self.notes.turn(lane).await;
        let said = self.reserve(link, writer, lane, grant, borrow).await;
        if said != Ok(Said::Empty) {
            return Ok(said);
        }
        let block = self.config.block;
        self.refill(link, lane, grant, borrow.at_least, block)
            .await?;
        Ok(self.reserve(link, writer, lane, grant, borrow).await)
    }

    fn without(&self, away: Away) -> Result<Option<Reservation>, LendError> {
        match self.redis.config().degrade {
            true => Ok(None),
            false => Err(LendError::Unavailable(away.to_string())),
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
        let expires_at = grant.deadline(self.clock.moment(), borrow.timeout);
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
        let what = What::Lent {
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
        if !grant.is_trusted(self.clock.moment()) {
            let late = LendError::Unknown("Redis answered too late".into());
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
    ) -> Result<Option<Grant>, LendError> {
        let server = server_of(link);
        let loan = borrow.timeout;
        let known = || self.notes.grant(lane, &server, loan, self.clock.moment());
        if let Some(grant) = known() {
            return Ok(Some(grant));
        }
        let _turn = self.notes.turn(lane).await;
        if let Some(grant) = known() {
            return Ok(Some(grant));
        }
        let asked_at = self.clock.moment();
        let lease = Lease {
            lasts: self.config.permission,
            loan,
        };
        let proposed = Uuid::from_u128(self.clock.random());
        let broken = self.notes.with(lane, |note| note.broken);
        let generation = self.books.generation(
            lane,
            borrow.at_least,
            &server,
            (proposed, broken),
            lease,
            self.config.patience,
        );
        let generation = generation.await?;
        let heard_at = self.clock.moment();
        let token = generation.token;
        if generation.is_new {
            tracing::info!(%lane, "a new generation of nonces in Redis begins");
            metrics::counter!("lanekeeper_nonce_generations_total").increment(1);
            let state = State::of(&self.redis, lane, token);
            let made = state.push(link, true, borrow.at_least, &[]).await;
            if made != Ok(Said::Ok(())) {
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

    /// Sets aside more for Redis: what is free first, then up to `fresh` new ones. Under the lane's turn.
    async fn refill(
        &self,
        link: &Link,
        lane: LaneKey,
        grant: Grant,
        at_least: Nonce,
        fresh: usize,
    ) -> Result<(), LendError> {
        let block = self.config.block;
        let lease = Lease {
            lasts: self.config.permission,
            loan: grant.loan,
        };
        // What is given back from here on is for the next time.
        self.notes.with(lane, |note| note.has_free = false);
        let taken = self
            .books
            .take(lane, grant.token, false, lease, at_least, (block, fresh));
        let Some(taken) = taken.await? else {
            self.notes.with(lane, |note| note.grant = None);
            return Ok(());
        };
        self.notes.with(lane, |note| {
            note.has_free |= fresh == 0 && taken.nonces.len() == block;
            note.at_least = at_least;
        });
        if taken.nonces.is_empty() {
            return Ok(());
        }
        let nonces: Vec<_> = taken.nonces.iter().map(|n| (*n, taken.stint)).collect();
        let state = State::of(&self.redis, lane, grant.token);
        match state.push(link, false, at_least, &nonces).await {
            Ok(Said::Ok(()) | Said::Empty) => {}
            Ok(Said::Lost) => self.notes.is_broken(lane, grant.token),
            Ok(Said::Elsewhere) => self.redis.leave(link),
            // The next pass of the sweep gives them to Redis again.
            Err(away) => tracing::debug!(why = away.0, "nonces wait to be given to Redis"),
        }
        Ok(())
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
            let refilled = server.refill(&link, lane, grant, at_least, fresh).await;
            if let Err(why) = refilled {
                tracing::debug!(%why, "Redis gets more when it has nothing left");
            }
            drop(turn);
        });
    }

    /// What somebody who died left half done: nonces that were set aside and not given to Redis, and loans that
    /// are in Redis and not written down.
    pub(super) async fn look_after_generations(&self, writer: &Writer) -> Result<(), LendError> {
        for (lane, grant, server) in self.notes.grants() {
            let Ok(link) = self.redis.link().await else {
                return Ok(()); // it is looked for elsewhere
            };
            if *server != *server_of(&link) || !grant.is_trusted(self.clock.moment()) {
                continue;
            }
            let at_least = self.notes.with(lane, |note| note.at_least);
            let kept = self.books.kept_by(grant.token, None, REPAIRED_MAX).await?;
            let state = State::of(&self.redis, lane, grant.token);
            let pushed = state.push(&link, false, at_least, &kept).await;
            if pushed == Ok(Said::Lost) {
                self.notes.is_broken(lane, grant.token);
                continue;
            }
            let Ok(loans) = state.loans(&link).await else {
                continue;
            };
            let loans: BTreeSet<Loan> = loans.into_iter().collect();
            let before = self.notes.with(lane, |note| {
                std::mem::replace(&mut note.unwritten, loans.clone())
            });
            for loan in loans.intersection(&before) {
                let Ok(room) = writer.room() else { break };
                let what = What::Lent {
                    token: grant.token,
                    stint: loan.stint,
                    expires_at: loan.expires_at,
                };
                let (nonce, holder) = (loan.nonce, loan.holder);
                let entry = Entry {
                    lane,
                    nonce,
                    holder,
                    what,
                };
                writer.hand_out(entry, room);
            }
        }
        Ok(())
    }
}

/// Which life of which server, with which history.
fn server_of(link: &Link) -> String {
    format!("{}:{}", link.run_id(), link.replication_id())
}

#[async_trait]
impl Aftermath for Server {
    async fn written(&self, lines: &[(Entry, Written)]) {
        let mut loans: BTreeMap<(LaneKey, Uuid), Vec<Loan>> = BTreeMap::new();
        for (entry, written) in lines {
            match (&entry.what, written) {
                (What::Recyclable { .. }, Written::Done { .. }) => {
                    self.notes.with(entry.lane, |note| note.has_free = true);
                }
                (
                    What::Lent {
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
                    loans.entry((entry.lane, *token)).or_default().push(Loan {
                        nonce: entry.nonce,
                        holder: entry.holder,
                        stint: *stint,
                        expires_at: *expires_at,
                    });
                }
                (What::Submitted(_) | What::Used(_) | What::Recyclable { .. }, _) => {}
            }
        }
        for ((lane, token), loans) in loans {
            let Ok(link) = self.redis.link().await else {
                return; // the sweep forgets them later
            };
            let state = State::of(&self.redis, lane, token);
            if let Err(away) = state.written(&link, &loans).await {
                tracing::debug!(why = away.0, "written loans stay in Redis for a while");
            }
        }
    }

    /// Marks keep nothing here, and loans are tried again.
    fn lost(&self, _lines: &[Entry]) {}
}
