//! The contract of the Store port: one suite that every backend runs in one line.
//!
//! ```text
//! store_contract::contract_tests!(sqlite => Embedded::fresh());
//! ```
//!
//! makes a module `sqlite` with one test per clause. The expression is evaluated anew for every clause,
//! inside an async function (so it may await), and returns a [`Backend`] with an empty store. A clause
//! uses the port only; its name states what a backend must do.
//!
//! # What a backend provides
//!
//! An empty store per clause, and a clock for its leases. Where the clock can be set by the test,
//! `advance` moves it and nothing else is needed. Where it cannot (a database server's clock), `advance`
//! moves the values that the clock is compared with: it shifts `expires_at` of every lease that is not
//! released into the past. Such a clock also runs on by itself, so the backend states in
//! [`Backend::clock_tolerance`] how long a clause may take at most; that must be below the suite's skew of
//! five seconds. No clause waits in real time, and none depends on how fast the store is.
//!
//! Clauses with "concurrent" or "racing" in their name use several tasks of one runtime; a store with a
//! pool needs at least four connections for them. A store that puts events into its feed inside the gate
//! does nothing in `extend_feed`. [`Backend::change_history`] does what a promotion or a
//! declared restore does.

mod fixture;

pub mod cluster;
pub mod events;
pub mod feed;
pub mod fence;
pub mod gate;
pub mod lane_row;
pub mod lease;
pub mod lists;
pub mod load;
pub mod queue;
pub mod reconcile;
pub mod regrant;
pub mod requeue;
pub mod txs;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use engine::ports::Store;

/// A store under test, and control over its clock and history.
#[async_trait]
pub trait Backend: Send + Sync {
    /// The store under test: empty when the clause begins, the same one for the whole clause.
    fn store(&self) -> Arc<dyn Store>;

    /// Moves the store's clock forward, or its leases back. The clock must not start near the epoch.
    async fn advance(&self, by: Duration);

    /// How far the store's clock may run on by itself while a clause runs.
    fn clock_tolerance(&self) -> Duration {
        Duration::from_millis(1)
    }

    /// Puts the store on another history than the one under which its lanes were reconciled, as the promotion of a
    /// standby or a declared restore does.
    async fn change_history(&self);
}

/// Runs the contract against a backend: `contract_tests!(name => backend)`.
#[macro_export]
macro_rules! contract_tests {
    ($name:ident => $backend:expr) => {
        mod $name {
            use super::*;

            $crate::contract_tests! { @tests $backend;
                lease: [
                    new_lane_is_granted_with_token_1
                    reacquiring_keeper_gets_new_grant_under_same_token
                    expired_keeper_keeps_its_token_within_the_skew
                    keeper_that_returns_after_the_skew_gets_the_next_token
                    other_node_is_refused_until_the_skew_has_passed
                    refusal_returns_the_remaining_lease_time
                    lease_of_a_node_seen_alive_is_not_taken_over
                    only_the_incarnation_seen_alive_is_protected
                    unexpired_lease_of_a_silent_node_is_taken_over
                    other_node_takes_over_after_the_skew
                    restarted_node_takes_over_its_lane_immediately
                    released_lane_is_granted_at_once_under_the_next_token
                    node_releases_only_its_own_lanes
                    release_of_an_earlier_grant_is_ignored
                    renewal_extends_from_the_present
                    expired_lease_without_takeover_is_renewed
                    renewals_are_answered_in_request_order
                    acquisitions_are_answered_in_request_order
                ]
                fence: [
                    stale_token_writes_nothing
                    stale_grant_writes_nothing
                    wrong_event_seq_writes_nothing
                    wrong_batch_seq_writes_nothing
                    batch_without_events_advances_batch_seq
                    batch_of_unknown_lane_is_fenced
                    only_one_of_two_concurrent_batches_of_a_keeper_is_applied
                    new_keeper_continues_where_the_previous_one_stopped
                ]
                gate: [
                    applied_writes_are_read_back_unchanged
                    every_tx_field_round_trips
                    every_state_and_sub_state_round_trips
                    attempts_of_every_kind_are_read_oldest_first
                    update_replaces_the_whole_row
                    first_acceptance_by_an_endpoint_is_kept_with_its_attempt
                    batch_sets_nonce_cursor_and_paused_flag
                    nonce_of_another_tx_is_a_conflict_that_names_it
                    finished_tx_keeps_its_nonce
                    attempts_stay_with_a_tx_that_released_its_nonce
                    released_nonce_can_be_allocated_again
                    duplicate_idempotency_key_in_one_batch_is_a_conflict
                    update_of_missing_row_fails_the_batch
                    gap_in_event_numbers_fails_the_batch
                    failing_batch_does_not_fail_other_lanes
                    empty_commit_returns_no_outcomes
                    concurrent_commits_all_return_outcomes
                ]
                regrant: [
                    regrant_returns_the_applied_batch_count
                    regrant_fences_batches_in_progress
                    racing_batch_is_applied_before_the_regrant_or_never
                    regrant_is_idempotent
                    regrant_of_a_lost_lane_is_fenced
                ]
                queue: [
                    queued_request_has_no_nonce_and_no_event
                    queueing_the_same_request_twice_changes_nothing
                    concurrent_requests_with_one_key_make_one_tx
                    gate_and_queue_racing_with_one_key_make_one_tx
                    idempotency_key_is_scoped_to_its_lane
                    queueing_an_accepted_request_returns_its_tx
                    accepting_a_queued_request_is_a_conflict_with_its_key
                    keeper_adopts_queued_txs
                    queue_is_read_oldest_first_up_to_the_limit
                    requeued_tx_is_read_from_the_queue
                    find_requests_answers_in_request_order
                ]
                load: [
                    new_lane_is_empty
                    transactions_that_no_tx_recorded_are_loaded_by_request_id
                    cost_of_open_txs_is_that_of_the_last_batch
                    only_the_current_grant_loads_the_lane
                    in_flight_txs_are_loaded_in_nonce_order_with_attempts
                    unsigned_allocated_txs_are_the_backlog
                    held_nonces_are_ranges_of_open_txs
                    consumed_below_follows_the_highest_finished_nonce
                    finals_are_loaded_within_the_watched_depth
                    reorged_tx_is_loaded_again
                    finished_txs_below_the_floor_do_not_affect_the_image
                    lane_loads_no_rows_of_other_lanes
                ]
                lane_row: [
                    head_is_that_of_the_last_batch
                    reported_headers_are_loaded_with_the_lane
                    finals_of_lanes_without_live_keeper_are_listed
                ]
                requeue: [
                    requeued_tx_is_unsigned_and_has_no_nonce
                    requeued_tx_is_allocated_and_signed_again
                    requeued_tx_may_be_allocated_and_signed_in_one_batch
                    tx_may_change_its_nonce_in_one_batch
                    stuck_tx_without_nonce_is_not_work
                    tx_may_be_requeued_repeatedly
                    lane_with_only_requeued_txs_is_offered_to_other_nodes
                    attempts_at_one_nonce_are_loaded_oldest_first
                    attempt_without_tx_update_leaves_the_tx_unchanged
                ]
                events: [
                    event_log_is_gapless_and_names_its_writers
                    every_event_kind_round_trips
                    feed_skips_no_event_of_interleaved_lanes
                    cursor_at_end_of_feed_stays_valid
                    cursor_of_an_event_continues_after_it
                    event_filter_selects_by_chain_signer_and_kind
                    malformed_cursor_is_refused
                    tx_events_returns_the_events_of_one_tx
                    queued_tx_has_no_events
                    confirmation_events_list_their_headers
                ]
                feed: [
                    events_not_yet_in_feed_are_added_by_a_sweep
                    extending_the_feed_twice_repeats_no_event
                    reader_sees_events_that_enter_the_feed_late
                    concurrent_feed_extensions_are_consistent
                    tx_events_do_not_wait_for_the_feed
                    changed_txs_are_those_of_events_after_the_cursor
                ]
                txs: [
                    tx_is_found_by_id_by_key_and_by_any_hash
                    unknown_tx_is_not_found
                    pages_skip_and_repeat_no_tx_during_inserts
                    tx_list_is_filtered_by_chain_signer_and_state
                    tx_list_includes_attempts_and_lanes
                    confirmations_are_the_headers_from_block_to_counted_header
                    headers_belong_to_one_chain
                    concurrent_put_headers_stores_each_header_once
                ]
                lists: [
                    signer_list_goes_by_lane_then_waiting_txs_then_nonce
                    open_state_list_has_every_open_tx_of_every_lane
                    stuck_tx_without_nonce_is_listed
                    lane_list_misses_no_tx_while_others_are_added_and_adopted
                    cursor_of_another_list_is_refused
                ]
                reconcile: [
                    without_failover_every_lane_is_reconciled
                    accepted_loss_does_not_cover_the_next_history
                    after_failover_a_lane_is_unreconciled_until_marked
                    halted_lane_is_not_granted_until_the_loss_is_accepted
                    lane_made_by_queueing_is_unreconciled_after_failover
                    lane_that_is_first_used_after_failover_is_unreconciled
                    mark_under_a_history_that_changed_again_writes_nothing
                    suspected_loss_makes_every_lane_unreconciled_once
                    lane_with_fewer_commits_than_seen_is_halted_and_its_keeper_fenced
                    lane_that_is_missing_is_halted_where_commits_were_seen
                ]
                cluster: [
                    members_show_the_last_heartbeat_of_each_node
                    heartbeats_count_up_by_one
                    every_heartbeat_returns_the_present_history
                    heartbeat_of_replaced_incarnation_is_refused
                    lanes_with_work_have_open_or_queued_txs
                    lane_without_open_or_queued_txs_has_no_work
                    lanes_of_a_live_keeper_are_not_offered_to_other_nodes
                    observed_heartbeats_decide_which_lanes_are_offered
                    lanes_returns_only_known_lanes
                ]
            }
        }
    };
    (@tests $backend:expr; $($group:ident: [$($clause:ident)*])*) => {
        $($(
            #[tokio::test]
            async fn $clause() {
                let backend = $backend;
                $crate::$group::$clause(&backend).await;
            }
        )*)*
    };
}

#[cfg(test)]
mod tests {
    /// A clause that is missing in the macro would never run.
    #[test]
    fn every_clause_is_listed_in_the_macro() {
        let suite = include_str!("lib.rs");
        let files = [
            include_str!("lease.rs"),
            include_str!("fence.rs"),
            include_str!("gate.rs"),
            include_str!("regrant.rs"),
            include_str!("queue.rs"),
            include_str!("load.rs"),
            include_str!("lane_row.rs"),
            include_str!("requeue.rs"),
            include_str!("events.rs"),
            include_str!("feed.rs"),
            include_str!("reconcile.rs"),
            include_str!("txs.rs"),
            include_str!("lists.rs"),
            include_str!("cluster.rs"),
        ];
        for line in files.iter().flat_map(|file| file.lines()) {
            let Some((clause, _)) = line
                .strip_prefix("pub async fn ")
                .and_then(|l| l.split_once('('))
            else {
                continue;
            };
            let listed = suite.lines().any(|line| line.trim() == clause);
            assert!(listed, "{clause} is not run: list it in contract_tests!");
        }
    }
}
