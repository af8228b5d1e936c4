//! The context of one step, which every rule gets: when it happens, and what it gives so far.

use super::{Effect, Step, Writes};
use crate::{Header, Timestamp, Token, UnsignedEnvelope};

/// The step that is being made: the time at which it happens, and what it gives so far.
#[derive(Clone, Debug, Default)]
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
            ..Self::default()
        }
    }

    /// The step. Every row that it writes bears the token of the keeper that writes it.
    pub(super) fn into_step(mut self, token: Token) -> Step {
        let inserts = self.writes.inserts.iter_mut();
        for tx in inserts.chain(&mut self.writes.updates) {
            tx.written.token = token;
        }
        Step {
            writes: self.writes,
            headers: self.headers,
            to_sign: self.to_sign,
            effects: self.effects,
        }
    }
}
