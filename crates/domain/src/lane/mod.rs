//! How a lane decides. One step at a time, on one task, with no await inside.

pub mod protocol;

pub use protocol::{
    ChainNonces, ChainQuery, Effect, Input, LaneImage, LaneRules, Receipt, Request, Step, Writes,
};

/// placeholder
pub struct Lane;
