//! The door in front of a real node, on in-memory twins of store, chain and signer.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on falls")]

mod access;
mod asking;
mod cluster;
mod making;
mod nonces;
mod peers;
mod serving;
mod streaming;
mod world;
