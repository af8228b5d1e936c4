//! The stored form of numbers, amounts, receipts, fees and event bodies.
//!
//! Append only. A number or a layout that was ever written must stay readable, so nothing here follows
//! the order of a Rust enum by accident: every stored number is explicit.

mod amounts;
mod bytes;
mod columns;
mod enum_numbers;
mod events;
mod inclusion;
mod kinds;
mod lane_row;
mod numbers;
mod seqs;

pub(crate) use amounts::{
    fees_from_bytes, fees_to_bytes, open_cost_from_bytes, open_cost_to_bytes, short, widen,
};
pub(crate) use bytes::Malformed;
pub(crate) use columns::{address, gas, hash, tx_columns, wei};
pub(crate) use enum_numbers::{
    attempt_kind, attempt_kind_number, state, state_number, sub_state, sub_state_number, tx_type,
    tx_type_number,
};
pub(crate) use events::{events_from_bytes, events_to_bytes};
pub(crate) use inclusion::{inclusion_from_bytes, inclusion_to_bytes};
pub(crate) use lane_row::{block_from_bytes, block_to_bytes, head_from_bytes, head_to_bytes};
pub(crate) use numbers::{TooLarge, bits, bound, from_bits, from_stored, stored};
pub(crate) use seqs::{seqs_from_bytes, seqs_to_bytes};
