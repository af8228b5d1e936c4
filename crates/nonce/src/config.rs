//! How the component is set up, and which settings cannot work.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::ChainId;
use domain::lane::{ChainQuery, Finality};
use engine::ports::Chain;
use thiserror::Error;

/// What the component is told once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether calls go straight to the books, or lane by lane through workers.
    pub mode: Mode,
    /// What the chain is asked before a nonce is lent.
    pub chain_query: ChainQuery,
    /// How old the knowledge of the chain's nonce may get.
    pub state_timeout: Duration,
    /// The farthest jump of the chain's nonce over ours that is taken without a person.
    pub max_chain_jump: u64,
    /// By when a holder must have sent. Later the chain is asked what became of the nonce.
    pub reservation_timeout: Duration,
    /// How often overdue, submitted and freshly closed nonces are looked at.
    pub sweep_interval: Duration,
    /// How long the chain must show nothing of an overdue nonce before it is free: what was sent in the last
    /// moment may still be on its way to a pool.
    pub free_grace: Duration,
}

/// How calls reach the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Straight, on the caller's task. The component has no tasks of its own.
    Basic,
    /// Through workers: one call of a lane at a time in this process.
    WorkerQueue(QueueSettings),
}

/// The workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// How many there are. A lane always has the same one.
    pub workers: usize,
    /// How many calls may wait for each, and how many `with_nonce`s for a turn in its lanes.
    pub capacity: usize,
    /// What becomes of one more.
    pub reject: RejectPolicy,
    /// How long a `with_nonce` that does not move keeps the others of its lane waiting. It is what ends the
    /// wait of a call for its own end: from a task that was spawned inside, nobody can tell that it is nested.
    pub section_patience: Duration,
}

/// What becomes of a call that finds its worker's queue full, or of a `with_nonce` when too many wait for a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectPolicy {
    /// It is refused at once, to be repeated.
    FailFast,
    /// It runs, or waits, on the caller's task, still one of a lane at a time.
    CallerRuns,
}

/// A chain on which nonces are lent.
#[derive(Clone)]
pub struct LentChain {
    /// The chain.
    pub chain: Arc<dyn Chain>,
    /// When a transaction counts for good.
    pub finality: Finality,
    /// For how many blocks a nonce that the chain closed is watched for forks.
    pub watch_depth: u64,
}

/// The chains, by their ids.
pub(crate) type LentChains = Arc<BTreeMap<ChainId, LentChain>>;

/// The most workers that anybody needs.
const WORKERS_MAX: usize = 1_024;
/// The longest queue: beyond this a caller is better told than kept.
const CAPACITY_MAX: usize = 1_000_000;

/// Settings that cannot work, with the value, the rule and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct BadSettings(String);

impl Settings {
    /// Whether they can work.
    pub fn check(&self) -> Result<(), BadSettings> {
        let refuse = |text: String| Err(BadSettings(text));
        if self.reservation_timeout.is_zero() {
            return refuse(
                "nonce.reservationTimeout is 0: a holder needs time to sign and send (60s is usual)"
                    .into(),
            );
        }
        if self.sweep_interval.is_zero() {
            return refuse(
                "the interval of the sweep is 0: it would never rest (5s is usual)".into(),
            );
        }
        let Mode::WorkerQueue(queue) = self.mode else {
            return Ok(());
        };
        if !(1..=WORKERS_MAX).contains(&queue.workers) {
            let count = queue.workers;
            return refuse(format!(
                "nonce.workerCount is {count}: it must be 1 to {WORKERS_MAX}"
            ));
        }
        if !(1..=CAPACITY_MAX).contains(&queue.capacity) {
            let capacity = queue.capacity;
            return refuse(format!(
                "nonce.workerQueueCapacity is {capacity}: it must be 1 to {CAPACITY_MAX}"
            ));
        }
        if queue.section_patience.is_zero() {
            return refuse(
                "the patience with a section is 0: no section would ever be alone in its lane"
                    .into(),
            );
        }
        Ok(())
    }
}

impl Default for Settings {
    /// The usual.
    fn default() -> Self {
        Self {
            mode: Mode::Basic,
            chain_query: ChainQuery::Pending,
            state_timeout: Duration::from_secs(30),
            max_chain_jump: 64,
            reservation_timeout: Duration::from_secs(60),
            sweep_interval: Duration::from_secs(5),
            free_grace: Duration::from_secs(5),
        }
    }
}

impl Default for QueueSettings {
    /// The usual.
    fn default() -> Self {
        Self {
            workers: 8,
            capacity: 1_024,
            reject: RejectPolicy::FailFast,
            section_patience: Duration::from_secs(2),
        }
    }
}

impl std::fmt::Debug for LentChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LentChain")
            .field("id", &self.chain.id())
            .field("finality", &self.finality)
            .field("watch_depth", &self.watch_depth)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_settings_work_in_both_modes() {
        for mode in [Mode::Basic, Mode::WorkerQueue(QueueSettings::default())] {
            let settings = Settings {
                mode,
                ..Settings::default()
            };
            assert_eq!(settings.check(), Ok(()));
        }
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_value_and_the_rule() {
        let queue = QueueSettings::default();
        let of = |queue| Settings {
            mode: Mode::WorkerQueue(queue),
            ..Settings::default()
        };
        let bad = [
            (
                of(QueueSettings {
                    workers: 0,
                    ..queue
                }),
                "nonce.workerCount is 0",
            ),
            (
                of(QueueSettings {
                    capacity: 0,
                    ..queue
                }),
                "nonce.workerQueueCapacity is 0",
            ),
            (
                Settings {
                    reservation_timeout: Duration::ZERO,
                    ..Settings::default()
                },
                "nonce.reservationTimeout is 0",
            ),
        ];
        for (settings, text) in bad {
            let said = settings.check().unwrap_err().to_string();
            assert!(said.starts_with(text), "{said}");
        }
    }
}
