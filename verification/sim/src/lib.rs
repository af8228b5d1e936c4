//! The simulator: whole clusters in one thread, decided by one seed. Never shipped.
//!
//! # How a world runs
//!
//! A *world* ([`world`]) is a cluster of real nodes (`engine::node`) on *twins* of their ports: a database
//! server ([`store`]), a chain with several endpoints ([`chain`]), a network between them ([`network`]), and
//! clocks ([`clock`]). Everything runs on one tokio thread with paused time: time advances only when every task
//! waits, so hours take milliseconds. The seed decides the plan (size, rules, faults, workloads) and every
//! later draw ([`rng`]). The same seed with the same options makes the same world, event by event.
//!
//! 1. **Safety under faults.** Clients send requests and other workloads run while nodes crash, freeze or lose
//!    links, the store fails over, and the chain reorgs.
//! 2. **Heal.** All faults end and every node runs again.
//! 3. **Liveness.** Everything accepted must end within `Plan::finish_bound`; then no further event may
//!    happen, and the final checks compare txs, event log and chain.
//!
//! # Checkers
//!
//! Everything that happens is a [`event::WorldEvent`] in the trace ([`trace`]). A *checker* ([`checkers`], one
//! promise per file) inspects each event and reports a violation as `promise: what broke it`. Checkers trust
//! no component: they keep their own model of store and chain. That they catch bugs is proved with deliberate
//! ones ([`mutation`], [`mutations`]).
//!
//! # Reproducing a seed
//!
//! ```text
//! cargo run -p sim -- --seed 1018 --stormy     # one world, with its trace
//! cargo run -p sim -- --for 10m --jobs 2       # a search over new seeds, after regressions.txt
//! ```
//!
//! A failing seed is shrunk ([`command`]) and printed with the command that reproduces it; once understood it
//! becomes a line of `regressions.txt`. New draws must come from a new [`rng::Rng::split`] at the end of a
//! sequence, or all recorded seeds make other worlds.

pub mod rng;

pub mod clock;
pub mod disk;
pub mod network;

pub mod chain;
pub mod store;

pub mod checkers;
pub mod event;
pub mod trace;

pub mod world;

pub mod command;

pub mod mutation;
pub mod mutations;
