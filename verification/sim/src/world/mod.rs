//! A whole cluster in one thread from one seed: real nodes on twins of the ports, a workload, and
//! everything that can go wrong. First safety under faults, then the world heals and must finish.

mod busy_plan;
mod chain_plan;
mod chain_strikes;
mod client;
mod described;
mod habits;
mod loans;
mod machine;
mod options;
mod parts;
mod peers;
mod plan;
mod poison;
mod poisoned_store;
mod strikes;
mod verdict;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::TxId;
use engine::node::Ports;
use futures::future::join_all;
use tokio::task::JoinHandle;

use crate::chain::{MemoryChain, MemorySigner, RemoteChain, Staleness};
use crate::checkers::{
    self, Bounded, Checker, FinalIsFinal, GapsClose, LoansHold, OthersNotDelayed,
    ReadersSkipNothing, StuckByPolicy,
};
use crate::clock::SimClock;
use crate::event::WorldEvent;
use crate::rng::Rng;
use crate::store::{MemoryStore, RemoteStore};
use crate::trace::Trace;
use crate::wire::{Wire, WireFaults};

pub use chain_plan::ChainPlan;
pub use loans::Loans;
pub use options::{Changes, Options};
pub use parts::{PARTS, Part, Parts};
pub use plan::{CHAIN, Plan, Workload};
pub use poison::{Poison, PoisonWay};

use busy_plan::DRIFT_PPM_MAX;
use chain_plan::LAG_MAX;
use chain_strikes::ChainStriker;
use client::{Client, Request};
use habits::{Progress, Promised, Scene, Speakers};
use machine::{Lines, Machine};
use peers::{SimPeers, Switchboard};
use poison::PoisonedSigner;
use poisoned_store::PoisonedStore;
use strikes::Striker;

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// From which seed.
    pub seed: u64,
    /// The digest of the trace.
    pub hash: u64,
    /// The trace.
    pub lines: Vec<String>,
    /// What is wrong; empty is good.
    pub violations: Vec<String>,
    /// How much happened.
    pub events: u64,
    /// For how long, in simulated time.
    pub lasted: Duration,
    /// How long it took until everything had ended after the world was healed.
    pub healing: Healing,
}

/// How a healed world came to its end, in simulated time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Healing {
    /// What it took; `None` if it did not come to its end.
    pub took: Option<Duration>,
    /// What it might take.
    pub bound: Duration,
}

/// How much deeper than final the forks of such a world go.
const FORK_DEEPER: u64 = 4;

/// What is so many blocks deep is known to every node, also to one that lags and whose answers are late.
const DEEP: u64 = 2 * LAG_MAX;
/// And where nothing goes wrong: to an answer that has just been given.
const DEEP_WHEN_CALM: u64 = 3;

/// Keeps what busy worlds draw apart from what all worlds draw: a seed's faults are the same in both.
const BUSY_STREAM: u64 = 0x6275_7379;

/// Runs the world of a seed, from its beginning to its end, in simulated time.
///
/// # Panics
/// When no runtime can be made.
#[must_use]
pub fn run(seed: u64, options: Options) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without IO can always be made");
    runtime.block_on(async {
        let world = World::build(seed, options);
        let trace = world.trace.clone();
        let healing = world.live().await;
        Outcome {
            seed,
            hash: trace.hash(),
            lines: trace.lines(),
            violations: trace.violations(),
            events: trace.events(),
            lasted: trace.lasted(),
            healing,
        }
    })
}

/// What a seed decides, with these options.
#[must_use]
pub fn plan(seed: u64, options: Options) -> Plan {
    draw(&Rng::new(seed), &Rng::new(seed ^ BUSY_STREAM), &options)
}

fn draw(rng: &Rng, busy: &Rng, options: &Options) -> Plan {
    let mut plan = if options.calm {
        Plan::calm(&rng.split())
    } else {
        Plan::stormy(&rng.split())
    };
    if options.deep_forks {
        plan.chain.set_forks(plan.lane.finality, FORK_DEEPER);
    }
    if options.lossy {
        let half = u64::try_from(plan.unrest.as_millis() / 2).expect("unrest is short");
        plan.lossy_failover = Some(rng.millis(half / 4, half));
        // What was lost and what somebody else did cannot be told apart.
        plan.chain.foreign_max = 0;
    }
    if options.busy {
        plan.make_busy(&busy.split(), options);
    }
    plan.change(&options.changes);
    plan
}

/// The promises that a world is held to: those of all worlds, and those that depend on its rules.
fn watchers(plan: &Plan) -> Vec<Box<dyn Checker>> {
    let mut checkers = checkers::all();
    checkers.push(Box::new(StuckByPolicy::new(
        plan.lane,
        plan.lossy_failover.is_some() || plan.chain.staleness.blind > 0,
    )));
    let required = plan.final_depth();
    if plan.chain.fork_max <= required {
        checkers.push(Box::new(FinalIsFinal::new(move |_| required)));
    }
    checkers.push(Box::new(ReadersSkipNothing::default()));
    checkers.push(Box::new(GapsClose::within(plan.gaps_within())));
    checkers.push(Box::new(Bounded::by(plan.limits())));
    if let Some(loans) = plan.loans {
        let deep = match plan.chain.strike_interval {
            None => DEEP_WHEN_CALM,
            Some(_) => DEEP,
        };
        checkers.push(Box::new(LoansHold::of(loans.lane(), deep)));
    }
    if let Some(poison) = plan.poison {
        checkers.push(Box::new(OthersNotDelayed::by(poison.lane())));
    }
    checkers
}

struct World {
    plan: Arc<Plan>,
    rng: Rng,
    trace: Trace,
    store: MemoryStore,
    /// The database's.
    clock: SimClock,
    chain: MemoryChain,
    board: Switchboard,
    machines: Arc<Vec<Machine>>,
    /// Chance of what only busy worlds have.
    busy: Rng,
    promised: Promised,
    progress: Progress,
    speakers: Speakers,
    healed: Arc<AtomicBool>,
}

impl World {
    fn build(seed: u64, options: Options) -> Self {
        let (rng, busy) = (Rng::new(seed), Rng::new(seed ^ BUSY_STREAM));
        let plan = draw(&rng, &busy, &options);
        let mut trace = Trace::new(watchers(&plan));
        if options.echo {
            trace = trace.echoing();
        }
        if options.silent {
            trace = trace.silently();
        }
        plan.lines().iter().for_each(|line| trace.note(line));
        let clock = SimClock::new(rng.bits());
        let database = clock.machine(Duration::ZERO, rng.split());
        let store = MemoryStore::new(Arc::new(database.clone())).traced(trace.clone());
        let chain = MemoryChain::new(CHAIN).traced(trace.clone());
        let chain = chain.with_endpoints(plan.chain.endpoints);
        chain_strikes::set_up(&chain, &plan);
        chain_strikes::poison(&chain, &plan);
        let world = Self {
            plan: Arc::new(plan),
            rng,
            trace,
            store,
            clock: database,
            chain,
            board: Switchboard::default(),
            machines: Arc::default(),
            busy,
            promised: Promised::default(),
            progress: Progress::default(),
            speakers: Speakers::default(),
            healed: Arc::default(),
        };
        let nodes = world.plan.nodes.iter().chain(&world.plan.newcomers);
        let machines: Vec<Machine> = nodes.map(|name| world.machine(name, &clock)).collect();
        machines
            .iter()
            .for_each(|machine| world.board.connect(machine));
        Self {
            machines: Arc::new(machines),
            ..world
        }
    }

    fn machine(&self, name: &domain::NodeName, clock: &SimClock) -> Machine {
        let plan = &self.plan;
        let store = Wire::new(self.rng.split(), plan.store_line);
        let endpoints = 0..plan.chain.endpoints;
        let wires = endpoints.map(|_| Wire::new(self.rng.split(), plan.chain.line));
        let peers = Wire::new(self.rng.split(), plan.peer_line);
        let sight = RemoteChain::over(self.chain.clone(), wires.collect(), plan.chain.staleness)
            .sending_to(plan.chain.send_to)
            .announcing(plan.chain.announces)
            .of(name);
        let signer = MemorySigner::new(plan.accounts());
        let signer = match plan.signer_travel {
            Some(travel) => signer.remote(travel),
            None => signer,
        };
        let ahead = self.rng.millis(0, 2_000);
        let clock = clock.machine(ahead, self.rng.split());
        let clock = clock.drifting(self.some_drift());
        signer.put_off(self.rng.split(), plan.unsigned);
        let remote = Arc::new(RemoteStore::new(self.store.clone(), store.clone()));
        let ports = Ports {
            store: PoisonedStore::around(remote, plan.poison),
            chains: vec![Arc::new(sight.clone())],
            signer: PoisonedSigner::around(signer.clone(), plan.poison),
            clock: Arc::new(clock.clone()),
            peers: Arc::new(SimPeers::new(self.board.clone(), peers.clone())),
        };
        let config = plan.node_config(name);
        let lines = Lines {
            store,
            peers,
            sight,
            signer,
            clock,
        };
        Machine::new(ports, config, lines, self.trace.clone(), self.rng.split())
    }

    /// By how much a machine's clock is fast or slow.
    fn some_drift(&self) -> i64 {
        if !self.plan.has(Part::NodeClocks) {
            return 0;
        }
        let by = i64::try_from(self.busy.between(0, DRIFT_PPM_MAX)).expect("few millionths");
        if self.busy.permille(500) { by } else { -by }
    }

    async fn live(self) -> Healing {
        self.trace.tell(WorldEvent::Phase("unrest"));
        let mut background: Vec<JoinHandle<()>> = Vec::new();
        for machine in self.machines.iter() {
            if self.plan.nodes.contains(machine.name()) {
                background.push(tokio::spawn(machine.clone().run()));
            }
        }
        let (chain, plan) = (self.chain.clone(), Arc::clone(&self.plan));
        background.push(tokio::spawn(chain_strikes::mine_for_ever(
            chain,
            plan,
            self.rng.split(),
        )));
        let striking = tokio::spawn(self.striker().strike_for_ever());
        let shaking = tokio::spawn(self.chain_striker().strike_for_ever());
        let losing = tokio::spawn(self.striker().lose_commits());
        let (requests, clients) = self.spawn_clients();
        let habits = self.take_up_habits(&requests);
        tokio::time::sleep(self.plan.unrest).await;

        self.trace.tell(WorldEvent::Phase("heal"));
        striking.abort();
        shaking.abort();
        losing.abort();
        habits.iter().for_each(JoinHandle::abort);
        self.heal();
        let (healed_at, bound) = (tokio::time::Instant::now(), self.plan.patience());
        let deadline = healed_at + bound;
        let ended_at = match tokio::time::timeout_at(deadline, join_all(clients)).await {
            Ok(txs) => {
                let txs = txs.into_iter().map(|tx| tx.expect("clients do not panic"));
                let accepted = requests.into_iter().zip(txs);
                let accepted = accepted.filter_map(|(request, tx)| Some((request, tx?)));
                self.judge(accepted.collect(), deadline).await
            }
            Err(_) => {
                let what = "everything ends: clients still wait for an acceptance";
                self.trace.violation(what);
                None
            }
        };
        background.iter().for_each(JoinHandle::abort);
        let took = ended_at.map(|ended_at| ended_at.duration_since(healed_at));
        Healing { took, bound }
    }

    fn striker(&self) -> Striker {
        Striker {
            machines: Arc::clone(&self.machines),
            store: self.store.clone(),
            clock: self.clock.clone(),
            trace: self.trace.clone(),
            plan: Arc::clone(&self.plan),
            rng: self.rng.split(),
        }
    }

    fn chain_striker(&self) -> ChainStriker {
        ChainStriker {
            chain: self.chain.clone(),
            plan: Arc::clone(&self.plan),
            rng: self.rng.split(),
        }
    }

    fn take_up_habits(&self, requests: &[Request]) -> Vec<JoinHandle<()>> {
        if self.plan.habits == Parts::default() {
            return Vec::new();
        }
        habits::take_up(&Scene {
            machines: Arc::clone(&self.machines),
            store: self.store.clone(),
            chain: self.chain.clone(),
            trace: self.trace.clone(),
            plan: Arc::clone(&self.plan),
            requests: Arc::new(requests.to_vec()),
            promised: self.promised.clone(),
            progress: self.progress.clone(),
            speakers: self.speakers.clone(),
            healed: Arc::clone(&self.healed),
            rng: self.busy.split(),
        })
    }

    fn spawn_clients(&self) -> (Vec<Request>, Vec<JoinHandle<Option<TxId>>>) {
        let rng = self.rng.split();
        let (plan, lanes) = (&self.plan, self.plan.used_lanes());
        let most = plan.requests_max.unwrap_or(u64::MAX);
        let requests: Vec<Request> = (0..plan.workload.requests.min(most))
            .map(|number| Request::new(&rng, plan, number))
            .filter(|request| lanes.contains(&request.lane))
            .collect();
        let bursts: Vec<Duration> = (0..self.plan.workload.bursts)
            .map(|_| self.some_time(&rng))
            .collect();
        let spawn = |request: &Request| {
            let client = Client {
                machines: Arc::clone(&self.machines),
                store: self.store.clone(),
                trace: self.trace.clone(),
                promised: self.promised.clone(),
                repeats: self.plan.lets(Part::Repeats),
                rng: rng.split(),
            };
            tokio::spawn(client.send(request.clone(), self.first_at(&rng, &bursts)))
        };
        let clients = requests.iter().map(spawn).collect();
        (requests, clients)
    }

    /// Half of all requests come in bursts, the others by themselves.
    fn first_at(&self, rng: &Rng, bursts: &[Duration]) -> Duration {
        if rng.permille(500) {
            *rng.pick(bursts)
        } else {
            self.some_time(rng)
        }
    }

    fn some_time(&self, rng: &Rng) -> Duration {
        let unrest = u64::try_from(self.plan.unrest.as_millis()).expect("unrest is short");
        rng.millis(0, unrest)
    }

    /// No more harm: lines are good, answers are right, and every node runs.
    fn heal(&self) {
        self.healed.store(true, Ordering::Relaxed);
        chain_strikes::heal(&self.chain, &self.plan);
        for machine in self.machines.iter() {
            let Lines {
                store,
                peers,
                sight,
                signer,
                clock,
            } = machine.lines();
            store.set(WireFaults::healthy(2));
            peers.set(WireFaults::healthy(5));
            sight.set_wires(WireFaults::healthy(10));
            sight.set(Staleness {
                // Nodes that keep no old blocks are not ill.
                blind: self.plan.chain.staleness.blind,
                ..Staleness::NONE
            });
            signer.put_off(self.rng.split(), 0);
            clock.stand_still(false);
            machine.heal();
        }
    }

    /// How long the world is watched after its last tx was final: nothing may happen any more.
    fn silence(&self) -> Duration {
        self.plan.lease.duration * 2 + self.plan.chain.block_interval * 4
    }
}
