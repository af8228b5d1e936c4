//! The client commands (`tx`, `lane`, `nonce`, `node`, `events`), and what every command of the program shares:
//! how it fails, prints, starts child processes and stops.
//!
//! Nothing here depends on the engine or an adapter: the benchmarks use it too.

pub mod client;
pub mod commands;
pub mod output;
pub mod process;

pub mod address;
pub mod amount;
pub mod duration;
pub mod failure;
pub mod listener;
pub mod postgres_url;
pub mod signals;

pub use failure::Failure;
pub use postgres_url::PostgresUrl;
pub use signals::Signals;
