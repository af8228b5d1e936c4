//! A whole node on the simulator's twins: what each part does when the store, the chain or a peer misbehaves.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod blocked_lane;
mod broadcaster;
mod follower;
mod funds;
mod gate;
mod intake;
mod losses;
mod metrics;
mod ownership;
mod peers;
mod readers;
mod routing;
mod scripted_store;
mod support;
mod turn;
mod waiters;
mod witness;
