//! What people see: aligned, coloured on a terminal only, the same words everywhere.

mod describe;
mod paint;
mod say;
mod table;

pub(crate) use describe::{
    clock_time, event_line, lane_details, lane_table, node_table, short, tx_details, tx_table,
};
pub(crate) use paint::{Tone, paint, safe};
pub(crate) use say::{LogLines, complain, say, say_line};
pub(crate) use table::Columns;
