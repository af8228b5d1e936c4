//! One chain over JSON-RPC: reads fail over in order, sends are told apart by what may be out.
//!
//! alloy encodes and decodes; its providers, nonce managers and watchers are not used, because
//! they decide by themselves what belongs under the fence.

mod answers;
mod call;
mod endpoint;
mod failure;
mod fee;
mod http;
mod limits;
mod read;
mod revert;
mod send;
mod url;
mod wire;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use domain::attempt::Outgoing;
use domain::lane::{ChainNonces, ChainQuery};
use domain::{Address, B256, ChainId, FeeQuote, Header, Inclusion, SendOutcome};
use engine::ports::{BlockTag, Call, CallFailed, Chain, ChainError};
use futures::future::BoxFuture;
use thiserror::Error;

use endpoint::Endpoint;
use failure::{Failure, all_failed};
use http::Http;

pub use url::{BadEndpointUrl, EndpointUrl};

/// What a chain must be told.
#[derive(Clone, Debug)]
pub struct RpcChainConfig {
    /// Which chain; an endpoint of another one is never used.
    pub id: ChainId,
    /// Where its nodes are, the preferred one first.
    pub endpoints: Vec<EndpointUrl>,
    /// How long one request may take.
    pub request_timeout: Duration,
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
    /// The HTTP client cannot be made, for example because no root certificates are installed.
    #[error("cannot prepare connections to {endpoint}: {reason}")]
    Client {
        /// Host and port.
        endpoint: String,
        /// Why.
        reason: String,
    },
}

/// A chain behind one or more JSON-RPC endpoints.
pub struct RpcChain {
    id: ChainId,
    endpoints: Vec<Endpoint>,
    request_timeout: Duration,
}

impl RpcChain {
    /// Prepares the endpoints. Nothing is asked yet: a node may start before its chain does.
    pub fn new(config: RpcChainConfig) -> Result<Self, RpcSetupError> {
        let RpcChainConfig {
            id,
            endpoints,
            request_timeout,
        } = config;
        if endpoints.is_empty() {
            return Err(RpcSetupError::NoEndpoint(id));
        }
        if request_timeout.is_zero() {
            return Err(RpcSetupError::NoTime(id));
        }
        // An error means that a provider is installed already, which is as good.
        rustls::crypto::ring::default_provider()
            .install_default()
            .ok();
        let prepare = |url: EndpointUrl| {
            let endpoint = url.name().to_owned();
            match Http::new(url, request_timeout) {
                Ok(http) => Ok(Endpoint::new(http, id)),
                Err(error) => Err(RpcSetupError::Client {
                    endpoint,
                    reason: http::root_cause(&error),
                }),
            }
        };
        let endpoints = endpoints
            .into_iter()
            .map(prepare)
            .collect::<Result<_, _>>()?;
        Ok(Self {
            id,
            endpoints,
            request_timeout,
        })
    }

    /// The endpoints in the order in which they are asked: as configured, but those that just
    /// failed come last.
    fn in_order(&self) -> Vec<&Endpoint> {
        let (last, mut order): (Vec<_>, Vec<_>) = self
            .endpoints
            .iter()
            .partition(|endpoint| endpoint.comes_last());
        order.extend(last);
        order
    }

    /// Asks one endpoint after the other until one gives a result.
    async fn read<'a, T>(
        &'a self,
        ask: impl Fn(&'a Endpoint) -> BoxFuture<'a, Result<T, Failure>> + Send,
    ) -> Result<T, ChainError> {
        let mut failures = Vec::new();
        for endpoint in self.in_order() {
            match ask(endpoint).await {
                Ok(result) => return Ok(result),
                Err(failure) => failures.push((endpoint.name(), failure)),
            }
        }
        Err(all_failed(&failures))
    }
}

#[async_trait]
impl Chain for RpcChain {
    fn id(&self) -> ChainId {
        self.id
    }

    fn endpoints(&self) -> Vec<(String, bool)> {
        let seen = |endpoint: &Endpoint| (endpoint.name().to_owned(), endpoint.answers());
        self.endpoints.iter().map(seen).collect()
    }

    async fn header(&self, block: BlockTag) -> Result<Option<Header>, ChainError> {
        self.read(|endpoint| Box::pin(read::header(endpoint, block)))
            .await
    }

    async fn headers(&self, from: u64, count: u64) -> Result<Vec<Header>, ChainError> {
        self.read(|endpoint| Box::pin(read::headers(endpoint, from, count)))
            .await
    }

    async fn block_receipts(&self, block: B256) -> Result<Option<Vec<Inclusion>>, ChainError> {
        self.read(|endpoint| Box::pin(read::block_receipts(endpoint, block)))
            .await
    }

    async fn receipts(&self, hashes: &[B256]) -> Result<Vec<Inclusion>, ChainError> {
        self.read(|endpoint| Box::pin(read::receipts(endpoint, hashes)))
            .await
    }

    async fn revert_reason(&self, inclusion: &Inclusion) -> Result<Option<String>, ChainError> {
        self.read(|endpoint| Box::pin(call::revert_reason(endpoint, inclusion)))
            .await
    }

    async fn nonces(&self, account: Address, query: ChainQuery) -> Result<ChainNonces, ChainError> {
        self.read(|endpoint| Box::pin(read::nonces(endpoint, account, query)))
            .await
    }

    async fn fee_quote(&self) -> Result<FeeQuote, ChainError> {
        self.read(|endpoint| Box::pin(fee::quote(endpoint))).await
    }

    async fn estimate_gas(&self, call: &Call) -> Result<u64, CallFailed> {
        self.read(|endpoint| Box::pin(call::estimate_gas(endpoint, call)))
            .await?
    }

    async fn send(&self, outgoing: &[Outgoing]) -> Vec<SendOutcome> {
        send::send(&self.in_order(), outgoing, self.request_timeout).await
    }
}

impl fmt::Debug for RpcChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcChain")
            .field("id", &self.id)
            .field("endpoints", &self.endpoints())
            .finish()
    }
}
