//! The asking side: hands requests to other nodes, and rings them.

use std::error::Error as _;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use domain::{LaneKey, MonotonicTime, Reservation};
use engine::node::{Accepted, NewTx, Refusal};
use engine::ports::{Clock, PeerError, Peers};
use engine::reservations::{MarkError, MarkRequest};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, ClientBuilder, Response, StatusCode, Url, redirect};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::parse::excerpt;
use crate::peers::secret::ClusterSecret;
use crate::peers::{
    ANSWER_BYTES_MAX, BODY_BYTES_MAX, CLUSTER, DEADLINE, FORWARD_PATH, FORWARD_REQUESTS_MAX, HOP,
    HOPS_MAX, MARK_PATH, RING_LANES_MAX, RING_PATH,
};

/// Nodes of a cluster are near each other: who takes no connection within this time is dead, and the
/// caller's time is better spent elsewhere.
const CONNECT_MAX: Duration = Duration::from_millis(500);
/// How long sent bytes may stay unacknowledged: a machine that lost its power says nothing at all on
/// connections that are open already.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(2);
/// How long an unused connection is kept: shorter than the other side does (75 s), because a request
/// may race the close.
const IDLE_MAX: Duration = Duration::from_secs(45);
/// Unused connections to one node.
const IDLE_CONNECTIONS_MAX: usize = 16;
/// How long a bell may take: whoever misses it looks by itself soon.
const RING_PATIENCE: Duration = Duration::from_secs(1);
/// How much of a refusal is read.
const REFUSAL_BYTES_MAX: usize = 16 << 10;
/// How much of its words is passed on.
const REFUSAL_CHARS_MAX: usize = 400;
/// A refusal by another node is a mistake in the configuration, and comes with every request: it is
/// told this often.
const WARN_PERIOD: Duration = Duration::from_secs(10);

/// The other nodes, over HTTP.
pub struct HttpPeers {
    plain: Client,
    /// Made when the first address asks for it: a machine without certificates can do without.
    tls: OnceLock<Result<Client, String>>,
    secret: Option<ClusterSecret>,
    clock: Arc<dyn Clock>,
    warned_at: Mutex<Option<MonotonicTime>>,
}

impl HttpPeers {
    /// A pool of connections to other nodes. Without a secret, only nodes on this machine listen.
    #[must_use]
    pub fn new(secret: Option<ClusterSecret>, clock: Arc<dyn Clock>) -> Self {
        // An error means that a provider is installed already, which is as good.
        rustls::crypto::ring::default_provider()
            .install_default()
            .ok();
        let plain = pool()
            .tls_certs_only([]) // never looked at: https has its own pool
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

    /// Sends one body, and gives the answer's.
    async fn post(&self, call: Call<'_>, body: Vec<u8>) -> Result<Vec<u8>, PeerError> {
        let asked_at = self.clock.monotonic();
        let answer = self.exchange(&call, Bytes::from(body)).await;
        let result = match &answer {
            Ok(_) => "ok",
            Err(PeerError::NotReached(_)) => "not_reached",
            Err(PeerError::Lost(_)) => "lost",
        };
        let took = self.clock.monotonic().since(asked_at);
        metrics::counter!(
            "lanekeeper_peer_calls_total", "path" => call.path, "result" => result
        )
        .increment(1);
        metrics::histogram!("lanekeeper_peer_call_seconds", "path" => call.path)
            .record(took.as_secs_f64());
        answer
    }

    async fn exchange(&self, call: &Call<'_>, body: Bytes) -> Result<Vec<u8>, PeerError> {
        let (client, url) = self.way_to(call).map_err(PeerError::NotReached)?;
        // It gives up a little earlier than we do, so that its answer still finds us.
        let deadline = call.patience / 10 * 9;
        let mut request = client
            .post(url)
            .timeout(call.patience)
            .header(CONTENT_TYPE, "application/json")
            .header(HOP, HOPS_MAX)
            .header(DEADLINE, deadline.as_millis().to_string());
        if let Some(secret) = &self.secret {
            request = request.header(CLUSTER, secret.seal(call.path, self.clock.now(), &body));
        }
        let response = request.body(body).send().await.map_err(unsent_or_lost)?;
        let status = response.status();
        if status.is_success() {
            return read(response, ANSWER_BYTES_MAX).await;
        }
        // Nothing of a refusal's words changes what its status means.
        let said = read(response, REFUSAL_BYTES_MAX).await.unwrap_or_default();
        let said = format!("it answers {status}: {}", words_of(&said));
        if is_refusal(status) {
            self.warn(call.address, status, &said);
            return Err(PeerError::NotReached(said));
        }
        Err(PeerError::Lost(said))
    }

    /// Which pool serves an address.
    fn way_to(&self, call: &Call<'_>) -> Result<(&Client, Url), String> {
        let text = format!("{}{}", call.address.trim_end_matches('/'), call.path);
        let url = Url::parse(&text)
            .map_err(|error| format!("its node.advertise {:?} is no URL: {error}", call.address))?;
        if url.scheme() != "https" {
            return Ok((&self.plain, url));
        }
        let made = self
            .tls
            .get_or_init(|| pool().build().map_err(|error| root_cause(&error)));
        match made {
            Ok(client) => Ok((client, url)),
            Err(why) => Err(format!("TLS cannot be used on this machine: {why}")),
        }
    }

    /// Tells people what to mend.
    fn warn(&self, address: &str, status: StatusCode, said: &str) {
        let now = self.clock.monotonic();
        let mut warned_at = self
            .warned_at
            .lock()
            .expect("nothing panics while it holds this lock");
        if warned_at.is_some_and(|at| now.since(at) < WARN_PERIOD) {
            return;
        }
        *warned_at = Some(now);
        let mend = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                "is node.clusterSecret the same on both nodes?"
            }
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
                "is node.advertise of that node right, and does it run this version?"
            }
            _ => "do both nodes run the same version?",
        };
        tracing::warn!(address, said, mend, "another node refuses our calls");
    }
}

#[async_trait]
impl Peers for HttpPeers {
    async fn forward(
        &self,
        address: &str,
        requests: Vec<NewTx>,
        patience: Duration,
    ) -> Result<Vec<Result<Accepted, Refusal>>, PeerError> {
        let until = self.clock.monotonic().plus(patience);
        let mut answers = Vec::with_capacity(requests.len());
        for (body, count) in bodies(&requests, BODY_BYTES_MAX)? {
            let call = Call {
                address,
                path: FORWARD_PATH,
                patience: until.since(self.clock.monotonic()),
            };
            let part = match self.post(call, body).await {
                Ok(answer) => understood(&answer, count),
                // An earlier part was carried out, so that not all of this is certainly undone.
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
        patience: Duration,
    ) -> Result<Result<Reservation, MarkError>, PeerError> {
        let call = Call {
            address,
            path: MARK_PATH,
            patience,
        };
        let answer = self.post(call, json(&[mark])).await?;
        serde_json::from_slice(&answer)
            .map_err(|error| PeerError::Lost(format!("its answer cannot be understood: {error}")))
    }

    async fn notify(&self, address: &str, lanes: &[LaneKey]) -> Result<(), PeerError> {
        // Without lanes it is a greeting: one call all the same.
        let (first, rest) = lanes.split_at(lanes.len().min(RING_LANES_MAX));
        for lanes in std::iter::once(first).chain(rest.chunks(RING_LANES_MAX)) {
            let call = Call {
                address,
                path: RING_PATH,
                patience: RING_PATIENCE,
            };
            self.post(call, json(&lanes)).await?;
        }
        Ok(())
    }
}

/// One call to one node.
struct Call<'a> {
    address: &'a str,
    path: &'static str,
    patience: Duration,
}

fn pool() -> ClientBuilder {
    let pool = Client::builder();
    #[cfg(target_os = "linux")] // elsewhere the caller's patience has to do
    let pool = pool.tcp_user_timeout(UNACKNOWLEDGED_MAX);
    pool.connect_timeout(CONNECT_MAX)
        .pool_idle_timeout(IDLE_MAX)
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
        // Both could take requests to a place that no node has named.
        .redirect(redirect::Policy::none())
        .no_proxy()
}

/// The requests as bodies of at most so many bytes, in order, with how many are in each. Mostly one.
fn bodies(requests: &[NewTx], bytes_max: usize) -> Result<Vec<(Vec<u8>, usize)>, PeerError> {
    let mut bodies = Vec::new();
    for part in requests.chunks(FORWARD_REQUESTS_MAX) {
        let mut rest = vec![part];
        while let Some(part) = rest.pop() {
            let body = json(&part);
            if body.len() <= bytes_max {
                bodies.push((body, part.len()));
            } else if part.len() == 1 {
                let size = body.len();
                return Err(PeerError::NotReached(format!(
                    "a request of {size} bytes is too large to be handed over"
                )));
            } else {
                let (first, second) = part.split_at(part.len() / 2);
                rest.extend([second, first]); // the first comes out first
            }
        }
    }
    Ok(bodies)
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("requests are texts, numbers and lists of them")
}

/// The answers to so many requests.
fn understood(answer: &[u8], count: usize) -> Result<Vec<Result<Accepted, Refusal>>, PeerError> {
    // As text at first: far too many answers would take far more memory than their bytes.
    let parts: Vec<&RawValue> = serde_json::from_slice(answer).map_err(strange)?;
    if parts.len() != count {
        let got = parts.len();
        return Err(PeerError::Lost(format!(
            "it gave {got} answers to {count} requests"
        )));
    }
    let read = |part: &RawValue| serde_json::from_str(part.get()).map_err(strange);
    parts.into_iter().map(read).collect()
}

fn strange(error: serde_json::Error) -> PeerError {
    PeerError::Lost(format!("its answer cannot be understood: {error}"))
}

/// Before the connection stood nothing was sent; afterwards nobody knows.
fn unsent_or_lost(error: reqwest::Error) -> PeerError {
    let why = root_cause(&error);
    if error.is_connect() || error.is_builder() {
        PeerError::NotReached(why)
    } else if error.is_timeout() {
        PeerError::Lost("it did not answer in time".to_owned())
    } else {
        PeerError::Lost(why)
    }
}

/// Whether an answer says that the call as a whole was refused before anything of it was begun. What
/// is not on the list may come from something in between that does not know what a node did.
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

/// The words of a problem document, or what there is instead.
fn words_of(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Words {
        detail: String,
    }
    match serde_json::from_slice::<Words>(body) {
        Ok(words) => words.detail.chars().take(REFUSAL_CHARS_MAX).collect(),
        Err(_) => excerpt(&String::from_utf8_lossy(body)),
    }
}

async fn read(mut response: Response, max: usize) -> Result<Vec<u8>, PeerError> {
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

/// reqwest's own words only say that something failed.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause = error.source();
    while let Some(deeper) = cause.and_then(|error| error.source()) {
        cause = Some(deeper);
    }
    cause.map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use domain::{Address, ChainId, Payload, RequestId, U256};
    use engine::node::Origin;

    use super::*;

    fn wish(number: usize, data_bytes: usize) -> NewTx {
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
        let bodies = bodies(requests, BYTES_MAX).unwrap();
        let found: Vec<_> = bodies.iter().map(|(_, count)| *count).collect();
        assert_eq!(found, counts);
        let mut read = Vec::new();
        for (body, count) in bodies {
            assert!(body.len() <= BYTES_MAX);
            let part: Vec<NewTx> = serde_json::from_slice(&body).unwrap();
            assert_eq!(part.len(), count);
            read.extend(part);
        }
        assert!(read == requests, "all of them, in order");
    }

    #[test]
    fn what_is_too_much_for_one_call_goes_in_several_in_order() {
        let small: Vec<_> = (0..20).map(|number| wish(number, 0)).collect();
        check(&small, &[20]);
        check(&[], &[]);
        let large: Vec<_> = (0..50).map(|number| wish(number, 1_500)).collect();
        check(&large, &[25, 25]);
        let uneven = [wish(0, 1), wish(1, 30_000), wish(2, 40_000)];
        check(&uneven, &[1, 1, 1]);
        let error = bodies(&[wish(0, 60_000)], BYTES_MAX).unwrap_err();
        assert!(matches!(error, PeerError::NotReached(_)), "{error}");
        let many: Vec<_> = (0..1_001).map(|number| wish(number, 0)).collect();
        let bodies = bodies(&many, usize::MAX).unwrap();
        let counts: Vec<_> = bodies.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [500, 500, 1]);
    }
}
