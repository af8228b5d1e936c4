//! The workloads beside single requests: what clients and operators of a cluster do. One file per workload;
//! a world has those that its plan names. A new kind of call is one more line in [`WORKLOADS`].

mod batches;
mod false_fees;
mod feed_readers;
mod hung_methods;
mod hung_sends;
mod membership;
mod node_clocks;
mod operator;
mod poisoned_lane;
mod poisoned_requests;
mod queries;
mod reader_floods;
mod repeat_floods;
mod reservations;
mod revert_floods;
mod rolling_restarts;
mod sampler;
mod scarce_funds;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::{LaneKey, NodeName, RequestId, TxId};
use engine::node::{AcceptedTx as AcceptedRecord, NewTx, NodeHandle, Refusal};
use tokio::task::JoinHandle;

use super::client::Request;
use super::features::Feature;
use super::machine::{CallOutcome, Machine};
use super::plan::Plan;
use crate::chain::MemoryChain;
use crate::event::{Answer, WorldEvent};
use crate::rng::Rng;
use crate::store::MemoryStore;
use crate::trace::Trace;

pub(super) use feed_readers::ReaderProgress;
pub(super) use hung_sends::heal_hung_sends;
pub(super) use reservations::ActiveHolders;

/// The timeout of a call; after it the caller tries another node.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a workload runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopAt {
    /// Until the faults end.
    Healed,
    /// Until the world ends.
    WorldEnd,
}

type WorkloadFn = fn(WorkloadContext) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// Every workload.
const WORKLOADS: [(Feature, StopAt, WorkloadFn); 18] = [
    (Feature::Batches, StopAt::Healed, |context| {
        Box::pin(batches::send_batches(context))
    }),
    (Feature::Readers, StopAt::WorldEnd, |context| {
        Box::pin(feed_readers::read_feed(context))
    }),
    (Feature::Queries, StopAt::Healed, |context| {
        Box::pin(queries::run_queries(context))
    }),
    (Feature::Restarts, StopAt::Healed, |context| {
        Box::pin(rolling_restarts::restart_nodes(context))
    }),
    (Feature::Newcomers, StopAt::Healed, |context| {
        Box::pin(membership::join_nodes(context))
    }),
    (Feature::Departures, StopAt::Healed, |context| {
        Box::pin(membership::remove_nodes(context))
    }),
    (Feature::Operator, StopAt::WorldEnd, |context| {
        Box::pin(operator::accept_losses(context))
    }),
    (Feature::NodeClocks, StopAt::Healed, |context| {
        Box::pin(node_clocks::disturb_clocks(context))
    }),
    (Feature::Poison, StopAt::Healed, |context| {
        Box::pin(poisoned_lane::send_requests(context))
    }),
    (Feature::Reservations, StopAt::WorldEnd, |context| {
        Box::pin(reservations::reserve_nonces(context))
    }),
    (Feature::HungSends, StopAt::Healed, |context| {
        Box::pin(hung_sends::hang_sends(context))
    }),
    (Feature::ScarceFunds, StopAt::Healed, |context| {
        Box::pin(scarce_funds::fund_scarcely(context))
    }),
    (Feature::PoisonedRequests, StopAt::Healed, |context| {
        Box::pin(poisoned_requests::send_poison(context))
    }),
    (Feature::HungMethods, StopAt::Healed, |context| {
        Box::pin(hung_methods::hang_methods(context))
    }),
    (Feature::FalseFees, StopAt::Healed, |context| {
        Box::pin(false_fees::report_wrong_fees(context))
    }),
    (Feature::RepeatFloods, StopAt::Healed, |context| {
        Box::pin(repeat_floods::repeat_requests(context))
    }),
    (Feature::RevertFloods, StopAt::Healed, |context| {
        Box::pin(revert_floods::send_reverts(context))
    }),
    (Feature::ReaderFloods, StopAt::Healed, |context| {
        Box::pin(reader_floods::flood_readers(context))
    }),
];

/// Those that only hostile worlds have.
const HOSTILE_WORKLOADS: [Feature; 6] = [
    Feature::PoisonedRequests,
    Feature::HungMethods,
    Feature::FalseFees,
    Feature::RepeatFloods,
    Feature::RevertFloods,
    Feature::ReaderFloods,
];

/// What workloads have access to.
#[derive(Clone)]
pub(super) struct WorkloadContext {
    pub(super) machines: Arc<Vec<Machine>>,
    pub(super) store: MemoryStore,
    pub(super) chain: MemoryChain,
    pub(super) trace: Trace,
    pub(super) plan: Arc<Plan>,
    pub(super) requests: Arc<Vec<Request>>,
    pub(super) accepted_txs: AcceptedTxs,
    pub(super) progress: ReaderProgress,
    pub(super) active_holders: ActiveHolders,
    /// Whether the faults have ended.
    pub(super) healed: Arc<AtomicBool>,
    pub(super) rng: Rng,
    /// The random stream of what harms others.
    pub(super) hostile: Rng,
}

/// Starts the workloads of a world. The returned tasks must be aborted when it heals; the others end with it.
pub(super) fn start(context: &WorkloadContext) -> Vec<JoinHandle<()>> {
    // Detached: the task ends with the world.
    drop(tokio::spawn(sampler::sample_load(context.split())));
    let mut ending = Vec::new();
    for (feature, stop_at, start_workload) in WORKLOADS {
        if !context.plan.has_workload(feature) {
            continue;
        }
        let handle = tokio::spawn(start_workload(context.for_workload(feature)));
        match stop_at {
            StopAt::Healed => ending.push(handle),
            StopAt::WorldEnd => drop(handle), // detached: it ends with the world
        }
    }
    ending
}

impl WorkloadContext {
    /// The same with its own random stream.
    fn split(&self) -> Self {
        Self {
            rng: self.rng.split(),
            ..self.clone()
        }
    }

    /// The same for one workload: those of hostile worlds draw nothing from the stream of the others.
    fn for_workload(&self, feature: Feature) -> Self {
        let is_hostile = HOSTILE_WORKLOADS.contains(&feature);
        let rng = if is_hostile { &self.hostile } else { &self.rng };
        Self {
            rng: rng.split(),
            ..self.clone()
        }
    }

    /// Sends a harmful request to some node that knows its chain's head, once; without one a node accepts what it cannot
    /// check, as documented.
    async fn submit_harmful(&self, new: NewTx) -> Answer {
        let machine = self.pick_running_node().clone();
        let (lane, request_id) = (new.lane, new.request_id.clone());
        let node = machine.name().clone();
        self.trace.record(WorldEvent::RequestSent {
            lane,
            request_id: request_id.clone(),
            node: node.clone(),
        });
        let answer = self.call_node(&machine, |node| async move {
            let chains = node.readiness().await.chains;
            match chains.iter().all(|chain| chain.head.is_some()) {
                true => node.create(new).await,
                false => Err(Refusal::Busy),
            }
        });
        let answer = to_answer(answer.await);
        let request = (lane, request_id);
        self.accepted_txs
            .record_answer(&self.trace, request, node, answer.clone());
        answer
    }

    /// Calls a node; `None` when it did not answer in time.
    async fn call_node<T, F>(
        &self,
        machine: &Machine,
        work: impl FnOnce(NodeHandle) -> F,
    ) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        match tokio::time::timeout(CALL_TIMEOUT, machine.call(work)).await {
            Ok(CallOutcome::Answer(answer)) => Some(answer),
            Ok(CallOutcome::NotRunning | CallOutcome::Crashed) | Err(_) => None,
        }
    }

    /// A random machine of the cluster.
    fn pick_machine(&self) -> &Machine {
        self.rng.pick(&self.machines)
    }

    /// A random machine whose node is running, as far as a load balancer knows.
    fn pick_running_node(&self) -> &Machine {
        let mut up = self.machines.iter().filter(|one| one.is_up());
        let count = u64::try_from(up.clone().count()).unwrap_or(0);
        if count == 0 {
            return self.pick_machine();
        }
        let index = usize::try_from(self.rng.below(count)).unwrap_or(0);
        up.nth(index).unwrap_or_else(|| self.pick_machine())
    }

    /// Whether faults still happen.
    fn has_faults(&self) -> bool {
        !self.healed.load(Ordering::Relaxed)
    }

    /// A random time of the fault phase.
    fn pick_time(&self) -> Duration {
        let fault_phase =
            u64::try_from(self.plan.fault_phase.as_millis()).expect("the fault phase is short");
        self.rng.millis(0, fault_phase)
    }

    async fn pause(&self, least_ms: u64, most_ms: u64) {
        tokio::time::sleep(self.rng.millis(least_ms, most_ms)).await;
    }
}

/// The answer as a client sees it.
pub(super) fn to_answer(answer: Option<Result<AcceptedRecord, Refusal>>) -> Answer {
    match answer {
        Some(Ok(accepted)) => Answer::Accepted {
            tx_id: accepted.record.tx.id,
            is_new: accepted.is_new,
        },
        Some(Err(refusal)) => Answer::Refused(refusal),
        None => Answer::NoAnswer,
    }
}

/// The txs that were reported to clients as durable. Clones are the same list.
#[derive(Clone, Default)]
pub(super) struct AcceptedTxs {
    txs: Arc<Mutex<Vec<AcceptedTx>>>,
}

#[derive(Clone, Debug)]
pub(super) struct AcceptedTx {
    pub(super) lane: LaneKey,
    pub(super) request_id: RequestId,
    pub(super) tx_id: TxId,
}

impl AcceptedTxs {
    /// Records what a node answered to a request.
    pub(super) fn record_answer(
        &self,
        trace: &Trace,
        (lane, request_id): (LaneKey, RequestId),
        node: NodeName,
        answer: Answer,
    ) {
        if let Answer::Accepted { tx_id, .. } = answer {
            self.add(lane, &request_id, tx_id);
        }
        trace.record(WorldEvent::RequestAnswered {
            lane,
            request_id,
            node,
            answer,
        });
    }

    fn add(&self, lane: LaneKey, request_id: &RequestId, tx_id: TxId) {
        let request_id = request_id.clone();
        let mut txs = self.txs.lock().unwrap_or_else(PoisonError::into_inner);
        txs.push(AcceptedTx {
            lane,
            request_id,
            tx_id,
        });
    }

    /// One of the txs accepted so far.
    fn pick(&self, rng: &Rng) -> Option<AcceptedTx> {
        let txs = self.txs.lock().unwrap_or_else(PoisonError::into_inner);
        (!txs.is_empty()).then(|| rng.pick(&txs).clone())
    }
}
