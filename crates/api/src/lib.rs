//! The HTTP API for clients, and the calls between the nodes of a cluster.
//!
//! Only this crate knows HTTP. A request is parsed (`parse`), passed to the node, and answered in the public
//! JSON (`api_types`) or with a problem document ([`Problem`]).

mod router;

mod access;
mod calls;
mod connection_limits;
mod middleware;
mod parse;
pub mod peers;
mod problem;
mod response;

mod serve;
mod shared_socket;
mod stall_guard;

pub use access::{Auth, keys};
pub use connection_limits::{CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS, RESTRICTED_PER_ADDRESS};
pub use problem::{Problem, ProblemKind};
pub use router::{ApiConfig, router};
pub use serve::serve;
