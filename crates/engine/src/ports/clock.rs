//! Time and randomness enter the engine here and nowhere else, so that a seed reproduces a whole run.

use std::time::Duration;

use async_trait::async_trait;
use domain::{GrantId, Incarnation, MonotonicTime, Timestamp, TxId};
use uuid::Uuid;

/// The engine's only source of time and randomness.
#[async_trait]
pub trait Clock: Send + Sync + 'static {
    /// The wall-clock time.
    fn now(&self) -> Timestamp;

    /// A reading of this process's monotonic clock.
    fn monotonic(&self) -> MonotonicTime;

    /// Returns after this time.
    async fn sleep(&self, duration: Duration);

    /// 128 random bits.
    fn random(&self) -> u128;
}

impl dyn Clock {
    /// A fresh, time-ordered tx id (UUID v7: 48 bits of milliseconds, the rest random).
    pub fn tx_id(&self) -> TxId {
        let random = self.random().to_be_bytes();
        let mut tail = [0; 10];
        tail.copy_from_slice(&random[..10]);
        TxId(uuid::Builder::from_unix_timestamp_millis(self.now().0, &tail).into_uuid())
    }

    /// A fresh grant.
    pub fn grant_id(&self) -> GrantId {
        GrantId(self.uuid())
    }

    /// A fresh incarnation of a node.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.uuid())
    }

    fn uuid(&self) -> Uuid {
        uuid::Builder::from_random_bytes(self.random().to_be_bytes()).into_uuid()
    }
}
