//! All limits on requests to an endpoint and on its answers.

use std::time::Duration;

/// Calls in one JSON-RPC batch. Public gateways often allow 100, geth allows 1000.
pub(super) const BATCH_MAX: usize = 100;
/// Bytes of one batch, without its last call: far below geth's request limit of 5 MiB.
pub(super) const BATCH_BYTES_MAX: usize = 1 << 20;
/// Concurrent single calls of one read if an endpoint accepts no batches.
pub(super) const CONCURRENT_SINGLE_CALLS_MAX: usize = 8;
/// Concurrent sends of one lane in single calls.
pub(super) const CONCURRENT_SINGLE_SENDS_MAX: usize = 32;

/// The longest accepted answer: all receipts of a large block with their logs.
pub(super) const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// The longest error text or revert reason that is kept.
pub(super) const TEXT_CHARS_MAX: usize = 400;

/// Concurrent requests to one endpoint, by kind: many estimates must not delay sends.
pub(super) const CONCURRENT_SENDS_MAX: usize = 32;
pub(super) const CONCURRENT_DRY_RUNS_MAX: usize = 16;
pub(super) const CONCURRENT_READS_MAX: usize = 32;

/// Idle connections, and their age: shorter than the idle timeout of load balancers, so that they do not close a
/// connection during a request.
pub(super) const IDLE_CONNECTIONS_MAX: usize = 32;
pub(super) const IDLE_CONNECTION_AGE_MAX: Duration = Duration::from_secs(30);
/// The connect timeout; never longer than the request timeout.
pub(super) const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(5);

/// How long a read waits for an endpoint while another one is left that is not failing.
pub(super) const READ_SHARE: Duration = Duration::from_secs(2);
/// A read without an answer is sent again after this time.
pub(super) const REPEAT_AFTER: Duration = Duration::from_secs(3);
/// How often a balance is read at an endpoint whose newest block changes meanwhile.
pub(super) const BALANCE_TRIES_MAX: u32 = 3;

/// How long an endpoint ranks last after a failure.
pub(super) const COOL_DOWN: Duration = Duration::from_secs(5);
/// The backoff of a rate-limiting endpoint: if it states none, and at most.
pub(super) const BACKOFF_DEFAULT: Duration = Duration::from_secs(1);
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// The burst that a limit on requests per second allows.
pub(super) const RATE_BURST: Duration = Duration::from_millis(250);
/// How much longer the other endpoints of a wave are waited for when one of them has everything.
pub(super) const WAVE_GRACE: Duration = Duration::from_millis(250);
/// No send starts with less time left: its answer could hardly arrive.
pub(super) const SEND_TIME_MIN: Duration = Duration::from_millis(250);
/// A send without an answer counts as hung if it had this time: somewhat less than the smallest share of a wave, as
/// admission takes a part of that.
pub(super) const HUNG_SEND_MIN: Duration = Duration::from_millis(750);
/// How long an endpoint on which a send hung gets the sends of that account last.
pub(super) const HUNG_SEND_AGE_MAX: Duration = Duration::from_secs(30);
/// The sends of so many accounts must hang before the endpoint gets those of all accounts last.
pub(super) const HUNG_ACCOUNTS_MIN: usize = 2;
/// The most accounts that are remembered for it.
pub(super) const HUNG_SENDS_MAX: usize = 1_024;

/// How often the chain id of an endpoint of another chain is checked again.
pub(super) const WRONG_CHAIN_RECHECK: Duration = Duration::from_secs(30);

/// How often the head of an endpoint that is not in use is polled.
pub(super) const HEAD_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// How long a head is used to measure the lag of other endpoints.
pub(super) const HEAD_AGE_MAX: Duration = Duration::from_secs(60);
/// Heads read within this time of each other are comparable.
pub(super) const HEAD_COMPARE_WINDOW: Duration = Duration::from_millis(500);
/// An endpoint with a larger lag ranks as behind.
pub(super) const LAG_BLOCKS_MAX: u64 = 2;
/// An endpoint ranks as slow if it exceeds the fastest latency by this factor and by this time.
pub(super) const SLOW_FACTOR: u32 = 4;
pub(super) const SLOW_BY: Duration = Duration::from_millis(250);

/// Blocks whose reports are kept: more than a fork choice may go back within a poll.
pub(super) const FEE_REPORTS_MAX: usize = 64;
/// How long a quote waits for what it can do without: a second tip, base fees of the past, the gas of a no-op.
pub(super) const FEE_EXTRA_PATIENCE: Duration = Duration::from_secs(2);
/// Blocks that a tip is derived from.
pub(super) const FEE_HISTORY_BLOCKS: u64 = 10;
/// The tip is queried again after this many blocks, or after this time.
pub(super) const TIP_BLOCKS_MAX: u64 = 10;
pub(super) const TIP_AGE_MAX: Duration = Duration::from_secs(15);

/// How far below the given height the search for a nonce's consumer goes.
pub(super) const CONSUMER_BLOCKS_MAX: u64 = 256;
/// Complete blocks per request if a node has no old states.
pub(super) const FULL_BLOCKS_BATCH_MAX: u64 = 16;

/// Sends of at least this many envelopes measure whether batches or single calls are faster.
pub(super) const BURST_MIN: usize = 32;
/// How many of these sends pass before the slower mode is tried again.
pub(super) const BURSTS_BETWEEN_PROBES: u32 = 64;

/// The longest message of a subscription.
pub(super) const ANNOUNCEMENT_BYTES_MAX: usize = 1 << 20;
/// A subscription without a message for this long is pinged; after the same time again it counts as broken.
pub(super) const SUBSCRIPTION_IDLE_MAX: Duration = Duration::from_secs(30);
/// The wait between two attempts to subscribe: at first, and at most.
pub(super) const RECONNECT_BACKOFF: Duration = Duration::from_millis(500);
pub(super) const RECONNECT_BACKOFF_MAX: Duration = Duration::from_secs(30);
