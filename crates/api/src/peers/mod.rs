//! The protocol between the nodes of a cluster, client and server: plain JSON over HTTP.
//!
//! - `POST /internal/v1/forward` forwards client requests to the keeper of their lanes.
//! - `POST /internal/v1/mark` forwards a mark of a reserved nonce to the keeper of its lane.
//! - `POST /internal/v1/notify` notifies a node that lanes may have new work: a wakeup without data.
//!
//! A call never decides who owns a lane: the lease does.
//!
//! Every call carries the number of nodes that it has passed (`Lanekeeper-Hop`, at most one), the milliseconds
//! that its sender still waits (`Lanekeeper-Deadline`), and a MAC made with the cluster's secret
//! (`Lanekeeper-Cluster`).

mod client;
mod mac;
mod secret;
mod server;
mod wire;

pub use client::HttpPeers;
pub use secret::{BadSecret, ClusterSecret};
pub(crate) use server::{forward, mark, notify};

use std::time::Duration;

use axum::http::HeaderName;

pub(crate) const FORWARD_PATH: &str = "/internal/v1/forward";
pub(crate) const MARK_PATH: &str = "/internal/v1/mark";
pub(crate) const NOTIFY_PATH: &str = "/internal/v1/notify";

const HOP: HeaderName = HeaderName::from_static("lanekeeper-hop");
const DEADLINE: HeaderName = HeaderName::from_static("lanekeeper-deadline");
const CLUSTER: HeaderName = HeaderName::from_static("lanekeeper-cluster");

/// A forwarded request is never forwarded again: two nodes that each consider the other one the keeper would
/// send it back and forth.
const HOPS_MAX: u32 = 1;
/// Requests in one call; more are split into several calls.
const FORWARD_REQUESTS_MAX: usize = 500;
/// Bytes of one call; more are split into several calls. The largest request has 128 KiB of call data, twice
/// that in hex, so a single request always fits.
const BODY_BYTES_MAX: usize = 8 << 20;
/// Bytes of one response: each request is returned with its signed bytes and further fields.
const ANSWER_BYTES_MAX: usize = 8 * BODY_BYTES_MAX;
/// Lanes in one notification; more are split into several calls.
const NOTIFY_LANES_MAX: usize = 1_000;
/// The longest processing time of a forwarded request, whatever deadline its sender sets.
const DEADLINE_MAX: Duration = Duration::from_secs(120);

const _: () = assert!(
    BODY_BYTES_MAX > 2 * 2 * 128 * 1024,
    "one request alone fits into a call"
);
