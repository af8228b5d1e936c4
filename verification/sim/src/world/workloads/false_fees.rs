//! An endpoint that reports wrong fees, again and again.

use std::time::Duration;

use super::WorkloadContext;
use crate::chain::FeeReport;

/// How long it does, and how long the pause before it is.
const SPAN_MS: (u64, u64) = (3_000, 40_000);
/// For so many blocks at most: a price that stays becomes plausible.
const BLOCKS_MAX: u32 = 40;

pub(super) async fn report_wrong_fees(context: WorkloadContext) {
    let Some(hostile) = context.plan.hostile else {
        return;
    };
    let endpoints = u64::try_from(context.plan.chain.endpoints).unwrap_or(1);
    let longest: Duration = context.plan.chain.block_interval * BLOCKS_MAX;
    loop {
        context.pause(SPAN_MS.0, SPAN_MS.1).await;
        let endpoint = usize::try_from(context.rng.below(endpoints)).unwrap_or(0);
        context.chain.set_fee_report(endpoint, hostile.fee_report);
        let span = context.rng.millis(SPAN_MS.0, SPAN_MS.1);
        tokio::time::sleep(span.min(longest)).await;
        context.chain.set_fee_report(endpoint, FeeReport::Right);
    }
}
