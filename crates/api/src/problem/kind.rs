//! The closed list of problems, with status, title, retry advice and effect of each.

use axum::http::StatusCode;

/// What went wrong. The list is closed; a kind's `type` never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProblemKind {
    /// The body is not JSON.
    InvalidJson,
    /// A field of the body is unknown, missing or breaks its rule.
    InvalidField,
    /// A part of the path breaks its rule.
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
    /// The API key may not do this.
    MissingScope,
    /// The caller is not a node of this cluster.
    NotAPeer,
    /// No such path.
    UnknownPath,
    /// No such tx.
    UnknownTx,
    /// No such lane.
    UnknownLane,
    /// The chain is not configured.
    UnknownChain,
    /// No signer has that account.
    UnknownSigner,
    /// The path exists, but not with this method.
    MethodNotAllowed,
    /// The body did not arrive in time.
    BodyTimeout,
    /// Another node keeps the lane.
    NotKeeper,
    /// A mark contradicts the state of the reservation.
    NonceRefused,
    /// A reserved nonce cannot be released while its transaction may be mined.
    NonceMayBeMined,
    /// The account's nonces cannot be reserved, or belong to another scheme.
    NotReservable,
    /// The body is larger than allowed.
    BodyTooLarge,
    /// The body is not declared as JSON.
    UnsupportedMediaType,
    /// The requestId was used for another payload.
    RequestIdReused,
    /// The gas estimation showed that the call reverts.
    CallReverts,
    /// The account cannot pay for the call.
    Underfunded,
    /// A queue is full.
    Busy,
    /// Too many callers wait for a tx.
    TooManyWaiters,
    /// Too many event streams are open.
    TooManyStreams,
    /// A bug in Lanekeeper.
    Internal,
    /// Stored data cannot be read.
    StoreCorrupt,
    /// The request needs the chain, and no endpoint answers.
    ChainUnavailable,
    /// The store does not answer.
    StoreUnavailable,
    /// The request was sent to the store or the keeper, and the response was lost.
    OutcomeUnknown,
    /// The lane takes no work until an operator decides.
    LaneHalted,
    /// This node is shutting down.
    Draining,
}

/// The effect of a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// It may have been accepted: repeating it with the same requestId shows the result.
    Unknown,
}

impl ProblemKind {
    /// Every kind.
    pub const ALL: [Self; 36] = [
        Self::InvalidJson,
        Self::InvalidField,
        Self::InvalidPath,
        Self::InvalidQuery,
        Self::InvalidHeader,
        Self::InvalidCursor,
        Self::InvalidPayload,
        Self::Unauthenticated,
        Self::MissingScope,
        Self::NotAPeer,
        Self::UnknownPath,
        Self::UnknownTx,
        Self::UnknownLane,
        Self::UnknownChain,
        Self::UnknownSigner,
        Self::MethodNotAllowed,
        Self::BodyTimeout,
        Self::NotKeeper,
        Self::NonceRefused,
        Self::NonceMayBeMined,
        Self::NotReservable,
        Self::BodyTooLarge,
        Self::UnsupportedMediaType,
        Self::RequestIdReused,
        Self::CallReverts,
        Self::Underfunded,
        Self::Busy,
        Self::TooManyWaiters,
        Self::TooManyStreams,
        Self::Internal,
        Self::StoreCorrupt,
        Self::ChainUnavailable,
        Self::StoreUnavailable,
        Self::OutcomeUnknown,
        Self::LaneHalted,
        Self::Draining,
    ];

    /// The last part of the kind's URI. It never changes.
    #[must_use]
    pub fn slug(self) -> &'static str {
        match self {
            Self::InvalidJson => "invalid-json",
            Self::InvalidField => "invalid-field",
            Self::InvalidPath => "invalid-path",
            Self::InvalidQuery => "invalid-query",
            Self::InvalidHeader => "invalid-header",
            Self::InvalidCursor => "invalid-cursor",
            Self::InvalidPayload => "invalid-payload",
            Self::Unauthenticated => "unauthenticated",
            Self::MissingScope => "missing-scope",
            Self::NotAPeer => "not-a-peer",
            Self::UnknownPath => "unknown-path",
            Self::UnknownTx => "unknown-tx",
            Self::UnknownLane => "unknown-lane",
            Self::UnknownChain => "unknown-chain",
            Self::UnknownSigner => "unknown-signer",
            Self::MethodNotAllowed => "method-not-allowed",
            Self::BodyTimeout => "body-timeout",
            Self::NotKeeper => "not-keeper",
            Self::NonceRefused => "nonce-refused",
            Self::NonceMayBeMined => "nonce-may-be-mined",
            Self::NotReservable => "not-lendable",
            Self::BodyTooLarge => "body-too-large",
            Self::UnsupportedMediaType => "unsupported-media-type",
            Self::RequestIdReused => "request-id-reused",
            Self::CallReverts => "call-reverts",
            Self::Underfunded => "underfunded",
            Self::Busy => "busy",
            Self::TooManyWaiters => "too-many-waiters",
            Self::TooManyStreams => "too-many-streams",
            Self::Internal => "internal",
            Self::StoreCorrupt => "store-corrupt",
            Self::ChainUnavailable => "chain-unavailable",
            Self::StoreUnavailable => "store-unavailable",
            Self::OutcomeUnknown => "outcome-unknown",
            Self::LaneHalted => "lane-halted",
            Self::Draining => "draining",
        }
    }

    /// A short description of the kind.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::InvalidJson => "The body is not JSON",
            Self::InvalidField => "A field is not valid",
            Self::InvalidPath => "A part of the path is not valid",
            Self::InvalidQuery => "A query parameter is not valid",
            Self::InvalidHeader => "A header is not valid",
            Self::InvalidCursor => "The cursor is not valid",
            Self::InvalidPayload => "The payload is not valid",
            Self::Unauthenticated => "A valid API key is needed",
            Self::MissingScope => "The API key may not do this",
            Self::NotAPeer => "The caller is not a node of this cluster",
            Self::UnknownPath => "No such path",
            Self::UnknownTx => "No such tx",
            Self::UnknownLane => "No such lane",
            Self::UnknownChain => "The chain is not configured",
            Self::UnknownSigner => "The signer is not configured",
            Self::MethodNotAllowed => "The path has no such method",
            Self::BodyTimeout => "The body arrived too slowly",
            Self::NotKeeper => "Another node keeps the lane",
            Self::NonceRefused => "The reservation is in another state, or has another holder",
            Self::NonceMayBeMined => "The nonce's transaction may still be mined",
            Self::NotReservable => "The account's nonces cannot be reserved",
            Self::BodyTooLarge => "The body is too large",
            Self::UnsupportedMediaType => "The body must be JSON",
            Self::RequestIdReused => "The requestId was used for another payload",
            Self::CallReverts => "The call reverts",
            Self::Underfunded => "The account cannot pay for the call",
            Self::Busy => "Too many requests are queued",
            Self::TooManyWaiters => "Too many callers are waiting",
            Self::TooManyStreams => "Too many event streams are open",
            Self::Internal => "A bug in Lanekeeper",
            Self::StoreCorrupt => "Stored data cannot be read",
            Self::ChainUnavailable => "The chain does not answer",
            Self::StoreUnavailable => "The store does not answer",
            Self::OutcomeUnknown => "The outcome is not known",
            Self::LaneHalted => "The lane is halted",
            Self::Draining => "The node is shutting down",
        }
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::InvalidJson
            | Self::InvalidField
            | Self::InvalidPath
            | Self::InvalidQuery
            | Self::InvalidHeader
            | Self::InvalidCursor
            | Self::InvalidPayload => StatusCode::BAD_REQUEST,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::MissingScope | Self::NotAPeer => StatusCode::FORBIDDEN,
            Self::UnknownPath
            | Self::UnknownTx
            | Self::UnknownLane
            | Self::UnknownChain
            | Self::UnknownSigner => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::NotKeeper | Self::NonceRefused | Self::NonceMayBeMined | Self::NotReservable => {
                StatusCode::CONFLICT
            }
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::RequestIdReused | Self::CallReverts | Self::Underfunded => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            Self::Busy | Self::TooManyWaiters | Self::TooManyStreams => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::Internal | Self::StoreCorrupt => StatusCode::INTERNAL_SERVER_ERROR,
            Self::ChainUnavailable
            | Self::StoreUnavailable
            | Self::OutcomeUnknown
            | Self::LaneHalted
            | Self::Draining => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Whether the same request can succeed later or at another node, without an operator's action.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        match self {
            Self::BodyTimeout
            | Self::NotKeeper
            | Self::NonceMayBeMined
            | Self::Busy
            | Self::TooManyWaiters
            | Self::TooManyStreams
            | Self::Internal
            | Self::ChainUnavailable
            | Self::StoreUnavailable
            | Self::OutcomeUnknown
            | Self::Draining => true,
            Self::InvalidJson
            | Self::InvalidField
            | Self::InvalidPath
            | Self::InvalidQuery
            | Self::InvalidHeader
            | Self::InvalidCursor
            | Self::InvalidPayload
            | Self::Unauthenticated
            | Self::MissingScope
            | Self::NotAPeer
            | Self::UnknownPath
            | Self::UnknownTx
            | Self::UnknownLane
            | Self::UnknownChain
            | Self::UnknownSigner
            | Self::MethodNotAllowed
            | Self::NonceRefused
            | Self::NotReservable
            | Self::BodyTooLarge
            | Self::UnsupportedMediaType
            | Self::RequestIdReused
            | Self::CallReverts
            | Self::Underfunded
            | Self::StoreCorrupt
            // Retrying does not help: an operator must decide.
            | Self::LaneHalted => false,
        }
    }

    /// Whether the condition ends by itself within seconds, so that the response has a `Retry-After`.
    pub(super) fn is_transient(self) -> bool {
        let status = self.status();
        let is_temporary = status == StatusCode::CONFLICT
            || status == StatusCode::TOO_MANY_REQUESTS
            || status == StatusCode::SERVICE_UNAVAILABLE;
        is_temporary && self.is_retryable()
    }

    /// The effect of the request that failed.
    #[must_use]
    pub fn effect(self) -> Effect {
        match self {
            // A panic may have happened after the commit.
            Self::OutcomeUnknown | Self::Internal => Effect::Unknown,
            Self::InvalidJson
            | Self::InvalidField
            | Self::InvalidPath
            | Self::InvalidQuery
            | Self::InvalidHeader
            | Self::InvalidCursor
            | Self::InvalidPayload
            | Self::Unauthenticated
            | Self::MissingScope
            | Self::NotAPeer
            | Self::UnknownPath
            | Self::UnknownTx
            | Self::UnknownLane
            | Self::UnknownChain
            | Self::UnknownSigner
            | Self::MethodNotAllowed
            | Self::BodyTimeout
            | Self::NotKeeper
            | Self::NonceRefused
            | Self::NonceMayBeMined
            | Self::NotReservable
            | Self::BodyTooLarge
            | Self::UnsupportedMediaType
            | Self::RequestIdReused
            | Self::CallReverts
            | Self::Underfunded
            | Self::Busy
            | Self::TooManyWaiters
            | Self::TooManyStreams
            | Self::StoreCorrupt
            | Self::ChainUnavailable
            | Self::StoreUnavailable
            | Self::LaneHalted
            | Self::Draining => Effect::None,
        }
    }
}

impl Effect {
    /// The value in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Unknown => "unknown",
        }
    }
}
