//! An endpoint that never answers calls of one method, and answers all others: one after another.

use super::WorkloadContext;
use crate::chain::Method;

/// How long a method hangs, and how long the pause before it is.
const SPAN_MS: (u64, u64) = (2_000, 30_000);
/// How often sends are the method, per thousand.
const SENDS_PERMILLE: u64 = 125;

pub(super) async fn hang_methods(context: WorkloadContext) {
    let endpoints = u64::try_from(context.plan.chain.endpoints).unwrap_or(1);
    let is_calm = context.plan.chain.fault_interval.is_none();
    loop {
        context.pause(SPAN_MS.0, SPAN_MS.1).await;
        let endpoint = usize::try_from(context.rng.below(endpoints)).unwrap_or(0);
        // A send that hangs delays the lane's next sends for longer than a calm world allows.
        let method = match !is_calm && context.rng.permille(SENDS_PERMILLE) {
            true => Method::Sends,
            false => *context.rng.pick(&Method::READS),
        };
        context.chain.set_hung_method(endpoint, Some(method));
        context.pause(SPAN_MS.0, SPAN_MS.1).await;
        context.chain.set_hung_method(endpoint, None);
    }
}
