//! One machine of the world: its node is started, dies, and is started again in a new life.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use domain::NodeName;
use engine::node::{Accepted, NewTx, Node, NodeConfig, NodeHandle, Ports, Refusal};
use engine::tasks::Tasks;
use tokio::sync::{Notify, oneshot};

use crate::chain::{MemorySigner, RemoteChain};
use crate::clock::SimClock;
use crate::event::WorldEvent;
use crate::rng::Rng;
use crate::trace::Trace;
use crate::wire::Wire;

/// A machine. Clones are the same one.
#[derive(Clone)]
pub(super) struct Machine {
    inner: Arc<Inner>,
}

/// A machine, as long as somebody else holds it.
#[derive(Clone)]
pub(super) struct WeakMachine {
    inner: Weak<Inner>,
}

impl WeakMachine {
    pub(super) fn upgrade(&self) -> Option<Machine> {
        let inner = self.inner.upgrade()?;
        Some(Machine { inner })
    }
}

/// What came of a call to a machine.
pub(super) enum Heard<T> {
    /// Its node answered.
    Answer(T),
    /// No node runs there.
    Nobody,
    /// Its node died before it answered.
    Death,
}

struct Inner {
    name: NodeName,
    ports: Ports,
    config: NodeConfig,
    /// Its lines, so that the world can make them worse.
    lines: Lines,
    trace: Trace,
    rng: Rng,
    state: Mutex<State>,
    /// Ends the wait of a machine that is down.
    hurry: Notify,
}

/// How a machine is connected.
#[derive(Clone)]
pub(super) struct Lines {
    pub(super) store: Wire,
    pub(super) peers: Wire,
    pub(super) sight: RemoteChain,
    pub(super) signer: MemorySigner,
    pub(super) clock: SimClock,
}

#[derive(Default)]
struct State {
    tasks: Tasks,
    /// The node, once it has started.
    node: Option<Arc<Node>>,
    frozen: bool,
    calm: bool,
    presence: Presence,
    /// How often the node was started.
    lives: u64,
}

/// Whether a machine is part of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Presence {
    /// Not yet.
    #[default]
    Expected,
    /// It is, also while its node is down.
    Here,
    /// Not any more.
    Gone,
}

/// The longest time that a drained node still hands requests on.
const DRAIN_MS_MAX: u64 = 5_000;
/// The longest time that a crashed node stays down.
const DOWN_MS_MAX: u64 = 20_000;
/// How soon a node is started again in a healed world.
const DOWN_CALM: Duration = Duration::from_millis(100);

impl Machine {
    pub(super) fn new(
        ports: Ports,
        config: NodeConfig,
        lines: Lines,
        trace: Trace,
        rng: Rng,
    ) -> Self {
        let name = config.name.clone();
        let (state, hurry) = (Mutex::default(), Notify::new());
        let inner = Inner {
            name,
            ports,
            config,
            lines,
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

    pub(super) fn lines(&self) -> &Lines {
        &self.inner.lines
    }

    /// Starts the node again and again, until it leaves for good.
    pub(super) async fn run(self) {
        self.lock().presence = Presence::Here;
        while self.is_present() {
            let tasks = Tasks::new();
            {
                let mut state = self.lock();
                state.tasks = tasks.clone();
                state.node = None;
                state.frozen = false;
                state.lives += 1;
            }
            let machine = self.clone();
            tasks.spawn("start", async move { machine.start().await });
            tasks.ended().await;
            self.bury(&tasks);
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
        let Inner { ports, config, .. } = &*self.inner;
        match Node::start(ports.clone(), config.clone(), tasks.clone()).await {
            Ok(node) => {
                self.lock().node = Some(Arc::new(node));
                self.tell(WorldEvent::Started(self.inner.name.clone()));
            }
            // The store did not answer: as a supervisor would, try again with a new life.
            Err(_unreachable) => tasks.kill(),
        }
    }

    fn bury(&self, tasks: &Tasks) {
        let node = self.inner.name.clone();
        // Dropped here and not later: the dead hold nothing.
        drop(self.lock().node.take());
        if let Some(panic) = tasks.panicked() {
            self.inner
                .trace
                .violation(&format!("no panic: node {node} in {panic}"));
        }
        self.tell(WorldEvent::Crashed {
            node,
            polls: tasks.polls(),
        });
    }

    /// Has work done by the node, as its HTTP door would: inside the process, so that it dies with it
    /// and stands still with it.
    pub(super) async fn call<T, F>(&self, work: impl FnOnce(NodeHandle) -> F) -> Heard<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (tasks, handle) = {
            let state = self.lock();
            let Some(node) = &state.node else {
                return Heard::Nobody;
            };
            (state.tasks.clone(), node.handle())
        };
        let (answers, answer) = oneshot::channel();
        let working = work(handle);
        tasks.spawn("request", async move {
            // Whoever asked may have lost patience.
            answers.send(working.await).ok();
        });
        answer.await.map_or(Heard::Death, Heard::Answer)
    }

    /// Asks the node. `None` when there is no node, or it died before it answered.
    pub(super) async fn lease_request(&self, request: NewTx) -> Option<Result<Accepted, Refusal>> {
        match self
            .call(|node| async move { node.create(request).await })
            .await
        {
            Heard::Answer(answer) => Some(answer),
            Heard::Nobody | Heard::Death => None,
        }
    }

    pub(super) fn handle(&self) -> Option<NodeHandle> {
        self.lock().node.as_ref().map(|node| node.handle())
    }

    pub(super) fn is_up(&self) -> bool {
        let state = self.lock();
        state.node.is_some() && !state.frozen
    }

    /// Whether it is part of the cluster: it has come, and has not left for good.
    pub(super) fn is_present(&self) -> bool {
        self.lock().presence == Presence::Here
    }

    /// How often its node was started so far.
    pub(super) fn lives(&self) -> u64 {
        self.lock().lives
    }

    /// Leaves for good: drained as a careful operator does, or switched off.
    pub(super) fn leave(&self, is_drained: bool) {
        let tasks = {
            let mut state = self.lock();
            state.presence = Presence::Gone;
            state.tasks.clone()
        };
        self.tell(WorldEvent::Left(self.inner.name.clone()));
        self.inner.hurry.notify_one();
        let can_drain = is_drained && self.handle().is_some();
        if can_drain {
            self.drain();
        } else {
            tasks.kill();
        }
    }

    /// Kills the node right before a poll that is so far ahead.
    pub(super) fn crash_in(&self, polls: u64) {
        let tasks = self.lock().tasks.clone();
        tasks.kill_at_poll(tasks.polls().saturating_add(polls).saturating_add(1));
    }

    pub(super) fn freeze(&self) {
        let mut state = self.lock();
        state.frozen = true;
        state.tasks.pause();
        drop(state);
        self.tell(WorldEvent::Frozen(self.inner.name.clone()));
    }

    pub(super) fn thaw(&self) {
        let mut state = self.lock();
        if std::mem::take(&mut state.frozen) {
            let tasks = state.tasks.clone();
            drop(state);
            self.tell(WorldEvent::Thawed(self.inner.name.clone()));
            tasks.resume();
        }
    }

    pub(super) fn cut(&self, is_cut: bool) {
        self.inner.lines.store.cut(is_cut);
        self.tell(WorldEvent::Cut {
            node: self.inner.name.clone(),
            is_cut,
        });
    }

    /// Cuts its lines to the other nodes, or mends them.
    pub(super) fn isolate(&self, is_cut: bool) {
        self.inner.lines.peers.cut(is_cut);
        self.tell(WorldEvent::Isolated {
            node: self.inner.name.clone(),
            is_cut,
        });
    }

    /// A rolling deploy: drains the node, lets it hand requests on for a while, and ends it.
    pub(super) fn drain(&self) {
        let (tasks, node) = {
            let state = self.lock();
            (state.tasks.clone(), state.node.clone())
        };
        let Some(node) = node else { return };
        self.tell(WorldEvent::Draining(self.inner.name.clone()));
        let (group, delay) = (tasks.clone(), self.inner.rng.millis(0, DRAIN_MS_MAX));
        tasks.spawn("drain", async move {
            node.drain().await;
            drop(node);
            tokio::time::sleep(delay).await;
            group.kill();
        });
    }

    /// No more harm: the node runs from now on.
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

    fn tell(&self, event: WorldEvent) {
        self.inner.trace.tell(event);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
