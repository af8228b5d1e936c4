//! Real servers for tests and proofs: PostgreSQL of several majors, PgBouncer, Redis, EVM nodes of several vendors,
//! fault-injecting proxies for TCP and JSON-RPC, and a browser. Never shipped; depends on no crate of the product.
//!
//! Everything listens on loopback, keeps its data in a temporary directory, and ends with its owner, even when the
//! owner is killed (`server_dir`). Calls block, because they start processes and wait for them: a proof under load
//! runs the slow ones in `spawn_blocking`. Failures panic with a hint: a test could not handle them anyway.

pub mod postgres;

pub mod pgbouncer;
pub mod proxy;
pub mod redis;

pub mod evm;
pub mod rpc_proxy;

pub mod chromium;
pub mod web_server;

pub mod ports;
pub mod tools;

mod http;
mod server_dir;
mod wait;

pub use wait::wait_until;
