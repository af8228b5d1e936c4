//! Schemes 1, 2, 3 and 5 on real servers: what is written in SQL and in scripts, and what happens when Redis breaks.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on falls")]

mod binding;
mod books;
mod faults;
mod holes;
mod keepers;
mod kit;
mod lock;
mod rules;
mod settle;
