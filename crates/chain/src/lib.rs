//! The chain as the outside world knows it: JSON-RPC endpoints, envelopes, the one table of node
//! errors, keys; and the dev chain.

pub mod classify;
pub mod devchain;
pub mod envelope;
pub mod keys;
pub mod rpc;
