//! One request and its answer over HTTP, within a deadline and a size.

use std::error::Error as _;
use std::time::Duration;

use alloy_primitives::bytes::Bytes;
use reqwest::header::{self, HeaderMap};
use reqwest::{Client, Response, StatusCode, redirect};

use super::failure::Failure;
use super::limits;
use super::url::EndpointUrl;
use super::wire::{Malformed, readable};

/// A pool of connections to one endpoint.
pub(super) struct Http {
    client: Client,
    url: EndpointUrl,
    timeout: Duration,
}

/// The whole answer to a request.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    /// For how long the endpoint wants to be left alone, where it says so.
    pub(super) retry_after: Option<Duration>,
    pub(super) body: Vec<u8>,
}

/// Whether a request may be sent a second time when its connection breaks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// It only reads.
    Once,
    /// It hands something over: whoever asked must learn that the answer was lost.
    Never,
}

impl Http {
    pub(super) fn new(url: EndpointUrl, timeout: Duration) -> Result<Self, reqwest::Error> {
        let mut builder = Client::builder()
            .timeout(timeout)
            .connect_timeout(timeout.min(limits::CONNECT_TIMEOUT_MAX))
            .pool_max_idle_per_host(limits::IDLE_CONNECTIONS_MAX)
            .pool_idle_timeout(limits::IDLE_CONNECTION_AGE_MAX)
            // A redirect could take signed bytes and credentials to a place nobody configured.
            .redirect(redirect::Policy::none());
        if url.is_loopback() {
            builder = builder.no_proxy();
        }
        if !url.is_tls() {
            // No certificate is ever checked, so a machine without any must not matter.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(reqwest::Error::without_url)?;
        Ok(Self {
            client,
            url,
            timeout,
        })
    }

    pub(super) fn url(&self) -> &EndpointUrl {
        &self.url
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The whole answer to a body.
    pub(super) async fn post(&self, body: Vec<u8>, repeat: Repeat) -> Result<Reply, Failure> {
        let body = Bytes::from(body);
        let mut answer = self.post_once(body.clone()).await;
        // The other side may close an idle connection in the moment in which it is used again.
        if repeat == Repeat::Once && matches!(answer, Err(Broken::Dropped(_))) {
            answer = self.post_once(body).await;
        }
        answer.map_err(Broken::into_failure)
    }

    async fn post_once(&self, body: Bytes) -> Result<Reply, Broken> {
        let request = self
            .client
            .post(self.url.secret().clone())
            .header(header::CONTENT_TYPE, "application/json")
            .body(body);
        let response = request.send().await.map_err(|error| self.broken(error))?;
        Ok(Reply {
            status: response.status(),
            retry_after: retry_after(response.headers()),
            body: self.read(response).await?,
        })
    }

    async fn read(&self, mut response: Response) -> Result<Vec<u8>, Broken> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.broken(error))? {
            if body.len().saturating_add(chunk.len()) > limits::RESPONSE_BYTES_MAX {
                return Err(Broken::TooLong);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    fn broken(&self, error: reqwest::Error) -> Broken {
        let error = error.without_url(); // it may hold a credential
        if error.is_connect() {
            Broken::NotConnected(format!("cannot connect: {}", root_cause(&error)))
        } else if error.is_timeout() {
            Broken::Lost(format!("no answer within {:?}", self.timeout))
        } else {
            Broken::Dropped(format!("the connection broke: {}", root_cause(&error)))
        }
    }
}

/// Seconds only; the other form, a date, needs a clock that agrees with theirs.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

/// Why a request has no answer.
enum Broken {
    NotConnected(String),
    Dropped(String),
    Lost(String),
    TooLong,
}

impl Broken {
    fn into_failure(self) -> Failure {
        match self {
            Self::NotConnected(why) => Failure::NotConnected(why),
            Self::Dropped(why) | Self::Lost(why) => Failure::Lost(why),
            Self::TooLong => {
                let max = limits::RESPONSE_BYTES_MAX;
                Failure::Malformed(format!("it is longer than {max} bytes"))
            }
        }
    }
}

pub(super) fn root_cause(error: &reqwest::Error) -> String {
    let mut cause = error.source();
    while let Some(deeper) = cause.and_then(|error| error.source()) {
        cause = Some(deeper);
    }
    readable(&cause.map_or_else(|| error.to_string(), ToString::to_string))
}

/// What an answer without JSON-RPC in it means, by its status.
pub(super) fn failure_of(status: StatusCode, malformed: Malformed) -> Failure {
    let said = format!("HTTP {status}");
    if status.is_client_error() || status == StatusCode::SERVICE_UNAVAILABLE {
        Failure::TurnedAway(said)
    } else if status.is_success() {
        Failure::Malformed(malformed.0)
    } else {
        // A gateway that gave up does not know what the node behind it did.
        Failure::Lost(said)
    }
}
