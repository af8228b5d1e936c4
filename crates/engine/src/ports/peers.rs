//! The other nodes of the cluster, reached over the network.
//!
//! Nothing here decides ownership: the lease does. A forwarded request without an answer is found again by its
//! request id.

use std::time::Duration;

use async_trait::async_trait;
use domain::{LaneKey, Reservation};
use thiserror::Error;

use crate::node::{AcceptedTx, NewTx, Refusal};
use crate::reservations::{MarkError, MarkRequest};

/// Why another node gave no answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PeerError {
    /// Certainly nothing was done: the node was not reached, or it refused the call as a whole.
    #[error("the node was not reached: {0}")]
    NotReached(String),
    /// The call may have been carried out: its answer was lost, came too late, or could not be parsed.
    #[error("the node gave no certain answer: {0}")]
    Lost(String),
}

/// The other nodes of the cluster.
#[async_trait]
pub trait Peers: Send + Sync + 'static {
    /// Forwards requests to the node at this address, all in one call, and answers in the order given.
    /// A forwarded request is never forwarded again: the node answers [`Refusal::NotKeeper`] instead.
    async fn forward(
        &self,
        address: &str,
        requests: Vec<NewTx>,
        patience: Duration,
    ) -> Result<Vec<Result<AcceptedTx, Refusal>>, PeerError>;

    /// Forwards a holder's mark to a node, which never forwards it again.
    async fn mark(
        &self,
        address: &str,
        call: &MarkRequest,
        patience: Duration,
    ) -> Result<Result<Reservation, MarkError>, PeerError>;

    /// Notifies a node: these lanes were released, or requests were queued for them; without lanes: a node started.
    /// Only a wakeup: a node that misses it finds the same in the store.
    async fn notify(&self, address: &str, lanes: &[LaneKey]) -> Result<(), PeerError>;
}
