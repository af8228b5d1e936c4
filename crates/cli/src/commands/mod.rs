//! The commands that talk to a node over HTTP, one file each.

pub mod events;
pub mod lane;
pub mod node;
pub mod nonce;
pub mod tx;
