//! The closed list of problems, with status, title, retry advice and effect of each.

use axum::http::StatusCode;
use strum::{IntoStaticStr, VariantArray};

/// What went wrong. The list is closed; a kind's `type` never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum ProblemKind {
    InvalidJson,
    /// A field of the body is unknown, missing or breaks its rule.
    InvalidField,
    InvalidPath,
    /// A query parameter is unknown, repeated or breaks its rule.
    InvalidQuery,
    /// A header breaks its rule or contradicts the body.
    InvalidHeader,
    /// Not a cursor that this API returned.
    InvalidCursor,
    /// The payload breaks a rule of the node or chain.
    InvalidPayload,
    /// No API key, or one that is not known.
    Unauthenticated,
    MissingScope,
    NotAPeer,
    /// A page of another site sent the request.
    ForeignPage,
    UnknownPath,
    UnknownTx,
    UnknownLane,
    UnknownChain,
    UnknownSigner,
    MethodNotAllowed,
    BodyTimeout,
    NotKeeper,
    /// There is nothing to resume.
    LaneNotHalted,
    /// A mark contradicts the state of the reservation.
    NonceRefused,
    /// A reserved nonce cannot be released while its transaction may be mined.
    NonceMayBeMined,
    /// The account's nonces cannot be reserved, or belong to another scheme.
    #[strum(serialize = "not-lendable")]
    NotReservable,
    BodyTooLarge,
    /// The name in `Host` is not one of this node's.
    ForeignHost,
    UnsupportedMediaType,
    RequestIdReused,
    /// The gas estimation showed that the call reverts.
    CallReverts,
    Underfunded,
    /// The gas limit is above that of a block or of one transaction.
    GasAboveLimit,
    /// The gas limit is below what the call needs.
    GasTooLow,
    /// The named fee is below the base fee or the chain's floor.
    FeeBelowFloor,
    /// The transaction type, or the kind of fees that the payload names, does not exist on the chain.
    TypeNotSupported,
    Busy,
    TooManyWaiters,
    TooManyStreams,
    /// On this connection only health checks and nodes of the cluster are served.
    TooManyConnections,
    Internal,
    StoreCorrupt,
    /// The request needs the chain, and no endpoint answers.
    ChainUnavailable,
    StoreUnavailable,
    /// The request was sent to the store or the keeper, and the response was lost.
    OutcomeUnknown,
    /// The lane takes no work until an operator decides.
    LaneHalted,
    Draining,
}

/// What a caller can do about a problem, and whether the failed request may have had an effect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Advice {
    /// The request had no effect, and fails again until it, or an operator, changes something.
    Final,
    /// The request had no effect, and can succeed later or at another node.
    Retry,
    /// The request may have been accepted: repeating it with the same requestId shows the result.
    Unknown,
}

impl ProblemKind {
    /// One row per kind: a kind cannot be added without its status, advice and title.
    fn row(self) -> (u16, Advice, &'static str) {
        use Advice::{Final, Retry, Unknown};
        match self {
            Self::InvalidJson => (400, Final, "The body is not JSON"),
            Self::InvalidField => (400, Final, "A field is not valid"),
            Self::InvalidPath => (400, Final, "A part of the path is not valid"),
            Self::InvalidQuery => (400, Final, "A query parameter is not valid"),
            Self::InvalidHeader => (400, Final, "A header is not valid"),
            Self::InvalidCursor => (400, Final, "The cursor is not valid"),
            Self::InvalidPayload => (400, Final, "The payload is not valid"),
            Self::Unauthenticated => (401, Final, "A valid API key is needed"),
            Self::MissingScope => (403, Final, "The API key may not do this"),
            Self::NotAPeer => (403, Final, "The caller is not a node of this cluster"),
            Self::ForeignPage => (403, Final, "A page of another site may not do this"),
            Self::UnknownPath => (404, Final, "No such path"),
            Self::UnknownTx => (404, Final, "No such tx"),
            Self::UnknownLane => (404, Final, "No such lane"),
            Self::UnknownChain => (404, Final, "The chain is not configured"),
            Self::UnknownSigner => (404, Final, "The signer is not configured"),
            Self::MethodNotAllowed => (405, Final, "The path has no such method"),
            // Its requests are not known.
            Self::BodyTimeout => (408, Unknown, "The body arrived too slowly"),
            Self::NotKeeper => (409, Retry, "Another node keeps the lane"),
            Self::LaneNotHalted => (409, Final, "The lane is not halted"),
            Self::NonceRefused => (
                409,
                Final,
                "The reservation is in another state, or has another holder",
            ),
            Self::NonceMayBeMined => (409, Retry, "The nonce's transaction may still be mined"),
            Self::NotReservable => (409, Final, "The account's nonces cannot be reserved"),
            Self::BodyTooLarge => (413, Final, "The body is too large"),
            Self::UnsupportedMediaType => (415, Final, "The body must be JSON"),
            Self::ForeignHost => (421, Final, "The node does not have this name"),
            Self::RequestIdReused => (422, Final, "The requestId was used for another payload"),
            Self::CallReverts => (422, Final, "The call reverts"),
            Self::Underfunded => (422, Final, "The account cannot pay for the call"),
            Self::GasAboveLimit => (422, Final, "No block can hold the gas limit"),
            Self::GasTooLow => (422, Final, "The gas limit is too low for the call"),
            Self::FeeBelowFloor => (422, Final, "The fee is too low for the chain at present"),
            Self::TypeNotSupported => (422, Final, "The transaction type is not supported"),
            Self::Busy => (429, Retry, "Too many requests are queued"),
            Self::TooManyWaiters => (429, Retry, "Too many callers are waiting"),
            Self::TooManyStreams => (429, Retry, "Too many event streams are open"),
            Self::TooManyConnections => (429, Retry, "Too many connections are open"),
            // A panic may have happened after the commit.
            Self::Internal => (500, Unknown, "A bug in Lanekeeper"),
            Self::StoreCorrupt => (500, Final, "Stored data cannot be read"),
            Self::ChainUnavailable => (503, Retry, "The chain does not answer"),
            Self::StoreUnavailable => (503, Retry, "The store does not answer"),
            Self::OutcomeUnknown => (503, Unknown, "The outcome is not known"),
            // Retrying does not help: an operator must decide.
            Self::LaneHalted => (503, Final, "The lane is halted"),
            Self::Draining => (503, Retry, "The node is shutting down"),
        }
    }

    /// The last part of the kind's URI. It never changes.
    pub(super) fn slug(self) -> &'static str {
        self.into()
    }

    /// A short description of the kind.
    pub(super) fn title(self) -> &'static str {
        self.row().2
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.row().0).expect("the table has valid statuses only")
    }

    /// Whether the same request can succeed later or at another node, without an operator's action.
    pub(super) fn is_retryable(self) -> bool {
        self.row().1 != Advice::Final
    }

    /// Whether the condition ends by itself within seconds, so that the response has a `Retry-After`.
    pub(super) fn is_transient(self) -> bool {
        [409, 429, 503].contains(&self.row().0) && self.is_retryable()
    }

    /// Whether the request that failed may have had an effect, whatever it was.
    pub(super) fn may_have_effect(self) -> bool {
        self.row().1 == Advice::Unknown
    }
}
