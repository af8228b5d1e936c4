//! One chain over JSON-RPC: reads fail over between endpoints, sends report whether a tx may be in flight.
//!
//! alloy encodes and decodes; its providers, nonce managers and watchers are not used, because they make decisions
//! that belong behind the fence.

mod answers;
mod balance;
mod call;
mod config;
mod consumer;
mod endpoint;
mod endpoints;
mod failure;
mod fee;
mod head_subscription;
mod health;
mod http;
mod limits;
mod rate_limiter;
mod read;
mod revert;
mod send;
mod url;
mod wire;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use domain::admission::HeadLimits;
use domain::attempt::OutgoingEnvelope;
use domain::lane::{AccountBalance, ChainQuery, ConsumedNonce, EndpointNonces, NonceConsumer};
use domain::{Address, B256, ChainId, FeeQuote, Header, Inclusion, Nonce, SendOutcome};
use engine::ports::{
    BlockTag, CallError, CallRequest, Chain, ChainError, HashFilter, Quorum, SendTrust,
};
use futures::future::BoxFuture;
use tokio::task::JoinSet;

use endpoint::{CallKind, Endpoint};
use endpoints::Endpoints;
use fee::FeeQuoter;
use head_subscription::HeadSubscription;
use send::Waves;

pub use config::{RpcChainConfig, RpcSetupError};
pub use url::{BadEndpointUrl, EndpointUrl};

/// A chain behind one or more JSON-RPC endpoints.
pub struct RpcChain {
    id: ChainId,
    endpoints: Arc<Endpoints>,
    fees: FeeQuoter,
    request_timeout: Duration,
    send_to: usize,
    ws: Option<EndpointUrl>,
    /// Started by the first call of `wait_for_head`.
    head_subscription: OnceLock<HeadSubscription>,
    /// Polls of the heads of endpoints that are not in use; aborted with the chain.
    head_polls: Mutex<JoinSet<()>>,
}

impl RpcChain {
    /// Prepares the endpoints without a request: a node may start before its chain does.
    pub fn new(config: RpcChainConfig) -> Result<Self, RpcSetupError> {
        let endpoints = config::build_endpoints(&config)?;
        Ok(Self {
            id: config.id,
            endpoints: Arc::new(Endpoints::new(endpoints, config.dead_endpoint_after)),
            fees: FeeQuoter::default(),
            request_timeout: config.request_timeout,
            send_to: config.send_to,
            ws: config.ws,
            head_subscription: OnceLock::new(),
            head_polls: Mutex::new(JoinSet::new()),
        })
    }

    /// Polls the heads of endpoints that are not in use, if due, in the background.
    fn poll_idle_endpoints(&self) {
        let due = self.endpoints.claim_due_polls(self.request_timeout);
        let mut head_polls = self
            .head_polls
            .lock()
            .expect("nothing panics while holding it");
        while head_polls.try_join_next().is_some() {}
        for index in due {
            let endpoints = Arc::clone(&self.endpoints);
            head_polls.spawn(async move { endpoints.poll_head(index).await });
        }
    }

    async fn fetch_latest_header(&self) -> Result<Option<Header>, ChainError> {
        self.poll_idle_endpoints();
        let Some(block) = self.endpoints.fetch_latest_block().await? else {
            return Ok(None);
        };
        self.fees.record_head(&block);
        Ok(Some(block.header()))
    }
}

#[async_trait]
impl Chain for RpcChain {
    fn id(&self) -> ChainId {
        self.id
    }

    fn endpoints(&self) -> Vec<(String, bool)> {
        let entry = |one: &Endpoint| (one.name().to_owned(), one.health.is_answering());
        self.endpoints.list().iter().map(entry).collect()
    }

    async fn header(&self, block: BlockTag) -> Result<Option<Header>, ChainError> {
        match block {
            BlockTag::Latest => self.fetch_latest_header().await,
            BlockTag::Safe | BlockTag::Finalized | BlockTag::Number(_) | BlockTag::Hash(_) => {
                self.endpoints
                    .find_first(|endpoint| Box::pin(read::header(endpoint, block)))
                    .await
            }
        }
    }

    async fn headers(&self, from: u64, count: u64) -> Result<Vec<Header>, ChainError> {
        self.endpoints
            .read_most(
                read::header_requests(count),
                |headers: &Vec<Header>| headers.len() as u64 >= count,
                |one, other| one.len() > other.len(),
                |endpoint| Box::pin(read::headers(endpoint, from, count)),
            )
            .await
    }

    async fn block_receipts(
        &self,
        block: B256,
        is_ours: HashFilter<'_>,
    ) -> Result<Option<Vec<Inclusion>>, ChainError> {
        self.endpoints
            .find_first(|endpoint| Box::pin(read::block_receipts(endpoint, block, is_ours)))
            .await
    }

    async fn knows_transaction(&self, hash: B256, quorum: Quorum) -> Result<bool, ChainError> {
        let is_enough = |has: &bool| *has || quorum == Quorum::One;
        self.endpoints
            .read_most(
                1,
                is_enough,
                |_, _| false,
                |endpoint| Box::pin(read::knows_transaction(endpoint, hash)),
            )
            .await
    }

    async fn receipts(
        &self,
        hashes: &[B256],
        quorum: Quorum,
    ) -> Result<Vec<Inclusion>, ChainError> {
        read::receipts_from_endpoints(&self.endpoints, hashes, quorum).await
    }

    async fn revert_reason(&self, inclusion: &Inclusion) -> Result<Option<String>, ChainError> {
        self.endpoints
            .dry_run(call::REVERT_REASON_REQUESTS, |endpoint| {
                Box::pin(call::revert_reason(endpoint, inclusion))
            })
            .await
    }

    async fn account_nonces(
        &self,
        account: Address,
        query: ChainQuery,
        quorum: Quorum,
    ) -> Result<EndpointNonces, ChainError> {
        read::nonces_from_endpoints(&self.endpoints, account, query, quorum).await
    }

    async fn account_balance(
        &self,
        account: Address,
        not_below: u64,
        quorum: Quorum,
    ) -> Result<AccountBalance, ChainError> {
        let query = |endpoint| -> BoxFuture<'_, _> {
            Box::pin(balance::account_balance(endpoint, account, not_below))
        };
        if quorum == Quorum::One {
            return self.endpoints.read_first(query).await;
        }
        let (one, other) = self.endpoints.query_two(CallKind::Read, query).await?;
        Ok(other
            .filter(|other| other.balance > one.balance)
            .unwrap_or(one))
    }

    async fn find_consumer(
        &self,
        account: Address,
        nonce: Nonce,
        up_to: Header,
    ) -> Result<NonceConsumer, ChainError> {
        consumer::find_consumer(&self.endpoints, account, nonce, up_to).await
    }

    async fn find_consumers(
        &self,
        account: Address,
        nonces: Range<u64>,
        up_to: Header,
    ) -> Result<Vec<ConsumedNonce>, ChainError> {
        consumer::find_consumers(&self.endpoints, account, nonces, up_to).await
    }

    async fn fee_quote(&self, followed: &Header) -> Result<FeeQuote, ChainError> {
        self.fees.quote(&self.endpoints, followed).await
    }

    async fn head_limits(&self) -> Result<HeadLimits, ChainError> {
        let query = |endpoint| -> BoxFuture<'_, _> { Box::pin(read::latest_block(endpoint)) };
        let (one, other) = self.endpoints.query_two(CallKind::Read, query).await?;
        let blocks = [one, other.flatten()];
        let blocks = || blocks.iter().flatten();
        let gas_limits = blocks().filter_map(|block| block.gas_limit.as_ref());
        Ok(HeadLimits {
            has_base_fee: blocks().any(|block| block.base_fee_per_gas.is_some()),
            gas_limit: gas_limits.map(|limit| limit.0).max(),
        })
    }

    async fn estimate_gas(&self, call: &CallRequest) -> Result<u64, CallError> {
        call::estimate_from_endpoints(&self.endpoints, call).await
    }

    async fn wait_for_head(&self) {
        let Some(ws) = &self.ws else {
            return std::future::pending().await;
        };
        let start = || HeadSubscription::start(ws.clone(), self.id);
        self.head_subscription.get_or_init(start).next().await;
    }

    async fn send(
        &self,
        account: Address,
        outgoing: &[OutgoingEnvelope],
        trust: SendTrust<'_>,
    ) -> Vec<SendOutcome> {
        let endpoints = self.endpoints.in_send_order(account);
        let send_to = match outgoing.iter().any(|envelope| envelope.to_all) {
            true => endpoints.len(),
            false => self.send_to,
        };
        let waves = Waves::new(&endpoints, send_to);
        send::send(account, outgoing, &waves, trust).await
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
