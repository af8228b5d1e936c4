//! The answering side: takes what other nodes hand over, from nodes of this cluster only.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use domain::LaneKey;
use engine::node::{Accepted, NewTx, Refusal};
use engine::reservations::MarkRequest;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use crate::access::Auth;
use crate::answer;
use crate::parse::{self, Broken, excerpt, header_text};
use crate::peers::seal::{BadSeal, BodyHash, CLOCKS_APART_MAX};
use crate::peers::{
    BODY_BYTES_MAX, CLUSTER, DEADLINE, FORWARD_PATH, FORWARD_REQUESTS_MAX, HOP, HOPS_MAX,
    MARK_PATH, PATIENCE_MAX, RING_LANES_MAX, RING_PATH,
};
use crate::problem::{Problem, ProblemKind};
use crate::router::Api;

/// When at most one in so many requests of a call is not done, the others do not wait for it much longer.
const STRAGGLERS_OF: usize = 2;
/// How much longer: more than a commit takes.
const STRAGGLERS_PATIENCE: Duration = Duration::from_millis(500);

/// `POST /internal/v1/forward`: requests for lanes that this node keeps. Each gets its own answer, in
/// the order given.
pub(crate) async fn forward(
    State(api): State<Arc<Api>>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let patience = number(&parts.headers, &DEADLINE, "Lanekeeper-Deadline")?;
    let deadline = Instant::now() + Duration::from_millis(patience).min(PATIENCE_MAX);
    let requests: Vec<NewTx> = api
        .read_from_peer(&parts, body, FORWARD_PATH, FORWARD_REQUESTS_MAX)
        .await?;
    if Instant::now() >= deadline {
        // Not begun: nobody waits for it any more.
        return Err(Problem::new(
            ProblemKind::OutcomeUnknown,
            "the deadline was over before the requests were read",
        ));
    }
    Ok(answer::ok(&api.take_all_handed(requests, deadline).await))
}

/// `POST /internal/v1/mark`: what a holder says of a nonce of a lane that this node keeps.
pub(crate) async fn mark(
    State(api): State<Arc<Api>>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let calls: Vec<MarkRequest> = api.read_from_peer(&parts, body, MARK_PATH, 1).await?;
    let [call] = calls.as_slice() else {
        return Err(Broken::rule("must hold one mark").field("$"));
    };
    Ok(answer::ok(&api.node.mark_forwarded(call).await))
}

/// `POST /internal/v1/ring`: something may be new in these lanes.
pub(crate) async fn notify(
    State(api): State<Arc<Api>>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let lanes: Vec<LaneKey> = api
        .read_from_peer(&parts, body, RING_PATH, RING_LANES_MAX)
        .await?;
    api.node.receive_notification(lanes).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}

impl Api {
    /// Works on each request for itself, until its sender gives up or all the others are done for a while:
    /// a lane that is being opened must not hold up the lanes whose requests travel with its own. Whoever
    /// sent what is left behind finds it by its request id.
    async fn take_all_handed(
        &self,
        requests: Vec<NewTx>,
        deadline: Instant,
    ) -> Vec<Result<Accepted, Refusal>> {
        let unknown = || Err(Refusal::OutcomeUnknown);
        let mut answers: Vec<_> = requests.iter().map(|_| unknown()).collect();
        let mut under_way: FuturesUnordered<_> = requests
            .into_iter()
            .enumerate()
            .map(|(place, request)| async move {
                let mut answers = self.node.create_forwarded(vec![request]).await;
                let answer = answers.pop().expect("the node answers every request");
                (place, answer)
            })
            .collect();
        let mut patience = deadline;
        while let Ok(Some((place, answer))) = timeout_at(patience, under_way.next()).await {
            answers[place] = answer;
            if under_way.len().saturating_mul(STRAGGLERS_OF) <= answers.len() {
                patience = deadline.min(Instant::now() + STRAGGLERS_PATIENCE);
            }
        }
        answers
    }

    /// Reads a list of at most `max` items that a node of this cluster has sent.
    async fn read_from_peer<T: DeserializeOwned>(
        &self,
        parts: &Parts,
        body: Body,
        path: &'static str,
        max: usize,
    ) -> Result<Vec<T>, Problem> {
        let sealed = match self.admit_peer(parts, path) {
            Ok(sealed) => sealed,
            Err(problem) => {
                parse::discard(body).await;
                return Err(problem);
            }
        };
        let body = parse::json_body(&parts.headers, body, BODY_BYTES_MAX).await?;
        sealed.read(&body, max)
    }

    /// Lets nodes of this cluster in, by what the head of their call says.
    fn admit_peer(&self, parts: &Parts, path: &'static str) -> Result<Sealed, Problem> {
        let hops = number(&parts.headers, &HOP, "Lanekeeper-Hop")?;
        if hops == 0 || hops > u64::from(HOPS_MAX) {
            let rule = format!(
                "is {hops}, but must be {HOPS_MAX}: a request is handed to another node once"
            );
            return Err(Broken::by(rule).header("Lanekeeper-Hop"));
        }
        let seal = header_text(&parts.headers, &CLUSTER, "Lanekeeper-Cluster")?;
        let Some(secret) = &self.config.cluster_secret else {
            return self.admit_neighbour(parts);
        };
        let Some(seal) = seal else {
            return Err(stranger(
                "missing",
                "this node has a clusterSecret, and the caller has sent no seal: set the same \
                 node.clusterSecret on every node",
            ));
        };
        match secret.check(seal, path, self.config.clock.now()) {
            Ok(body) => Ok(Sealed { body: Some(body) }),
            Err(BadSeal::Malformed) => Err(stranger("malformed", "the seal cannot be read")),
            Err(BadSeal::Wrong) => Err(stranger(
                "wrong",
                "the seal is not of this cluster: set the same node.clusterSecret on every node",
            )),
            Err(BadSeal::Stale(apart)) => {
                let detail = format!(
                    "the clocks of the two nodes are {} s apart, and at most {} s are allowed: set \
                     them right",
                    apart.as_secs(),
                    CLOCKS_APART_MAX.as_secs()
                );
                Err(stranger("stale", detail))
            }
        }
    }

    /// Without a secret: only from this machine, and only where everybody on it may make txs anyway.
    /// With API keys, a proxy on this machine would otherwise let the whole world in without one.
    fn admit_neighbour(&self, parts: &Parts) -> Result<Sealed, Problem> {
        match &self.config.auth {
            Auth::None => {}
            Auth::Keys(_) => {
                return Err(stranger(
                    "no_secret",
                    "this node has API keys and no clusterSecret, so that it cannot know its \
                     peers: set node.clusterSecret on every node",
                ));
            }
        }
        let address = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        if address.is_some_and(|ConnectInfo(from)| from.ip().to_canonical().is_loopback()) {
            return Ok(Sealed { body: None });
        }
        Err(stranger(
            "not_loopback",
            "this node has no clusterSecret and listens to peers on its own machine only: set \
             node.clusterSecret on every node",
        ))
    }
}

/// A call that was let in by its head.
struct Sealed {
    /// The body that the seal was made for; any where there is no secret.
    body: Option<BodyHash>,
}

impl Sealed {
    /// Reads a list out of the body, if it is the one that was sealed.
    fn read<T: DeserializeOwned>(&self, body: &Bytes, max: usize) -> Result<Vec<T>, Problem> {
        if self.body.is_some_and(|sealed| sealed != BodyHash::of(body)) {
            return Err(stranger("body", "the body is not the one that was sealed"));
        }
        let items: Vec<T> = serde_json::from_slice(body).map_err(|error| {
            let detail = format!(
                "the body cannot be understood ({error}): do both nodes run the same version?"
            );
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
}

fn number(headers: &HeaderMap, key: &HeaderName, name: &str) -> Result<u64, Problem> {
    let text = header_text(headers, key, name)?.unwrap_or_default();
    match text.parse() {
        Ok(number) => Ok(number),
        Err(_) => {
            let rule = format!("must be a whole number, not {}", excerpt(text));
            Err(Broken::by(rule).header(name))
        }
    }
}

fn stranger(reason: &'static str, detail: impl Into<String>) -> Problem {
    metrics::counter!("lanekeeper_peer_refused_total", "reason" => reason).increment(1);
    Problem::new(ProblemKind::NotAPeer, detail)
}
