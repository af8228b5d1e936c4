//! What a run costs and where it goes: bytes of memory, and branches of code that were taken.
//!
//! Test equipment of the fuzzer; never shipped.

pub mod edges;
pub mod memory;
