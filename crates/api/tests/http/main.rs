//! The HTTP API of a real node, on in-memory twins of store, chain and signer.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod access;
mod browsers;
mod cluster;
mod creating;
mod nonces;
mod peers;
mod reading;
mod serving;
mod streaming;
mod world;
