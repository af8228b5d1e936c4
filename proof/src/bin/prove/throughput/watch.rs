//! Observation of an account on a node, the same for both senders.

use std::time::{Duration, Instant};

use proof::{Chain, Outcome};

/// Rarely enough to cost nothing, often enough for seconds.
const POLL_PERIOD: Duration = Duration::from_millis(25);

/// Times of observations, counted from the first send.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// When pool and blocks held everything; `None` where the node does not show it.
    pub(crate) at_node: Option<Duration>,
    pub(crate) mined: Duration,
    /// The largest pool.
    pub(crate) pending_max: u64,
    /// When the pool first held 16, 32, 64, … transactions.
    pub(crate) reached: Vec<(u64, Duration)>,
}

/// Polls until all nonces below `end` are mined.
pub(crate) async fn watch(
    chain: &Chain,
    account: &str,
    end: u64,
    within: Duration,
) -> Outcome<Seen> {
    let began = Instant::now();
    let mut seen = Seen::default();
    let mut step = 16;
    loop {
        let pending = chain.pending_nonce(account).await?;
        let at_pending = began.elapsed();
        let latest = chain.nonce(account).await?;
        let held = pending.saturating_sub(latest);
        seen.pending_max = seen.pending_max.max(held);
        while held >= step {
            seen.reached.push((step, at_pending));
            step *= 2;
        }
        // A node that mined the last ones between two polls has held them all by then.
        if pending >= end && seen.at_node.is_none() {
            seen.at_node = Some(at_pending);
        }
        if latest >= end {
            seen.mined = began.elapsed();
            return Ok(seen);
        }
        if began.elapsed() > within {
            return Err(format!("after {within:?} {latest} of {end} are mined").into());
        }
        tokio::time::sleep(POLL_PERIOD).await;
    }
}

/// Waits for an offset between two blocks, as a share of the block time. A sender that starts just before a block
/// waits less for it, so both senders must start at the same offsets.
pub(crate) async fn wait_for_block_share(
    chain: &Chain,
    block_time: Duration,
    share: f64,
) -> Outcome<()> {
    let within = block_time * 20;
    let began = Instant::now();
    let before = chain.height().await?;
    while chain.height().await? == before {
        if began.elapsed() > within {
            return Err(format!("no block within {within:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(block_time.mul_f64(share)).await;
    Ok(())
}
