//! The adapter to EVM chains: JSON-RPC endpoints, tx envelopes, signing keys and the one table of node-error texts.

pub mod classify;
pub mod envelope;
pub mod keys;
pub mod rpc;
