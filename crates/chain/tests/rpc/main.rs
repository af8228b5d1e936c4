//! The JSON-RPC adapter against fake nodes that misbehave, and against the dev chain.
#![expect(
    clippy::unwrap_used,
    reason = "clippy does not count test helpers as tests"
)]

mod balances;
mod consumer;
mod endpoints;
mod estimates;
mod fake_node;
mod fee_quotes;
mod head_subscription;
mod metrics;
mod on_devchain;
mod rate_limits;
mod read_shares;
mod reads;
mod send_deadlines;
mod sends;
mod several_endpoints;
