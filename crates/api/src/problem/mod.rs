//! Errors that callers see: one closed list, rendered as problem documents (RFC 9457).

mod kind;

use std::fmt;

use axum::http::HeaderValue;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use engine::node::Refusal;
use engine::ports::{ReservationError, StoreError};
use serde::{Serialize, Serializer};

pub use kind::ProblemKind;

/// An error of one kind, with a detail that explains this occurrence and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The entry of the closed list.
    pub kind: ProblemKind,
    /// What happened this time, and what to do.
    pub detail: String,
}

impl Problem {
    pub(crate) fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.title(), self.detail)
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let kind = match &refusal {
            Refusal::UnknownChain(_) => ProblemKind::UnknownChain,
            Refusal::UnknownSigner(..) => ProblemKind::UnknownSigner,
            Refusal::KeyReused(_) => ProblemKind::RequestIdReused,
            Refusal::BadPayload(_) => ProblemKind::InvalidPayload,
            Refusal::GasAboveLimit(_) => ProblemKind::GasAboveLimit,
            Refusal::GasTooLow(_) => ProblemKind::GasTooLow,
            Refusal::FeeBelowFloor(_) => ProblemKind::FeeBelowFloor,
            Refusal::TypeNotSupported(_) => ProblemKind::TypeNotSupported,
            Refusal::Reverted(_) => ProblemKind::CallReverts,
            Refusal::Underfunded(_) => ProblemKind::Underfunded,
            Refusal::Busy => ProblemKind::Busy,
            Refusal::NotKeeper(_) => ProblemKind::NotKeeper,
            Refusal::ChainUnavailable(_) => ProblemKind::ChainUnavailable,
            Refusal::StoreUnavailable(_) => ProblemKind::StoreUnavailable,
            Refusal::OutcomeUnknown => ProblemKind::OutcomeUnknown,
            Refusal::Halted(_) => ProblemKind::LaneHalted,
            Refusal::Draining => ProblemKind::Draining,
        };
        Self::new(kind, refusal.to_string())
    }
}

impl From<ReservationError> for Problem {
    fn from(error: ReservationError) -> Self {
        let kind = match &error {
            ReservationError::Refused(_) => ProblemKind::NonceRefused,
            ReservationError::MayBeMined { .. } => ProblemKind::NonceMayBeMined,
            ReservationError::NotReservable(_) => ProblemKind::NotReservable,
            ReservationError::Busy => ProblemKind::Busy,
            ReservationError::Unavailable(_) => ProblemKind::StoreUnavailable,
            ReservationError::Unknown(_) => ProblemKind::OutcomeUnknown,
        };
        Self::new(kind, error.to_string())
    }
}

/// Only reads return it: every write returns a [`Refusal`].
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let kind = match &error {
            StoreError::Unavailable(_) | StoreError::Unreconciled(_) => {
                ProblemKind::StoreUnavailable
            }
            StoreError::Busy(_) => ProblemKind::Busy,
            StoreError::Corrupt(_) => ProblemKind::StoreCorrupt,
            StoreError::Halted(_) => ProblemKind::LaneHalted,
            // `parse` has checked everything else; only the store can check the feed's cursor.
            StoreError::Invalid(_) => {
                let detail = format!(
                    "`after` is refused: {error}; send `next` of an earlier response unchanged, or \
                     leave it out to start with the oldest event"
                );
                return Self::new(ProblemKind::InvalidCursor, detail);
            }
        };
        Self::new(kind, error.to_string())
    }
}

/// Short, because queues move in milliseconds and leases in seconds.
pub(crate) const RETRY_AFTER_SECONDS: &str = "1";

#[derive(Serialize)]
struct Document<'a> {
    r#type: String,
    title: &'static str,
    status: u16,
    detail: &'a str,
    retryable: bool,
    effect: &'static str,
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Document {
            r#type: format!("urn:lanekeeper:problem:{}", self.kind.slug()),
            title: self.kind.title(),
            status: self.kind.status().as_u16(),
            detail: &self.detail,
            retryable: self.kind.is_retryable(),
            effect: self.kind.effect(),
        }
        .serialize(serializer)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.kind.status();
        let body = serde_json::to_vec(&self).expect("a problem has only texts and numbers");
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if self.kind.is_transient() {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
        }
        if self.kind == ProblemKind::Unauthenticated {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests;
