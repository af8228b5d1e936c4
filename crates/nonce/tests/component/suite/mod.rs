//! The contract of a scheme, as one suite that each runs in one line, in both modes:
//!
//! ```text
//! contract!(row_lock => RowLockBooks::fresh());
//! ```
//!
//! makes modules `row_lock::basic` and `row_lock::worker_queue` with one test per clause. The expression is
//! evaluated anew for every clause, inside an async function (so it may await), and gives [`Books`] in which
//! nothing was ever lent. A clause talks to the component, and to the scheme where the component hides
//! something; its name says what must hold.

pub(crate) mod chain;
pub(crate) mod closing;
pub(crate) mod forks;
pub(crate) mod lend;
pub(crate) mod marks;
pub(crate) mod overdue;
pub(crate) mod settle;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{Reservation, ReservationState};
use nonce::sweep::Sweep;
use nonce::{Mode, NonceComponent, Scheme, Settings};

use super::kit::{CHAIN, FOREIGN_DEPTH, FakeChain, component_on, eager, lane, until};

/// Within which time, which stands still otherwise, a scheme that looks after itself has looked at everything more
/// than once.
const LOOKED_WITHIN: Duration = Duration::from_secs(15);

/// What a scheme gives to the suite: books in which nothing was ever lent.
#[async_trait]
pub(crate) trait Books: Send + Sync {
    /// One more process at these books. A scheme that follows the chain by itself follows this one.
    async fn open(&self, chains: &[Arc<FakeChain>]) -> Arc<dyn Scheme>;

    /// Whether it looks after overdue, submitted and closed nonces by itself, so that there is nothing for the
    /// sweep to do.
    fn looks_after_itself(&self) -> bool {
        false
    }

    /// A process at the same books that follows another scheme, where there is one.
    async fn open_other(&self) -> Option<Arc<dyn Scheme>> {
        None
    }
}

/// Where a clause takes place.
pub(crate) struct World {
    books: Box<dyn Books>,
    pub(crate) mode: Mode,
    pub(crate) chain: Arc<FakeChain>,
    pub(crate) other_chain: Arc<FakeChain>,
}

impl World {
    pub(crate) fn new(books: impl Books + 'static, mode: Mode) -> Self {
        Self {
            books: Box::new(books),
            mode,
            chain: FakeChain::new(CHAIN),
            other_chain: FakeChain::new(domain::ChainId(CHAIN.0 + 1)),
        }
    }

    /// One more process. Its loans last as long as usual, its knowledge of the chain is always fresh.
    pub(crate) async fn process(&self) -> Process {
        self.process_with(eager(self.mode)).await
    }

    /// One whose loans are overdue at once.
    pub(crate) async fn hasty_process(&self) -> Process {
        let settings = Settings {
            reservation_timeout: Duration::from_millis(1),
            ..eager(self.mode)
        };
        self.process_with(settings).await
    }

    pub(crate) async fn process_with(&self, settings: Settings) -> Process {
        let chains = [Arc::clone(&self.chain), Arc::clone(&self.other_chain)];
        let scheme = self.books.open(&chains).await;
        let component = component_on(settings, Arc::clone(&scheme), &chains);
        Process {
            scheme,
            component,
            looks_after_itself: self.has_no_sweep(),
        }
    }

    pub(crate) async fn other_scheme(&self) -> Option<Arc<dyn Scheme>> {
        self.books.open_other().await
    }

    /// Whether the sweep has nothing to do.
    pub(crate) fn has_no_sweep(&self) -> bool {
        self.books.looks_after_itself()
    }

    /// A transaction that nobody named has just become deep enough. A lane, which saw earlier that its nonce is
    /// consumed, asks for it again only when the block of that moment is as deep.
    pub(crate) fn let_it_show(&self) {
        if self.has_no_sweep() {
            self.chain.mine(FOREIGN_DEPTH);
        }
    }
}

/// One process: a component and its scheme.
pub(crate) struct Process {
    pub(crate) scheme: Arc<dyn Scheme>,
    pub(crate) component: NonceComponent,
    looks_after_itself: bool,
}

impl Process {
    /// Borrows from the first lane.
    pub(crate) async fn borrow(&self) -> Reservation {
        self.component
            .allocate(lane(1))
            .await
            .expect("a nonce is lent")
    }

    /// Borrows several, one after the other.
    pub(crate) async fn borrow_many(&self, count: usize) -> Vec<Reservation> {
        let mut lent = Vec::with_capacity(count);
        for _ in 0..count {
            lent.push(self.borrow().await);
        }
        lent
    }

    pub(crate) async fn give_back(&self, lent: &Reservation) -> Reservation {
        let (lane, nonce, holder) = (lent.lane, lent.nonce, lent.holder);
        let given = self
            .component
            .mark_recyclable(lane, nonce, holder, "not needed");
        given.await.expect("it is taken back")
    }

    pub(crate) async fn submit(&self, lent: &Reservation, tx_hash: domain::B256) -> Reservation {
        let (lane, nonce, holder) = (lent.lane, lent.nonce, lent.holder);
        let said = self.component.mark_submitted(lane, nonce, holder, tx_hash);
        said.await.expect("it is heard")
    }

    pub(crate) async fn use_up(&self, lent: &Reservation, tx_hash: domain::B256) -> Reservation {
        let (lane, nonce, holder) = (lent.lane, lent.nonce, lent.holder);
        let said = self.component.mark_used(lane, nonce, holder, tx_hash);
        said.await.expect("it is heard")
    }

    /// What stands in the books of this loan.
    pub(crate) async fn row(&self, lent: &Reservation) -> Reservation {
        let row = self
            .scheme
            .reservation(lent.lane, lent.nonce, lent.holder)
            .await;
        let row = row.expect("the books are there");
        row.expect("it was lent, and not to anybody else since")
    }

    /// Sweeps until this loan stands so.
    pub(crate) async fn sweep_until(
        &self,
        sweep: &mut Sweep,
        lent: &Reservation,
        state: ReservationState,
    ) -> Reservation {
        until(&format!("nonce {} is {state:?}", lent.nonce), async || {
            sweep.pass().await.expect("the books are there");
            let row = self.row(lent).await;
            (row.state == state).then_some(row)
        })
        .await
    }

    /// Sweeps so often that everything was looked at more than once.
    pub(crate) async fn sweep_all(&self, sweep: &mut Sweep) {
        for _ in 0..5 {
            sweep.pass().await.expect("the books are there");
        }
        if self.looks_after_itself {
            tokio::time::sleep(LOOKED_WITHIN).await;
        }
    }
}

/// How often each nonce is held.
pub(crate) fn counted<'a>(lent: impl IntoIterator<Item = &'a Reservation>) -> BTreeMap<u64, usize> {
    let mut counts = BTreeMap::new();
    for one in lent {
        *counts.entry(one.nonce.0).or_default() += 1;
    }
    counts
}

/// The nonces, in the order in which they were lent.
pub(crate) fn nonces_of(lent: &[Reservation]) -> Vec<u64> {
    lent.iter().map(|one| one.nonce.0).collect()
}

/// Runs the contract against books: `contract!(name => books)`. `contract!(name, while time stands still => books)`
/// is for books that take time to look after themselves.
macro_rules! contract {
    ($name:ident => $books:expr) => {
        contract! { @clauses $name goes_by $books }
    };
    ($name:ident, while time stands still => $books:expr) => {
        contract! { @clauses $name stands_still $books }
    };
    (@clauses $name:ident $time:ident $books:expr) => {
        contract! { @modes $name $time $books;
            lend: [
                a_new_lane_begins_where_the_chain_stands
                nonces_are_lent_one_after_the_other
                a_loan_is_fresh_whoever_had_the_nonce_before
                the_time_of_a_loan_is_as_long_as_asked
                the_smallest_free_nonce_is_lent_first
                a_thousand_at_once_are_unique_and_without_gap_after_recycling
                processes_never_lend_the_same_nonce
                lanes_know_nothing_of_each_other
                a_lane_belongs_to_one_scheme
                what_is_open_is_listed_in_order
            ]
            marks: [
                used_by_the_same_transaction_twice_is_fine
                submitted_twice_is_fine_and_the_last_word_counts
                given_back_twice_is_fine
                a_former_holder_is_refused
                a_stranger_is_refused
                what_was_never_lent_is_refused
                what_is_free_cannot_be_used
                what_is_used_cannot_be_given_back
                what_was_named_after_the_chain_was_asked_cannot_be_given_back
                a_nonce_with_two_named_transactions_is_not_given_back
                any_words_in_any_order_do_what_the_one_table_says
                marks_are_durable_when_they_are_answered
                any_process_hears_any_holder
                any_reason_is_taken
            ]
            chain: [
                a_submitted_nonce_is_given_back_only_if_the_chain_shows_nothing
                a_submitted_nonce_is_not_given_back_while_the_chain_is_silent
                a_free_nonce_that_somebody_used_is_not_lent
                a_free_nonce_that_somebody_used_is_found_out
                what_others_had_pending_and_lost_is_lent_after_all
            ]
            overdue: [
                an_overdue_nonce_is_free_if_the_chain_shows_nothing
                an_overdue_nonce_stays_lent_while_a_pool_has_something
                an_overdue_nonce_is_used_when_the_chain_shows_by_whom
                an_overdue_nonce_stays_lent_while_one_of_two_endpoints_shows_something
                an_overdue_nonce_stays_lent_while_the_chain_is_silent
                a_submitted_nonce_is_never_free_by_time
                a_loan_within_its_time_is_left_alone
                a_dead_process_keeps_nothing_for_ever
            ]
            forks: [
                a_receipt_closes_a_submitted_nonce_when_it_is_final
                another_transaction_closes_a_submitted_nonce_too
                a_transaction_that_did_not_consume_the_nonce_closes_nothing
                a_fork_reopens_what_the_chain_closed
                what_a_fork_reopened_is_not_given_back_when_another_had_closed_it
                what_was_said_to_be_used_is_watched_until_the_chain_closes_it
                what_is_closed_deep_enough_is_not_watched_any_more
            ]
            settle: [
                a_verdict_on_what_has_changed_counts_nothing
                a_verdict_twice_counts_once
                the_sweep_is_given_everything_in_pages
            ]
            closing: [
                a_closed_process_lends_nothing_and_leaves_nothing_behind
                what_was_marked_before_the_end_is_there_after_it
            ]
        }
    };
    (@modes $name:ident $time:ident $books:expr; $($clauses:tt)*) => {
        mod $name {
            use super::*;

            mod basic {
                use super::*;
                contract! { @tests $time $books, nonce::Mode::Basic; $($clauses)* }
            }
            mod worker_queue {
                use super::*;
                contract! { @tests $time $books, $crate::kit::queued(); $($clauses)* }
            }
        }
    };
    (@tests $time:ident $books:expr, $mode:expr; $($group:ident: [$($clause:ident)*])*) => {
        $($(contract! { @test $time $books, $mode, $group, $clause })*)*
    };
    (@test goes_by $books:expr, $mode:expr, $group:ident, $clause:ident) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $clause() {
            let world = $crate::suite::World::new($books, $mode);
            $crate::suite::$group::$clause(&world).await;
        }
    };
    (@test stands_still $books:expr, $mode:expr, $group:ident, $clause:ident) => {
        #[tokio::test(start_paused = true)]
        async fn $clause() {
            let world = $crate::suite::World::new($books, $mode);
            $crate::suite::$group::$clause(&world).await;
        }
    };
}
pub(crate) use contract;

/// A clause that is written and never run would be a promise that nobody checks.
#[test]
fn every_clause_is_in_the_suite() {
    let suite = include_str!("mod.rs");
    let files = [
        include_str!("chain.rs"),
        include_str!("closing.rs"),
        include_str!("forks.rs"),
        include_str!("lend.rs"),
        include_str!("marks.rs"),
        include_str!("overdue.rs"),
        include_str!("settle.rs"),
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
