//! One chain over JSON-RPC: reads fail over, sends are told apart by what may be out.
//!
//! alloy encodes and decodes; its providers, nonce managers and watchers are not used, because
//! they decide by themselves what belongs under the fence.

mod announce;
mod answers;
mod call;
mod config;
mod consumer;
mod endpoint;
mod endpoints;
mod failure;
mod fee;
mod health;
mod http;
mod limits;
mod pace;
mod read;
mod revert;
mod send;
mod url;
mod wire;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use domain::attempt::OutgoingEnvelope;
use domain::lane::{ChainQuery, EndpointNonces, NonceConsumer};
use domain::{Address, B256, ChainId, FeeQuote, Header, Inclusion, Nonce, SendOutcome};
use engine::ports::{BlockTag, CallError, CallRequest, Chain, ChainError, HashFilter, Quorum};
use tokio::task::JoinSet;

use announce::Announcements;
use endpoint::Endpoint;
use endpoints::Endpoints;
use fee::Fees;

pub use config::{RpcChainConfig, RpcSetupError};
pub use url::{BadEndpointUrl, EndpointUrl};

/// A chain behind one or more JSON-RPC endpoints.
pub struct RpcChain {
    id: ChainId,
    endpoints: Arc<Endpoints>,
    fees: Fees,
    request_timeout: Duration,
    send_to: usize,
    ws: Option<EndpointUrl>,
    /// Started by whoever waits for the first announcement.
    announcements: OnceLock<Announcements>,
    /// Questions for the heads of endpoints that are not in use; they end with the chain.
    looks: Mutex<JoinSet<()>>,
}

impl RpcChain {
    /// Prepares the endpoints. Nothing is asked yet: a node may start before its chain does.
    pub fn new(config: RpcChainConfig) -> Result<Self, RpcSetupError> {
        let endpoints = config::prepare(&config)?;
        Ok(Self {
            id: config.id,
            endpoints: Arc::new(Endpoints::new(endpoints)),
            fees: Fees::default(),
            request_timeout: config.request_timeout,
            send_to: config.send_to,
            ws: config.ws,
            announcements: OnceLock::new(),
            looks: Mutex::new(JoinSet::new()),
        })
    }

    /// Asks endpoints that are not in use for their heads, now and then, beside the call that came.
    fn look_around(&self) {
        let unseen = self.endpoints.unseen(self.request_timeout);
        let mut looks = self.looks.lock().expect("nothing panics while holding it");
        while looks.try_join_next().is_some() {}
        for index in unseen {
            let endpoints = Arc::clone(&self.endpoints);
            looks.spawn(async move { endpoints.look_at(index).await });
        }
    }

    async fn latest(&self) -> Result<Option<Header>, ChainError> {
        self.look_around();
        let Some(block) = self.endpoints.latest().await? else {
            return Ok(None);
        };
        self.fees.saw(&block);
        Ok(Some(block.header()))
    }
}

#[async_trait]
impl Chain for RpcChain {
    fn id(&self) -> ChainId {
        self.id
    }

    fn endpoints(&self) -> Vec<(String, bool)> {
        let seen = |one: &Endpoint| (one.name().to_owned(), one.health().answers());
        self.endpoints.list().iter().map(seen).collect()
    }

    async fn header(&self, block: BlockTag) -> Result<Option<Header>, ChainError> {
        match block {
            BlockTag::Latest => self.latest().await,
            BlockTag::Safe | BlockTag::Finalized | BlockTag::Number(_) | BlockTag::Hash(_) => {
                self.endpoints
                    .find(|endpoint| Box::pin(read::header(endpoint, block)))
                    .await
            }
        }
    }

    async fn headers(&self, from: u64, count: u64) -> Result<Vec<Header>, ChainError> {
        self.endpoints
            .read_most(
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
            .find(|endpoint| Box::pin(read::block_receipts(endpoint, block, is_ours)))
            .await
    }

    async fn knows_transaction(&self, hash: B256, quorum: Quorum) -> Result<bool, ChainError> {
        let is_enough = |has: &bool| *has || quorum == Quorum::One;
        self.endpoints
            .read_most(
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
        read::receipts_of_all(&self.endpoints, hashes, quorum).await
    }

    async fn revert_reason(&self, inclusion: &Inclusion) -> Result<Option<String>, ChainError> {
        self.endpoints
            .read(|endpoint| Box::pin(call::revert_reason(endpoint, inclusion)))
            .await
    }

    async fn account_nonces(
        &self,
        account: Address,
        query: ChainQuery,
        quorum: Quorum,
    ) -> Result<EndpointNonces, ChainError> {
        read::nonces_of(&self.endpoints, account, query, quorum).await
    }

    async fn find_consumer(
        &self,
        account: Address,
        nonce: Nonce,
        up_to: Header,
    ) -> Result<NonceConsumer, ChainError> {
        consumer::find(&self.endpoints, account, nonce, up_to).await
    }

    async fn fee_quote(&self) -> Result<FeeQuote, ChainError> {
        self.fees.quote(&self.endpoints).await
    }

    async fn estimate_gas(&self, call: &CallRequest) -> Result<u64, CallError> {
        self.endpoints
            .read(|endpoint| Box::pin(call::estimate_gas(endpoint, call)))
            .await?
    }

    async fn wait_for_head(&self) {
        let Some(ws) = &self.ws else {
            return std::future::pending().await;
        };
        let start = || Announcements::start(ws.clone(), self.id);
        self.announcements.get_or_init(start).next().await;
    }

    async fn send(&self, outgoing: &[OutgoingEnvelope]) -> Vec<SendOutcome> {
        let endpoints = self.endpoints.in_order();
        send::send(&endpoints, self.send_to, outgoing, self.request_timeout).await
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
