//! A node of the cluster, and whether one should get requests.

use serde::{Serialize, Serializer};

use super::form::At;
use crate::node::{ChainStatus, Readiness};
use crate::ports::Member;

/// A node as customers see it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node<'a> {
    node: &'a str,
    incarnation: String,
    advertise: Option<&'a str>,
    started_at: At,
    seen_at: At,
    draining: bool,
}

impl<'a> From<&'a Member> for Node<'a> {
    fn from(member: &'a Member) -> Self {
        Self {
            node: &member.node.0,
            incarnation: member.incarnation.to_string(),
            advertise: member.advertise.as_deref(),
            started_at: At(member.started_at),
            seen_at: At(member.seen_at),
            draining: member.draining,
        }
    }
}

/// Whether a load balancer should send requests here. Chains are listed and decide nothing: a node
/// without a chain still accepts and queues.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ready<'a> {
    ready: bool,
    store: &'a str,
    draining: bool,
    chains: Chains<'a>,
}

impl Ready<'_> {
    /// The one bit that a load balancer wants.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready
    }
}

impl<'a> From<&'a Readiness> for Ready<'a> {
    fn from(readiness: &'a Readiness) -> Self {
        Self {
            ready: readiness.store.is_ok() && !readiness.draining,
            store: match &readiness.store {
                Ok(()) => "ok",
                Err(why) => why,
            },
            draining: readiness.draining,
            chains: Chains(&readiness.chains),
        }
    }
}

struct Chains<'a>(&'a [ChainStatus]);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Chain<'a> {
    chain_id: u64,
    head: Option<u64>,
    endpoints: Endpoints<'a>,
}

struct Endpoints<'a>(&'a [(String, bool)]);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint<'a> {
    name: &'a str,
    answers: bool,
}

impl Serialize for Chains<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|chain| Chain {
            chain_id: chain.chain_id.0,
            head: chain.head,
            endpoints: Endpoints(&chain.endpoints),
        }))
    }
}

impl Serialize for Endpoints<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|(name, answers)| Endpoint {
            name,
            answers: *answers,
        }))
    }
}
