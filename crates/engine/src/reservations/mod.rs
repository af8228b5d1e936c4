//! Reservations of nonces through a lane's keeper. Reserving is a request like any other; a holder's mark is sent to
//! the node that keeps the lane.
//!
//! Marks are idempotent, so a mark without an answer is simply sent again.

mod list;
mod mark;

use domain::lane::reservations::{
    MarkOutcome, RESERVE_TIMEOUT, ReservationRules, ReservationTerms, reservation_from_row,
    reservation_request_id,
};
use domain::{EventKind, Holder, LaneKey, Mark, NodeName, Nonce, Reservation, Tx};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::oneshot;

use crate::core::Core;
use crate::intake::{self, RequestSource};
use crate::node::{NewTx, NodeHandle, Origin, Refusal};
use crate::ports::{ReservationError, StoreError, TxRecord};

/// A holder's report on its nonce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkRequest {
    /// The lane of the nonce.
    pub lane: LaneKey,
    /// The reserved nonce.
    pub nonce: Nonce,
    /// The reservation's holder.
    pub holder: Holder,
    /// What became of the nonce.
    pub mark: Mark,
}

/// Why a node did not take a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkError {
    /// The lane is not in this node's memory, or the commit failed: retry, perhaps at another node.
    Unavailable,
    /// The named node keeps the lane.
    NotKeeper(NodeName),
    /// A retry gets the same answer.
    Refused(ReservationError),
}

impl From<ReservationError> for MarkError {
    fn from(error: ReservationError) -> Self {
        Self::Refused(error)
    }
}

/// A mark that waits for the commit of its turn.
#[derive(Debug)]
pub(crate) struct PendingMark {
    pub(crate) call: MarkRequest,
    /// Dropped without an answer when the commit is not applied.
    pub(crate) answer: oneshot::Sender<MarkOutcome>,
}

impl NodeHandle {
    /// Reserves the smallest free nonce of a lane for a new holder.
    pub fn reserve_nonce(
        &self,
        lane: LaneKey,
        holder: Holder,
        terms: ReservationTerms,
    ) -> BoxFuture<'_, Result<Reservation, ReservationError>> {
        async move {
            let rules = reservation_rules(&self.core, lane)?;
            let new = NewTx {
                lane,
                request_id: reservation_request_id(holder),
                payload: terms.payload(lane),
                estimated_gas: None,
                origin: Origin::default(),
            };
            let accepted = intake::create_tx(&self.core, new, RequestSource::Client).await;
            let record = accepted.map_err(reservation_error)?.record;
            if let Some(reservation) = reservation_from_row(lane, &record.tx, None, rules) {
                return Ok(reservation);
            }
            // It is queued until the chain's nonce is known, or the lane has a keeper.
            let is_decided = |record: &TxRecord| record.tx.nonce.is_some() || !record.tx.is_open();
            let waited = self.wait_until(record.tx.id, RESERVE_TIMEOUT, is_decided);
            let waited = waited.await.map_err(reservation_error)?;
            let allocated =
                waited.and_then(|record| reservation_from_row(lane, &record.tx, None, rules));
            allocated.ok_or_else(|| {
                ReservationError::Unavailable("the lane allocates no nonce at present".to_owned())
            })
        }
        .boxed()
    }

    /// The reservation of this holder, if it is for this nonce.
    pub async fn reservation_of(
        &self,
        lane: LaneKey,
        holder: Holder,
        nonce: Nonce,
    ) -> Result<Option<Reservation>, ReservationError> {
        let found = find_reservation(&self.core, lane, holder, nonce).await?;
        Ok(found.map(|(reservation, _)| reservation))
    }
}

/// The reservation of this holder, with its row, if it is for this nonce.
async fn find_reservation(
    core: &Core,
    lane: LaneKey,
    holder: Holder,
    nonce: Nonce,
) -> Result<Option<(Reservation, Tx)>, ReservationError> {
    let rules = reservation_rules(core, lane)?;
    let request_id = reservation_request_id(holder);
    let Some(record) = core.ports.store.tx_by_request(lane, &request_id).await? else {
        return Ok(None);
    };
    let allocated = allocated_nonce(core, &record.tx).await?;
    let reservation = reservation_from_record(&record, allocated, rules)
        .filter(|reservation| reservation.nonce == nonce);
    Ok(reservation.map(|reservation| (reservation, record.tx)))
}

/// The nonce that a reservation has, or had before it was recycled: then only its events name it.
async fn allocated_nonce(core: &Core, tx: &Tx) -> Result<Option<Nonce>, ReservationError> {
    if tx.nonce.is_some() || tx.is_open() {
        return Ok(tx.nonce);
    }
    let events = core.ports.store.tx_events(tx.id).await?.unwrap_or_default();
    Ok(events.iter().find_map(|record| {
        let (EventKind::TxAccepted { nonce: Some(nonce) } | EventKind::TxAllocated { nonce }) =
            &record.event.kind
        else {
            return None;
        };
        Some(*nonce)
    }))
}

fn reservation_rules(core: &Core, lane: LaneKey) -> Result<ReservationRules, ReservationError> {
    let LaneKey { chain_id, signer } = lane;
    core.check_configured(lane).map_err(reservation_error)?;
    core.reservations(lane).ok_or_else(|| {
        ReservationError::NotReservable(format!(
            "{signer} on chain {chain_id} sends by itself here, so its nonces cannot be reserved: use an account \
             that only you send from, as a signer of kind external"
        ))
    })
}

/// The reservation that a row stands for, with the hashes that were reported for it.
fn reservation_from_record(
    record: &TxRecord,
    allocated: Option<Nonce>,
    rules: ReservationRules,
) -> Option<Reservation> {
    let reservation = reservation_from_row(record.lane, &record.tx, allocated, rules)?;
    Some(reservation.with_attempts(&record.attempts))
}

impl From<StoreError> for ReservationError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Busy(_) => Self::Busy,
            StoreError::Unavailable(_)
            | StoreError::Corrupt(_)
            | StoreError::Invalid(_)
            | StoreError::Halted(_)
            | StoreError::Unreconciled(_) => Self::Unavailable(error.to_string()),
        }
    }
}

fn reservation_error(refusal: Refusal) -> ReservationError {
    match refusal {
        Refusal::Busy => ReservationError::Busy,
        Refusal::OutcomeUnknown => ReservationError::Unknown(refusal.to_string()),
        Refusal::UnknownChain(chain) => ReservationError::UnknownChain(chain),
        Refusal::UnknownSigner(chain, signer) => ReservationError::UnknownSigner(chain, signer),
        Refusal::KeyReused(_)
        | Refusal::BadPayload(_)
        | Refusal::GasAboveLimit(_)
        | Refusal::GasTooLow(_)
        | Refusal::FeeBelowFloor(_)
        | Refusal::TypeNotSupported(_)
        | Refusal::Reverted(_)
        | Refusal::Underfunded(_) => ReservationError::NotReservable(refusal.to_string()),
        Refusal::NotKeeper(_)
        | Refusal::ChainUnavailable(_)
        | Refusal::StoreUnavailable(_)
        | Refusal::Halted(_)
        | Refusal::Draining => ReservationError::Unavailable(refusal.to_string()),
    }
}
