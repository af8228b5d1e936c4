//! A node of the cluster and its readiness.

use serde::Serialize;

use crate::encoding::Rfc3339Time;
use engine::node::{ChainStatus, Readiness};
use engine::ports::Member;

/// A node in the public JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node<'a> {
    node: &'a str,
    incarnation: String,
    advertise: Option<&'a str>,
    started_at: Rfc3339Time,
    seen_at: Rfc3339Time,
    draining: bool,
}

impl<'a> From<&'a Member> for Node<'a> {
    fn from(member: &'a Member) -> Self {
        Self {
            node: &member.node.0,
            incarnation: member.incarnation.to_string(),
            advertise: member.advertise.as_deref(),
            started_at: Rfc3339Time(member.started_at),
            seen_at: Rfc3339Time(member.seen_at),
            draining: member.draining,
        }
    }
}

/// Whether a load balancer should send requests to this node. Chains are listed but do not decide: a node
/// whose chain is unreachable still accepts and queues requests.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReadiness<'a> {
    ready: bool,
    store: &'a str,
    draining: bool,
    chains: Vec<ChainView<'a>>,
}

impl NodeReadiness<'_> {
    /// Decides the HTTP status of the readiness endpoint.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready
    }
}

impl<'a> From<&'a Readiness> for NodeReadiness<'a> {
    fn from(readiness: &'a Readiness) -> Self {
        Self {
            ready: readiness.store.is_ok() && !readiness.draining,
            store: match &readiness.store {
                Ok(()) => "ok",
                Err(why) => why,
            },
            draining: readiness.draining,
            chains: readiness.chains.iter().map(ChainView::from).collect(),
        }
    }
}

impl NodeReadiness<'_> {
    /// The same without what shows how the network is built: host names, and errors that contain them.
    #[must_use]
    pub fn for_strangers(mut self) -> Self {
        if self.store != "ok" {
            self.store = "unavailable";
        }
        let endpoints = self
            .chains
            .iter_mut()
            .flat_map(|chain| &mut chain.endpoints);
        endpoints.for_each(|endpoint| endpoint.name = None);
        self
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ChainView<'a> {
    chain_id: u64,
    head: Option<u64>,
    endpoints: Vec<EndpointView<'a>>,
}

#[derive(Serialize)]
struct EndpointView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    answers: bool,
}

impl<'a> From<&'a ChainStatus> for ChainView<'a> {
    fn from(chain: &'a ChainStatus) -> Self {
        let endpoints = chain.endpoints.iter();
        Self {
            chain_id: chain.chain_id.0,
            head: chain.head,
            endpoints: endpoints
                .map(|(name, answers)| EndpointView {
                    name: Some(name),
                    answers: *answers,
                })
                .collect(),
        }
    }
}
