//! Conversions between values and columns.

use domain::{
    Address, B256, ChainId, Header, Holder, LaneKey, Nonce, Reservation, ReservationState,
    Timestamp,
};
use engine::ports::ReservationError;
use tokio_postgres::Row;

use super::QueryError;
use crate::Result;
use crate::scheme::{ReservationKey, SchemeKind, WatchedReservation};

/// The lane's key as columns.
pub(super) struct Lane {
    pub(super) chain: i64,
    pub(super) signer: Vec<u8>,
}

impl Lane {
    /// Fails for a chain id that exceeds a bigint; no real one does.
    pub(super) fn of(lane: LaneKey) -> Result<Self> {
        let chain = i64::try_from(lane.chain_id.0).map_err(|error| {
            ReservationError::NotReservable(format!("chain {}: {error}", lane.chain_id.0))
        })?;
        Ok(Self {
            chain,
            signer: lane.signer.to_vec(),
        })
    }
}

/// A number as `bigint`. A nonce beyond it has never been on any chain.
pub(crate) fn signed(number: u64) -> Result<i64> {
    i64::try_from(number)
        .map_err(|error| ReservationError::Unavailable(format!("a nonce of {number}: {error}")))
}

/// A `bigint` that is never negative.
pub(super) fn unsigned(number: i64) -> Result<u64, QueryError> {
    u64::try_from(number).map_err(|error| malformed(&error))
}

/// The stored number of a scheme, in `nonce_lane.scheme`: it never changes.
pub(super) fn scheme_number(scheme: SchemeKind) -> i16 {
    match scheme {
        SchemeKind::RowLock => 1,
        SchemeKind::RedisIssue => 2,
        SchemeKind::RedisReserve => 3,
        SchemeKind::Lane => 4,
        SchemeKind::Segment => 5,
    }
}

/// The error for a scheme that does not own the lane.
pub(super) fn not_reservable(lane: LaneKey, bound: i16, asked: SchemeKind) -> ReservationError {
    let mut schemes = SchemeKind::ALL.iter();
    let bound = schemes.find(|kind| scheme_number(**kind) == bound);
    let whose = match bound {
        Some(SchemeKind::Lane) => {
            "allocated by its lane, to its own txs or by scheme lane".to_owned()
        }
        Some(kind) => format!("reserved by scheme {}", kind.as_str()),
        None => "reserved by a scheme that this program does not know".to_owned(),
    };
    ReservationError::NotReservable(format!(
        "the nonces of {} on chain {} are {whose}, and a lane belongs to one scheme for ever: set nonce.scheme to \
         it, or reserve from another account (this process uses {})",
        lane.signer,
        lane.chain_id.0,
        asked.as_str()
    ))
}

/// The stored number of a state, in `nonce_reservation.state`: it never changes.
pub(super) fn state_number(state: ReservationState) -> i16 {
    match state {
        ReservationState::Reserved => 0,
        ReservationState::Used => 1,
        ReservationState::Recyclable => 2,
    }
}

fn state(number: i16) -> Result<ReservationState, QueryError> {
    use ReservationState::{Recyclable, Reserved, Used};
    let mut states = [Reserved, Used, Recyclable].into_iter();
    let found = states.find(|state| state_number(*state) == number);
    found.ok_or_else(|| QueryError::Malformed(format!("no state {number}")))
}

/// A nonce that was reserved just now.
pub(crate) fn new_reservation(key: ReservationKey, expires_at: Timestamp) -> Reservation {
    Reservation {
        lane: key.lane,
        nonce: key.nonce,
        holder: key.holder,
        state: ReservationState::Reserved,
        tx_hash: None,
        was_replaced: false,
        expires_at,
        reason: None,
    }
}

/// From columns `state, nonce, holder, tx_hash, was_replaced, expires_ms, reason`.
pub(super) fn reservation(lane: LaneKey, row: &Row) -> Result<Reservation, QueryError> {
    let hash: Option<&[u8]> = column(row, "tx_hash")?;
    Ok(Reservation {
        lane,
        nonce: Nonce(unsigned(column(row, "nonce")?)?),
        holder: Holder(column(row, "holder")?),
        state: state(column(row, "state")?)?,
        tx_hash: hash.map(hash_of).transpose()?,
        was_replaced: column(row, "was_replaced")?,
        expires_at: Timestamp(unsigned(column(row, "expires_ms")?)?),
        reason: column(row, "reason")?,
    })
}

/// From a row of `nonce_list_watched`.
pub(super) fn watched(row: &Row) -> Result<WatchedReservation, QueryError> {
    let signer: &[u8] = column(row, "signer")?;
    let lane = LaneKey {
        chain_id: ChainId(unsigned(column(row, "chain_id")?)?),
        signer: Address::try_from(signer).map_err(|error| malformed(&error))?,
    };
    let number: Option<i64> = column(row, "closed_number")?;
    let closed_in = match number {
        None => None,
        Some(number) => Some(Header {
            number: unsigned(number)?,
            hash: hash_of(column(row, "closed_hash")?)?,
            parent_hash: hash_of(column(row, "closed_parent")?)?,
            timestamp: unsigned(column(row, "closed_time")?)?,
        }),
    };
    Ok(WatchedReservation {
        reservation: reservation(lane, row)?,
        closed_in,
    })
}

pub(super) fn column<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    name: &str,
) -> Result<T, QueryError> {
    row.try_get(name).map_err(|error| malformed(&error))
}

fn hash_of(bytes: &[u8]) -> Result<B256, QueryError> {
    B256::try_from(bytes).map_err(|error| malformed(&error))
}

fn malformed(error: &(dyn std::error::Error + 'static)) -> QueryError {
    QueryError::Malformed(postgres_client::error_text(error))
}
