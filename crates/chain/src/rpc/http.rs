//! One HTTP request and its answer, with a deadline and a size limit.

use std::pin::pin;
use std::time::Duration;

use alloy_primitives::bytes::Bytes;
use futures::future::{Either, select};
use reqwest::header::{self, HeaderMap};
use reqwest::{Client, Response, StatusCode, redirect};
use tokio::time::timeout;

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
pub(super) struct HttpReply {
    pub(super) status: StatusCode,
    /// The `Retry-After` header.
    pub(super) retry_after: Option<Duration>,
    pub(super) body: Vec<u8>,
}

/// Whether a request is sent again when its connection breaks or its answer is late.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryPolicy {
    /// For reads.
    Once,
    /// For sends: the caller must learn that the answer was lost.
    Never,
}

impl Http {
    pub(super) fn new(url: EndpointUrl, timeout: Duration) -> Result<Self, reqwest::Error> {
        let mut builder = Client::builder()
            .timeout(timeout)
            .connect_timeout(timeout.min(limits::CONNECT_TIMEOUT_MAX))
            .pool_max_idle_per_host(limits::IDLE_CONNECTIONS_MAX)
            .pool_idle_timeout(limits::IDLE_CONNECTION_AGE_MAX)
            // A redirect could send signed bytes and credentials to a host that is not configured.
            .redirect(redirect::Policy::none());
        if url.is_loopback() {
            builder = builder.no_proxy();
        }
        if !url.is_tls() {
            // No certificate is checked, so a host without root certificates must work.
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

    pub(super) async fn post(
        &self,
        body: Vec<u8>,
        retry_policy: RetryPolicy,
    ) -> Result<HttpReply, Failure> {
        let body = Bytes::from(body);
        let answer = match retry_policy {
            RetryPolicy::Once => self.post_read(body).await,
            RetryPolicy::Never => self.post_once(body).await,
        };
        answer.map_err(RequestError::into_failure)
    }

    /// A request whose answer is late is sent again beside it, and the first answer counts: what a server has lost must
    /// not cost the whole time of a request after it works again, and a slow answer must still arrive.
    async fn post_read(&self, body: Bytes) -> Result<HttpReply, RequestError> {
        let mut first = pin!(self.post_unless_dropped(body.clone()));
        if let Ok(answer) = timeout(limits::REPEAT_AFTER, first.as_mut()).await {
            return answer;
        }
        let second = pin!(self.post_unless_dropped(body));
        match select(first, second).await {
            Either::Left((answer, _)) | Either::Right((answer @ Ok(_), _)) => answer,
            Either::Right((Err(_), first)) => first.await,
        }
    }

    /// The server may close an idle connection while it is being reused: then the request is sent again.
    async fn post_unless_dropped(&self, body: Bytes) -> Result<HttpReply, RequestError> {
        let answer = self.post_once(body.clone()).await;
        match answer {
            Err(RequestError::Dropped(_)) => self.post_once(body).await,
            Ok(_) | Err(RequestError::Other(_)) => answer,
        }
    }

    async fn post_once(&self, body: Bytes) -> Result<HttpReply, RequestError> {
        let request = self
            .client
            .post(self.url.secret().clone())
            .header(header::CONTENT_TYPE, "application/json")
            .body(body);
        let response = request
            .send()
            .await
            .map_err(|error| self.request_error(error))?;
        Ok(HttpReply {
            status: response.status(),
            retry_after: retry_after(response.headers()),
            body: self.read_body(response).await?,
        })
    }

    async fn read_body(&self, mut response: Response) -> Result<Vec<u8>, RequestError> {
        let mut body = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|error| self.request_error(error))?
        {
            if body.len().saturating_add(chunk.len()) > limits::RESPONSE_BYTES_MAX {
                let max = limits::RESPONSE_BYTES_MAX;
                let why = format!("the answer is longer than {max} bytes");
                return Err(RequestError::Other(Failure::Malformed(why)));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    fn request_error(&self, error: reqwest::Error) -> RequestError {
        let error = error.without_url(); // it may contain a credential
        if error.is_connect() {
            let why = format!("cannot connect: {}", root_cause(&error));
            RequestError::Other(Failure::NotConnected(why))
        } else if error.is_timeout() {
            let why = format!("no answer within {:?}", self.timeout);
            RequestError::Other(Failure::AnswerLost(why))
        } else {
            RequestError::Dropped(format!("the connection broke: {}", root_cause(&error)))
        }
    }
}

/// Seconds only; the other form, a date, needs synchronized clocks.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

/// Why a request has no usable answer.
enum RequestError {
    /// The connection broke: reads are sent again.
    Dropped(String),
    Other(Failure),
}

impl RequestError {
    fn into_failure(self) -> Failure {
        match self {
            Self::Dropped(why) => Failure::AnswerLost(why),
            Self::Other(failure) => failure,
        }
    }
}

pub(super) fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    readable(&cause.to_string())
}

/// The failure for an answer without JSON-RPC, by its HTTP status.
pub(super) fn failure_from_status(status: StatusCode, malformed: Malformed) -> Failure {
    let status_text = format!("HTTP {status}");
    if status.is_client_error() || status == StatusCode::SERVICE_UNAVAILABLE {
        Failure::Refused(status_text)
    } else if status.is_success() {
        Failure::Malformed(malformed.0)
    } else {
        // A gateway that timed out does not know whether the node acted.
        Failure::AnswerLost(status_text)
    }
}
