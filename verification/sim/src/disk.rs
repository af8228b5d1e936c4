//! The disk of a machine: it survives the restarts of its node, and no restore of the store touches it.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use engine::ports::{Witness, WitnessError, WitnessedLanes};

/// The twin of the witness file.
#[derive(Default)]
pub struct MemoryDisk {
    written: Mutex<Option<WitnessedLanes>>,
}

#[async_trait]
impl Witness for MemoryDisk {
    async fn read(&self) -> Option<WitnessedLanes> {
        let written = self.written.lock();
        written.unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn write(&self, lanes: &WitnessedLanes) -> Result<(), WitnessError> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        *written = Some(lanes.clone());
        Ok(())
    }
}
