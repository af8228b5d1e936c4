//! Every metric, and what reaches it.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReachedBy {
    /// `one_node_exports_its_metrics`.
    OneNode,
    /// `two_nodes_export_the_metrics_of_a_cluster`.
    TwoNodes,
    /// A test that asserts the name, in this file.
    Test(&'static str),
}

pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) labels: &'static [&'static str],
    pub(super) reached_by: ReachedBy,
}

const fn metric(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    reached_by: ReachedBy,
) -> Metric {
    Metric {
        name,
        kind,
        labels,
        reached_by,
    }
}

const ENGINE: ReachedBy = ReachedBy::Test("crates/engine/tests/node/metrics.rs");
const FEES: ReachedBy = ReachedBy::Test("crates/chain/src/rpc/fee/tests.rs");
const EVENTS: ReachedBy = ReachedBy::Test("crates/engine/src/shard/event_counts.rs");
const HISTORY: ReachedBy = ReachedBy::Test("crates/engine/src/history.rs");
const WITNESS: ReachedBy = ReachedBy::Test("crates/lanekeeper/src/witness/tests.rs");
const COMPONENT: ReachedBy = ReachedBy::Test("crates/nonce/tests/component/metrics.rs");
const CONNECTIONS: ReachedBy = ReachedBy::Test("crates/api/src/connection_limits.rs");
const LOCK: ReachedBy = ReachedBy::Test("crates/nonce/tests/schemes/lock.rs");
const GAPS: ReachedBy = ReachedBy::Test("crates/nonce/tests/schemes/gaps.rs");
const BLOCKS: ReachedBy = ReachedBy::Test("crates/nonce/tests/schemes/block_recovery.rs");

#[rustfmt::skip]
pub(super) const METRICS: &[Metric] = {
    use Kind::{Counter, Gauge, Histogram};
    use ReachedBy::{OneNode, TwoNodes};
    &[
        metric("lanekeeper_auth_refused_total", Counter, &["reason"], OneNode),
        metric("lanekeeper_confirmations_new_fork_total", Counter, &[], OneNode),
        metric("lanekeeper_fee_outliers_total", Counter, &["kind"], FEES),
        metric("lanekeeper_finality_total", Counter, &["result"], OneNode),
        metric("lanekeeper_forks_total", Counter, &[], OneNode),
        metric("lanekeeper_forward_rejected_total", Counter, &[], ENGINE),
        metric("lanekeeper_forward_total", Counter, &["to"], TwoNodes),
        metric("lanekeeper_gate_batch_size", Histogram, &[], OneNode),
        metric("lanekeeper_gate_commit_seconds", Histogram, &[], OneNode),
        metric("lanekeeper_gate_commits_total", Counter, &["kind"], OneNode),
        metric("lanekeeper_gate_txs_total", Counter, &[], OneNode),
        metric("lanekeeper_http_connections_refused_total", Counter, &[], CONNECTIONS),
        metric("lanekeeper_http_request_seconds", Histogram, &["route"], OneNode),
        metric("lanekeeper_http_requests_total", Counter, &["route", "method", "status"], OneNode),
        metric("lanekeeper_inbox_depth", Gauge, &[], OneNode),
        metric("lanekeeper_inbox_rejected_total", Counter, &[], OneNode),
        metric("lanekeeper_incidents_total", Counter, &["kind"], OneNode),
        metric("lanekeeper_lane_foreign_total", Counter, &[], EVENTS),
        metric("lanekeeper_lanes_given_back_total", Counter, &[], ENGINE),
        metric("lanekeeper_lanes_kept", Gauge, &[], OneNode),
        metric("lanekeeper_lease_acquire_total", Counter, &["result"], OneNode),
        metric("lanekeeper_lease_fenced_total", Counter, &["op"], TwoNodes),
        metric("lanekeeper_lease_locked_total", Counter, &[], ENGINE),
        metric("lanekeeper_lease_renew_failed_total", Counter, &[], ENGINE),
        metric("lanekeeper_lease_token_backwards_total", Counter, &[], HISTORY),
        metric("lanekeeper_lease_token_changes_total", Counter, &[], TwoNodes),
        metric("lanekeeper_nonce_allocate_total", Counter, &["result"], OneNode),
        metric("lanekeeper_nonce_generations_total", Counter, &[], BLOCKS),
        metric("lanekeeper_nonce_holes_closed_total", Counter, &[], GAPS),
        metric("lanekeeper_nonce_keepers_ended_total", Counter, &[], BLOCKS),
        metric("lanekeeper_nonce_late_loans_total", Counter, &[], BLOCKS),
        metric("lanekeeper_nonce_lock_skipped_total", Counter, &[], LOCK),
        metric("lanekeeper_nonce_mark_total", Counter, &["mark", "result"], OneNode),
        metric("lanekeeper_nonce_queue_depth", Gauge, &["worker"], OneNode),
        metric("lanekeeper_nonce_queue_rejected_total", Counter, &[], OneNode),
        metric("lanekeeper_nonce_redis_away", Gauge, &[], LOCK),
        metric("lanekeeper_nonce_redis_failures_total", Counter, &[], LOCK),
        metric("lanekeeper_nonce_settled_total", Counter, &["verdict"], COMPONENT),
        metric("lanekeeper_nonce_turns_passed_total", Counter, &[], COMPONENT),
        metric("lanekeeper_peer_call_seconds", Histogram, &["path"], TwoNodes),
        metric("lanekeeper_peer_calls_total", Counter, &["path", "result"], TwoNodes),
        metric("lanekeeper_peer_refused_total", Counter, &["reason"], OneNode),
        metric("lanekeeper_receipt_check_total", Counter, &["result"], OneNode),
        metric("lanekeeper_rpc_calls_total", Counter, &["chain", "endpoint", "method", "result"], OneNode),
        metric("lanekeeper_rpc_head_lag_blocks", Gauge, &["chain", "endpoint"], OneNode),
        metric("lanekeeper_store_commit_seconds", Histogram, &[], OneNode),
        metric("lanekeeper_store_history_changes_total", Counter, &[], ENGINE),
        metric("lanekeeper_store_reads_total", Counter, &[], OneNode),
        metric("lanekeeper_tx_create_total", Counter, &["result"], OneNode),
        metric("lanekeeper_tx_queued_total", Counter, &[], TwoNodes),
        metric("lanekeeper_tx_replaced_total", Counter, &[], OneNode),
        metric("lanekeeper_tx_resubmitted_total", Counter, &[], TwoNodes),
        metric("lanekeeper_tx_stuck_total", Counter, &[], OneNode),
        metric("lanekeeper_tx_submit_total", Counter, &["result"], OneNode),
        metric("lanekeeper_witness_failures_total", Counter, &["op"], WITNESS),
        metric("lanekeeper_witness_losses_total", Counter, &[], ENGINE),
    ]
};

pub(super) fn find_metric(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}
