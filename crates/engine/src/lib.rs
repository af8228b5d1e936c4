//! The application: ports, and the parts that move a tx from its request to its final result.
//!
//! The path of one tx: intake → shard (lane step, sign) → gate → broadcaster → follower → shard → gate.

pub mod ports;

pub mod node;
