//! The door in front of a real node, on in-memory twins of store, chain and signer.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on falls")]

mod asking;
mod making;
mod serving;
mod streaming;
mod world;
