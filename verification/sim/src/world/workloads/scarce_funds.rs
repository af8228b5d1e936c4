//! Accounts that have money for a few requests only, and are funded again and again.

use alloy_primitives::U256;

use super::WorkloadContext;
use crate::world::features::Feature;

/// How long a balance lasts.
const PAUSE_MS: (u64, u64) = (500, 6_000);
/// What an account has at most, in requests.
const REQUESTS_MAX: u64 = 8;
/// What a request with a gas limit of 100,000 costs at the usual price, in wei.
const REQUEST_WEI: u64 = 300_000_000_000_000;

pub(super) async fn fund_scarcely(context: WorkloadContext) {
    loop {
        context.pause(PAUSE_MS.0, PAUSE_MS.1).await;
        context.trace.fire(Feature::ScarceFunds);
        let account = *context.rng.pick(&context.plan.signers);
        let requests = context.rng.between(0, REQUESTS_MAX);
        let balance = U256::from(requests) * U256::from(REQUEST_WEI);
        context.chain.fund(account, balance);
    }
}
