//! A chain over JSON-RPC, against nodes that misbehave and against the dev chain.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are outside of what clippy takes for tests"
)]

mod announce;
mod consumer;
mod endpoints;
mod fake;
mod metrics;
mod on_devchain;
mod quotes;
mod reads;
mod sends;
mod several;
mod throttle;
