//! Lanekeeper: exactly-once transactions for EVM chains.
mod amount;
mod config;
fn main() {}
