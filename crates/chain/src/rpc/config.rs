//! What a chain must be told, and why it cannot be set up.

use std::time::Duration;

use domain::ChainId;
use thiserror::Error;

use super::endpoint::Endpoint;
use super::http::{Http, root_cause};
use super::url::EndpointUrl;

/// How long one request may take, where nobody says.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// What a chain must be told.
#[derive(Clone, Debug)]
pub struct RpcChainConfig {
    /// Which chain; an endpoint of another one is never used.
    pub id: ChainId,
    /// Where its nodes are, the preferred one first.
    pub endpoints: Vec<EndpointUrl>,
    /// How long one request may take.
    pub request_timeout: Duration,
    /// To how many endpoints bytes go at once. What is in doubt goes to the others as well.
    pub send_to: usize,
    /// Where new heads are announced (`ws://` or `wss://`).
    pub ws: Option<EndpointUrl>,
    /// The most calls per second to each endpoint; those of a batch count one by one.
    pub requests_per_second: Option<u32>,
}

impl RpcChainConfig {
    /// The usual: 10 s for a request, bytes to one endpoint, no announcements, no limit.
    #[must_use]
    pub fn new(id: ChainId, endpoints: Vec<EndpointUrl>) -> Self {
        Self {
            id,
            endpoints,
            request_timeout: REQUEST_TIMEOUT,
            send_to: 1,
            ws: None,
            requests_per_second: None,
        }
    }
}

/// Why a chain cannot be set up.
#[derive(Debug, Error)]
pub enum RpcSetupError {
    /// Nobody to ask.
    #[error("chain {0} has no endpoint")]
    NoEndpoint(ChainId),
    /// Every request would fail.
    #[error("the request timeout of chain {0} is zero")]
    NoTime(ChainId),
    /// Nothing would be sent.
    #[error("bytes of chain {0} are to be sent to no endpoint: at least 1 is needed")]
    NoSendTo(ChainId),
    /// Nothing would be asked.
    #[error("the requests per second of chain {0} are 0: at least 1 is needed")]
    NoRequests(ChainId),
    /// An address for calls where announcements are meant, or the other way round.
    #[error("the address {endpoint} of chain {chain} must begin with {expected}")]
    Scheme {
        /// Which chain.
        chain: ChainId,
        /// Host and port.
        endpoint: String,
        /// What it should be.
        expected: &'static str,
    },
    /// The HTTP client cannot be made, for example because no root certificates are installed.
    #[error("cannot prepare connections to {endpoint}: {reason}")]
    Client {
        /// Host and port.
        endpoint: String,
        /// Why.
        reason: String,
    },
}

/// Checks the configuration and makes the endpoints.
pub(super) fn prepare(config: &RpcChainConfig) -> Result<Vec<Endpoint>, RpcSetupError> {
    let chain = config.id;
    if config.endpoints.is_empty() {
        return Err(RpcSetupError::NoEndpoint(chain));
    }
    if config.request_timeout.is_zero() {
        return Err(RpcSetupError::NoTime(chain));
    }
    if config.send_to == 0 {
        return Err(RpcSetupError::NoSendTo(chain));
    }
    if config.requests_per_second == Some(0) {
        return Err(RpcSetupError::NoRequests(chain));
    }
    let wrong = |url: &EndpointUrl, expected| RpcSetupError::Scheme {
        chain,
        endpoint: url.name().to_owned(),
        expected,
    };
    if let Some(url) = config.ws.as_ref().filter(|url| !url.is_ws()) {
        return Err(wrong(url, "ws:// or wss://"));
    }
    if let Some(url) = config.endpoints.iter().find(|url| url.is_ws()) {
        return Err(wrong(url, "http:// or https://"));
    }
    // An error means that a provider is installed already, which is as good.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    let endpoint = |url: &EndpointUrl| match Http::new(url.clone(), config.request_timeout) {
        Ok(http) => Ok(Endpoint::new(http, chain, config.requests_per_second)),
        Err(error) => Err(RpcSetupError::Client {
            endpoint: url.name().to_owned(),
            reason: root_cause(&error),
        }),
    };
    config.endpoints.iter().map(endpoint).collect()
}
