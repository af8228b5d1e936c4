//! The application: ports, and the parts that move a tx from its request to its final result.
//!
//! The path of one tx: intake → shard (lane step, sign) → gate → broadcaster → follower → shard → gate.

pub mod ports;

pub mod node;

mod core;

mod forwarding;
mod intake;
pub mod reservations;
mod routing;

mod cluster;
mod ownership;
mod rendezvous;
mod shard;

mod draft;
mod folded_writes;
mod gate;

mod feed;
mod finals_watch;

mod broadcaster;
mod customers;
mod follower;
mod head_limits;
mod history;
mod poll_schedule;
mod revert_reasons;
mod send_health;
mod watch;
mod witness;

pub mod tasks;
