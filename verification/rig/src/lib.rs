//! Real servers for tests and proofs: PostgreSQL of several majors, PgBouncer, Redis, EVM nodes of
//! several makes, and proxies that fail on purpose, for TCP and for JSON-RPC. Never shipped; knows
//! no room of the product.
//!
//! Everything listens on loopback, lives in a temporary folder, and is gone with its owner, even
//! when the owner is killed (`home`). Calls block, because they start processes and wait for them:
//! a proof that keeps a load running calls the slow ones in `spawn_blocking`. Failures panic with
//! what to do: there is nothing that a test could decide.

pub mod postgres;

pub mod pgbouncer;
pub mod proxy;
pub mod redis;

pub mod evm;
pub mod rpc_proxy;

pub mod ports;
pub mod tools;

mod home;
mod http;
mod wait;

pub use wait::until;
