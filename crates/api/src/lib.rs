//! The door for customers: HTTP in, JSON out.
//!
//! Only this room knows HTTP. A request is parsed at the door (`parse`), handed to the node, and
//! answered in the public form (`engine::public`) or as a problem document ([`Problem`]).

mod router;

mod access;
mod answer;
mod calls;
mod identify;
mod parse;
pub mod peers;
mod problem;

mod serve;
mod stall;

pub use access::{Auth, keys};
pub use problem::{Effect, Problem, ProblemKind};
pub use router::{ApiConfig, router};
pub use serve::serve;
