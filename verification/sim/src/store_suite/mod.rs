//! The contract of the Store port, as one suite that every backend runs in one line:
//!
//! ```text
//! sim::store_suite!(sqlite => Embedded::fresh());
//! ```
//!
//! makes a module `sqlite` with one test per clause. The expression is evaluated anew for every
//! clause, inside an async function (so it may await), and gives a [`Backend`] with an empty store.
//! A clause talks to the port only; its name says what a backend must do.
//!
//! # What a backend provides
//!
//! An empty store per clause, and a clock for its leases. Where the clock can be turned by hand,
//! `advance` turns it and nothing else is needed. Where it cannot (a database server's), `advance`
//! moves what the clock is compared with instead: it shifts `expires_at` of every lease that was not
//! given back so far into the past. Such a clock also runs on by itself, so the backend says by
//! [`Backend::monotonic`] how long a clause may take at most; it must be below the suite's skew of five
//! seconds. No clause waits in real time, and none depends on how fast the store is.
//!
//! Clauses with "at once" in their name use several tasks of one runtime; a store with a pool needs
//! at least four connections for them. A store that puts events into its feed inside the gate does
//! nothing in `extend_feed`. A store that can tell histories apart also provides
//! [`Backend::forget_history`].

mod kit;

pub mod cluster;
pub mod events;
pub mod feed;
pub mod fence;
pub mod gate;
pub mod lease;
pub mod load;
pub mod queue;
pub mod regrant;
pub mod requeue;
pub mod settle;
pub mod txs;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use engine::ports::Store;

/// What a backend gives to the suite.
#[async_trait]
pub trait Backend: Send + Sync {
    /// The store under test: empty when the clause begins, the same one for the whole clause.
    fn store(&self) -> Arc<dyn Store>;

    /// Moves the store's clock on, or its leases back. The clock must not start near the epoch.
    async fn advance(&self, by: Duration);

    /// How far the store's clock may run on by itself while a clause runs.
    fn monotonic(&self) -> Duration {
        Duration::from_millis(1)
    }

    /// Makes the store's present history another one than that under which its lanes were settled,
    /// as the promotion of a standby does. `false` when the store has but one history.
    async fn forget_history(&self) -> bool {
        false
    }
}

/// Runs the contract against a backend: `store_suite!(name => backend)`.
#[macro_export]
macro_rules! store_suite {
    ($name:ident => $backend:expr) => {
        mod $name {
            use super::*;

            $crate::store_suite! { @tests $backend;
                lease: [
                    a_lane_nobody_held_is_granted_with_token_1
                    the_keeper_that_asks_again_gets_a_new_grant_under_its_token
                    the_keeper_keeps_its_token_until_the_skew_is_over
                    the_keeper_that_comes_too_late_gets_the_next_token
                    another_node_is_refused_until_the_skew_is_over
                    who_is_refused_is_told_how_long_the_lease_lasts
                    a_lease_of_a_node_that_was_seen_at_work_is_left_alone
                    only_the_life_that_was_seen_at_work_is_left_alone
                    a_running_lease_of_a_silent_node_is_taken
                    another_node_takes_over_when_the_skew_is_over
                    a_restarted_node_takes_its_lane_over_at_once
                    a_lane_given_back_is_taken_at_once_under_the_next_token
                    a_node_gives_back_only_what_is_its_own
                    a_renewal_extends_from_now
                    a_lease_that_ran_out_and_nobody_took_is_renewed
                    renewals_are_answered_one_by_one_in_order
                    many_lanes_are_asked_for_at_once_and_answered_in_order
                ]
                fence: [
                    an_old_token_writes_nothing_of_any_kind
                    an_old_grant_writes_nothing_of_any_kind
                    memory_that_knows_other_events_writes_nothing_of_any_kind
                    memory_that_knows_other_batches_writes_nothing_of_any_kind
                    every_batch_counts_also_one_without_events
                    a_lane_that_does_not_exist_is_fenced
                    of_two_batches_of_one_memory_only_one_lands
                    the_new_keeper_goes_on_where_the_old_one_stopped
                ]
                gate: [
                    what_was_applied_is_read_back_as_it_was
                    every_field_of_a_tx_survives
                    every_state_and_sub_state_survives
                    every_kind_of_attempt_survives_oldest_first
                    an_update_is_the_whole_new_image
                    the_first_yes_of_a_node_is_kept_with_its_attempt
                    the_cursor_and_the_paused_flag_are_the_batchs
                    a_nonce_of_another_tx_is_a_conflict_that_names_it
                    a_finished_tx_keeps_its_nonce_for_ever
                    attempts_stay_with_a_tx_that_gave_its_nonce_up
                    a_nonce_that_was_given_up_can_be_dealt_again
                    a_key_twice_in_one_batch_is_a_conflict_that_names_it
                    a_row_that_is_not_there_fails_the_batch
                    events_that_leave_a_hole_fail_the_batch
                    one_lanes_trouble_never_fails_its_neighbours
                    an_empty_commit_is_answered
                    many_commits_at_once_are_all_answered
                ]
                regrant: [
                    a_new_grant_tells_how_many_batches_landed
                    a_new_grant_kills_what_was_under_way
                    what_is_under_way_lands_before_the_new_grant_or_never
                    a_new_grant_may_be_asked_for_again
                    no_new_grant_for_a_lane_that_was_taken
                ]
                queue: [
                    a_queued_request_waits_without_nonce_or_event
                    queueing_again_changes_nothing
                    one_key_from_many_tasks_at_once_is_one_tx
                    of_a_gate_and_a_queue_with_one_key_one_wins
                    a_key_belongs_to_its_lane
                    queueing_what_the_keeper_accepted_gives_that_tx
                    accepting_what_was_queued_is_a_conflict_that_names_the_key
                    a_keeper_adopts_what_was_queued
                    what_waits_is_read_oldest_first_and_no_more_than_asked
                    a_tx_that_must_wait_again_is_found_in_the_queue
                    known_keys_are_found_in_the_order_asked
                ]
                load: [
                    a_new_lane_is_empty
                    only_the_present_right_reads_the_lane
                    what_is_out_comes_in_nonce_order_with_its_attempts
                    what_waits_for_its_signature_is_backlog
                    held_nonces_are_ranges_of_what_is_open
                    consumed_nonces_end_below_the_highest_finished_one
                    finals_are_loaded_as_deep_as_they_are_watched
                    what_a_fork_reopens_is_loaded_again
                    finished_txs_below_the_floor_change_nothing
                    a_lane_reads_nothing_of_its_neighbours
                ]
                requeue: [
                    a_requeued_tx_waits_unsigned_and_without_its_nonce
                    a_requeued_tx_is_dealt_and_signed_anew
                    a_requeued_tx_may_be_signed_by_the_batch_that_deals_it
                    a_tx_may_go_from_nonce_to_nonce_in_one_batch
                    a_tx_that_is_held_without_a_nonce_is_nobodys_work
                    a_tx_may_be_requeued_more_than_once
                    a_lane_of_requeued_txs_is_work_for_whoever_comes_next
                    two_attempts_at_one_nonce_are_loaded_oldest_first
                    an_attempt_alone_leaves_its_tx_as_it_is
                ]
                events: [
                    a_lanes_story_has_no_hole_and_says_who_wrote_it
                    every_kind_of_event_survives
                    the_feed_skips_nothing_while_lanes_interleave
                    the_end_of_the_feed_is_a_cursor_that_stays
                    every_event_carries_the_cursor_behind_it
                    filters_choose_by_chain_signer_and_kind
                    a_cursor_that_is_none_is_refused
                    a_tx_has_its_history
                    a_queued_tx_has_an_empty_history
                    events_that_count_headers_list_them
                ]
                feed: [
                    what_a_keeper_left_out_is_swept_into_the_feed
                    extending_the_feed_again_repeats_nothing
                    a_reader_skips_nothing_that_comes_into_the_feed_late
                    many_may_extend_the_feed_at_once
                    the_history_of_a_tx_does_not_wait_for_the_feed
                ]
                txs: [
                    a_tx_is_found_by_id_by_key_and_by_any_hash
                    what_nobody_stored_is_not_found
                    pages_lose_and_repeat_nothing_while_txs_come_in
                    lists_are_filtered_by_chain_signer_and_state
                    a_list_carries_attempts_and_lanes
                    confirmations_are_the_walk_from_the_counted_header_to_the_block
                    headers_of_one_chain_are_not_those_of_another
                    headers_are_remembered_once_whoever_brings_them
                ]
                settle: [
                    in_one_history_every_lane_is_settled
                    in_another_history_a_lane_is_settled_once_its_keeper_says_so
                    a_halted_lane_is_nobodys_until_an_operator_accepts_the_loss
                    a_lane_that_a_queued_request_made_is_not_settled_in_another_history
                ]
                cluster: [
                    members_are_what_nodes_last_said_of_themselves
                    beats_count_up_by_one
                    every_beat_tells_the_same_history
                    a_node_learns_that_its_next_life_has_begun
                    lanes_with_work_are_those_with_open_or_waiting_txs
                    a_lane_without_waiting_or_open_txs_is_no_work_any_more
                    a_live_keepers_lanes_are_nobody_elses_work
                    who_was_seen_at_work_or_silent_decides_whose_lanes_are_work
                    lanes_are_shown_as_far_as_they_are_known
                ]
            }
        }
    };
    (@tests $backend:expr; $($group:ident: [$($clause:ident)*])*) => {
        $($(
            #[tokio::test]
            async fn $clause() {
                let backend = $backend;
                $crate::store_suite::$group::$clause(&backend).await;
            }
        )*)*
    };
}

#[cfg(test)]
mod tests {
    /// A clause that is written and never run would be a promise that nobody checks.
    #[test]
    fn every_clause_is_in_the_suite() {
        let suite = include_str!("mod.rs");
        let files = [
            include_str!("lease.rs"),
            include_str!("fence.rs"),
            include_str!("gate.rs"),
            include_str!("regrant.rs"),
            include_str!("queue.rs"),
            include_str!("load.rs"),
            include_str!("requeue.rs"),
            include_str!("events.rs"),
            include_str!("feed.rs"),
            include_str!("settle.rs"),
            include_str!("txs.rs"),
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
            assert!(listed, "{clause} is not run: list it in store_suite!");
        }
    }
}
