//! Schemes 1, 2, 3 and 5 on real servers: the SQL functions, the Redis scripts, and failures of Redis.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod allocation_blocks;
mod binding;
mod block_recovery;
mod faults;
mod gaps;
mod kit;
mod ledger;
mod lock;
mod rules;
mod verdicts;
