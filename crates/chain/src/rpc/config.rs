//! The configuration of a chain's endpoints, and its validation.

use std::time::Duration;

use domain::ChainId;
use thiserror::Error;

use super::endpoint::Endpoint;
use super::http::{Http, root_cause};
use super::url::EndpointUrl;

/// The default request timeout.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The default time after which a failing endpoint counts as dead.
const DEAD_ENDPOINT_AFTER: Duration = Duration::from_secs(60);

/// The configuration of a chain.
#[derive(Clone, Debug)]
pub struct RpcChainConfig {
    /// The chain id; an endpoint of another chain is never used.
    pub id: ChainId,
    /// The endpoints, the preferred one first.
    pub endpoints: Vec<EndpointUrl>,
    /// The timeout of one request.
    pub request_timeout: Duration,
    /// To how many endpoints a tx is sent concurrently. An undecided one is sent to the others as well.
    pub send_to: usize,
    /// The endpoint for subscriptions to new heads (`ws://` or `wss://`).
    pub ws: Option<EndpointUrl>,
    /// The most calls per second to each endpoint; those of a batch count one by one.
    pub requests_per_second: Option<u32>,
    /// An endpoint that has failed for this long is dead: the others fill gaps without it.
    pub dead_endpoint_after: Duration,
}

impl RpcChainConfig {
    /// The defaults: a timeout of 10 s, sends to one endpoint, no subscription, no rate limit.
    #[must_use]
    pub fn new(id: ChainId, endpoints: Vec<EndpointUrl>) -> Self {
        Self {
            id,
            endpoints,
            request_timeout: REQUEST_TIMEOUT,
            send_to: 1,
            ws: None,
            requests_per_second: None,
            dead_endpoint_after: DEAD_ENDPOINT_AFTER,
        }
    }
}

/// Why a chain cannot be set up.
#[derive(Debug, Error)]
pub enum RpcSetupError {
    #[error("chain {0} has no endpoint")]
    NoEndpoint(ChainId),
    /// With a timeout of zero every request would fail.
    #[error("the request timeout of chain {0} is zero")]
    ZeroTimeout(ChainId),
    #[error("chain {0} sends to 0 endpoints: at least 1 is needed")]
    ZeroSendTo(ChainId),
    #[error("chain {0} allows 0 requests per second: at least 1 is needed")]
    ZeroRequestRate(ChainId),
    /// A URL for calls in place of one for subscriptions, or vice versa.
    #[error("the URL of endpoint {endpoint} of chain {chain} must begin with {expected}")]
    Scheme {
        chain: ChainId,
        endpoint: String,
        expected: &'static str,
    },
    /// The HTTP client cannot be built, for example because no root certificates are installed.
    #[error("cannot prepare connections to {endpoint}: {reason}")]
    Client { endpoint: String, reason: String },
}

/// Validates the configuration and builds the endpoints.
pub(super) fn build_endpoints(config: &RpcChainConfig) -> Result<Vec<Endpoint>, RpcSetupError> {
    let chain = config.id;
    if config.endpoints.is_empty() {
        return Err(RpcSetupError::NoEndpoint(chain));
    }
    if config.request_timeout.is_zero() {
        return Err(RpcSetupError::ZeroTimeout(chain));
    }
    if config.send_to == 0 {
        return Err(RpcSetupError::ZeroSendTo(chain));
    }
    if config.requests_per_second == Some(0) {
        return Err(RpcSetupError::ZeroRequestRate(chain));
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
    // Fails if a provider is installed already, which is as good.
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
