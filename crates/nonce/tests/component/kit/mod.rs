//! What the tests are written with: a clock, a chain that does what it is told, books in memory, and a spy.

mod books;
mod chain;
mod clock;
mod nodes;
mod spy;

pub(crate) use books::{MemoryBooks, Rows};
pub(crate) use chain::FakeChain;
pub(crate) use clock::TestClock;
pub(crate) use nodes::Nodes;
pub(crate) use spy::Spy;

use std::sync::Arc;
use std::time::Duration;

use domain::lane::Finality;
use domain::{Address, B256, ChainId, LaneKey};
use nonce::{LentChain, Mode, NonceComponent, QueueSettings, Scheme, Settings};

/// When a transaction counts for good on the tests' chain.
pub(crate) const FINAL_DEPTH: u64 = 2;
/// When one counts whose hash nobody named.
pub(crate) const FOREIGN_DEPTH: u64 = domain::lane::FOREIGN_DEPTH_MIN;
/// For how long closed nonces are watched.
pub(crate) const WATCH_DEPTH: u64 = 20;
/// Nothing in these tests takes longer, on a machine that lives.
pub(crate) const WITHIN: Duration = Duration::from_secs(30);

/// The chain of the tests.
pub(crate) const CHAIN: ChainId = ChainId(31_337);

/// The lane of one of the tests' signers.
pub(crate) fn lane(signer: u8) -> LaneKey {
    LaneKey {
        chain_id: CHAIN,
        signer: Address::repeat_byte(signer),
    }
}

/// A transaction's hash.
pub(crate) fn hash(name: u8) -> B256 {
    B256::repeat_byte(name)
}

/// Worker-queue mode as most tests want it.
pub(crate) fn queued() -> Mode {
    Mode::WorkerQueue(QueueSettings {
        workers: 4,
        ..QueueSettings::default()
    })
}

/// Settings under which knowledge of the chain is always fresh and nothing waits.
pub(crate) fn eager(mode: Mode) -> Settings {
    Settings {
        mode,
        state_timeout: Duration::ZERO,
        free_grace: Duration::ZERO,
        ..Settings::default()
    }
}

/// A component over these books and this chain.
pub(crate) fn component(
    settings: Settings,
    scheme: Arc<dyn Scheme>,
    chain: &Arc<FakeChain>,
) -> NonceComponent {
    component_on(settings, scheme, &[Arc::clone(chain)])
}

/// The same over several chains.
pub(crate) fn component_on(
    settings: Settings,
    scheme: Arc<dyn Scheme>,
    chains: &[Arc<FakeChain>],
) -> NonceComponent {
    let lent = chains.iter().map(|chain| LentChain {
        chain: Arc::clone(chain) as Arc<_>,
        finality: Finality::Depth(FINAL_DEPTH),
        watch_depth: WATCH_DEPTH,
    });
    let clock = Arc::new(TestClock::new());
    NonceComponent::start(settings, scheme, lent.collect(), clock).expect("the settings work")
}

/// Lets through while it is open.
pub(crate) struct Gate(tokio::sync::watch::Sender<bool>);

impl Gate {
    pub(crate) fn open() -> Self {
        Self(tokio::sync::watch::Sender::new(true))
    }

    pub(crate) fn shut(&self) {
        self.0.send_replace(false);
    }

    pub(crate) fn reopen(&self) {
        self.0.send_replace(true);
    }

    pub(crate) async fn pass(&self) {
        let mut is_open = self.0.subscribe();
        let passed = is_open.wait_for(|is_open| *is_open).await;
        drop(passed.expect("the gate stands as long as it is passed"));
    }
}

/// Looks until the condition gives a value; panics with `what` when it has not in time.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let started = tokio::time::Instant::now();
    loop {
        if let Some(value) = look().await {
            return value;
        }
        assert!(
            started.elapsed() < WITHIN,
            "after {WITHIN:?} still not: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
