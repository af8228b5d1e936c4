//! The test world: in-memory twins of the ports, seeded faults, checkers, and the contract suites.
//! Never shipped.

pub mod rng;

pub mod clock;
pub mod wire;

pub mod chain;
pub mod store;

pub mod checkers;
pub mod event;
pub mod trace;

pub mod world;

pub mod command;

#[cfg(feature = "mutations")]
pub mod mutations;

pub mod store_suite;
