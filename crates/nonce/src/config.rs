//! Settings of the component and their validation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::ChainId;
use domain::lane::{ChainQuery, Finality};
use engine::ports::Chain;
use thiserror::Error;

/// Settings of a [`NonceComponent`](crate::NonceComponent).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether calls go directly to the ledger or lane by lane through workers.
    pub mode: Mode,
    /// Which account nonce is queried from the chain before a nonce is reserved.
    pub chain_query: ChainQuery,
    /// Maximum age of a cached chain nonce.
    pub state_timeout: Duration,
    /// The largest distance of the chain's nonce above ours that is accepted without an operator.
    pub max_chain_jump: u64,
    /// Time a holder has to send. Afterwards the chain is queried for the nonce.
    pub reservation_timeout: Duration,
    /// Interval in which expired, submitted and recently closed reservations are checked.
    pub sweep_interval: Duration,
    /// How long the chain must show nothing of an expired nonce before it is recycled: a transaction sent at the
    /// last moment may not have reached a mempool yet.
    pub free_grace: Duration,
}

/// How calls reach the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Directly, on the caller's task. The component has no tasks of its own.
    Basic,
    /// Through workers: one call per lane at a time in this process.
    WorkerQueue(QueueSettings),
}

/// Settings of the worker queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// Number of workers. A lane is always served by the same one.
    pub workers: usize,
    /// How many calls may wait per worker, and how many `with_nonce` sections of its lanes.
    pub capacity: usize,
    /// Handling of a call beyond the capacity.
    pub reject: RejectPolicy,
    /// How long a `with_nonce` section that is not polled blocks the next one of its lane. It also resolves the
    /// deadlock of a nested call in a spawned task, which cannot be recognised as nested.
    pub section_idle_timeout: Duration,
}

/// Handling of a call that finds its worker's queue full, or of a section when too many are waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectPolicy {
    /// The call is refused at once and may be retried.
    FailFast,
    /// The call runs, or waits, on the caller's task, still one per lane at a time.
    CallerRuns,
}

/// A chain on which nonces are reserved.
#[derive(Clone)]
pub struct ReservationChain {
    /// Adapter of the chain.
    pub chain: Arc<dyn Chain>,
    /// When a transaction counts as final.
    pub finality: Finality,
    /// For how many blocks a reservation that the chain closed is watched for reorgs.
    pub watch_depth: u64,
}

pub(crate) type ReservationChains = Arc<BTreeMap<ChainId, ReservationChain>>;

/// Upper bound for the number of workers.
const WORKERS_MAX: usize = 1_024;
/// Upper bound for the queue length: beyond this refusing is better than waiting.
const CAPACITY_MAX: usize = 1_000_000;

/// Invalid settings: the value, the rule and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct SettingsError(String);

impl Settings {
    /// Validates the settings.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let refuse = |text: String| Err(SettingsError(text));
        if self.reservation_timeout.is_zero() {
            return refuse(
                "nonce.reservationTimeout is 0: a holder needs time to sign and send (default: 60s)"
                    .into(),
            );
        }
        if self.sweep_interval.is_zero() {
            return refuse(
                "the sweep interval is 0: the sweep would run without pause (default: 5s)".into(),
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
        if queue.section_idle_timeout.is_zero() {
            return refuse(
                "the section idle timeout is 0: sections of one lane would never be serialised"
                    .into(),
            );
        }
        Ok(())
    }
}

impl Default for Settings {
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
    fn default() -> Self {
        Self {
            workers: 8,
            capacity: 1_024,
            reject: RejectPolicy::FailFast,
            section_idle_timeout: Duration::from_secs(2),
        }
    }
}

impl std::fmt::Debug for ReservationChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReservationChain")
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
    fn default_settings_are_valid_in_both_modes() {
        for mode in [Mode::Basic, Mode::WorkerQueue(QueueSettings::default())] {
            let settings = Settings {
                mode,
                ..Settings::default()
            };
            assert_eq!(settings.validate(), Ok(()));
        }
    }

    #[test]
    fn invalid_settings_are_refused_with_value_and_rule() {
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
            let message = settings.validate().unwrap_err().to_string();
            assert!(message.starts_with(text), "{message}");
        }
    }
}
