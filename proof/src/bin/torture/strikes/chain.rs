//! Faults of the EVM node.

use std::sync::atomic::Ordering;
use std::time::Duration;

use proof::{Outcome, demand, eventually};
use rand::Rng as _;
use rand::seq::IndexedRandom as _;
use serde_json::json;

use super::Blow;
use crate::world::CONFIRMATIONS;

/// How many transactions are dropped at once, at most.
const DROPPED_MAX: usize = 6;

/// Something waits in the pool before this, as blocks come every second.
const POOL_WITHIN: Duration = Duration::from_secs(3);

const GWEI: u64 = 1_000_000_000;

/// The most that a block asks for per gas. Offers are about 1 gwei, and what is asked for falls by an eighth
/// per block: it takes twenty blocks until it is as low again.
const SPIKE_MAX_GWEI: u64 = 15;

impl Blow<'_> {
    /// Ends it and starts it again, with its blocks and without its pool.
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
        network.forget_pool().await?;
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
            // Mined or replaced meanwhile is as good.
            let method = "anvil_dropTransaction";
            let gone = network.chain.call(method, json!([hash])).await;
            dropped += usize::from(gone.is_ok_and(|gone| !gone.is_null()));
        }
        demand(dropped > 0, "all were mined meanwhile")?;
        Ok(format!("{dropped} of {}", pool.len()))
    }

    /// Takes blocks back that are not final yet; what was in them is lost.
    pub(super) async fn fork(&mut self) -> Outcome<String> {
        let network = &self.world.network;
        let paused = network.pause_blocks().await;
        let forked = match paused {
            Ok(()) => self.fork_between_blocks().await,
            Err(error) => Err(error),
        };
        network.make_blocks().await?; // whatever happened
        forked
    }

    async fn fork_between_blocks(&mut self) -> Outcome<String> {
        let network = &self.world.network;
        let since = self.world.chain_since.load(Ordering::Relaxed);
        let known = network.chain.height().await?.saturating_sub(since);
        let deepest = known.min(CONFIRMATIONS - 1);
        demand(deepest > 0, "the node has only just started")?;
        let depth = self.dice.random_range(1..=deepest);
        network.fork(depth).await?;
        network.mine(1).await?;
        Ok(format!("{depth} blocks"))
    }

    /// The next block costs many times what is offered. Some nodes drop what offers less.
    pub(super) async fn fee_spike(&mut self) -> Outcome<String> {
        let gwei = self.dice.random_range(1..=SPIKE_MAX_GWEI);
        let network = &self.world.network;
        network.set_base_fee(gwei * GWEI).await?;
        Ok(format!("{gwei} gwei"))
    }

    pub(super) async fn no_blocks(&mut self) -> Outcome<String> {
        let network = &self.world.network;
        network.hold_blocks().await?;
        self.last().await;
        network.make_blocks().await?;
        Ok("none".to_owned())
    }
}
