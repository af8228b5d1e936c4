//! Lending nonces through a lane's keeper: borrowing is a request like any other, and what a holder says of his
//! nonce is a mark that reaches the lane on whichever node keeps it.
//!
//! Marks may be repeated, so an answer that was lost is simply asked for again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use domain::lane::reserve::{
    MarkOutcome, RESERVE_TIMEOUT, ReservationRules, ReservationTerms, lent_to,
    reservation_request_id,
};
use domain::{
    EventKind, Holder, LaneKey, Mark, MarkRefusal, NodeName, Nonce, Reservation, ReservationState,
    Tx, TxState,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::core::{Core, lock};
use crate::intake::{self, Hop};
use crate::node::{NewTx, NodeHandle, NonKeeper, Origin, Refusal};
use crate::ports::{
    LaneReservations, PeerError, Quorum, ReservationError, StoreError, TxFilter, TxRecord,
};
use crate::routing::{self, Place};
use crate::shard::Message;

/// How long whoever says something of his nonce is held while a lane is opened or changes hands.
const MARK_PATIENCE: Duration = Duration::from_secs(10);
/// How long another node may take.
const PEER_PATIENCE: Duration = Duration::from_secs(3);
/// After how long a mark tries again where its lane was not ready.
const PAUSE: Duration = Duration::from_millis(25);
/// For how long hashes are looked up after a mark was not taken.
const LOOK_UP_AFTER_FAILURE: Duration = Duration::from_secs(10);

/// The most reservations of one list.
const LISTED_MAX: usize = 1_000;
/// Rows that are read at once for it, and how often.
const PAGE: usize = 500;
const PAGES_MAX: usize = 40;

/// What a holder says of his nonce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkRequest {
    /// In which lane.
    pub lane: LaneKey,
    /// Of which nonce.
    pub nonce: Nonce,
    /// Who.
    pub holder: Holder,
    /// What.
    pub mark: Mark,
}

/// Why a node did not take a mark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MarkError {
    /// The lane is not in the memory of this node, or its store did not take it: try again, perhaps elsewhere.
    NotNow,
    /// This node keeps the lane.
    NotKeeper(NodeName),
    /// For good.
    Refused(ReservationError),
}

/// A holder who waits for the commit of his mark.
#[derive(Debug)]
pub(crate) struct PendingMark {
    pub(crate) call: MarkRequest,
    /// Dropped without an answer when the commit did not become durable.
    pub(crate) answer: oneshot::Sender<MarkOutcome>,
}

impl NodeHandle {
    /// Whether a lane's nonces are lent, and how.
    pub fn reservations(&self, lane: LaneKey) -> Option<ReservationRules> {
        self.core.reservations(lane)
    }

    /// Lends the smallest free nonce of a lane, under a name that was never used before.
    pub async fn lend(
        &self,
        lane: LaneKey,
        holder: Holder,
        loan: ReservationTerms,
    ) -> Result<Reservation, ReservationError> {
        let reservations = reservations(&self.core, lane)?;
        let new = NewTx {
            lane,
            request_id: reservation_request_id(holder),
            payload: loan.payload(lane),
            estimated_gas: None,
            origin: Origin::default(),
        };
        let accepted = intake::create(&self.core, new, Hop::First).await;
        let record = accepted.map_err(refused)?.record;
        if let Some(reservation) = lent_to(lane, &record.tx, None, reservations) {
            return Ok(reservation);
        }
        // It waits in the store until the chain's nonce is known, or the lane has a keeper.
        let is_decided = |record: &TxRecord| record.tx.nonce.is_some() || !record.tx.is_open();
        let waited = self.wait_until(record.tx.id, RESERVE_TIMEOUT, is_decided);
        let waited = waited.await.map_err(refused)?;
        let dealt = waited.and_then(|record| lent_to(lane, &record.tx, None, reservations));
        dealt.ok_or_else(|| {
            ReservationError::Unavailable("the lane deals no nonce at present".to_owned())
        })
    }

    /// Takes what a holder says of his nonce, wherever the lane is kept. Durable when this returns `Ok`.
    pub async fn mark(&self, call: MarkRequest) -> Result<Reservation, ReservationError> {
        reservations(&self.core, call.lane)?;
        let clock = &self.core.ports.clock;
        let deadline = clock.monotonic().plus(MARK_PATIENCE);
        loop {
            refuse_named_elsewhere(&self.core, &call).await?;
            let answer = match place(&self.core, call.lane)? {
                Place::Here => here(&self.core, &call).await,
                Place::There(peer) => {
                    let peers = &self.core.ports.peers;
                    match peers.mark(&peer.address, &call, PEER_PATIENCE).await {
                        // It was asked because it should keep the lane; it says who does.
                        Ok(Err(MarkError::NotKeeper(keeper))) => {
                            let until = clock
                                .monotonic()
                                .plus(self.core.config.lease.renew_interval);
                            self.core.routes.learn(call.lane, keeper, until);
                            Err(MarkError::NotNow)
                        }
                        Ok(answer) => answer,
                        Err(PeerError::NotReached(_) | PeerError::Lost(_)) => {
                            self.core.routes.forget(call.lane);
                            self.core.cluster.suspect(&peer.node, clock.monotonic());
                            Err(MarkError::NotNow)
                        }
                    }
                }
                Place::Nowhere => Err(MarkError::NotNow),
            };
            if matches!(answer, Err(MarkError::NotNow)) {
                look_up_for_a_while(&self.core);
            }
            match answer {
                Ok(reservation) => return Ok(reservation),
                Err(MarkError::Refused(why)) => return Err(why),
                Err(MarkError::NotNow | MarkError::NotKeeper(_))
                    if clock.monotonic() >= deadline =>
                {
                    let why = "no node took the mark in time; repeat it".to_owned();
                    return Err(ReservationError::Unknown(why));
                }
                Err(MarkError::NotNow | MarkError::NotKeeper(_)) => clock.sleep(PAUSE).await,
            }
        }
    }

    /// Takes a mark that another node handed over; it is not handed on.
    pub async fn mark_forwarded(&self, call: &MarkRequest) -> Result<Reservation, MarkError> {
        reservations(&self.core, call.lane).map_err(MarkError::Refused)?;
        here(&self.core, call).await
    }

    /// What is lent of a lane at present, as the store knows it, and what is free of it.
    pub async fn list_reservations(
        &self,
        lane: LaneKey,
    ) -> Result<LaneReservations, ReservationError> {
        let reservations = reservations(&self.core, lane)?;
        let mut has_more = false;
        let mut held = Vec::new();
        for state in [TxState::Allocated, TxState::Tracking, TxState::Stuck] {
            let (found, is_cut) = open_loans(&self.core, lane, state, reservations).await?;
            held.extend(found);
            has_more |= is_cut;
        }
        let status = self.lane(lane).await.map_err(unavailable)?;
        let next_nonce = status.map_or(Nonce(0), |status| status.record.next_nonce);
        let mut open = match has_more {
            true => Vec::new(), // what is not listed may be held
            false => self.free(lane, &held, next_nonce).await,
        };
        open.extend(held); // also what its holder calls used, until the chain has closed it
        open.sort_by_key(|reservation| reservation.nonce);
        has_more |= open.len() > LISTED_MAX;
        open.truncate(LISTED_MAX);
        Ok(LaneReservations {
            next_nonce,
            open,
            has_more,
        })
    }

    /// Nonces that were dealt and that nobody holds, or ever will by what the chain shows: to be lent next. None
    /// where the chain does not answer.
    async fn free(&self, lane: LaneKey, held: &[Reservation], next: Nonce) -> Vec<Reservation> {
        if next == Nonce(0) {
            return Vec::new(); // never used: its cursor says nothing
        }
        let part = self.core.chain(lane.chain_id);
        let asked =
            part.chain
                .account_nonces(lane.signer, part.rules.lane.chain_query, Quorum::One);
        let Ok(nonces) = asked.await else {
            return Vec::new();
        };
        let used = nonces.first.latest.max(nonces.first.pending);
        let held: BTreeSet<u64> = held.iter().map(|one| one.nonce.0).collect();
        let free = (used.0..next.0).filter(|nonce| !held.contains(nonce));
        let now = self.core.ports.clock.now();
        let nobodys = |nonce| Reservation {
            lane,
            nonce: Nonce(nonce),
            holder: Holder(Uuid::nil()),
            state: ReservationState::Recyclable,
            tx_hash: None,
            was_replaced: false,
            expires_at: now,
            reason: None,
        };
        free.take(LISTED_MAX.saturating_add(1))
            .map(nobodys)
            .collect()
    }

    /// What was lent under this name, if it is this nonce.
    pub async fn reservation_of(
        &self,
        lane: LaneKey,
        holder: Holder,
        nonce: Nonce,
    ) -> Result<Option<Reservation>, ReservationError> {
        let reservations = reservations(&self.core, lane)?;
        let Some(record) = find(&self.core, lane, holder).await? else {
            return Ok(None);
        };
        let dealt = dealt(&self.core, &record.tx).await?;
        let lent = lent_as(lane, &record, dealt, reservations);
        Ok(lent.filter(|reservation| reservation.nonce == nonce))
    }
}

/// Walks a lane's open loans, newest first, as far as a page reaches.
async fn open_loans(
    core: &Core,
    lane: LaneKey,
    state: TxState,
    reservations: ReservationRules,
) -> Result<(Vec<Reservation>, bool), ReservationError> {
    let mut filter = TxFilter {
        chain_id: Some(lane.chain_id),
        signer: Some(lane.signer),
        state: Some(state),
        after: None,
        limit: PAGE,
    };
    let mut found = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = core.ports.store.txs(&filter).await.map_err(unavailable)?;
        let loans = page.txs.iter();
        found.extend(loans.filter_map(|record| lent_as(lane, record, None, reservations)));
        if page.next.is_none() || found.len() >= LISTED_MAX {
            return Ok((found, page.next.is_some()));
        }
        filter.after = page.next;
    }
    Ok((found, true))
}

/// The nonce that a loan has, or had before it was given back: that is in its history only.
async fn dealt(core: &Core, tx: &Tx) -> Result<Option<Nonce>, ReservationError> {
    if tx.nonce.is_some() || tx.is_open() {
        return Ok(tx.nonce);
    }
    let events = core.ports.store.tx_events(tx.id).await;
    let events = events.map_err(unavailable)?.unwrap_or_default();
    Ok(events.iter().find_map(|record| {
        let (EventKind::TxAccepted { nonce: Some(nonce) } | EventKind::TxAllocated { nonce }) =
            &record.event.kind
        else {
            return None;
        };
        Some(*nonce)
    }))
}

/// The rules of a lane that lends.
fn reservations(core: &Core, lane: LaneKey) -> Result<ReservationRules, ReservationError> {
    let LaneKey { chain_id, signer } = lane;
    let place = core.lanes.get(&lane).ok_or_else(|| {
        ReservationError::NotReservable(format!(
            "{signer} on chain {chain_id} is not configured: add a signer of kind external"
        ))
    })?;
    place.lent.ok_or_else(|| {
        ReservationError::NotReservable(format!(
            "{signer} on chain {chain_id} sends by itself here, so its nonces are not lent: use an account \
             that only you send from, as a signer of kind external"
        ))
    })
}

/// Where the lane is kept; marks go there whatever is done with requests.
fn place(core: &Core, lane: LaneKey) -> Result<Place, ReservationError> {
    let place = routing::place_by_keeper(core, lane);
    match (&place, core.config.non_keeper) {
        (Place::There(peer), NonKeeper::Reject) => Err(ReservationError::Unavailable(format!(
            "node {} keeps this lane",
            peer.node
        ))),
        (Place::Here | Place::There(_) | Place::Nowhere, _) => Ok(place),
    }
}

/// A hash is one attempt's for ever: one that another tx has would make its lane's commit conflict, and the lane be
/// read again with every repeat. So it is looked up before it gets there.
///
/// As long as every mark was taken for a while it is left out: the store itself refuses a hash twice, and what is
/// usual costs no read. A wrong hash costs one conflict, and none while it is repeated.
async fn refuse_named_elsewhere(core: &Core, call: &MarkRequest) -> Result<(), ReservationError> {
    let hash = match &call.mark {
        Mark::Submitted(hash) | Mark::Used(hash) => *hash,
        Mark::Recyclable { .. } => return Ok(()),
    };
    let until = *lock(&core.marks_looked_up_until);
    if until.is_none_or(|until| core.ports.clock.monotonic() >= until) {
        return Ok(());
    }
    let found = core.ports.store.tx_by_hash(hash).await;
    let Some(record) = found.map_err(unavailable)? else {
        return Ok(());
    };
    let named = record.attempts.iter().find(|attempt| attempt.hash == hash);
    let nonce = named.map(|attempt| attempt.nonce).or(record.tx.nonce);
    let is_here = record.lane == call.lane && nonce == Some(call.nonce);
    let is_his = record.tx.request_id == reservation_request_id(call.holder);
    // Of an open one the lane knows that it is somebody else's.
    match is_here && (is_his || record.tx.is_open()) {
        true => Ok(()),
        false => {
            let nonce = nonce.unwrap_or(call.nonce);
            Err(MarkRefusal::HashElsewhere { hash, nonce }.into())
        }
    }
}

/// A mark was not taken: its hash may be why, or that of another one in its lane's commit.
fn look_up_for_a_while(core: &Core) {
    let until = core.ports.clock.monotonic().plus(LOOK_UP_AFTER_FAILURE);
    *lock(&core.marks_looked_up_until) = Some(until);
}

/// Through this node's own shard.
async fn here(core: &Arc<Core>, call: &MarkRequest) -> Result<Reservation, MarkError> {
    let (answer, answered) = oneshot::channel();
    let pending = PendingMark {
        call: call.clone(),
        answer,
    };
    core.tell_shard(call.lane, Message::Mark(pending)).await;
    match answered.await {
        Ok(MarkOutcome::Taken(reservation)) => Ok(reservation),
        Ok(MarkOutcome::Refused(why)) => Err(MarkError::Refused(why.into())),
        Ok(MarkOutcome::NotOpen { is_free }) => by_row(core, call, is_free).await,
        Err(_not_durable) => {
            let keeper = core.routes.keeper(call.lane, core.ports.clock.monotonic());
            let another = keeper.filter(|keeper| *keeper != core.config.name);
            Err(another.map_or(MarkError::NotNow, MarkError::NotKeeper))
        }
    }
}

/// Nobody holds the nonce: what the row of this holder says decides, and nothing changes any more.
async fn by_row(core: &Core, call: &MarkRequest, is_free: bool) -> Result<Reservation, MarkError> {
    let (lane, nonce) = (call.lane, call.nonce);
    let not_holder = || MarkError::Refused(MarkRefusal::NotHolder(nonce).into());
    let reservations = reservations(core, lane).map_err(MarkError::Refused)?;
    let found = find(core, lane, call.holder).await;
    let record = found.map_err(MarkError::Refused)?.ok_or_else(not_holder)?;
    let dealt = dealt(core, &record.tx).await;
    let dealt = dealt.map_err(MarkError::Refused)?;
    let reservation =
        lent_as(lane, &record, dealt, reservations).filter(|lent| lent.nonce == nonce);
    let mut reservation = reservation.ok_or_else(not_holder)?;
    if record.tx.is_open() {
        return Err(MarkError::NotNow); // the lane is being read
    }
    if reservation.state == ReservationState::Recyclable && !is_free {
        return Err(not_holder()); // somebody had it after him
    }
    let said = reservation.mark(call.holder, &call.mark);
    said.map_err(|refused| MarkError::Refused(refused.into()))?;
    Ok(reservation)
}

async fn find(
    core: &Core,
    lane: LaneKey,
    holder: Holder,
) -> Result<Option<TxRecord>, ReservationError> {
    let store = &core.ports.store;
    let found = store
        .tx_by_request(lane, &reservation_request_id(holder))
        .await;
    found.map_err(unavailable)
}

/// The reservation that a row stands for, with what was named for it.
fn lent_as(
    lane: LaneKey,
    record: &TxRecord,
    dealt: Option<Nonce>,
    reservations: ReservationRules,
) -> Option<Reservation> {
    let lent = lent_to(lane, &record.tx, dealt, reservations)?;
    Some(lent.with_attempts(&record.attempts))
}

fn unavailable(error: StoreError) -> ReservationError {
    ReservationError::Unavailable(error.to_string())
}

fn refused(refusal: Refusal) -> ReservationError {
    match refusal {
        Refusal::Busy => ReservationError::Busy,
        Refusal::OutcomeUnknown => ReservationError::Unknown(refusal.to_string()),
        Refusal::UnknownChain(_)
        | Refusal::UnknownSigner(..)
        | Refusal::KeyReused(_)
        | Refusal::BadPayload(_)
        | Refusal::Reverted(_)
        | Refusal::Underfunded(_) => ReservationError::NotReservable(refusal.to_string()),
        Refusal::NotKeeper(_)
        | Refusal::ChainUnavailable(_)
        | Refusal::StoreUnavailable(_)
        | Refusal::Halted(_)
        | Refusal::Draining => ReservationError::Unavailable(refusal.to_string()),
    }
}

/// Whether a request belongs in its lane: loans where nonces are lent, txs where they are sent.
pub(crate) fn check(lent: Option<ReservationRules>, new: &NewTx) -> Result<(), Refusal> {
    let looks_lent = new
        .request_id
        .as_str()
        .starts_with(domain::lane::reserve::RESERVATION_PREFIX);
    let is_loan = looks_lent && ReservationTerms::of(new.lane, &new.payload).is_some();
    match (lent, looks_lent) {
        (Some(_), _) if is_loan => Ok(()),
        (Some(_), _) => Err(Refusal::BadPayload(format!(
            "{} lends its nonces (signer kind external) and sends nothing from here: POST \
             /api/v1/lanes/{}/{}/nonces borrows one",
            new.lane.signer, new.lane.chain_id, new.lane.signer
        ))),
        (None, true) => Err(Refusal::BadPayload(
            "request ids that begin with lanekeeper-lent- are Lanekeeper's own".to_owned(),
        )),
        (None, false) => Ok(()),
    }
}
