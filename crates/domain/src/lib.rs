//! The rules of Lanekeeper: pure, synchronous, without clock, randomness or IO.
//!
//! Everything here can be run a million times a second in a test and gives the same answer twice.
//! Read in this order: [`tx`] (what a tx goes through), [`lane`] (how a lane decides), then the parts.
#![warn(missing_docs, clippy::arithmetic_side_effects)]

pub mod address;
pub mod ids;
pub mod payload;
pub mod reservation;
pub mod time;
pub mod tx;

pub mod admission;
pub mod attempt;
pub mod event;
pub mod fee;
pub mod fork_choice;
pub mod headers;
pub mod history;
pub mod known_prices;
pub mod lease;
pub mod window;
pub mod witness;

pub mod lane;

pub use address::{BadAddress, parse_address};
pub use alloy_primitives::{Address, B256, Bytes, U256};
pub use attempt::{Attempt, AttemptKind, SendOutcome, UnsignedEnvelope};
pub use event::{Event, EventKind};
pub use fee::{FeeQuote, FeeRules, Fees};
pub use headers::{ChainView, Header};
pub use history::History;
pub use ids::{
    ChainId, GrantId, Incarnation, LaneId, LaneKey, LeaseGrant, NodeName, Nonce, RequestId, Token,
    TxId,
};
pub use known_prices::{CredibleTip, HeadPrice, KnownPrices};
pub use lane::{
    CapacityRules, ConfirmationRules, Effect, FinalTx, Input, Lane, LaneImage, LaneRules,
    NonceRules, Step, Writes,
};
pub use payload::{EffectDigest, Fingerprint, Payload, TxType};
pub use reservation::{Holder, Mark, MarkRefusal, Reservation, ReservationState};
pub use time::{MonotonicTime, Timestamp};
pub use tx::{Inclusion, LastWrite, SubState, Tx, TxHistory, TxRequest, TxState};
pub use witness::{LaneWitness, WitnessVerdict};
