//! How the nodes of a world reach each other: by address, over links with faults. A node that is down
//! refuses; one that is frozen, or crashes before it answers, sends no answer; and a forwarded request may
//! be executed long after its sender timed out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use domain::{LaneKey, NodeName, Reservation};
use engine::node::{AcceptedTx, NewTx, Refusal};
use engine::ports::{PeerError, Peers};
use engine::reservations::{MarkError, MarkRequest};

use super::machine::{CallOutcome, Machine, WeakMachine};
use crate::network::{Link, NoAnswer};

/// The timeout of a notification.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(2);

/// The machine at each address. Clones are the same directory.
#[derive(Clone, Default)]
pub(super) struct PeerDirectory {
    /// Weak: a machine owns its peers, which own this directory.
    machines: Arc<Mutex<BTreeMap<String, WeakMachine>>>,
}

impl PeerDirectory {
    /// The address of a node.
    pub(super) fn address(node: &NodeName) -> String {
        format!("sim://{node}")
    }

    pub(super) fn connect(&self, machine: &Machine) {
        let address = Self::address(machine.name());
        let mut machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        machines.insert(address, machine.downgrade());
    }

    fn find(&self, address: &str) -> Option<Machine> {
        let machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        machines.get(address).and_then(WeakMachine::upgrade)
    }
}

/// The other nodes, as one node reaches them.
pub(super) struct SimPeers {
    directory: PeerDirectory,
    link: Link,
}

impl SimPeers {
    pub(super) fn new(directory: PeerDirectory, link: Link) -> Self {
        Self { directory, link }
    }

    async fn call<T: Send + 'static>(
        &self,
        query: impl Future<Output = CallOutcome<T>> + Send + 'static,
        timeout: Duration,
    ) -> Result<T, PeerError> {
        let answer = tokio::time::timeout(timeout, self.link.call(query)).await;
        match answer {
            Ok(Ok(CallOutcome::Answer(answer))) => Ok(answer),
            Ok(Ok(CallOutcome::NotRunning)) => {
                Err(PeerError::NotReached("no node runs there".to_owned()))
            }
            Ok(Ok(CallOutcome::Crashed)) => Err(PeerError::Lost("the connection broke".to_owned())),
            Ok(Err(NoAnswer::Refused)) => {
                Err(PeerError::NotReached("connection refused".to_owned()))
            }
            Ok(Err(NoAnswer::Lost)) => Err(PeerError::Lost("the answer was lost".to_owned())),
            Err(_too_late) => Err(PeerError::Lost("no answer in time".to_owned())),
        }
    }

    fn find(&self, address: &str) -> Result<Machine, PeerError> {
        let unknown = || PeerError::NotReached(format!("{address} is not known"));
        self.directory.find(address).ok_or_else(unknown)
    }
}

#[async_trait]
impl Peers for SimPeers {
    async fn forward(
        &self,
        address: &str,
        requests: Vec<NewTx>,
        timeout: Duration,
    ) -> Result<Vec<Result<AcceptedTx, Refusal>>, PeerError> {
        let machine = self.find(address)?;
        let query = async move {
            machine
                .call(|node| async move { node.create_forwarded(requests, timeout).await })
                .await
        };
        self.call(query, timeout).await
    }

    async fn mark(
        &self,
        address: &str,
        call: &MarkRequest,
        timeout: Duration,
    ) -> Result<Result<Reservation, MarkError>, PeerError> {
        let (machine, call) = (self.find(address)?, call.clone());
        let query = async move {
            machine
                .call(|node| async move { node.mark_forwarded(&call).await })
                .await
        };
        self.call(query, timeout).await
    }

    async fn notify(&self, address: &str, lanes: &[LaneKey]) -> Result<(), PeerError> {
        let (machine, lanes) = (self.find(address)?, lanes.to_vec());
        let query = async move {
            machine
                .call(|node| async move { node.receive_notification(lanes).await })
                .await
        };
        self.call(query, NOTIFY_TIMEOUT).await
    }
}
