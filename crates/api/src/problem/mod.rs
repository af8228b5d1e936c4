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
    /// The value of the body that breaks a rule.
    pub field_error: Option<FieldError>,
    /// Whether the request may have an effect all the same.
    pub may_have_effect: bool,
}

/// A value of the body and the rule that it breaks, for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// The value, as a JSON pointer (RFC 6901).
    pub pointer: String,
    /// The rule, as a clause that follows the value's name.
    pub rule: String,
}

impl Problem {
    pub(crate) fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            field_error: None,
            may_have_effect: kind.may_have_effect(),
        }
    }

    /// The problem of a request that may have an effect: it was not looked up and may be a repeat, or what failed came after
    /// the effect.
    pub(crate) fn with_possible_effect(self) -> Self {
        Self {
            may_have_effect: true,
            ..self
        }
    }

    /// The problem of a read.
    pub(crate) fn of_read(self) -> Self {
        Self {
            may_have_effect: false,
            ..self
        }
    }

    /// The document as the body of a response, with the id of the request where that is known.
    pub(crate) fn document(&self, request_id: Option<&str>) -> Vec<u8> {
        let document = Document::new(self, request_id);
        serde_json::to_vec(&document).expect("a problem has only texts and numbers")
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
        let problem = Self::new(kind, refusal.to_string());
        match refusal.may_have_effect() {
            true => problem.with_possible_effect(),
            false => problem,
        }
    }
}

impl From<ReservationError> for Problem {
    fn from(error: ReservationError) -> Self {
        let kind = match &error {
            ReservationError::Refused(_) => ProblemKind::NonceRefused,
            ReservationError::MayBeMined { .. } => ProblemKind::NonceMayBeMined,
            ReservationError::UnknownChain(_) => ProblemKind::UnknownChain,
            ReservationError::UnknownSigner(..) => ProblemKind::UnknownSigner,
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
    #[serde(rename = "requestId", skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [FieldError],
}

impl<'a> Document<'a> {
    fn new(problem: &'a Problem, request_id: Option<&'a str>) -> Self {
        Self {
            r#type: format!("urn:lanekeeper:problem:{}", problem.kind.slug()),
            title: problem.kind.title(),
            status: problem.kind.status().as_u16(),
            detail: &problem.detail,
            retryable: problem.kind.is_retryable(),
            effect: match problem.may_have_effect {
                true => "unknown",
                false => "none",
            },
            request_id,
            errors: problem.field_error.as_slice(),
        }
    }
}

/// As a part of another document, whose response has the id of the request.
impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Document::new(self, None).serialize(serializer)
    }
}

/// The problem goes along with the response: the middleware adds the id of the request to the document.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.kind.status();
        let mut response = (status, self.document(None)).into_response();
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
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests;
