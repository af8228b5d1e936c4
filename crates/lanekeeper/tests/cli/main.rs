//! The real binary, from outside.

mod support;

mod cluster;
mod keys;
mod one_node;
