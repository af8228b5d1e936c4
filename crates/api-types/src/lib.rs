//! The public JSON of tx, event, lane, node and reservation: the same for the HTTP API and for every sink.
//!
//! Domain types do not serialize; these views borrow them and serialize without copying. Every key is always
//! present: an unknown value is `null`.

mod encoding;
mod event;
mod lane;
mod node;
mod reservation;
mod tx;

pub use event::Event;
pub use lane::Lane;
pub use node::{Node, NodeReadiness};
pub use reservation::{Reservation, ReservationList};
pub use tx::Tx;
