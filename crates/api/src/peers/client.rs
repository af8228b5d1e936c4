//! The client: forwards requests and marks to other nodes, and notifies them.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use domain::{LaneKey, MonotonicTime, Reservation};
use engine::node::{AcceptedTx, NewTx, Refusal};
use engine::ports::{Clock, PeerError, Peers};
use engine::reservations::{MarkError, MarkRequest};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, ClientBuilder, Response, StatusCode, Url, redirect};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::parse::excerpt;
use crate::peers::secret::ClusterSecret;
use crate::peers::wire::{
    AcceptedWire, Convert as _, LaneKeyWire, MarkErrorWire, MarkRequestWire, NewTxWire,
    RefusalWire, ReservationWire,
};
use crate::peers::{
    ANSWER_BYTES_MAX, BODY_BYTES_MAX, CLUSTER, DEADLINE, FORWARD_PATH, FORWARD_REQUESTS_MAX, HOP,
    HOPS_MAX, MARK_PATH, NOTIFY_LANES_MAX, NOTIFY_PATH,
};

/// Nodes of a cluster are near each other: a node that accepts no connection within this time is considered
/// dead, and the caller's time is better spent on another one.
const CONNECT_MAX: Duration = Duration::from_millis(500);
/// How long sent bytes may stay unacknowledged: a machine that lost power does not close its open
/// connections.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(2);
/// How long an idle connection is kept: shorter than the server's limit (75 s), because a request may race the
/// server's close.
const IDLE_MAX: Duration = Duration::from_secs(45);
/// Idle connections to one node.
const IDLE_CONNECTIONS_MAX: usize = 16;
/// A notification may be lost: every node also polls periodically.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of a refusal's body that are read.
const REFUSAL_BYTES_MAX: usize = 16 << 10;
/// Characters of its detail that are passed on.
const REFUSAL_CHARS_MAX: usize = 400;
/// A refusal by another node is a configuration mistake and repeats with every request: it is logged at most
/// once per period.
const WARN_PERIOD: Duration = Duration::from_secs(10);

/// The other nodes, over HTTP.
pub struct HttpPeers {
    plain: Client,
    /// Created for the first https address: a machine without certificates works as long as none is used.
    tls: OnceLock<Result<Client, String>>,
    secret: Option<ClusterSecret>,
    clock: Arc<dyn Clock>,
    warned_at: Mutex<Option<MonotonicTime>>,
}

impl HttpPeers {
    /// A pool of connections to other nodes. Without a secret, only nodes on this machine accept calls.
    #[must_use]
    pub fn new(secret: Option<ClusterSecret>, clock: Arc<dyn Clock>) -> Self {
        // An error means that a provider is installed already, which is fine.
        rustls::crypto::ring::default_provider()
            .install_default()
            .ok();
        let plain = client_builder()
            .tls_certs_only([]) // never used: https has its own pool
            .build()
            .expect("a client without certificates and proxies needs nothing of the system");
        Self {
            plain,
            tls: OnceLock::new(),
            secret,
            clock,
            warned_at: Mutex::new(None),
        }
    }

    /// Sends one body, and returns the body of the response.
    async fn post(&self, call: Call<'_>, body: Vec<u8>) -> Result<Vec<u8>, PeerError> {
        let started_at = self.clock.monotonic();
        let response = self.exchange(&call, Bytes::from(body)).await;
        let result = match &response {
            Ok(_) => "ok",
            Err(PeerError::NotReached(_)) => "not_reached",
            Err(PeerError::Lost(_)) => "lost",
        };
        let took = self.clock.monotonic().since(started_at);
        metrics::counter!(
            "lanekeeper_peer_calls_total", "path" => call.path, "result" => result
        )
        .increment(1);
        metrics::histogram!("lanekeeper_peer_call_seconds", "path" => call.path)
            .record(took.as_secs_f64());
        response
    }

    async fn exchange(&self, call: &Call<'_>, body: Bytes) -> Result<Vec<u8>, PeerError> {
        let (client, url) = self.select_client(call).map_err(PeerError::NotReached)?;
        let mut request = client
            .post(url)
            .timeout(call.timeout)
            .header(CONTENT_TYPE, "application/json")
            .header(HOP, HOPS_MAX)
            // The node there stops a little earlier, so that its response still arrives in time.
            .header(DEADLINE, call.timeout.as_millis().to_string());
        if let Some(secret) = &self.secret {
            request = request.header(CLUSTER, secret.make_mac(call.path, self.clock.now(), &body));
        }
        let response = request
            .body(body)
            .send()
            .await
            .map_err(classify_send_error)?;
        let status = response.status();
        if status.is_success() {
            return read_body(response, ANSWER_BYTES_MAX).await;
        }
        // Only the status decides; the body is for people, so failing to read it is harmless.
        let body = read_body(response, REFUSAL_BYTES_MAX)
            .await
            .unwrap_or_default();
        let refusal = format!("it answers {status}: {}", problem_detail(&body));
        if is_refusal(status) {
            self.warn_refused(call.address, status, &refusal);
            return Err(PeerError::NotReached(refusal));
        }
        Err(PeerError::Lost(refusal))
    }

    /// The connection pool for an address, and the URL of the call.
    fn select_client(&self, call: &Call<'_>) -> Result<(&Client, Url), String> {
        let text = format!("{}{}", call.address.trim_end_matches('/'), call.path);
        let url = Url::parse(&text)
            .map_err(|error| format!("its node.advertise {:?} is no URL: {error}", call.address))?;
        if url.scheme() != "https" {
            return Ok((&self.plain, url));
        }
        let made = self
            .tls
            .get_or_init(|| client_builder().build().map_err(|error| root_cause(&error)));
        match made {
            Ok(client) => Ok((client, url)),
            Err(why) => Err(format!("TLS cannot be used on this machine: {why}")),
        }
    }

    fn warn_refused(&self, address: &str, status: StatusCode, refusal: &str) {
        let now = self.clock.monotonic();
        let mut warned_at = self
            .warned_at
            .lock()
            .expect("nothing panics while it holds this lock");
        if warned_at.is_some_and(|at| now.since(at) < WARN_PERIOD) {
            return;
        }
        *warned_at = Some(now);
        let hint = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                "is node.clusterSecret the same on both nodes?"
            }
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
                "is node.advertise of that node right, and does it run this version?"
            }
            _ => "do both nodes run the same version?",
        };
        tracing::warn!(
            address,
            refusal,
            hint,
            "another node refuses calls from this node"
        );
    }
}

#[async_trait]
impl Peers for HttpPeers {
    async fn forward(
        &self,
        address: &str,
        requests: Vec<NewTx>,
        timeout: Duration,
    ) -> Result<Vec<Result<AcceptedTx, Refusal>>, PeerError> {
        let deadline = self.clock.monotonic().plus(timeout);
        let mut answers = Vec::with_capacity(requests.len());
        for (body, count) in split_into_bodies(&requests.convert(), BODY_BYTES_MAX)? {
            let call = Call {
                address,
                path: FORWARD_PATH,
                timeout: deadline.since(self.clock.monotonic()),
            };
            let part = match self.post(call, body).await {
                Ok(response) => parse_outcomes(&response, count),
                // An earlier part was processed, so not all of the requests are certainly without effect.
                Err(PeerError::NotReached(why)) if !answers.is_empty() => Err(PeerError::Lost(why)),
                Err(error) => Err(error),
            };
            answers.extend(part?);
        }
        Ok(answers)
    }

    async fn mark(
        &self,
        address: &str,
        mark: &MarkRequest,
        timeout: Duration,
    ) -> Result<Result<Reservation, MarkError>, PeerError> {
        let call = Call {
            address,
            path: MARK_PATH,
            timeout,
        };
        let mark: MarkRequestWire = mark.clone().convert();
        let response = self.post(call, to_json(&[mark])).await?;
        let result: Result<ReservationWire, MarkErrorWire> =
            serde_json::from_slice(&response).map_err(unreadable_answer)?;
        Ok(result.convert())
    }

    async fn notify(&self, address: &str, lanes: &[LaneKey]) -> Result<(), PeerError> {
        // A notification without lanes announces this node: it needs one call as well.
        let lanes: Vec<LaneKeyWire> = lanes.to_vec().convert();
        let (first, rest) = lanes.split_at(lanes.len().min(NOTIFY_LANES_MAX));
        for lanes in std::iter::once(first).chain(rest.chunks(NOTIFY_LANES_MAX)) {
            let call = Call {
                address,
                path: NOTIFY_PATH,
                timeout: NOTIFY_TIMEOUT,
            };
            self.post(call, to_json(&lanes)).await?;
        }
        Ok(())
    }
}

/// One call to one node.
struct Call<'a> {
    address: &'a str,
    path: &'static str,
    timeout: Duration,
}

fn client_builder() -> ClientBuilder {
    let builder = Client::builder();
    #[cfg(target_os = "linux")] // elsewhere only the caller's timeout applies
    let builder = builder.tcp_user_timeout(UNACKNOWLEDGED_MAX);
    builder
        .connect_timeout(CONNECT_MAX)
        .pool_idle_timeout(IDLE_MAX)
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
        // Both could send requests to an address that no node has advertised.
        .redirect(redirect::Policy::none())
        .no_proxy()
}

/// The requests as bodies of at most `bytes_max` bytes, in order, each with its number of requests. Usually one.
fn split_into_bodies(
    requests: &[NewTxWire],
    bytes_max: usize,
) -> Result<Vec<(Vec<u8>, usize)>, PeerError> {
    let mut bodies = Vec::new();
    for part in requests.chunks(FORWARD_REQUESTS_MAX) {
        let mut rest = vec![part];
        while let Some(part) = rest.pop() {
            let body = to_json(&part);
            if body.len() <= bytes_max {
                bodies.push((body, part.len()));
            } else if part.len() == 1 {
                let size = body.len();
                return Err(PeerError::NotReached(format!(
                    "a request of {size} bytes is too large to be forwarded"
                )));
            } else {
                let (first, second) = part.split_at(part.len() / 2);
                rest.extend([second, first]); // the first is popped first
            }
        }
    }
    Ok(bodies)
}

fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("requests are texts, numbers and lists of them")
}

/// The outcomes of `count` requests.
fn parse_outcomes(
    response: &[u8],
    count: usize,
) -> Result<Vec<Result<AcceptedTx, Refusal>>, PeerError> {
    // Counted as raw text first: parsed outcomes take far more memory than their bytes.
    let parts: Vec<&RawValue> = serde_json::from_slice(response).map_err(unreadable_answer)?;
    if parts.len() != count {
        let got = parts.len();
        return Err(PeerError::Lost(format!(
            "it gave {got} answers to {count} requests"
        )));
    }
    let parse = |part: &RawValue| {
        let outcome: Result<AcceptedWire, RefusalWire> =
            serde_json::from_str(part.get()).map_err(unreadable_answer)?;
        Ok(outcome.convert())
    };
    parts.into_iter().map(parse).collect()
}

fn unreadable_answer(error: serde_json::Error) -> PeerError {
    PeerError::Lost(format!("its answer cannot be understood: {error}"))
}

/// Without a connection nothing was sent; afterwards the outcome is unknown.
fn classify_send_error(error: reqwest::Error) -> PeerError {
    let why = root_cause(&error);
    if error.is_connect() || error.is_builder() {
        PeerError::NotReached(why)
    } else if error.is_timeout() {
        PeerError::Lost("it did not answer in time".to_owned())
    } else {
        PeerError::Lost(why)
    }
}

/// Whether a status means that the whole call was refused before any of it was processed. Other statuses may
/// come from a proxy that does not know what the node did.
fn is_refusal(status: StatusCode) -> bool {
    status.is_redirection()
        || matches!(
            status,
            StatusCode::BAD_REQUEST
                | StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::NOT_FOUND
                | StatusCode::METHOD_NOT_ALLOWED
                | StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::UNSUPPORTED_MEDIA_TYPE
                | StatusCode::MISDIRECTED_REQUEST
        )
}

/// The detail of a problem document, or an excerpt of any other body.
fn problem_detail(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Document {
        detail: String,
    }
    match serde_json::from_slice::<Document>(body) {
        Ok(document) => document.detail.chars().take(REFUSAL_CHARS_MAX).collect(),
        Err(_) => excerpt(&String::from_utf8_lossy(body)),
    }
}

async fn read_body(mut response: Response, max: usize) -> Result<Vec<u8>, PeerError> {
    let mut body = Vec::new();
    let lost = |error: reqwest::Error| PeerError::Lost(root_cause(&error));
    while let Some(part) = response.chunk().await.map_err(lost)? {
        if body.len().saturating_add(part.len()) > max {
            return Err(PeerError::Lost(format!(
                "its answer is longer than {max} bytes"
            )));
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}

/// reqwest's own message only says that something failed; the innermost source says what.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use domain::{Address, ChainId, Payload, RequestId, U256};
    use engine::node::Origin;

    use super::*;

    fn new_tx(number: usize, data_bytes: usize) -> NewTx {
        let mut payload = Payload::transfer(Address::ZERO, U256::ZERO);
        payload.data = vec![7; data_bytes].into();
        NewTx {
            lane: LaneKey {
                chain_id: ChainId(1),
                signer: Address::ZERO,
            },
            request_id: RequestId::parse(number.to_string()).unwrap(),
            payload,
            origin: Origin::default(),
            estimated_gas: None,
        }
    }

    const BYTES_MAX: usize = 100_000;

    fn check(requests: &[NewTx], counts: &[usize]) {
        let bodies = split_into_bodies(&requests.to_vec().convert(), BYTES_MAX).unwrap();
        let found: Vec<_> = bodies.iter().map(|(_, count)| *count).collect();
        assert_eq!(found, counts);
        let mut read = Vec::new();
        for (body, count) in bodies {
            assert!(body.len() <= BYTES_MAX);
            let part: Vec<NewTxWire> = serde_json::from_slice(&body).unwrap();
            assert_eq!(part.len(), count);
            let part: Vec<NewTx> = part.convert();
            read.extend(part);
        }
        assert!(read == requests, "all of them, in order");
    }

    #[test]
    fn large_batches_are_split_into_several_calls_in_order() {
        let small: Vec<_> = (0..20).map(|number| new_tx(number, 0)).collect();
        check(&small, &[20]);
        check(&[], &[]);
        let large: Vec<_> = (0..50).map(|number| new_tx(number, 1_500)).collect();
        check(&large, &[25, 25]);
        let uneven = [new_tx(0, 1), new_tx(1, 30_000), new_tx(2, 40_000)];
        check(&uneven, &[1, 1, 1]);
        let error = split_into_bodies(&vec![new_tx(0, 60_000)].convert(), BYTES_MAX).unwrap_err();
        assert!(matches!(error, PeerError::NotReached(_)), "{error}");
        let many: Vec<_> = (0..1_001).map(|number| new_tx(number, 0)).collect();
        let bodies = split_into_bodies(&many.convert(), usize::MAX).unwrap();
        let counts: Vec<_> = bodies.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [500, 500, 1]);
    }
}
