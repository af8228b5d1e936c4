//! Endpoints that answer queries and hang on sends, one at a time and all at once.

use super::WorkloadContext;

/// How long an endpoint hangs, and how long the pause before it is.
const SPAN_MS: (u64, u64) = (2_000, 40_000);
/// How often all endpoints hang at once, per thousand.
const ALL_PERMILLE: u64 = 200;

pub(super) async fn hang_sends(context: WorkloadContext) {
    let endpoints = context.plan.chain.endpoints;
    loop {
        context.pause(SPAN_MS.0, SPAN_MS.1).await;
        let one = context.rng.below(u64::try_from(endpoints).unwrap_or(1));
        let hanging: Vec<usize> = match context.rng.permille(ALL_PERMILLE) {
            true => (0..endpoints).collect(),
            false => usize::try_from(one).into_iter().collect(),
        };
        for endpoint in &hanging {
            context.chain.set_hangs_on_sends(*endpoint, true);
        }
        context.pause(SPAN_MS.0, SPAN_MS.1).await;
        for endpoint in hanging {
            context.chain.set_hangs_on_sends(endpoint, false);
        }
    }
}
