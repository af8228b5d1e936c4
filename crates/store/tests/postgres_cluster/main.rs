//! Behaviour that only a real server shows: concurrent connections, lost answers, a database that is
//! away, and how the store is opened.

mod budget;
mod faults;
mod isolation;
mod kit;
mod opening;
mod races;
mod restores;
