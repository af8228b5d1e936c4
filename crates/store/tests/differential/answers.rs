//! What a store answers, in one type, so that answers can be compared.

use domain::{LaneImage, Tx};
use engine::ports::{
    Acquired, Beat, CommitOutcome, EventRecord, LaneRecord, Member, Regranted, Renewal, StoreError,
    TxPage, TxRecord, Work,
};

/// An answer of the port. What cannot be equal is masked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Done,
    Acquired(Vec<Acquired>),
    Renewed(Vec<Renewal>),
    Image(Option<Box<LaneImage>>),
    Txs(Vec<Tx>),
    Outcomes(Vec<CommitOutcome>),
    Regranted(Regranted),
    Found(Vec<Option<Tx>>),
    Work(Vec<Work>),
    Beat(Beat),
    Whether(bool),
    Members(Vec<Member>),
    Record(Option<Box<TxRecord>>),
    Page(TxPage),
    History(Option<Vec<EventRecord>>),
    Events(Vec<EventRecord>),
    Lanes(Vec<LaneRecord>),
    Refused(StoreError),
}
