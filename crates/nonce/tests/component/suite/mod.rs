//! The contract of a scheme as one suite, which each scheme runs with one line, in both modes:
//!
//! ```text
//! contract!(row_lock => RowLockBackend::new());
//! ```
//!
//! makes modules `row_lock::basic` and `row_lock::worker_queue` with one test per clause. The expression is evaluated for
//! every clause inside an async function (so it may await) and returns a [`Backend`] without reservations. A clause uses
//! the component, and the scheme where the component hides something; its name states what must hold.

pub(crate) mod allocate;
pub(crate) mod chain_checks;
pub(crate) mod expiry;
pub(crate) mod marks;
pub(crate) mod reorgs;
pub(crate) mod shutdown;
pub(crate) mod verdicts;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{Reservation, ReservationState};
use nonce::sweep::Sweep;
use nonce::{Mode, NonceComponent, ReservationKey, Scheme, Settings};

use super::kit::{
    CHAIN, FOREIGN_DEPTH, FakeChain, component_on, immediate_settings, lane, wait_for,
};

/// Time in which a scheme that sweeps itself has checked everything more than once, and the step of a wait for it.
const SELF_SWEEP_WITHIN: Duration = Duration::from_secs(15);
const SELF_SWEEP_STEP: Duration = Duration::from_millis(250);

/// A scheme's backend without reservations.
#[async_trait]
pub(crate) trait Backend: Send + Sync {
    /// Opens the scheme for one more process. A scheme that follows the chain by itself follows these chains.
    async fn open_process(&self, chains: &[Arc<FakeChain>]) -> Arc<dyn Scheme>;

    /// Whether the scheme itself checks expired, submitted and closed reservations, so that the sweep has nothing to do.
    fn sweeps_itself(&self) -> bool {
        false
    }

    /// Lets time pass for a scheme that sweeps itself.
    async fn pass_time(&self, by: Duration) {
        tokio::time::sleep(by).await;
    }

    /// Opens another scheme on the same backend, where there is one.
    async fn open_other_scheme(&self) -> Option<Arc<dyn Scheme>> {
        None
    }
}

/// The environment of a clause.
pub(crate) struct Scenario {
    backend: Arc<dyn Backend>,
    pub(crate) mode: Mode,
    pub(crate) chain: Arc<FakeChain>,
    pub(crate) other_chain: Arc<FakeChain>,
}

impl Scenario {
    pub(crate) fn new(backend: impl Backend + 'static, mode: Mode) -> Self {
        Self {
            backend: Arc::new(backend),
            mode,
            chain: FakeChain::new(CHAIN),
            other_chain: FakeChain::new(domain::ChainId(CHAIN.0 + 1)),
        }
    }

    /// Starts a process with the default timeouts and without a cache of chain nonces.
    pub(crate) async fn process(&self) -> Process {
        self.process_with(immediate_settings(self.mode)).await
    }

    /// Starts a process whose reservations expire at once.
    pub(crate) async fn process_with_instant_expiry(&self) -> Process {
        let settings = Settings {
            reservation_timeout: Duration::from_millis(1),
            ..immediate_settings(self.mode)
        };
        self.process_with(settings).await
    }

    pub(crate) async fn process_with(&self, settings: Settings) -> Process {
        let chains = [Arc::clone(&self.chain), Arc::clone(&self.other_chain)];
        let scheme = self.backend.open_process(&chains).await;
        let component = component_on(settings, Arc::clone(&scheme), &chains);
        Process {
            scheme,
            component,
            backend: Arc::clone(&self.backend),
        }
    }

    pub(crate) async fn other_scheme(&self) -> Option<Arc<dyn Scheme>> {
        self.backend.open_other_scheme().await
    }

    /// Whether the sweep has nothing to do.
    pub(crate) fn sweeps_itself(&self) -> bool {
        self.backend.sweeps_itself()
    }

    /// Makes a foreign transaction that has just become final visible to every scheme. A lane that saw the nonce consumed
    /// earlier queries again only when the block of that query is final too.
    pub(crate) fn bury_foreign_transaction(&self) {
        if self.sweeps_itself() {
            self.chain.mine(FOREIGN_DEPTH);
        }
    }
}

/// One process: a component and its scheme.
pub(crate) struct Process {
    pub(crate) scheme: Arc<dyn Scheme>,
    pub(crate) component: NonceComponent,
    backend: Arc<dyn Backend>,
}

impl Process {
    /// Reserves in the first lane.
    pub(crate) async fn reserve(&self) -> Reservation {
        self.component
            .allocate(lane(1))
            .await
            .expect("a nonce is reserved")
    }

    /// Reserves several, one after the other.
    pub(crate) async fn reserve_many(&self, count: usize) -> Vec<Reservation> {
        let mut reserved = Vec::with_capacity(count);
        for _ in 0..count {
            reserved.push(self.reserve().await);
        }
        reserved
    }

    pub(crate) async fn recycle(&self, reserved: &Reservation) -> Reservation {
        let (lane, nonce, holder) = (reserved.lane, reserved.nonce, reserved.holder);
        let recycled = self
            .component
            .mark_recyclable(lane, nonce, holder, "not needed");
        recycled.await.expect("the mark is accepted")
    }

    pub(crate) async fn mark_submitted(
        &self,
        reserved: &Reservation,
        tx_hash: domain::B256,
    ) -> Reservation {
        let (lane, nonce, holder) = (reserved.lane, reserved.nonce, reserved.holder);
        let marked = self.component.mark_submitted(lane, nonce, holder, tx_hash);
        marked.await.expect("the mark is accepted")
    }

    pub(crate) async fn mark_used(
        &self,
        reserved: &Reservation,
        tx_hash: domain::B256,
    ) -> Reservation {
        let (lane, nonce, holder) = (reserved.lane, reserved.nonce, reserved.holder);
        let marked = self.component.mark_used(lane, nonce, holder, tx_hash);
        marked.await.expect("the mark is accepted")
    }

    /// The recorded state of this reservation.
    pub(crate) async fn row(&self, reserved: &Reservation) -> Reservation {
        let row = self
            .scheme
            .find_reservation(ReservationKey::from(reserved))
            .await;
        let row = row.expect("the ledger is readable");
        row.expect("the nonce still has this holder")
    }

    /// Sweeps until this reservation has the state.
    pub(crate) async fn sweep_until(
        &self,
        sweep: &mut Sweep,
        reserved: &Reservation,
        state: ReservationState,
    ) -> Reservation {
        wait_for(
            &format!("nonce {} is {state:?}", reserved.nonce),
            async || {
                self.sweep_once(sweep).await;
                let row = self.row(reserved).await;
                (row.state == state).then_some(row)
            },
        )
        .await
    }

    /// Sweeps once; a scheme that sweeps itself gets time for it.
    pub(crate) async fn sweep_once(&self, sweep: &mut Sweep) {
        sweep.run_pass().await.expect("the ledger is readable");
        if self.backend.sweeps_itself() {
            self.backend.pass_time(SELF_SWEEP_STEP).await;
        }
    }

    /// Sweeps until everything was checked more than once.
    pub(crate) async fn sweep_all(&self, sweep: &mut Sweep) {
        for _ in 0..5 {
            sweep.run_pass().await.expect("the ledger is readable");
        }
        if self.backend.sweeps_itself() {
            self.backend.pass_time(SELF_SWEEP_WITHIN).await;
        }
    }
}

/// Number of holders per nonce.
pub(crate) fn count_by_nonce<'a>(
    reserved: impl IntoIterator<Item = &'a Reservation>,
) -> BTreeMap<u64, usize> {
    let mut counts = BTreeMap::new();
    for one in reserved {
        *counts.entry(one.nonce.0).or_default() += 1;
    }
    counts
}

/// The nonces in the order of their reservation.
pub(crate) fn nonces_of(reserved: &[Reservation]) -> Vec<u64> {
    reserved.iter().map(|one| one.nonce.0).collect()
}

/// Runs the contract on a backend: `contract!(name => backend)`. `contract!(name, paused => backend)` pauses tokio's clock,
/// for a scheme that needs time for its own checks.
macro_rules! contract {
    ($name:ident => $ledger:expr) => {
        contract! { @clauses $name real_time $ledger }
    };
    ($name:ident, paused => $ledger:expr) => {
        contract! { @clauses $name paused_time $ledger }
    };
    (@clauses $name:ident $time:ident $ledger:expr) => {
        contract! { @modes $name $time $ledger;
            allocate: [
                new_lane_starts_at_chain_nonce
                nonces_are_reserved_in_ascending_order
                recycled_nonce_gets_a_fresh_reservation
                reservation_expires_after_the_requested_timeout
                smallest_free_nonce_is_reserved_first
                thousand_concurrent_reservations_are_unique_and_gapless
                processes_never_reserve_the_same_nonce
                lanes_are_independent
                lane_is_bound_to_one_scheme
                open_reservations_are_listed_in_order
            ]
            marks: [
                mark_used_is_idempotent_for_the_same_hash
                last_submitted_hash_replaces_earlier_ones
                mark_recyclable_is_idempotent
                marks_of_a_former_holder_are_refused
                marks_of_an_unknown_holder_are_refused
                marks_on_a_never_reserved_nonce_are_refused
                recyclable_nonce_cannot_be_submitted_or_used
                used_nonce_cannot_be_recycled
                hash_submitted_after_the_chain_check_blocks_recycling
                nonce_with_two_submitted_hashes_cannot_be_recycled
                random_marks_follow_the_domain_rules
                acknowledged_marks_are_durable
                any_process_accepts_marks_of_any_holder
                any_recycle_reason_is_accepted
            ]
            chain_checks: [
                submitted_nonce_is_recycled_only_if_the_chain_shows_nothing
                submitted_nonce_is_not_recycled_while_chain_unreachable
                consumed_recyclable_nonce_is_not_reserved
                consumed_recyclable_nonce_becomes_used
                skipped_nonces_are_reserved_after_foreign_txs_are_dropped
            ]
            expiry: [
                expired_nonce_is_recyclable_if_the_chain_shows_nothing
                expired_nonce_stays_reserved_while_a_tx_is_pending
                expired_nonce_is_used_when_its_consumer_is_final
                expired_nonce_stays_reserved_while_one_endpoint_shows_a_tx
                expired_nonce_stays_reserved_while_chain_unreachable
                submitted_nonce_never_expires
                unexpired_reservation_is_not_swept
                reservations_of_a_killed_process_are_recycled
            ]
            reorgs: [
                final_receipt_closes_a_submitted_nonce
                final_foreign_tx_closes_a_submitted_nonce
                receipt_of_another_accounts_tx_closes_nothing
                reorg_reopens_a_closed_reservation
                reopened_nonce_with_foreign_consumer_cannot_be_recycled
                nonce_marked_used_is_watched_until_the_chain_closes_it
                deeply_closed_reservation_is_not_watched
            ]
            verdicts: [
                verdict_on_a_changed_reservation_is_ignored
                repeated_verdict_is_applied_once
                watched_reservations_are_listed_in_pages
            ]
            shutdown: [
                closed_process_reserves_nothing_and_returns_unused_nonces
                marks_survive_the_shutdown_of_their_process
            ]
        }
    };
    (@modes $name:ident $time:ident $ledger:expr; $($clauses:tt)*) => {
        mod $name {
            use super::*;

            mod basic {
                use super::*;
                contract! { @tests $time $ledger, nonce::Mode::Basic; $($clauses)* }
            }
            mod worker_queue {
                use super::*;
                contract! { @tests $time $ledger, $crate::kit::worker_queue_mode(); $($clauses)* }
            }
        }
    };
    (@tests $time:ident $ledger:expr, $mode:expr; $($group:ident: [$($clause:ident)*])*) => {
        $($(contract! { @test $time $ledger, $mode, $group, $clause })*)*
    };
    (@test real_time $ledger:expr, $mode:expr, $group:ident, $clause:ident) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $clause() {
            let scenario = $crate::suite::Scenario::new($ledger, $mode);
            $crate::suite::$group::$clause(&scenario).await;
        }
    };
    (@test paused_time $ledger:expr, $mode:expr, $group:ident, $clause:ident) => {
        #[tokio::test(start_paused = true)]
        async fn $clause() {
            let scenario = $crate::suite::Scenario::new($ledger, $mode);
            $crate::suite::$group::$clause(&scenario).await;
        }
    };
}
pub(crate) use contract;

/// A clause that is not listed would never run.
#[test]
fn every_clause_is_listed_in_contract_macro() {
    let suite = include_str!("mod.rs");
    let files = [
        include_str!("chain_checks.rs"),
        include_str!("shutdown.rs"),
        include_str!("reorgs.rs"),
        include_str!("allocate.rs"),
        include_str!("marks.rs"),
        include_str!("expiry.rs"),
        include_str!("verdicts.rs"),
    ];
    let heads = files
        .iter()
        .flat_map(|file| file.lines())
        .filter_map(|line| line.strip_prefix("pub(crate) async fn ")?.split_once('('));
    for (clause, _) in heads {
        let listed = suite.lines().any(|line| line.trim() == clause);
        assert!(listed, "{clause} is not run: list it in contract!");
    }
}
