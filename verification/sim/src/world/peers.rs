//! How the nodes of a world reach each other: by address, over lines as bad as all others. A node
//! that is down refuses, one that is frozen says nothing, one that dies in mid-answer says nothing
//! either; and what was handed over may be carried out long after its sender lost patience.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use domain::{LaneKey, NodeName, Reservation};
use engine::node::{Accepted, NewTx, Refusal};
use engine::ports::{PeerError, Peers};
use engine::reservations::{MarkError, MarkRequest};

use super::machine::{Heard, Machine, WeakMachine};
use crate::wire::{NoAnswer, Wire};

/// How long a bell may take.
const RING_PATIENCE: Duration = Duration::from_secs(2);

/// Which machine has which address. Clones are the same one.
#[derive(Clone, Default)]
pub(super) struct Switchboard {
    /// Weak: a machine has its peers, and through them this.
    machines: Arc<Mutex<BTreeMap<String, WeakMachine>>>,
}

impl Switchboard {
    /// Where other nodes reach this one.
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
    board: Switchboard,
    wire: Wire,
}

impl SimPeers {
    pub(super) fn new(board: Switchboard, wire: Wire) -> Self {
        Self { board, wire }
    }

    async fn call<T: Send + 'static>(
        &self,
        question: impl Future<Output = Heard<T>> + Send + 'static,
        patience: Duration,
    ) -> Result<T, PeerError> {
        let told = tokio::time::timeout(patience, self.wire.call(question)).await;
        match told {
            Ok(Ok(Heard::Answer(answer))) => Ok(answer),
            Ok(Ok(Heard::Nobody)) => Err(PeerError::NotReached("no node runs there".to_owned())),
            Ok(Ok(Heard::Death)) => Err(PeerError::Lost("the connection broke".to_owned())),
            Ok(Err(NoAnswer::Refused)) => {
                Err(PeerError::NotReached("connection refused".to_owned()))
            }
            Ok(Err(NoAnswer::Lost)) => Err(PeerError::Lost("the answer was lost".to_owned())),
            Err(_too_late) => Err(PeerError::Lost("no answer in time".to_owned())),
        }
    }

    fn find(&self, address: &str) -> Result<Machine, PeerError> {
        let unknown = || PeerError::NotReached(format!("{address} is not known"));
        self.board.find(address).ok_or_else(unknown)
    }
}

#[async_trait]
impl Peers for SimPeers {
    async fn forward(
        &self,
        address: &str,
        requests: Vec<NewTx>,
        patience: Duration,
    ) -> Result<Vec<Result<Accepted, Refusal>>, PeerError> {
        let machine = self.find(address)?;
        let question = async move {
            machine
                .call(|node| async move { node.create_forwarded(requests).await })
                .await
        };
        self.call(question, patience).await
    }

    async fn mark(
        &self,
        address: &str,
        call: &MarkRequest,
        patience: Duration,
    ) -> Result<Result<Reservation, MarkError>, PeerError> {
        let (machine, call) = (self.find(address)?, call.clone());
        let question = async move {
            machine
                .call(|node| async move { node.mark_forwarded(&call).await })
                .await
        };
        self.call(question, patience).await
    }

    async fn notify(&self, address: &str, lanes: &[LaneKey]) -> Result<(), PeerError> {
        let (machine, lanes) = (self.find(address)?, lanes.to_vec());
        let question = async move {
            machine
                .call(|node| async move { node.receive_notification(lanes).await })
                .await
        };
        self.call(question, RING_PATIENCE).await
    }
}
