//! The answers of a store in one type, so that they can be compared.

use domain::{LaneImage, Tx};
use engine::ports::{
    AcquireOutcome, CommitOutcome, EventRecord, HeartbeatOutcome, LaneRecord, LaneWork, Member,
    RegrantOutcome, RenewOutcome, StoreError, TxPage, TxRecord,
};

/// An answer of the port. Values that cannot be equal are masked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Done,
    AcquireOutcome(Vec<AcquireOutcome>),
    Renewed(Vec<RenewOutcome>),
    Image(Option<Box<LaneImage>>),
    Txs(Vec<Tx>),
    Outcomes(Vec<CommitOutcome>),
    RegrantOutcome(RegrantOutcome),
    Found(Vec<Option<Tx>>),
    Work(Vec<LaneWork>),
    HeartbeatOutcome(HeartbeatOutcome),
    Whether(bool),
    Members(Vec<Member>),
    Record(Option<Box<TxRecord>>),
    Page(TxPage),
    History(Option<Vec<EventRecord>>),
    Events(Vec<EventRecord>),
    Lanes(Vec<LaneRecord>),
    Refused(StoreError),
}
