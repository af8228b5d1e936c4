//! The connections of a node to its store, where there are few: the engine and its customers have their own, so that a flood
//! of readers holds up nothing else.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::mutation::{self, Mutation};
use crate::network::NoAnswer;

/// How many connections the engine has, and how many its customers.
const ENGINE: usize = 8;
const CUSTOMERS: usize = 4;
/// How long a call waits for one.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a read of a customer takes at the server.
const CUSTOMER_READ: Duration = Duration::from_millis(800);

/// The connections that one view of the store takes. Clones share them.
#[derive(Clone)]
pub(super) struct Connections {
    free: Arc<Semaphore>,
    is_customer: bool,
}

impl Connections {
    /// Those of the engine.
    pub(super) fn of_engine() -> Self {
        Self {
            free: Arc::new(Semaphore::new(ENGINE)),
            is_customer: false,
        }
    }

    /// Those of the customers of the same node.
    pub(super) fn for_customers(&self) -> Self {
        let free = match mutation::is_on(Mutation::ReadersShareConnections) {
            true => Arc::clone(&self.free),
            false => Arc::new(Semaphore::new(CUSTOMERS)),
        };
        Self {
            free,
            is_customer: true,
        }
    }

    pub(super) fn is_customer(&self) -> bool {
        self.is_customer
    }

    /// One of them, held for the time of a call.
    pub(super) async fn take(&self) -> Result<OwnedSemaphorePermit, NoAnswer> {
        let free = Arc::clone(&self.free).acquire_owned();
        let taken = tokio::time::timeout(PATIENCE, free).await;
        let connection = taken
            .map_err(|_late| NoAnswer::Refused)?
            .expect("the semaphore is never closed");
        if self.is_customer {
            tokio::time::sleep(CUSTOMER_READ).await;
        }
        Ok(connection)
    }
}
