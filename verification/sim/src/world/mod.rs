//! A whole cluster in one thread from one seed: real nodes on twins of the ports, a workload, and
//! everything that can go wrong. First safety under faults, then the world heals and must finish.

mod chain_faults;
mod chain_plan;
mod client;
mod features;
mod final_checks;
mod hostile_plan;
mod machine;
mod node_faults;
mod options;
mod peers;
mod plan;
mod plan_summary;
mod poison;
mod poisoned_store;
mod promises;
mod reservation_plan;
mod workload_plan;
mod workloads;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::TxId;
use domain::lane::BalanceCheck;
use engine::node::Ports;
use futures::future::join_all;
use tokio::task::JoinHandle;

use crate::chain::{MemoryChain, MemorySigner, RemoteChain, Staleness};
use crate::clock::SimClock;
use crate::disk::MemoryDisk;
use crate::event::WorldEvent;
use crate::network::{Link, LinkFaults};
use crate::rng::Rng;
use crate::store::{LossFigures, MemoryStore, RemoteStore};
use crate::trace::Trace;

pub use chain_plan::ChainPlan;
pub use features::{FEATURES, Feature, FeatureSet};
pub use hostile_plan::HostilePlan;
pub use options::{Changes, Options};
pub use plan::{CHAIN, Plan, RequestPlan, RestorePlan};
pub use poison::{Poison, PoisonKind};
pub use reservation_plan::ReservationPlan;

use chain_faults::ChainFaultInjector;
use client::{Client, Request};
use machine::{Links, Machine};
use node_faults::NodeFaultInjector;
use peers::{PeerDirectory, SimPeers};
use poison::PoisonedSigner;
use poisoned_store::PoisonedStore;
use workload_plan::DRIFT_PPM_MAX;
use workloads::{AcceptedTxs, ActiveHolders, ReaderProgress, WorkloadContext};

/// The result of a run.
#[derive(Clone, Debug)]
pub struct WorldOutcome {
    /// The seed of the world.
    pub seed: u64,
    /// The digest of the trace.
    pub hash: u64,
    /// The trace.
    pub lines: Vec<String>,
    /// The broken promises; empty means success.
    pub violations: Vec<String>,
    /// The number of events.
    pub events: u64,
    /// The duration in simulated time.
    pub duration: Duration,
    /// How long everything took to end after the world was healed.
    pub healing: Healing,
    /// The faults and workloads that happened.
    pub fired: FeatureSet,
    /// How lanes dealt with losses.
    pub losses: LossFigures,
}

/// How a healed world finished, in simulated time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Healing {
    /// The time it took; `None` if it did not finish.
    pub duration: Option<Duration>,
    /// The time it may take.
    pub bound: Duration,
}

/// How much deeper than finality the reorgs of a `--deep-forks` world go.
const DEEP_REORG_EXTRA: u64 = 4;

/// After how long the lanes of impatient worlds end what blocks them: longer than some faults last, in milliseconds.
const BLOCKED_TIMEOUT_MS: std::ops::Range<u64> = 15_000..90_000;

/// Separates the draws of busy worlds from those of all worlds: the faults of a seed are the same in both.
const BUSY_STREAM: u64 = 0x6275_7379;

/// How many requests per thousand name a limit, in worlds where some do.
const LIMITED_PERMILLE: u64 = 300;

/// Separates the draws of hostile worlds from all others.
const HOSTILE_STREAM: u64 = 0x686f_7374;

/// Runs the world of a seed, from its beginning to its end, in simulated time.
///
/// # Panics
/// When no runtime can be built.
#[must_use]
pub fn run(seed: u64, options: Options) -> WorldOutcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without IO can always be built");
    runtime.block_on(async {
        let world = World::build(seed, options);
        let trace = world.trace.clone();
        let store = world.store.clone();
        let healing = world.run().await;
        WorldOutcome {
            seed,
            hash: trace.hash(),
            lines: trace.lines(),
            violations: trace.violations(),
            events: trace.events(),
            duration: trace.duration(),
            healing,
            fired: trace.fired(),
            losses: store.loss_figures(),
        }
    })
}

/// The plan of a seed, with these options.
#[must_use]
pub fn plan(seed: u64, options: Options) -> Plan {
    let (rng, busy) = (Rng::new(seed), Rng::new(seed ^ BUSY_STREAM));
    draw(seed, (&rng, &busy), &options)
}

fn draw(seed: u64, (rng, busy): (&Rng, &Rng), options: &Options) -> Plan {
    let mut plan = if options.calm {
        Plan::calm(&rng.split())
    } else {
        Plan::stormy(&rng.split())
    };
    if options.deep_forks {
        plan.chain
            .set_forks(plan.lane.confirmations.finality, DEEP_REORG_EXTRA);
    }
    if options.lossy {
        let half =
            u64::try_from(plan.fault_phase.as_millis() / 2).expect("the fault phase is short");
        plan.lossy_failover = Some(rng.millis(half / 4, half));
        // Lost commits and foreign transactions cannot be distinguished.
        plan.chain.foreign_max = 0;
    }
    if options.busy {
        plan.make_busy(&busy.split(), options);
    }
    if options.scarce {
        plan.lane.balance = BalanceCheck::Check;
        plan.workloads = plan.workloads.with(Feature::ScarceFunds);
    }
    if options.impatient {
        let timeout = busy.millis(BLOCKED_TIMEOUT_MS.start, BLOCKED_TIMEOUT_MS.end);
        plan.lane.blocked_timeout = Some(timeout);
    }
    if options.hostile {
        plan.make_hostile(&Rng::new(seed ^ HOSTILE_STREAM), options);
    }
    plan.change(&options.changes);
    plan
}

struct World {
    plan: Arc<Plan>,
    rng: Rng,
    trace: Trace,
    store: MemoryStore,
    /// The database's clock.
    clock: SimClock,
    chain: MemoryChain,
    directory: PeerDirectory,
    machines: Arc<Vec<Machine>>,
    /// The random stream of busy worlds.
    busy: Rng,
    /// The random stream of hostile worlds.
    hostile: Rng,
    accepted_txs: AcceptedTxs,
    progress: ReaderProgress,
    active_holders: ActiveHolders,
    healed: Arc<AtomicBool>,
}

impl World {
    fn build(seed: u64, options: Options) -> Self {
        let (rng, busy) = (Rng::new(seed), Rng::new(seed ^ BUSY_STREAM));
        let plan = draw(seed, (&rng, &busy), &options);
        let mut trace = Trace::new(promises::build_checkers(&plan));
        if options.echo {
            trace = trace.with_echo();
        }
        if options.silent {
            trace = trace.without_lines();
        }
        plan.lines().iter().for_each(|line| trace.note(line));
        let clock = SimClock::new(rng.bits());
        let database = clock.machine(Duration::ZERO, rng.split());
        let store = MemoryStore::new(Arc::new(database.clone())).traced(trace.clone());
        let chain = MemoryChain::new(CHAIN).traced(trace.clone());
        let chain = chain.with_endpoints(plan.chain.endpoints);
        chain_faults::set_up(&chain, &plan);
        chain_faults::poison(&chain, &plan);
        let world = Self {
            plan: Arc::new(plan),
            rng,
            trace,
            store,
            clock: database,
            chain,
            directory: PeerDirectory::default(),
            machines: Arc::default(),
            busy,
            hostile: Rng::new(seed ^ HOSTILE_STREAM).split(),
            accepted_txs: AcceptedTxs::default(),
            progress: ReaderProgress::default(),
            active_holders: ActiveHolders::default(),
            healed: Arc::default(),
        };
        let nodes = world.plan.nodes.iter().chain(&world.plan.newcomers);
        let machines: Vec<Machine> = nodes.map(|name| world.machine(name, &clock)).collect();
        machines
            .iter()
            .for_each(|machine| world.directory.connect(machine));
        Self {
            machines: Arc::new(machines),
            ..world
        }
    }

    fn machine(&self, name: &domain::NodeName, clock: &SimClock) -> Machine {
        let plan = &self.plan;
        let store = Link::new(self.rng.split(), plan.store_link);
        let endpoints = 0..plan.chain.endpoints;
        let links = endpoints.map(|_| Link::new(self.rng.split(), plan.chain.link));
        let peers = Link::new(self.rng.split(), plan.peer_link);
        let remote_chain =
            RemoteChain::with_links(self.chain.clone(), links.collect(), plan.chain.staleness)
                .with_send_count(plan.chain.send_to)
                .with_announcements(plan.chain.announces)
                .owned_by(name);
        let remote_chain = match plan.has_workload(Feature::FalseFees) {
            true => remote_chain.checking_prices(),
            false => remote_chain,
        };
        let signer = MemorySigner::new(plan.accounts());
        let signer = match plan.signer_travel {
            Some(travel) => signer.remote(travel),
            None => signer,
        };
        let ahead = self.rng.millis(0, 2_000);
        let clock = clock.machine(ahead, self.rng.split());
        let clock = clock.with_drift(self.pick_drift());
        signer.set_unavailable_permille(self.rng.split(), plan.unsigned);
        let remote = RemoteStore::new(self.store.clone(), store.clone());
        let remote = Arc::new(self.harmed_store(remote));
        let ports = Ports {
            store: PoisonedStore::wrap(remote, plan.poison),
            chains: vec![Arc::new(remote_chain.clone())],
            signer: PoisonedSigner::wrap(signer.clone(), plan.poison),
            clock: Arc::new(clock.clone()),
            peers: Arc::new(SimPeers::new(self.directory.clone(), peers.clone())),
            witness: Some(Arc::new(MemoryDisk::default())),
        };
        let config = plan.node_config(name);
        let links = Links {
            store,
            peers,
            remote_chain,
            signer,
            clock,
        };
        Machine::new(ports, config, links, self.trace.clone(), self.rng.split())
    }

    /// The store as the nodes of a hostile world reach it.
    fn harmed_store(&self, store: RemoteStore) -> RemoteStore {
        let plan = &self.plan;
        let store = match plan.has_workload(Feature::ReaderFloods) {
            true => store.with_few_connections(),
            false => store,
        };
        match plan.has_workload(Feature::LateReleases) {
            true => store.with_late_releases(self.hostile.split()),
            false => store,
        }
    }

    /// The clock drift of a machine.
    fn pick_drift(&self) -> i64 {
        if !self.plan.has_workload(Feature::NodeClocks) {
            return 0;
        }
        let by = i64::try_from(self.busy.between(0, DRIFT_PPM_MAX)).expect("few millionths");
        if self.busy.permille(500) { by } else { -by }
    }

    async fn run(self) -> Healing {
        self.trace.record(WorldEvent::Phase("faults"));
        let mut background: Vec<JoinHandle<()>> = Vec::new();
        for machine in self.machines.iter() {
            if self.plan.nodes.contains(machine.name()) {
                background.push(tokio::spawn(machine.clone().run()));
            }
        }
        let (chain, plan) = (self.chain.clone(), Arc::clone(&self.plan));
        background.push(tokio::spawn(chain_faults::mine_blocks(
            chain,
            plan,
            self.rng.split(),
        )));
        let striking = tokio::spawn(self.fault_injector().inject_faults());
        let shaking = tokio::spawn(self.chain_fault_injector().inject_faults());
        let losing = tokio::spawn(self.fault_injector().lose_commits());
        let (requests, clients) = self.spawn_clients();
        let workloads = self.start_workloads(&requests);
        tokio::time::sleep(self.plan.fault_phase).await;

        self.trace.record(WorldEvent::Phase("heal"));
        striking.abort();
        shaking.abort();
        losing.abort();
        workloads.iter().for_each(JoinHandle::abort);
        self.heal();
        let (healed_at, bound) = (tokio::time::Instant::now(), self.plan.finish_bound());
        let deadline = healed_at + bound;
        let ended_at = match tokio::time::timeout_at(deadline, join_all(clients)).await {
            Ok(txs) => {
                let txs = txs.into_iter().map(|tx| tx.expect("clients do not panic"));
                let accepted = requests.into_iter().zip(txs);
                let accepted = accepted.filter_map(|(request, tx)| Some((request, tx?)));
                self.run_final_checks(accepted.collect(), deadline).await
            }
            Err(_) => {
                let what = "everything ends: clients still wait for an acceptance";
                self.trace.violation(what);
                None
            }
        };
        background.iter().for_each(JoinHandle::abort);
        self.fire_failed_links();
        let duration = ended_at.map(|ended_at| ended_at.duration_since(healed_at));
        Healing { duration, bound }
    }

    fn fire_failed_links(&self) {
        for machine in self.machines.iter() {
            let links = machine.links();
            let failed = [
                (Feature::StoreLink, links.store.has_failed()),
                (Feature::PeerLink, links.peers.has_failed()),
                (Feature::ChainLink, links.remote_chain.has_failed()),
                (Feature::SignerUnavailable, links.signer.was_unavailable()),
            ];
            let failed = failed.into_iter().filter(|(_, has_failed)| *has_failed);
            failed.for_each(|(feature, _)| self.trace.fire(feature));
        }
    }

    fn fault_injector(&self) -> NodeFaultInjector {
        NodeFaultInjector {
            machines: Arc::clone(&self.machines),
            store: self.store.clone(),
            clock: self.clock.clone(),
            trace: self.trace.clone(),
            plan: Arc::clone(&self.plan),
            rng: self.rng.split(),
        }
    }

    fn chain_fault_injector(&self) -> ChainFaultInjector {
        ChainFaultInjector {
            chain: self.chain.clone(),
            plan: Arc::clone(&self.plan),
            rng: self.rng.split(),
        }
    }

    fn start_workloads(&self, requests: &[Request]) -> Vec<JoinHandle<()>> {
        if self.plan.workloads == FeatureSet::default() {
            return Vec::new();
        }
        workloads::start(&WorkloadContext {
            machines: Arc::clone(&self.machines),
            store: self.store.clone(),
            chain: self.chain.clone(),
            trace: self.trace.clone(),
            plan: Arc::clone(&self.plan),
            requests: Arc::new(requests.to_vec()),
            accepted_txs: self.accepted_txs.clone(),
            progress: self.progress.clone(),
            active_holders: self.active_holders.clone(),
            healed: Arc::clone(&self.healed),
            rng: self.busy.split(),
            hostile: self.hostile.split(),
        })
    }

    fn spawn_clients(&self) -> (Vec<Request>, Vec<JoinHandle<Option<TxId>>>) {
        let rng = self.rng.split();
        let (plan, lanes) = (&self.plan, self.plan.used_lanes());
        let most = plan.requests_max.unwrap_or(u64::MAX);
        let mut requests: Vec<Request> = (0..plan.request_plan.requests.min(most))
            .map(|number| Request::new(&rng, plan, number))
            .filter(|request| lanes.contains(&request.lane))
            .collect();
        if self.plan.has_workload(Feature::FeeLimits) {
            self.limit_fees(&mut requests);
        }
        let bursts: Vec<Duration> = (0..self.plan.request_plan.bursts)
            .map(|_| self.pick_time(&rng))
            .collect();
        let spawn = |request: &Request| {
            let client = Client {
                machines: Arc::clone(&self.machines),
                store: self.store.clone(),
                trace: self.trace.clone(),
                accepted_txs: self.accepted_txs.clone(),
                repeats: self.plan.allows(Feature::Repeats),
                rng: rng.split(),
            };
            tokio::spawn(client.send(request.clone(), self.first_at(&rng, &bursts)))
        };
        let clients = requests.iter().map(spawn).collect();
        (requests, clients)
    }

    /// Limits what some requests may pay.
    fn limit_fees(&self, requests: &mut [Request]) {
        let rng = self.hostile.split();
        for request in requests {
            if rng.permille(LIMITED_PERMILLE) {
                let limit = self.plan.pick_fee_limit(&rng);
                let is_legacy = self.plan.lane.fee.legacy || rng.permille(500);
                request.limit_fee(limit, is_legacy);
                self.trace.fire(Feature::FeeLimits);
            }
        }
    }

    /// Half of all requests come in bursts, the others at times of their own.
    fn first_at(&self, rng: &Rng, bursts: &[Duration]) -> Duration {
        if rng.permille(500) {
            *rng.pick(bursts)
        } else {
            self.pick_time(rng)
        }
    }

    fn pick_time(&self, rng: &Rng) -> Duration {
        let fault_phase =
            u64::try_from(self.plan.fault_phase.as_millis()).expect("the fault phase is short");
        rng.millis(0, fault_phase)
    }

    /// Ends all faults: links are healthy, answers are right, and every node runs.
    fn heal(&self) {
        self.healed.store(true, Ordering::Relaxed);
        chain_faults::heal(&self.chain, &self.plan);
        if self.plan.has_workload(Feature::HungSends) {
            workloads::heal_hung_sends(&self.machines);
        }
        for machine in self.machines.iter() {
            let Links {
                store,
                peers,
                remote_chain,
                signer,
                clock,
            } = machine.links();
            store.set_faults(LinkFaults::healthy(2));
            peers.set_faults(LinkFaults::healthy(5));
            remote_chain.set_links(LinkFaults::healthy(10));
            remote_chain.set_staleness(Staleness {
                // Endpoints without old blocks are healthy.
                without_old_blocks: self.plan.chain.staleness.without_old_blocks,
                ..Staleness::NONE
            });
            signer.set_unavailable_permille(self.rng.split(), 0);
            clock.freeze_wall_time(false);
            machine.heal();
        }
    }

    /// How long the world is observed after its last tx is final: no event may happen any more.
    fn quiet_period(&self) -> Duration {
        self.plan.lease.duration * 2 + self.plan.chain.block_interval * 4
    }
}
