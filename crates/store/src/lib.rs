//! The store's adapters: leases, lanes, txs and events in a database.
//!
//! Every backend has the same file names, function names, tables and migration numbers; the stored form
//! of values is in [`encoding`], so that two backends never differ in a byte.

mod commit_metrics;
mod cursor;
mod encoding;
mod folded;

pub mod postgres;
pub mod sqlite;
