//! A JSON-RPC proxy in front of a node that counts calls and injects faults. Calls without a matching rule are the
//! node's own.
//!
//! It runs on its own thread, so a blocking test does not block the network.

mod lie;
mod message;
mod node;
mod rule;
mod serve;
mod view;

pub use lie::Lie;
pub use rule::{CallFilter, Fault, Rule, RuleId};
pub use view::View;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use alloy_primitives::B256;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::sync::{oneshot, watch};

use crate::ports::{Port, free_port};
use message::Message;

/// A proxy on a loopback port. Dropping it closes all its connections.
#[derive(Debug)]
pub struct RpcProxy {
    port: Port,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// How an endpoint that is down appears to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutageKind {
    /// No listener: connections are refused.
    Refuses,
    /// Every connection is accepted and reset.
    Resets,
}

impl RpcProxy {
    /// A proxy in front of a node. The seed determines random faults.
    pub fn in_front_of(url: &str, seed: u64) -> Self {
        let port = free_port();
        let shared = Arc::new(Shared::new(url, seed));
        let (stop, stopped) = oneshot::channel();
        let (served, address) = (Arc::clone(&shared), port.address());
        // Bound before the thread starts, so that no early client is refused.
        let listener = serve::listen(address);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime needs no more than a few file handles");
            runtime.block_on(async {
                tokio::select! {
                    () = serve::accept(address, listener, served) => {}
                    _ = stopped => {} // also when the sender was dropped
                }
            });
        });
        Self {
            port,
            shared,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.port.address())
    }

    /// Appends a rule: the first one that matches a call applies.
    pub fn add(&self, rule: Rule) -> RuleId {
        self.shared.state().rules.add(rule)
    }

    pub fn remove(&self, rule: RuleId) {
        self.shared.state().rules.remove(rule);
    }

    /// Limits the visible part of the chain.
    pub fn show(&self, view: View) {
        self.shared.state().view = view;
    }

    /// Reports another chain id.
    pub fn claim_chain_id(&self, id: u64) {
        self.shared.state().chain_id = Some(id);
    }

    /// Hides all receipts: `null` for a transaction, an empty list for a block.
    pub fn hide_all_receipts(&self) {
        self.shared.state().hidden = Hidden::All;
    }

    /// Hides the receipts of these transactions.
    pub fn hide_receipts(&self, hashes: impl IntoIterator<Item = B256>) {
        self.shared.state().hidden = Hidden::Txs(hashes.into_iter().collect());
    }

    pub fn show_receipts(&self) {
        self.shared.state().hidden = Hidden::Nothing;
    }

    /// Goes down: every connection ends immediately.
    pub fn take_down(&self, death: OutageKind) {
        self.shared.link.send_replace(Link::Dead(death));
        if death == OutageKind::Refuses {
            let is_closed = || std::net::TcpStream::connect(self.port.address()).is_err();
            crate::wait_until(
                "the listener is closed",
                serve::LISTENER_CHANGE_WITHIN,
                || is_closed().then_some(()),
            );
        }
    }

    /// Removes all faults. The counters stay.
    pub fn heal(&self) {
        let mut state = self.shared.state();
        state.rules.clear();
        state.view = View::Live;
        state.chain_id = None;
        state.hidden = Hidden::Nothing;
        drop(state);
        let was = self.shared.link.send_replace(Link::Up);
        if was == Link::Dead(OutageKind::Refuses) {
            crate::wait_until(
                "the listener is open",
                serve::LISTENER_CHANGE_WITHIN,
                || std::net::TcpStream::connect(self.port.address()).ok(),
            );
        }
    }

    /// Calls per method. Every call of a batch counts, also one that was lost or answered by a rule.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        self.shared.state().counts.calls.clone()
    }

    pub fn calls_of(&self, method: &str) -> u64 {
        let state = self.shared.state();
        state.counts.calls.get(method).copied().unwrap_or_default()
    }

    /// The number of HTTP requests.
    pub fn requests(&self) -> u64 {
        self.shared.state().counts.requests
    }

    /// How often a rule applied.
    pub fn faults(&self) -> u64 {
        self.shared.state().counts.faults
    }

    pub fn reset_counts(&self) {
        self.shared.state().counts = Counts::default();
    }
}

impl Drop for RpcProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panic was printed, and the test sees closed connections.
            thread.join().ok();
        }
    }
}

/// The state that all connections of a proxy share.
#[derive(Debug)]
struct Shared {
    node: node::Node,
    link: watch::Sender<Link>,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Up,
    Dead(OutageKind),
}

#[derive(Debug)]
struct State {
    rules: rule::Rules,
    view: View,
    chain_id: Option<u64>,
    hidden: Hidden,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    calls: BTreeMap<String, u64>,
    requests: u64,
    faults: u64,
}

/// Which receipts are hidden.
#[derive(Clone, Debug)]
enum Hidden {
    Nothing,
    All,
    Txs(BTreeSet<B256>),
}

impl Shared {
    fn new(url: &str, seed: u64) -> Self {
        Self {
            node: node::Node::at(url),
            link: watch::Sender::new(Link::Up),
            state: Mutex::new(State {
                rules: rule::Rules::new(StdRng::seed_from_u64(seed)),
                view: View::Live,
                chain_id: None,
                hidden: Hidden::Nothing,
                counts: Counts::default(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    /// Counts a request and applies the rules.
    fn plan(&mut self, message: &Message) -> rule::Plan {
        self.counts.requests += 1;
        for call in message.calls() {
            *self.counts.calls.entry(call.method.clone()).or_default() += 1;
        }
        let plan = self.rules.plan(message.calls());
        self.counts.faults += plan.faults;
        plan
    }
}
