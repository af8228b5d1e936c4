//! Figures through the port: many lanes, much bad luck, and counts of what came of it.

mod held_row;
mod hundred;
mod lost_answers;
mod released;
