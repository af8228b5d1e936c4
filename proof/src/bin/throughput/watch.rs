//! What a node shows of an account while it works: the same eyes for every sender.

use std::time::{Duration, Instant};

use proof::{Chain, Outcome};

/// How often the node is asked. Rarely enough to cost it nothing, often enough for seconds.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// When things were seen, counted from the first send.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// When the pool and the blocks held everything; `None` where the node does not tell.
    pub(crate) at_node: Option<Duration>,
    /// When everything was in blocks.
    pub(crate) mined: Duration,
    /// The most that was seen in the pool at once.
    pub(crate) pending_max: u64,
    /// When so many were first seen in the pool: 16, 32, 64, …
    pub(crate) reached: Vec<(u64, Duration)>,
}

/// Looks until all nonces below `end` are in blocks.
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
        // A node that mined the last ones between two looks has held them all at that time.
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
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Waits for a moment between two blocks: this share of the block's time after one has come. Who begins
/// just before a block waits less for it, so every sender has to begin at the same moments.
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
