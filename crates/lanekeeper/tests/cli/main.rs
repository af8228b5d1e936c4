//! The real binary as a process.

mod support;

mod bench_nonce;
mod cluster;
mod keys;
mod metrics;
mod one_node;
