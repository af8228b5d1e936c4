//! One machine of the world: its node is started, crashes, and is started again as a new incarnation.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use domain::NodeName;
use engine::node::{AcceptedTx, NewTx, Node, NodeConfig, NodeHandle, Ports, Refusal};
use engine::tasks::Tasks;
use tokio::sync::{Notify, oneshot};

use crate::chain::{MemorySigner, RemoteChain};
use crate::clock::SimClock;
use crate::event::WorldEvent;
use crate::network::Link;
use crate::rng::Rng;
use crate::trace::Trace;

/// A machine. Clones are the same machine.
#[derive(Clone)]
pub(super) struct Machine {
    inner: Arc<MachineInner>,
}

/// A machine, as long as there is a strong reference elsewhere.
#[derive(Clone)]
pub(super) struct WeakMachine {
    inner: Weak<MachineInner>,
}

impl WeakMachine {
    pub(super) fn upgrade(&self) -> Option<Machine> {
        let inner = self.inner.upgrade()?;
        Some(Machine { inner })
    }
}

/// The outcome of a call to a machine.
pub(super) enum CallOutcome<T> {
    /// Its node answered.
    Answer(T),
    /// No node is running there.
    NotRunning,
    /// Its node crashed before it answered.
    Crashed,
}

struct MachineInner {
    name: NodeName,
    ports: Ports,
    config: NodeConfig,
    /// Its links, so that the world can change their faults.
    links: Links,
    trace: Trace,
    rng: Rng,
    state: Mutex<MachineState>,
    /// Ends the wait of a machine that is down.
    hurry: Notify,
}

/// The links of a machine.
#[derive(Clone)]
pub(super) struct Links {
    pub(super) store: Link,
    pub(super) peers: Link,
    pub(super) remote_chain: RemoteChain,
    pub(super) signer: MemorySigner,
    pub(super) clock: SimClock,
}

#[derive(Default)]
struct MachineState {
    tasks: Tasks,
    /// The node, once it has started.
    node: Option<Arc<Node>>,
    frozen: bool,
    calm: bool,
    presence: Presence,
    /// How often the node was started.
    starts: u64,
}

/// Whether a machine is part of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Presence {
    /// Not yet.
    #[default]
    Expected,
    /// Yes, also while its node is down.
    Present,
    /// Not any more.
    Left,
}

/// The longest time that a drained node still forwards requests.
const DRAIN_MS_MAX: u64 = 5_000;
/// The longest time that a crashed node stays down.
const DOWN_MS_MAX: u64 = 20_000;
/// How soon a node is started again in a healed world.
const DOWN_CALM: Duration = Duration::from_millis(100);

impl Machine {
    pub(super) fn new(
        ports: Ports,
        config: NodeConfig,
        links: Links,
        trace: Trace,
        rng: Rng,
    ) -> Self {
        let name = config.name.clone();
        let (state, hurry) = (Mutex::default(), Notify::new());
        let inner = MachineInner {
            name,
            ports,
            config,
            links,
            trace,
            rng,
            state,
            hurry,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    pub(super) fn name(&self) -> &NodeName {
        &self.inner.name
    }

    pub(super) fn downgrade(&self) -> WeakMachine {
        WeakMachine {
            inner: Arc::downgrade(&self.inner),
        }
    }

    pub(super) fn links(&self) -> &Links {
        &self.inner.links
    }

    /// Restarts the node whenever it ends, until the machine leaves permanently.
    pub(super) async fn run(self) {
        self.lock().presence = Presence::Present;
        while self.is_present() {
            let tasks = Tasks::new();
            {
                let mut state = self.lock();
                state.tasks = tasks.clone();
                state.node = None;
                state.frozen = false;
                state.starts += 1;
            }
            let machine = self.clone();
            tasks.spawn("start", async move { machine.start().await });
            tasks.ended().await;
            self.on_exit(&tasks);
            let down = self.inner.rng.millis(0, DOWN_MS_MAX);
            if !self.is_present() {
                return;
            }
            if self.lock().calm {
                tokio::time::sleep(DOWN_CALM).await;
                continue;
            }
            tokio::select! {
                biased;
                () = self.inner.hurry.notified() => {}
                () = tokio::time::sleep(down) => {}
            }
        }
    }

    async fn start(self) {
        let tasks = self.lock().tasks.clone();
        let MachineInner { ports, config, .. } = &*self.inner;
        match Node::start(ports.clone(), config.clone(), tasks.clone()).await {
            Ok(node) => {
                self.lock().node = Some(Arc::new(node));
                self.record(WorldEvent::Started(self.inner.name.clone()));
            }
            // The store did not answer: as a supervisor does, start the node again.
            Err(_unreachable) => tasks.kill(),
        }
    }

    fn on_exit(&self, tasks: &Tasks) {
        let node = self.inner.name.clone();
        // Dropped here and not later: a crashed node holds no resources.
        drop(self.lock().node.take());
        if let Some(panic) = tasks.panicked() {
            self.inner
                .trace
                .violation(&format!("no panic: node {node} in {panic}"));
        }
        self.record(WorldEvent::Crashed {
            node,
            polls: tasks.polls(),
        });
    }

    /// Runs work in the node, as its HTTP server does: inside the process, so that it crashes and
    /// freezes with it.
    pub(super) async fn call<T, F>(&self, work: impl FnOnce(NodeHandle) -> F) -> CallOutcome<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (tasks, handle) = {
            let state = self.lock();
            let Some(node) = &state.node else {
                return CallOutcome::NotRunning;
            };
            (state.tasks.clone(), node.handle())
        };
        let (answers, answer) = oneshot::channel();
        let working = work(handle);
        tasks.spawn("request", async move {
            // The caller may have timed out.
            answers.send(working.await).ok();
        });
        answer
            .await
            .map_or(CallOutcome::Crashed, CallOutcome::Answer)
    }

    /// Sends a request to the node. `None` when no node is running, or it crashed before it answered.
    pub(super) async fn submit(&self, request: NewTx) -> Option<Result<AcceptedTx, Refusal>> {
        match self
            .call(|node| async move { node.create(request).await })
            .await
        {
            CallOutcome::Answer(answer) => Some(answer),
            CallOutcome::NotRunning | CallOutcome::Crashed => None,
        }
    }

    pub(super) fn handle(&self) -> Option<NodeHandle> {
        self.lock().node.as_ref().map(|node| node.handle())
    }

    pub(super) fn is_up(&self) -> bool {
        let state = self.lock();
        state.node.is_some() && !state.frozen
    }

    /// Whether it is part of the cluster: it has joined, and has not left.
    pub(super) fn is_present(&self) -> bool {
        self.lock().presence == Presence::Present
    }

    /// How often its node was started so far.
    pub(super) fn start_count(&self) -> u64 {
        self.lock().starts
    }

    /// Leaves the cluster permanently: drained first, or switched off.
    pub(super) fn leave(&self, is_drained: bool) {
        let tasks = {
            let mut state = self.lock();
            state.presence = Presence::Left;
            state.tasks.clone()
        };
        self.record(WorldEvent::Left(self.inner.name.clone()));
        self.inner.hurry.notify_one();
        let can_drain = is_drained && self.handle().is_some();
        if can_drain {
            self.drain();
        } else {
            tasks.kill();
        }
    }

    /// Kills the node right before the given poll from now.
    pub(super) fn crash_in(&self, polls: u64) {
        let tasks = self.lock().tasks.clone();
        tasks.kill_at_poll(tasks.polls().saturating_add(polls).saturating_add(1));
    }

    pub(super) fn freeze(&self) {
        let mut state = self.lock();
        state.frozen = true;
        state.tasks.pause();
        drop(state);
        self.record(WorldEvent::Frozen(self.inner.name.clone()));
    }

    pub(super) fn thaw(&self) {
        let mut state = self.lock();
        if std::mem::take(&mut state.frozen) {
            let tasks = state.tasks.clone();
            drop(state);
            self.record(WorldEvent::Thawed(self.inner.name.clone()));
            tasks.resume();
        }
    }

    pub(super) fn cut(&self, is_cut: bool) {
        self.inner.links.store.cut(is_cut);
        self.record(WorldEvent::StoreLinkCut {
            node: self.inner.name.clone(),
            is_cut,
        });
    }

    /// Cuts its links to the other nodes, or restores them.
    pub(super) fn isolate(&self, is_cut: bool) {
        self.inner.links.peers.cut(is_cut);
        self.record(WorldEvent::Isolated {
            node: self.inner.name.clone(),
            is_cut,
        });
    }

    /// A rolling deployment: drains the node, lets it forward requests for a while, and stops it.
    pub(super) fn drain(&self) {
        let (tasks, node) = {
            let state = self.lock();
            (state.tasks.clone(), state.node.clone())
        };
        let Some(node) = node else { return };
        self.record(WorldEvent::Draining(self.inner.name.clone()));
        let (group, delay) = (tasks.clone(), self.inner.rng.millis(0, DRAIN_MS_MAX));
        tasks.spawn("drain", async move {
            node.drain().await;
            drop(node);
            tokio::time::sleep(delay).await;
            group.kill();
        });
    }

    /// The node's sends hang at every endpoint, or no longer do; its queries are answered.
    pub(super) fn set_hangs_on_sends(&self, hangs: bool) {
        let node = self.name().clone();
        self.record(WorldEvent::SendsHang { node, hangs });
        self.inner.links.remote_chain.set_hangs_on_sends(hangs);
    }

    /// Ends all faults: the node runs from now on.
    pub(super) fn heal(&self) {
        let tasks = {
            let mut state = self.lock();
            state.calm = true;
            state.tasks.clone()
        };
        tasks.kill_at_poll(u64::MAX);
        self.thaw();
        self.inner.hurry.notify_one();
    }

    fn record(&self, event: WorldEvent) {
        self.inner.trace.record(event);
    }

    fn lock(&self) -> MutexGuard<'_, MachineState> {
        self.inner
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
