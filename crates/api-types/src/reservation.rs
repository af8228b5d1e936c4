//! A reserved nonce, and the open reservations of a lane.

use domain::{B256, Reservation as ReservationRecord};
use serde::Serialize;

use crate::encoding::{ChecksumAddress, Rfc3339Time};
use engine::ports::LaneReservations;

/// A reservation in the public JSON. Every mark must carry `holder`, which therefore appears only in the
/// response to the holder, never in a lane's list.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reservation<'a> {
    chain_id: u64,
    signer: ChecksumAddress,
    nonce: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    state: &'static str,
    tx_hash: Option<B256>,
    expires_at: Rfc3339Time,
    reason: Option<&'a str>,
}

impl<'a> Reservation<'a> {
    /// The response to the holder, who needs the `holder` id for later marks.
    #[must_use]
    pub fn new(record: &'a ReservationRecord) -> Self {
        Self {
            holder: Some(record.holder.0.to_string()),
            ..Self::without_holder(record)
        }
    }

    fn without_holder(record: &'a ReservationRecord) -> Self {
        Self {
            chain_id: record.lane.chain_id.0,
            signer: ChecksumAddress(record.lane.signer),
            nonce: record.nonce.0,
            holder: None,
            state: record.state.as_str(),
            tx_hash: record.tx_hash,
            expires_at: Rfc3339Time(record.expires_at),
            reason: record.reason.as_deref(),
        }
    }
}

/// The open reservations of a lane.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservationList<'a> {
    next_nonce: u64,
    nonces: Vec<Reservation<'a>>,
    has_more: bool,
}

impl<'a> ReservationList<'a> {
    #[must_use]
    pub fn new(reservations: &'a LaneReservations) -> Self {
        Self {
            next_nonce: reservations.next_nonce.0,
            nonces: reservations
                .open
                .iter()
                .map(Reservation::without_holder)
                .collect(),
            has_more: reservations.has_more,
        }
    }
}
