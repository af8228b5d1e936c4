//! The component as its callers see it, the contract of its schemes, and both on a real node.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on falls")]

mod kit;

mod knowledge;
mod metrics;
mod sweep;
mod with_nonce;
mod worker_queue;

mod anvil;
mod contract;
mod suite;
