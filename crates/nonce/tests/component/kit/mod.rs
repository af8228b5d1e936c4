//! Test doubles: a clock, a scripted chain, a ledger in memory, and a spy.

mod clock;
mod fake_chain;
mod lane_cluster;
mod memory_ledger;
mod spy;

pub(crate) use clock::TestClock;
pub(crate) use fake_chain::FakeChain;
pub(crate) use lane_cluster::LaneCluster;
pub(crate) use memory_ledger::{LedgerRows, MemoryLedger};
pub(crate) use spy::Spy;

use std::sync::Arc;
use std::time::Duration;

use domain::lane::Finality;
use domain::{Address, B256, ChainId, LaneKey};
use nonce::{Mode, NonceComponent, QueueSettings, ReservationChain, Scheme, Settings};

/// Finality depth of the test chain.
pub(crate) const FINAL_DEPTH: u64 = 2;
/// Finality depth of a transaction whose hash was not submitted.
pub(crate) const FOREIGN_DEPTH: u64 = domain::lane::FOREIGN_FINALITY_DEPTH_MIN;
/// For how many blocks closed reservations are watched.
pub(crate) const WATCH_DEPTH: u64 = 20;
/// Upper bound for every wait in these tests.
pub(crate) const WITHIN: Duration = Duration::from_secs(30);

pub(crate) const CHAIN: ChainId = ChainId(31_337);

/// The lane of a test signer.
pub(crate) fn lane(signer: u8) -> LaneKey {
    LaneKey {
        chain_id: CHAIN,
        signer: Address::repeat_byte(signer),
    }
}

pub(crate) fn hash(name: u8) -> B256 {
    B256::repeat_byte(name)
}

/// Worker-queue mode with a few workers.
pub(crate) fn worker_queue_mode() -> Mode {
    Mode::WorkerQueue(QueueSettings {
        workers: 4,
        ..QueueSettings::default()
    })
}

/// Settings without a cache of chain nonces and without a grace.
pub(crate) fn immediate_settings(mode: Mode) -> Settings {
    Settings {
        mode,
        state_timeout: Duration::ZERO,
        free_grace: Duration::ZERO,
        ..Settings::default()
    }
}

/// A component on this scheme and chain.
pub(crate) fn component(
    settings: Settings,
    scheme: Arc<dyn Scheme>,
    chain: &Arc<FakeChain>,
) -> NonceComponent {
    component_on(settings, scheme, &[Arc::clone(chain)])
}

/// The same on several chains.
pub(crate) fn component_on(
    settings: Settings,
    scheme: Arc<dyn Scheme>,
    chains: &[Arc<FakeChain>],
) -> NonceComponent {
    let reserved = chains.iter().map(|chain| ReservationChain {
        chain: Arc::clone(chain) as Arc<_>,
        finality: Finality::Depth(FINAL_DEPTH),
        watch_depth: WATCH_DEPTH,
    });
    let clock = Arc::new(TestClock::new());
    NonceComponent::start(settings, scheme, reserved.collect(), clock).expect("valid settings")
}

/// Blocks callers while it is closed.
pub(crate) struct Latch(tokio::sync::watch::Sender<bool>);

impl Latch {
    pub(crate) fn open() -> Self {
        Self(tokio::sync::watch::Sender::new(true))
    }

    pub(crate) fn close(&self) {
        self.0.send_replace(false);
    }

    pub(crate) fn reopen(&self) {
        self.0.send_replace(true);
    }

    pub(crate) async fn wait_until_open(&self) {
        let mut is_open = self.0.subscribe();
        let passed = is_open.wait_for(|is_open| *is_open).await;
        drop(passed.expect("the sender lives as long as the latch"));
    }
}

/// Polls until the condition returns a value; panics with `what` after [`WITHIN`].
pub(crate) async fn wait_for<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let started = tokio::time::Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(started.elapsed() < WITHIN, "not within {WITHIN:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
