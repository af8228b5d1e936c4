//! What those who use and run a cluster do beside sending single requests. One file per habit; a world has
//! those that its plan names. A new kind of request (a cancel, a replacement, a reservation) is one more
//! line in [`HABITS`].

mod batches;
mod clocks;
mod loans;
mod lookers;
mod membership;
mod operator;
mod poisoned;
mod readers;
mod restarts;
mod sampler;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::{LaneKey, RequestId, TxId};
use engine::node::NodeHandle;
use tokio::task::JoinHandle;

use super::client::Request;
use super::machine::{Heard, Machine};
use super::parts::Part;
use super::plan::Plan;
use crate::chain::MemoryChain;
use crate::rng::Rng;
use crate::store::MemoryStore;
use crate::trace::Trace;

pub(super) use loans::Speakers;
pub(super) use readers::Progress;

/// After this, whoever asked a node looks elsewhere.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long somebody keeps a habit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// As long as things go wrong.
    Healed,
    /// As long as the world lasts.
    TheEnd,
}

type Act = fn(Scene) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// Every habit, and who has it.
const HABITS: [(Part, Until, Act); 10] = [
    (Part::Batches, Until::Healed, |scene| {
        Box::pin(batches::send_for_ever(scene))
    }),
    (Part::Readers, Until::TheEnd, |scene| {
        Box::pin(readers::read_for_ever(scene))
    }),
    (Part::Lookers, Until::Healed, |scene| {
        Box::pin(lookers::look_for_ever(scene))
    }),
    (Part::Restarts, Until::Healed, |scene| {
        Box::pin(restarts::deploy_for_ever(scene))
    }),
    (Part::Newcomers, Until::Healed, |scene| {
        Box::pin(membership::join(scene))
    }),
    (Part::Departures, Until::Healed, |scene| {
        Box::pin(membership::leave(scene))
    }),
    (Part::Operator, Until::TheEnd, |scene| {
        Box::pin(operator::accept_losses_for_ever(scene))
    }),
    (Part::NodeClocks, Until::Healed, |scene| {
        Box::pin(clocks::set_for_ever(scene))
    }),
    (Part::Poison, Until::Healed, |scene| {
        Box::pin(poisoned::ask_for_ever(scene))
    }),
    (Part::Loans, Until::TheEnd, |scene| {
        Box::pin(loans::borrow_for_ever(scene))
    }),
];

/// What they can reach.
#[derive(Clone)]
pub(super) struct Scene {
    pub(super) machines: Arc<Vec<Machine>>,
    pub(super) store: MemoryStore,
    pub(super) chain: MemoryChain,
    pub(super) trace: Trace,
    pub(super) plan: Arc<Plan>,
    pub(super) requests: Arc<Vec<Request>>,
    pub(super) promised: Promised,
    pub(super) progress: Progress,
    pub(super) speakers: Speakers,
    /// Whether nothing goes wrong any more.
    pub(super) healed: Arc<AtomicBool>,
    pub(super) rng: Rng,
}

/// Starts the habits of a world. Those that are given back end when it is healed; the others with it.
pub(super) fn take_up(scene: &Scene) -> Vec<JoinHandle<()>> {
    // The handle is let go: it ends with the world.
    drop(tokio::spawn(sampler::sample_for_ever(scene.split())));
    let mut ending = Vec::new();
    for (part, until, act) in HABITS {
        if !scene.plan.has(part) {
            continue;
        }
        let handle = tokio::spawn(act(scene.split()));
        match until {
            Until::Healed => ending.push(handle),
            Until::TheEnd => drop(handle), // let go: it ends with the world
        }
    }
    ending
}

impl Scene {
    /// The same with a chance of its own.
    fn split(&self) -> Self {
        Self {
            rng: self.rng.split(),
            ..self.clone()
        }
    }

    /// Asks a node; `None` when it gave no answer in time.
    async fn lease_request<T, F>(
        &self,
        machine: &Machine,
        work: impl FnOnce(NodeHandle) -> F,
    ) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        match tokio::time::timeout(PATIENCE, machine.call(work)).await {
            Ok(Heard::Answer(answer)) => Some(answer),
            Ok(Heard::Nobody | Heard::Death) | Err(_) => None,
        }
    }

    /// Some machine of the cluster.
    fn some_machine(&self) -> &Machine {
        self.rng.pick(&self.machines)
    }

    /// Some machine whose node answers, as far as a load balancer knows.
    fn some_node(&self) -> &Machine {
        let mut up = self.machines.iter().filter(|one| one.is_up());
        let count = u64::try_from(up.clone().count()).unwrap_or(0);
        if count == 0 {
            return self.some_machine();
        }
        let index = usize::try_from(self.rng.below(count)).unwrap_or(0);
        up.nth(index).unwrap_or_else(|| self.some_machine())
    }

    /// Whether things still go wrong.
    fn is_restless(&self) -> bool {
        !self.healed.load(Ordering::Relaxed)
    }

    /// Some moment of the time in which things go wrong.
    fn some_time(&self) -> Duration {
        let unrest = u64::try_from(self.plan.unrest.as_millis()).expect("unrest is short");
        self.rng.millis(0, unrest)
    }

    async fn rest(&self, least_ms: u64, most_ms: u64) {
        tokio::time::sleep(self.rng.millis(least_ms, most_ms)).await;
    }
}

/// What clients were told is durable. Clones are the same list.
#[derive(Clone, Default)]
pub(super) struct Promised {
    txs: Arc<Mutex<Vec<Promise>>>,
}

/// One of them.
#[derive(Clone, Debug)]
pub(super) struct Promise {
    pub(super) lane: LaneKey,
    pub(super) request_id: RequestId,
    pub(super) tx_id: TxId,
}

impl Promised {
    pub(super) fn add(&self, lane: LaneKey, request_id: &RequestId, tx_id: TxId) {
        let request_id = request_id.clone();
        let mut txs = self.txs.lock().unwrap_or_else(PoisonError::into_inner);
        txs.push(Promise {
            lane,
            request_id,
            tx_id,
        });
    }

    /// Some of what was promised so far.
    fn some(&self, rng: &Rng) -> Option<Promise> {
        let txs = self.txs.lock().unwrap_or_else(PoisonError::into_inner);
        (!txs.is_empty()).then(|| rng.pick(&txs).clone())
    }
}
