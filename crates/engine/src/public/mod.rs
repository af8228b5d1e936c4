//! The JSON that customers see: tx, event, lane and node. One form for HTTP and for every sink.
//!
//! Domain types do not serialize; these views borrow them and do, without copying. Keys never come
//! and go: what is not known is `null`.

mod event;
mod form;
mod lane;
mod node;
mod reservation;
mod tx;

pub use event::Event;
pub use lane::Lane;
pub use node::{Node, Ready};
pub use reservation::{Reservation, ReservationList};
pub use tx::Tx;
