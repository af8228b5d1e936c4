//! What a second endpoint shows of a chain's head, before the head that is followed refuses a request.

use std::time::Duration;

use domain::admission::HeadLimits;
use domain::{ChainId, MonotonicTime};
use tokio::sync::Mutex;

use crate::core::Core;

/// How long an answer serves: refused requests must not overload the endpoints.
const LIMITS_AGE_MAX: Duration = Duration::from_secs(1);
/// How long a refusal waits for it.
const LIMITS_PATIENCE: Duration = Duration::from_secs(2);

/// The last answer, and when it was queried; without limits where no endpoint answered.
#[derive(Default)]
pub(crate) struct KnownLimits(Mutex<Option<(MonotonicTime, Option<HeadLimits>)>>);

/// The limits that two endpoints show; `None` when no endpoint answers in time. One query serves all who wait.
pub(crate) async fn head_limits(core: &Core, chain: ChainId) -> Option<HeadLimits> {
    let chain_state = core.chain(chain);
    let clock = &core.ports.clock;
    let mut known = chain_state.head_limits.0.lock().await;
    let now = clock.monotonic();
    if let Some((queried_at, limits)) = *known
        && now.since(queried_at) < LIMITS_AGE_MAX
    {
        return limits;
    }
    let limits = tokio::select! {
        biased;
        limits = chain_state.chain.head_limits() => limits.ok(), // without it the followed head decides
        () = clock.sleep(LIMITS_PATIENCE) => None,
    };
    *known = Some((clock.monotonic(), limits));
    limits
}
