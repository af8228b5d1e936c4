//! The real binary, from outside.

mod support;

mod bench_nonce;
mod cluster;
mod keys;
mod one_node;
