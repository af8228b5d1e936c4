//! The authority's adapters: leases, lanes, txs and events in a database.
//!
//! Every backend keeps the same file names, function names, tables and migration numbers; what they
//! write into those tables is in [`encoding`], so that two of them never differ in a byte.

mod cursor;
mod encoding;
mod folded;

pub mod postgres;
pub mod sqlite;
