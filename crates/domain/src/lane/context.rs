//! The context of one step, which every rule gets: when it happens, and what it gives so far.

use super::{Effect, Step, Writes};
use crate::{Header, Timestamp, UnsignedEnvelope};

/// The step that is being made: the time at which it happens, and what it gives so far.
#[derive(Clone, Debug)]
pub(super) struct StepContext {
    pub(super) now: Timestamp,
    pub(super) writes: Writes,
    pub(super) headers: Vec<Header>,
    pub(super) to_sign: Vec<UnsignedEnvelope>,
    pub(super) effects: Vec<Effect>,
}

impl StepContext {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            now,
            writes: Writes::default(),
            headers: Vec::new(),
            to_sign: Vec::new(),
            effects: Vec::new(),
        }
    }

    pub(super) fn into_step(self) -> Step {
        Step {
            writes: self.writes,
            headers: self.headers,
            to_sign: self.to_sign,
            effects: self.effects,
        }
    }
}
