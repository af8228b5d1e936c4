//! The network between the nodes of a test, which can cut a node off and counts forwarded requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use domain::{LaneKey, Reservation};
use engine::node::{AcceptedTx, NewTx, NodeHandle, Refusal};
use engine::ports::{PeerError, Peers};
use engine::reservations::{MarkError, MarkRequest};

#[derive(Default)]
pub(crate) struct Network {
    nodes: Mutex<BTreeMap<String, NodeHandle>>,
    unreachable: Mutex<BTreeSet<String>>,
    /// Sender, receiver and lane of every forwarded request that arrived.
    forwarded: Mutex<Vec<(String, String, LaneKey)>>,
}

impl Network {
    pub(crate) fn peers_of(self: &Arc<Self>, name: &str) -> PeersTwin {
        PeersTwin {
            network: Arc::clone(self),
            name: name.to_owned(),
        }
    }

    pub(crate) fn add(&self, name: &str, handle: NodeHandle) {
        self.nodes.lock().unwrap().insert(name.to_owned(), handle);
    }

    /// No call reaches this node any more.
    pub(crate) fn cut(&self, name: &str) {
        self.unreachable.lock().unwrap().insert(name.to_owned());
    }

    pub(crate) fn take_forwarded(&self) -> Vec<(String, String, LaneKey)> {
        std::mem::take(&mut *self.forwarded.lock().unwrap())
    }

    fn find(&self, address: &str) -> Result<NodeHandle, PeerError> {
        let is_cut = self.unreachable.lock().unwrap().contains(address);
        let found = self.nodes.lock().unwrap().get(address).cloned();
        found
            .filter(|_| !is_cut)
            .ok_or_else(|| PeerError::NotReached(format!("{address} is cut off")))
    }
}

pub(crate) struct PeersTwin {
    network: Arc<Network>,
    name: String,
}

#[async_trait]
impl Peers for PeersTwin {
    async fn forward(
        &self,
        address: &str,
        requests: Vec<NewTx>,
        patience: Duration,
    ) -> Result<Vec<Result<AcceptedTx, Refusal>>, PeerError> {
        let node = self.network.find(address)?;
        for request in &requests {
            let entry = (self.name.clone(), address.to_owned(), request.lane);
            self.network.forwarded.lock().unwrap().push(entry);
        }
        Ok(node.create_forwarded(requests, patience).await)
    }

    async fn mark(
        &self,
        address: &str,
        call: &MarkRequest,
        _patience: Duration,
    ) -> Result<Result<Reservation, MarkError>, PeerError> {
        let node = self.network.find(address)?;
        Ok(node.mark_forwarded(call).await)
    }

    async fn notify(&self, address: &str, lanes: &[LaneKey]) -> Result<(), PeerError> {
        let node = self.network.find(address)?;
        node.receive_notification(lanes.to_vec()).await;
        Ok(())
    }
}
