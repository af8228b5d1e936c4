//! A chain over JSON-RPC, against nodes that misbehave and against the dev chain.

mod fake;
mod metrics;
mod on_devchain;
mod reads;
mod sends;
