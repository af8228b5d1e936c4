//! The other nodes of the cluster, reached over the network.
//!
//! Nothing here decides anything: the lease does. A request that was handed to another node and whose
//! answer was lost is asked for again by its request id.

use std::time::Duration;

use async_trait::async_trait;
use domain::{LaneKey, Reservation};
use thiserror::Error;

use crate::node::{Accepted, NewTx, Refusal};
use crate::reservations::{MarkError, MarkRequest};

/// Why another node gave no answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PeerError {
    /// Certainly nothing was carried out: it was not reached, or it refused the call as a whole.
    #[error("the node was not reached: {0}")]
    NotReached(String),
    /// It may have carried the call out: the answer was lost, came too late, or was not understood.
    #[error("the node's answer was lost: {0}")]
    Lost(String),
}

/// The other nodes of the cluster.
#[async_trait]
pub trait Peers: Send + Sync + 'static {
    /// Hands requests to the node at this address, all in one call, and answers in the order given.
    /// A node that is handed a request never hands it on: it answers [`Refusal::NotKeeper`] instead.
    async fn forward(
        &self,
        address: &str,
        requests: Vec<NewTx>,
        patience: Duration,
    ) -> Result<Vec<Result<Accepted, Refusal>>, PeerError>;

    /// Hands a node what a holder says of a lent nonce. It never hands it on.
    async fn mark(
        &self,
        address: &str,
        call: &MarkRequest,
        patience: Duration,
    ) -> Result<Result<Reservation, MarkError>, PeerError>;

    /// Rings a node: these lanes are free, or something was queued for them; without lanes: somebody came.
    /// Only a bell: whoever misses it finds the same in the store.
    async fn notify(&self, address: &str, lanes: &[LaneKey]) -> Result<(), PeerError>;
}
