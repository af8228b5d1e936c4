//! An HTTP load balancer in front of a cluster: it checks the readiness of every node periodically, and sends
//! requests to ready nodes in turn. It does not retry and does not know keepers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use reqwest::Method;

use crate::Api;

pub const CHECK_EVERY: Duration = Duration::from_millis(200);

/// A node that takes longer is not ready.
const CHECK_PATIENCE: Duration = Duration::from_secs(1);

/// The nodes, and the result of their last readiness check.
pub struct Balancer {
    nodes: Vec<(Api, AtomicBool)>,
    next: AtomicUsize,
}

impl Balancer {
    /// In front of these nodes. Its checks end with the value.
    pub fn in_front_of(nodes: Vec<Api>) -> Arc<Self> {
        let balancer = Arc::new(Self {
            nodes: nodes
                .into_iter()
                .map(|api| (api, AtomicBool::new(false)))
                .collect(),
            next: AtomicUsize::new(0),
        });
        for number in 0..balancer.nodes.len() {
            tokio::spawn(check(Arc::downgrade(&balancer), number));
        }
        balancer
    }

    /// Without checks: every node gets its share, ready or not.
    pub fn without_checks(nodes: Vec<Api>) -> Arc<Self> {
        let nodes = nodes.into_iter().map(|api| (api, AtomicBool::new(true)));
        Arc::new(Self {
            nodes: nodes.collect(),
            next: AtomicUsize::new(0),
        })
    }

    /// The next ready node and its index.
    pub fn pick(&self) -> Option<(usize, &Api)> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        (0..self.nodes.len())
            .map(|step| first.wrapping_add(step) % self.nodes.len())
            .find_map(|number| {
                let (api, is_ready) = &self.nodes[number];
                is_ready.load(Ordering::Relaxed).then_some((number, api))
            })
    }

    /// The result of the last check.
    pub fn is_ready(&self, number: usize) -> bool {
        self.nodes[number].1.load(Ordering::Relaxed)
    }
}

async fn check(balancer: Weak<Balancer>, number: usize) {
    while let Some(balancer) = balancer.upgrade() {
        let (api, is_ready) = &balancer.nodes[number];
        let answer = api
            .request(Method::GET, "/readyz", None, CHECK_PATIENCE)
            .await;
        let is_ok = answer.is_ok_and(|answer| answer.status.is_success());
        is_ready.store(is_ok, Ordering::Relaxed);
        drop(balancer);
        tokio::time::sleep(CHECK_EVERY).await;
    }
}
