//! What a node remembers of the store, outside of the store.

use std::collections::BTreeMap;

use async_trait::async_trait;
use domain::{LaneKey, LaneWitness};
use thiserror::Error;

/// The last commits that a node has seen, by lane.
pub type WitnessedLanes = BTreeMap<LaneKey, LaneWitness>;

/// Why nothing was recorded. What was recorded before stays.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct WitnessError(pub String);

/// A place that survives this process, and that no restore of the store brings back to an earlier state.
#[async_trait]
pub trait Witness: Send + Sync + 'static {
    /// What was recorded last; `None` when there is nothing that can be read, so that the node has no opinion.
    async fn read(&self) -> Option<WitnessedLanes>;

    /// Replaces what was recorded: whole or not at all, and durable when this returns `Ok`.
    async fn write(&self, lanes: &WitnessedLanes) -> Result<(), WitnessError>;
}
