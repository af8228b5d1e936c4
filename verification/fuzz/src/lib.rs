//! What takes bytes from outside must never panic, and never take memory or time without bound.
//!
//! A coverage-guided fuzzer of our own: it mutates inputs of a kept corpus, runs the shipped code on them
//! through its public face, keeps what reaches new branches, and shrinks what fails. Without counters in
//! the build (see `instrument`) it works blindly; replaying works either way.
//!
//! Read [`targets`] for what is fuzzed, [`judge`] for what counts as a failure.

pub mod campaign;
pub mod corpus;
pub mod judge;
pub mod report;
pub mod shrink;
pub mod targets;

mod coverage;
mod mutate;
mod parts;
mod queue;
mod worlds;
