//! Every bound on what is asked of an endpoint and on what is taken from it, by name.

use std::time::Duration;

/// Calls in one JSON-RPC batch. Public gateways often allow 100, geth allows 1000.
pub(super) const BATCH_MAX: usize = 100;
/// Bytes of one batch, before its last call: far below geth's 5 MiB for a request.
pub(super) const BATCH_BYTES_MAX: usize = 1 << 20;
/// Single calls under way at once where an endpoint takes no batches.
pub(super) const SINGLE_CALLS_AT_ONCE: usize = 8;
/// Envelopes of one lane under way at once where they are sent singly.
pub(super) const SINGLE_SENDS_AT_ONCE: usize = 32;

/// The longest answer that is read: all receipts of a large block with their logs.
pub(super) const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// The longest text of a node, and the longest revert reason, that is passed on.
pub(super) const TEXT_CHARS_MAX: usize = 400;

/// Requests under way at one endpoint, for each kind: a flood of estimates must not delay sends.
pub(super) const SENDS_AT_ONCE: usize = 32;
pub(super) const TRIALS_AT_ONCE: usize = 16;
pub(super) const READS_AT_ONCE: usize = 32;

/// Connections that wait for the next request, and for how long: shorter than what load
/// balancers allow, so that they do not close one under a request.
pub(super) const IDLE_CONNECTIONS_MAX: usize = 32;
pub(super) const IDLE_CONNECTION_AGE_MAX: Duration = Duration::from_secs(30);
/// Longest wait for a connection; never longer than the request's own deadline.
pub(super) const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(5);

/// For so long an endpoint that did not answer comes last.
pub(super) const COOL_DOWN: Duration = Duration::from_secs(5);
/// How long an endpoint that throttles is left alone: where it does not say, and at most.
pub(super) const REST: Duration = Duration::from_secs(1);
pub(super) const REST_MAX: Duration = Duration::from_secs(30);
/// What may be caught up at once under a limit on requests per second.
pub(super) const RATE_BURST: Duration = Duration::from_millis(250);
/// After so long an endpoint of another chain is asked again which chain it serves.
pub(super) const WRONG_CHAIN_RECHECK: Duration = Duration::from_secs(30);

/// How often an endpoint that is not in use is asked for its head.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(10);
/// For so long a head that was seen says how far the others should be.
pub(super) const HEAD_COUNTS_FOR: Duration = Duration::from_secs(60);
/// Heads that were seen within this time of each other can be compared.
pub(super) const HEADS_TOGETHER: Duration = Duration::from_millis(500);
/// An endpoint that is more blocks behind than this comes after those that are not.
pub(super) const LAG_BLOCKS_MAX: u64 = 2;
/// An endpoint comes after faster ones when it takes so many times as long, and so much longer.
pub(super) const SLOW_FACTOR: u32 = 4;
pub(super) const SLOW_BY: Duration = Duration::from_millis(250);

/// Blocks that a fee quote looks back.
pub(super) const FEE_HISTORY_BLOCKS: u64 = 10;
/// The usual tip is asked for again after so many blocks, or after so long.
pub(super) const TIP_BLOCKS_MAX: u64 = 10;
pub(super) const TIP_AGE_MAX: Duration = Duration::from_secs(15);

/// How far below the given height the consumer of a nonce is looked for.
pub(super) const CONSUMER_BLOCKS_MAX: u64 = 256;
/// Whole blocks that are asked for at once where a node has no old states.
pub(super) const WHOLE_BLOCKS_AT_ONCE: u64 = 16;

/// Sends of at least so many envelopes show whether batches or single calls are faster.
pub(super) const BURST_MIN: usize = 32;
/// Every so many of them the slower way is tried again.
pub(super) const BURSTS_BETWEEN_TRIALS: u32 = 64;

/// The longest message of a subscription.
pub(super) const ANNOUNCEMENT_BYTES_MAX: usize = 1 << 20;
/// After so long without a word the other side is asked for one, and after as long again it is
/// taken for gone.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Between two tries to subscribe: at first, and at most.
pub(super) const RECONNECT_AFTER: Duration = Duration::from_millis(500);
pub(super) const RECONNECT_AFTER_MAX: Duration = Duration::from_secs(30);
