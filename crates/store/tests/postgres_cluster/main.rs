//! What only a real server can show: two connections at once, answers that are lost, a database that is
//! away, and how the store is opened.

mod budget;
mod faults;
mod kit;
mod opening;
mod races;
