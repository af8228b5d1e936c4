//! The JSON between the nodes of a cluster. `domain` and `engine` do not serialize: each type that travels has a
//! wire type here, declared with the same fields, and conversions in both directions.
//!
//! Nodes of one cluster run the same version; nothing was released that another version would have to read.

use alloy_primitives::{Address, B256, Bytes, U256};
use domain::lane::LaneWait;
use domain::{
    Attempt, AttemptKind, ChainId, Fees, Fingerprint, Header, Holder, Inclusion, LaneKey,
    LastWrite, Mark, MarkRefusal, NodeName, Nonce, Payload, RequestId, Reservation,
    ReservationState, SubState, Timestamp, Token, Tx, TxHistory, TxId, TxRequest, TxState, TxType,
};
use engine::node::{AcceptedTx, NewTx, Origin, Refusal};
use engine::ports::{ReservationError, TxRecord};
use engine::reservations::{MarkError, MarkRequest};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

/// Conversion between a type and its wire type, also inside `Option`, `Vec` and `Result`, which `Into` lacks.
pub(super) trait Convert<T> {
    fn convert(self) -> T;
}

impl<A: Convert<B>, B> Convert<Option<B>> for Option<A> {
    fn convert(self) -> Option<B> {
        self.map(A::convert)
    }
}

impl<A: Convert<B>, B> Convert<Vec<B>> for Vec<A> {
    fn convert(self) -> Vec<B> {
        self.into_iter().map(A::convert).collect()
    }
}

impl<A: Convert<B>, B, E: Convert<F>, F> Convert<Result<B, F>> for Result<A, E> {
    fn convert(self) -> Result<B, F> {
        self.map(A::convert).map_err(E::convert)
    }
}

/// Types that are their own wire type.
macro_rules! identity {
    ($($type:ty),*) => {$(
        impl Convert<$type> for $type {
            fn convert(self) -> $type {
                self
            }
        }
    )*};
}

identity!(u32, u64, u128, bool, String, Address, B256, U256, Bytes);

/// Newtypes that travel as the value inside.
macro_rules! newtypes {
    ($($type:ident($inner:ty)),* $(,)?) => {$(
        impl Convert<$inner> for $type {
            fn convert(self) -> $inner {
                self.0
            }
        }
        impl Convert<$type> for $inner {
            fn convert(self) -> $type {
                $type(self)
            }
        }
    )*};
}

newtypes! {
    ChainId(u64),
    Nonce(u64),
    Token(u64),
    Timestamp(u64),
    TxId(Uuid),
    Holder(Uuid),
    NodeName(String),
    Fingerprint(B256),
}

/// Declares a wire struct with the fields of `$source`. A field that is missing on either side does not compile.
macro_rules! wire_structs {
    ($($wire:ident = $source:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        #[derive(Serialize, Deserialize)]
        pub(super) struct $wire {
            $($field: $type),*
        }
        impl Convert<$wire> for $source {
            fn convert(self) -> $wire {
                let $source { $($field),* } = self;
                $wire { $($field: $field.convert()),* }
            }
        }
        impl Convert<$source> for $wire {
            fn convert(self) -> $source {
                let $wire { $($field),* } = self;
                $source { $($field: $field.convert()),* }
            }
        }
    )*};
}

/// Declares a wire enum with the variants of `$source`; the names of tuple fields are for the macro only.
macro_rules! wire_enums {
    ($($wire:ident = $source:ident { $(
        $variant:ident $(($($part:ident: $part_type:ty),*))? $({ $($field:ident: $type:ty),* })?
    ),* $(,)? })*) => {$(
        #[derive(Serialize, Deserialize)]
        pub(super) enum $wire {
            $($variant $(($($part_type),*))? $({ $($field: $type),* })?),*
        }
        impl Convert<$wire> for $source {
            fn convert(self) -> $wire {
                match self {$(
                    $source::$variant $(($($part),*))? $({ $($field),* })? =>
                        $wire::$variant $(($($part.convert()),*))? $({ $($field: $field.convert()),* })?,
                )*}
            }
        }
        impl Convert<$source> for $wire {
            fn convert(self) -> $source {
                match self {$(
                    $wire::$variant $(($($part),*))? $({ $($field),* })? =>
                        $source::$variant $(($($part.convert()),*))? $({ $($field: $field.convert()),* })?,
                )*}
            }
        }
    )*};
}

wire_structs! {
    LaneKeyWire = LaneKey { chain_id: u64, signer: Address }

    // Client requests, forwarded to the keeper of their lane.
    NewTxWire = NewTx {
        lane: LaneKeyWire,
        request_id: RequestIdWire,
        payload: PayloadWire,
        estimated_gas: Option<u64>,
        origin: OriginWire,
    }
    OriginWire = Origin { caller: Option<String>, trace: Option<String> }
    PayloadWire = Payload {
        to: Option<Address>,
        value: U256,
        data: Bytes,
        gas: Option<u64>,
        max_fee_per_gas: Option<u128>,
        max_priority_fee_per_gas: Option<u128>,
        gas_price: Option<u128>,
        tx_type: Option<TxTypeWire>,
    }

    // Their outcomes.
    AcceptedWire = AcceptedTx { record: TxRecordWire, is_new: bool }
    TxRecordWire = TxRecord {
        lane: LaneKeyWire,
        tx: TxWire,
        attempts: Vec<AttemptWire>,
        confirmations: Vec<HeaderWire>,
        lane_wait: Option<LaneWaitWire>,
    }
    LaneWaitWire = LaneWait { nonce: u64, reason: String }
    TxWire = Tx {
        id: Uuid,
        request: TxRequestWire,
        nonce: Option<u64>,
        state: TxStateWire,
        sub_state: Option<SubStateWire>,
        reason: Option<String>,
        tx_hash: Option<B256>,
        inclusion: Option<InclusionWire>,
        counted: Option<B256>,
        confirmed_at: Option<u64>,
        written: LastWriteWire,
        history: TxHistoryWire,
    }
    TxHistoryWire = TxHistory { event_seqs: Vec<u64>, resubmits: u32 }
    TxRequestWire = TxRequest {
        request_id: RequestIdWire,
        fingerprint: B256,
        payload: PayloadWire,
        gas: u64,
        created_at: u64,
    }
    LastWriteWire = LastWrite { token: u64, at: u64 }
    InclusionWire = Inclusion {
        tx_hash: B256,
        block_number: u64,
        block_hash: B256,
        succeeded: bool,
        gas_used: u64,
        effective_gas_price: u128,
        contract_address: Option<Address>,
        revert_reason: Option<String>,
    }
    AttemptWire = Attempt {
        hash: B256,
        tx_id: Uuid,
        kind: AttemptKindWire,
        nonce: u64,
        gas: u64,
        fees: FeesWire,
        raw: Bytes,
        signed_at: u64,
        first_sent_at: Option<u64>,
    }
    HeaderWire = Header { number: u64, hash: B256, parent_hash: B256, timestamp: u64 }

    // Marks of reserved nonces, and the reservation after the mark.
    MarkRequestWire = MarkRequest { lane: LaneKeyWire, nonce: u64, holder: Uuid, mark: MarkWire }
    ReservationWire = Reservation {
        lane: LaneKeyWire,
        nonce: u64,
        holder: Uuid,
        state: ReservationStateWire,
        tx_hash: Option<B256>,
        was_replaced: bool,
        expires_at: u64,
        reason: Option<String>,
    }
}

wire_enums! {
    TxTypeWire = TxType { Legacy, Eip1559 }
    TxStateWire = TxState { Created, Allocated, Tracking, Confirmed, FailedFinal, Stuck }
    SubStateWire = SubState {
        Queued,
        Waiting,
        Signed,
        Submitted,
        Mined,
        Reorged,
        Rejected,
        Reverted,
        Underfunded,
        Underpriced,
        ForeignNonce,
        Cancelled,
        SigningFailed,
        FeeCap,
        DeepFork,
        ForeignPending,
        Refused,
    }
    AttemptKindWire = AttemptKind { Original, Bump, Cancel, Replace, Filler }
    FeesWire = Fees {
        Legacy { gas_price: u128 },
        Eip1559 { max_fee: u128, max_priority_fee: u128 },
    }
    RefusalWire = Refusal {
        UnknownChain(chain_id: u64),
        UnknownSigner(chain_id: u64, signer: Address),
        KeyReused(request_id: RequestIdWire),
        BadPayload(detail: String),
        GasAboveLimit(detail: String),
        GasTooLow(detail: String),
        FeeBelowFloor(detail: String),
        TypeNotSupported(detail: String),
        Reverted(detail: String),
        Underfunded(detail: String),
        Busy,
        NotKeeper(keeper: String),
        ChainUnavailable(detail: String),
        StoreUnavailable(detail: String),
        OutcomeUnknown,
        Halted(detail: String),
        Draining,
    }
    MarkWire = Mark {
        Submitted(tx_hash: B256),
        Used(tx_hash: B256),
        Recyclable { reason: String, asked: Option<B256> },
    }
    ReservationStateWire = ReservationState { Reserved, Used, Recyclable }
    MarkErrorWire = MarkError { Unavailable, NotKeeper(keeper: String), Refused(error: ReservationErrorWire) }
    ReservationErrorWire = ReservationError {
        Refused(refusal: MarkRefusalWire),
        MayBeMined { nonce: u64, why: String },
        UnknownChain(chain_id: u64),
        UnknownSigner(chain_id: u64, signer: Address),
        NotReservable(detail: String),
        Busy,
        Unavailable(detail: String),
        Unknown(detail: String),
    }
    MarkRefusalWire = MarkRefusal {
        NotReserved(nonce: u64),
        NotHolder(nonce: u64),
        IsUsed { nonce: u64, by: String },
        HashElsewhere { hash: B256, nonce: u64 },
        IsFree(nonce: u64),
        NamedSince { nonce: u64, hash: String },
        TwoNamed(nonce: u64),
    }
}

/// A request id; reading it enforces the rules of [`RequestId::parse`].
pub(super) struct RequestIdWire(RequestId);

newtypes!(RequestIdWire(RequestId));

impl Serialize for RequestIdWire {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.as_str())
    }
}

impl<'de> Deserialize<'de> for RequestIdWire {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        RequestId::parse(text).map(Self).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Converts, serializes, parses and converts back.
    fn over_the_wire<T: Convert<W>, W: Convert<T> + Serialize + for<'de> Deserialize<'de>>(
        value: T,
    ) -> T {
        let json = serde_json::to_string(&value.convert()).unwrap();
        serde_json::from_str::<W>(&json).unwrap().convert()
    }

    #[test]
    fn refusals_and_mark_errors_survive_the_wire() {
        let refusals = [
            Refusal::UnknownSigner(ChainId(5), Address::repeat_byte(1)),
            Refusal::KeyReused(RequestId::parse("r1").unwrap()),
            Refusal::NotKeeper(NodeName("b".into())),
            Refusal::OutcomeUnknown,
        ];
        for refusal in refusals {
            assert_eq!(over_the_wire::<_, RefusalWire>(refusal.clone()), refusal);
        }
        let hash = B256::repeat_byte(2);
        let nonce = Nonce(u64::MAX - 1);
        let errors = [
            MarkError::Unavailable,
            MarkError::Refused(MarkRefusal::HashElsewhere { hash, nonce }.into()),
            MarkError::Refused(ReservationError::Busy),
        ];
        for error in errors {
            assert_eq!(over_the_wire::<_, MarkErrorWire>(error.clone()), error);
        }
    }

    #[test]
    fn invalid_request_id_is_not_read() {
        assert!(serde_json::from_str::<RequestIdWire>("\"r1\"").is_ok());
        assert!(serde_json::from_str::<RequestIdWire>("\"two words\"").is_err());
    }
}
