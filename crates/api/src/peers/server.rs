//! The server: processes calls from the nodes of this cluster, and refuses all others.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::access::{Auth, refuse_foreign_page};
use crate::parse::{self, FieldPath, RuleViolation, header_text};
use crate::peers::mac::BodyHash;
use crate::peers::wire::{
    AcceptedWire, Convert as _, LaneKeyWire, MarkErrorWire, MarkRequestWire, NewTxWire,
    RefusalWire, ReservationWire,
};
use crate::peers::{
    BODY_BYTES_MAX, CLUSTER, DEADLINE, DEADLINE_MAX, FORWARD_PATH, FORWARD_REQUESTS_MAX, HOP,
    HOPS_MAX, MARK_PATH, NOTIFY_LANES_MAX, NOTIFY_PATH,
};
use crate::problem::{Problem, ProblemKind};
use crate::response;
use crate::router::Api;

/// `POST /internal/v1/forward`: requests for lanes that this node keeps. Each has its own outcome, in the order
/// given.
pub(crate) async fn forward(
    State(api): State<Arc<Api>>,
    request: Request,
) -> Result<Response, Problem> {
    let timeout_ms = header_number(request.headers(), &DEADLINE, "Lanekeeper-Deadline")?;
    let deadline = Instant::now() + Duration::from_millis(timeout_ms).min(DEADLINE_MAX);
    let requests: Vec<NewTxWire> = api
        .read_from_peer(request, FORWARD_PATH, FORWARD_REQUESTS_MAX)
        .await?;
    if Instant::now() >= deadline {
        // The sender no longer waits, so the requests are not processed.
        return Err(Problem::new(
            ProblemKind::OutcomeUnknown,
            "the deadline was over before the requests were read",
        ));
    }
    let patience = deadline.duration_since(Instant::now());
    let outcomes = api
        .node
        .create_forwarded(requests.convert(), patience)
        .await;
    let outcomes: Vec<Result<AcceptedWire, RefusalWire>> = outcomes.convert();
    Ok(response::ok(&outcomes))
}

/// `POST /internal/v1/mark`: a mark of a reserved nonce in a lane that this node keeps.
pub(crate) async fn mark(
    State(api): State<Arc<Api>>,
    request: Request,
) -> Result<Response, Problem> {
    let mut marks: Vec<MarkRequestWire> = api.read_from_peer(request, MARK_PATH, 1).await?;
    let Some(mark) = marks.pop() else {
        return Err(RuleViolation::new("must hold one mark").in_body(FieldPath::new(&[])));
    };
    let result = api.node.mark_forwarded(&mark.convert()).await;
    let result: Result<ReservationWire, MarkErrorWire> = result.convert();
    Ok(response::ok(&result))
}

/// `POST /internal/v1/notify`: these lanes may have new work.
pub(crate) async fn notify(
    State(api): State<Arc<Api>>,
    request: Request,
) -> Result<Response, Problem> {
    let lanes: Vec<LaneKeyWire> = api
        .read_from_peer(request, NOTIFY_PATH, NOTIFY_LANES_MAX)
        .await?;
    api.node.receive_notification(lanes.convert()).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}

impl Api {
    /// Reads a list of at most `max` items from a node of this cluster.
    async fn read_from_peer<T: DeserializeOwned>(
        &self,
        request: Request,
        path: &'static str,
        max: usize,
    ) -> Result<Vec<T>, Problem> {
        let (parts, body) = request.into_parts();
        let hash = self.authenticate_peer(&parts, path)?; // a stranger's body is not read
        let body = parse::read_json_body(&parts.headers, body, BODY_BYTES_MAX).await?;
        if hash.is_some_and(|expected| expected != BodyHash::of(&body)) {
            return Err(not_a_peer(
                "body",
                "the body is not the one that header `Lanekeeper-Cluster` was made for",
            ));
        }
        let items: Vec<T> = serde_json::from_slice(&body).map_err(|error| {
            let detail =
                format!("the body cannot be parsed ({error}): do both nodes run the same version?");
            Problem::new(ProblemKind::InvalidField, detail)
        })?;
        if items.len() > max {
            let count = items.len();
            return Err(Problem::new(
                ProblemKind::InvalidField,
                format!("the body has {count} items, but at most {max} are allowed"),
            ));
        }
        Ok(items)
    }

    /// Authenticates the caller by the headers alone, before the body is read. Returns the hash of the body that
    /// the MAC covers; `None` without a secret.
    fn authenticate_peer(
        &self,
        parts: &Parts,
        path: &'static str,
    ) -> Result<Option<BodyHash>, Problem> {
        let hops = header_number(&parts.headers, &HOP, "Lanekeeper-Hop")?;
        if hops == 0 || hops > u64::from(HOPS_MAX) {
            let rule =
                format!("is {hops}, but must be {HOPS_MAX}: a request is forwarded only once");
            return Err(RuleViolation::new(rule).in_header("Lanekeeper-Hop"));
        }
        let mac = header_text(&parts.headers, &CLUSTER, "Lanekeeper-Cluster")?;
        let Some(secret) = &self.config.cluster_secret else {
            self.authenticate_without_secret(parts)?;
            return Ok(None);
        };
        let Some(mac) = mac else {
            return Err(not_a_peer(
                "missing",
                "header `Lanekeeper-Cluster` is missing, and this node has a clusterSecret: set the \
                 same node.clusterSecret on every node",
            ));
        };
        let verified = secret.verify_mac(mac, path, self.config.clock.now());
        verified
            .map(Some)
            .map_err(|error| not_a_peer(error.into(), error.to_string()))
    }

    /// Without a secret, only calls from this machine are accepted, and only where no API key is needed to create
    /// txs: otherwise a reverse proxy on this machine would let every remote caller in without a key. A browser on this
    /// machine is no peer either, whatever page it shows: no MAC distinguishes the two, so its headers must.
    fn authenticate_without_secret(&self, parts: &Parts) -> Result<(), Problem> {
        if let Auth::Keys(_) = &self.config.auth {
            return Err(not_a_peer(
                "no_secret",
                "this node has API keys and no clusterSecret, so it cannot authenticate its \
                 peers: set node.clusterSecret on every node",
            ));
        }
        let address = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        if address.is_some_and(|ConnectInfo(from)| from.ip().to_canonical().is_loopback()) {
            return refuse_foreign_page(&self.config.browser_guard, &parts.uri, &parts.headers);
        }
        Err(not_a_peer(
            "not_loopback",
            "this node has no clusterSecret and accepts peers on its own machine only: set \
             node.clusterSecret on every node",
        ))
    }
}

fn header_number(headers: &HeaderMap, key: &HeaderName, name: &str) -> Result<u64, Problem> {
    let text = header_text(headers, key, name)?.unwrap_or_default();
    let number = text.parse().ok();
    number.ok_or_else(|| RuleViolation::must_be("a whole number", text).in_header(name))
}

fn not_a_peer(reason: &'static str, detail: impl Into<String>) -> Problem {
    metrics::counter!("lanekeeper_peer_refused_total", "reason" => reason).increment(1);
    Problem::new(ProblemKind::NotAPeer, detail)
}
