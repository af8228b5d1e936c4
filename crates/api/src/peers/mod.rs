//! The protocol between the nodes of a cluster, both sides of it: plain JSON over HTTP.
//!
//! `POST /internal/v1/forward` hands requests to the keeper of their lanes, `POST /internal/v1/ring`
//! rings a bell. Nothing here decides anything: the lease does.
//!
//! Every call carries how many nodes it has passed (`Lanekeeper-Hop`, never more than one), how many
//! milliseconds its sender still waits (`Lanekeeper-Deadline`), and a seal by the cluster's secret
//! (`Lanekeeper-Cluster`).

mod client;
mod seal;
mod secret;
mod server;

pub use client::HttpPeers;
pub use secret::{BadSecret, ClusterSecret};
pub(crate) use server::{forward, mark, notify};

use std::time::Duration;

use axum::http::HeaderName;

/// Where requests are handed over.
pub(crate) const FORWARD_PATH: &str = "/internal/v1/forward";
/// Where it is said what became of lent nonces.
pub(crate) const MARK_PATH: &str = "/internal/v1/mark";
/// Where the bell is.
pub(crate) const RING_PATH: &str = "/internal/v1/ring";

const HOP: HeaderName = HeaderName::from_static("lanekeeper-hop");
const DEADLINE: HeaderName = HeaderName::from_static("lanekeeper-deadline");
const CLUSTER: HeaderName = HeaderName::from_static("lanekeeper-cluster");

/// A node that is handed a request never hands it on: two nodes that each take the other for the
/// keeper would hand it to and fro.
const HOPS_MAX: u32 = 1;
/// Requests in one call; more go in several.
const FORWARD_REQUESTS_MAX: usize = 500;
/// Bytes of one call; more go in several. The largest request has 128 KiB of call data, twice that in
/// hex, so that one alone always fits.
const BODY_BYTES_MAX: usize = 8 << 20;
/// Bytes of one answer: every request comes back with its signed bytes and some words.
const ANSWER_BYTES_MAX: usize = 8 * BODY_BYTES_MAX;
/// Lanes in one ring; more go in several.
const RING_LANES_MAX: usize = 1_000;
/// The longest that a handed-over request is worked on, whatever its sender says.
const PATIENCE_MAX: Duration = Duration::from_secs(120);

const _: () = assert!(
    BODY_BYTES_MAX > 2 * 2 * 128 * 1024,
    "one request alone fits into a call"
);
