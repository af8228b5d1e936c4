//! A node: everything that runs in one process, its start, its drain and its end.

mod handle;
mod refusal;

pub use handle::{
    Accepted, ChainStatus, LaneStatus, NewTx, NodeHandle, Readiness, WaitFor, WaitingFor,
};
pub use refusal::Refusal;
