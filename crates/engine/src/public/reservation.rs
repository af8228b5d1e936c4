//! A lent nonce, and all that is lent of a lane.

use domain::Reservation as Row;
use serde::Serialize;

use super::form::{Account, At, Hash};
use crate::ports::LaneReservations;

/// A lent nonce as customers see it. `holder` is what its marks must carry: whoever lists a lane does not see
/// it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reservation<'a> {
    chain_id: u64,
    signer: Account,
    nonce: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    state: &'static str,
    tx_hash: Option<Hash>,
    expires_at: At,
    reason: Option<&'a str>,
}

impl<'a> Reservation<'a> {
    /// For its holder.
    #[must_use]
    pub fn new(row: &'a Row) -> Self {
        Self {
            holder: Some(row.holder.0.to_string()),
            ..Self::of_somebody(row)
        }
    }

    fn of_somebody(row: &'a Row) -> Self {
        Self {
            chain_id: row.lane.chain_id.0,
            signer: Account(row.lane.signer),
            nonce: row.nonce.0,
            holder: None,
            state: row.state.as_str(),
            tx_hash: row.tx_hash.map(Hash),
            expires_at: At(row.expires_at),
            reason: row.reason.as_deref(),
        }
    }
}

/// What is lent of a lane at present.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservationList<'a> {
    next_nonce: u64,
    nonces: Vec<Reservation<'a>>,
    has_more: bool,
}

impl<'a> ReservationList<'a> {
    /// As the books have it.
    #[must_use]
    pub fn new(lent: &'a LaneReservations) -> Self {
        Self {
            next_nonce: lent.next_nonce.0,
            nonces: lent.open.iter().map(Reservation::of_somebody).collect(),
            has_more: lent.has_more,
        }
    }
}
