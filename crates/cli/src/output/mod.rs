//! Output for people: aligned, coloured on a terminal only.

mod describe;
mod paint;
mod print;
mod table;

pub use crate::print_line;
pub use describe::{
    clock_time, event_line, lane_details, lane_table, node_table, short, tx_details, tx_table,
};
pub use paint::{Tone, paint, safe};
pub use print::{
    LogLines, print_answer, print_arguments, print_error, print_json, print_list, print_quiet,
};
pub use table::Columns;
