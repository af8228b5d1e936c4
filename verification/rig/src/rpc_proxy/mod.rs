//! A JSON-RPC proxy in front of a node that counts, loses, lies and dies on command. What no rule
//! speaks of is the node's own.
//!
//! It runs on a thread of its own, so a test that blocks does not block the network.

mod message;
mod node;
mod rule;
mod serve;
mod view;

pub use rule::{Calls, Fault, Rule, RuleId};
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

/// How a dead endpoint looks from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Nobody listens: connections are refused.
    Refuses,
    /// Somebody listens, and resets every connection.
    Resets,
}

impl RpcProxy {
    /// A proxy in front of a node's address. The seed decides what chance decides.
    pub fn in_front_of(url: &str, seed: u64) -> Self {
        let port = free_port();
        let shared = Arc::new(Shared::new(url, seed));
        let (stop, stopped) = oneshot::channel();
        let (served, address) = (Arc::clone(&shared), port.address());
        // Bound here, so that nobody is refused who is faster than the thread.
        let listener = serve::listen(address);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime needs no more than a few file handles");
            runtime.block_on(async {
                tokio::select! {
                    () = serve::accept(address, listener, served) => {}
                    _ = stopped => {} // also when the proxy was dropped without a word
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

    /// Where it takes requests.
    pub fn url(&self) -> String {
        format!("http://{}", self.port.address())
    }

    /// Adds a rule, behind those that are there: the first that fits a call decides.
    pub fn add(&self, rule: Rule) -> RuleId {
        self.shared.state().rules.add(rule)
    }

    /// Takes a rule back.
    pub fn remove(&self, rule: RuleId) {
        self.shared.state().rules.remove(rule);
    }

    /// What of the chain it shows.
    pub fn show(&self, view: View) {
        self.shared.state().view = view;
    }

    /// Claims to serve another chain.
    pub fn claim_chain_id(&self, id: u64) {
        self.shared.state().chain_id = Some(id);
    }

    /// Has no receipts any more, of anything: `null` when asked for one, an empty list for a block.
    pub fn hide_all_receipts(&self) {
        self.shared.state().hidden = Hidden::All;
    }

    /// Has no receipts of these any more.
    pub fn hide_receipts(&self, hashes: impl IntoIterator<Item = B256>) {
        self.shared.state().hidden = Hidden::Txs(hashes.into_iter().collect());
    }

    /// Has all receipts again.
    pub fn show_receipts(&self) {
        self.shared.state().hidden = Hidden::Nothing;
    }

    /// Dies: every connection ends, in the middle of what it does.
    pub fn die(&self, death: Death) {
        self.shared.link.send_replace(Link::Dead(death));
        if death == Death::Refuses {
            let is_deaf = || std::net::TcpStream::connect(self.port.address()).is_err();
            crate::until("nobody listens", serve::DEAF_WITHIN, || {
                is_deaf().then_some(())
            });
        }
    }

    /// Takes all faults back. What was counted stays.
    pub fn heal(&self) {
        let mut state = self.shared.state();
        state.rules.clear();
        state.view = View::Live;
        state.chain_id = None;
        state.hidden = Hidden::Nothing;
        drop(state);
        let was = self.shared.link.send_replace(Link::Up);
        if was == Link::Dead(Death::Refuses) {
            crate::until("somebody listens", serve::DEAF_WITHIN, || {
                std::net::TcpStream::connect(self.port.address()).ok()
            });
        }
    }

    /// How often each method was called. Every call of a batch counts, and so does a call that was
    /// lost or answered by a rule.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        self.shared.state().counts.calls.clone()
    }

    /// How often one method was called.
    pub fn calls_of(&self, method: &str) -> u64 {
        let state = self.shared.state();
        state.counts.calls.get(method).copied().unwrap_or_default()
    }

    /// How many HTTP requests came.
    pub fn requests(&self) -> u64 {
        self.shared.state().counts.requests
    }

    /// How often a rule took effect.
    pub fn faults(&self) -> u64 {
        self.shared.state().counts.faults
    }

    /// Counts from zero again.
    pub fn reset_counts(&self) {
        self.shared.state().counts = Counts::default();
    }
}

impl Drop for RpcProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panic was printed, and the test sees broken connections.
            thread.join().ok();
        }
    }
}

/// What all connections of a proxy share.
#[derive(Debug)]
struct Shared {
    node: node::Node,
    link: watch::Sender<Link>,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Up,
    Dead(Death),
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

/// Which receipts are not there.
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
    /// Counts a request and lets the rules decide on it.
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
