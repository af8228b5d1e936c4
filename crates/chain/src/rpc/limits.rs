//! Every bound on what is asked of an endpoint and on what is taken from it, by name.

use std::time::Duration;

/// Calls in one JSON-RPC batch. Public gateways often allow 100, geth allows 1000.
pub(super) const BATCH_MAX: usize = 100;
/// Bytes of one batch, before its last call: far below geth's 5 MiB for a request.
pub(super) const BATCH_BYTES_MAX: usize = 1 << 20;
/// Single calls under way at once where an endpoint takes no batches.
pub(super) const SINGLE_CALLS_AT_ONCE: usize = 8;

/// The longest answer that is read: all receipts of a large block with their logs.
pub(super) const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// The longest text of a node, and the longest revert reason, that is passed on.
pub(super) const TEXT_CHARS_MAX: usize = 400;

/// Requests under way at one endpoint, for each kind: a flood of estimates must not delay sends.
pub(super) const SENDS_AT_ONCE: usize = 16;
pub(super) const TRIALS_AT_ONCE: usize = 16;
pub(super) const READS_AT_ONCE: usize = 32;

/// Connections that wait for the next request, and for how long: shorter than what load
/// balancers allow, so that they do not close one under a request.
pub(super) const IDLE_CONNECTIONS_MAX: usize = 16;
pub(super) const IDLE_CONNECTION_AGE_MAX: Duration = Duration::from_secs(30);
/// Longest wait for a connection; never longer than the request's own deadline.
pub(super) const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(5);

/// For so long an endpoint that did not answer comes last.
pub(super) const COOL_DOWN: Duration = Duration::from_secs(5);
/// After so long an endpoint of another chain is asked again which chain it serves.
pub(super) const WRONG_CHAIN_RECHECK: Duration = Duration::from_secs(30);

/// Blocks that a fee quote looks back.
pub(super) const FEE_HISTORY_BLOCKS: u64 = 10;
