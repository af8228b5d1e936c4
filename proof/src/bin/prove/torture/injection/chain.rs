//! Faults of the EVM node.

use std::sync::atomic::Ordering;
use std::time::Duration;

use proof::{Outcome, ensure, eventually};
use rand::Rng as _;
use rand::seq::IndexedRandom as _;
use serde_json::json;

use super::FaultContext;
use crate::torture::world::CONFIRMATIONS;

/// Dropped transactions per fault.
const DROPPED_MAX: usize = 6;

/// The pool is non-empty before this, with a block per second.
const POOL_WITHIN: Duration = Duration::from_secs(3);

const GWEI: u64 = 1_000_000_000;

/// The highest base fee. Offers are about 1 gwei, and the base fee falls by an eighth per block: it takes twenty
/// blocks to recover.
const SPIKE_MAX_GWEI: u64 = 15;

impl FaultContext<'_> {
    /// Restarts it, with its blocks and without its pool.
    pub(super) async fn chain_restart(&mut self) -> Outcome<String> {
        let network = &self.world.network;
        network.stop().await?;
        self.last().await;
        network.start_again().await?;
        let height = network.chain.height().await?;
        self.world.chain_since.store(height, Ordering::Relaxed);
        Ok(format!("at height {height}"))
    }

    pub(super) async fn pool_forgotten(&mut self) -> Outcome<String> {
        let network = &self.world.network;
        let count = network.pool().await?.len();
        network.clear_pool().await?;
        Ok(format!("{count} transactions"))
    }

    pub(super) async fn dropped(&mut self) -> Outcome<String> {
        let network = &self.world.network;
        let pool = eventually("something waits in the pool", POOL_WITHIN, || async {
            let pool = network.pool().await?;
            Ok((!pool.is_empty()).then_some(pool))
        });
        let pool = pool.await?;
        let chosen = pool.choose_multiple(&mut self.dice, DROPPED_MAX);
        let mut dropped = 0;
        for hash in chosen {
            // A mined or replaced transaction is fine too.
            let method = "anvil_dropTransaction";
            let gone = network.chain.call(method, json!([hash])).await;
            dropped += usize::from(gone.is_ok_and(|gone| !gone.is_null()));
        }
        ensure(dropped > 0, "all were mined meanwhile")?;
        Ok(format!("{dropped} of {}", pool.len()))
    }

    /// Reorgs out blocks that are not final; their transactions are lost.
    pub(super) async fn fork(&mut self) -> Outcome<String> {
        let network = &self.world.network;
        let paused = network.stop_mining_and_wait().await;
        let forked = match paused {
            Ok(()) => self.fork_between_blocks().await,
            Err(error) => Err(error),
        };
        network.resume_mining().await?; // in any case
        forked
    }

    async fn fork_between_blocks(&mut self) -> Outcome<String> {
        let network = &self.world.network;
        let since = self.world.chain_since.load(Ordering::Relaxed);
        let known = network.chain.height().await?.saturating_sub(since);
        let deepest = known.min(CONFIRMATIONS - 1);
        ensure(deepest > 0, "the node has only just started")?;
        let depth = self.dice.random_range(1..=deepest);
        network.fork(depth).await?;
        network.mine(1).await?;
        Ok(format!("{depth} blocks"))
    }

    /// The base fee of the next block is many times the offered fee. Some nodes drop cheaper transactions.
    pub(super) async fn fee_spike(&mut self) -> Outcome<String> {
        let gwei = self.dice.random_range(1..=SPIKE_MAX_GWEI);
        let network = &self.world.network;
        network.set_base_fee(gwei * GWEI).await?;
        Ok(format!("{gwei} gwei"))
    }

    pub(super) async fn no_blocks(&mut self) -> Outcome<String> {
        let network = &self.world.network;
        network.stop_mining().await?;
        self.last().await;
        network.resume_mining().await?;
        Ok("none".to_owned())
    }
}
