//! Tests of the component, the contract of its schemes, and both on a real node.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod kit;

mod chain_nonce_cache;
mod metrics;
mod sweep;
mod with_nonce;
mod worker_queue;

mod anvil;
mod contract;
mod suite;
