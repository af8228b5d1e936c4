//! The chain as one node of the cluster reaches it: several endpoints, each over its own link. It behaves like the
//! adapter for real endpoints: reads fail over, doubtful answers are checked at a second endpoint.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use domain::attempt::OutgoingEnvelope;
use domain::lane::{
    AccountBalance, Agreement, ChainQuery, ConsumedNonce, EndpointNonces, NonceConsumer,
    agree_on_consumers,
};
use domain::{Address, B256, ChainId, FeeQuote, Header, Inclusion, NodeName, Nonce, SendOutcome};
use engine::ports::{
    BlockTag, CallError, CallRequest, Chain, ChainError, HashFilter, Quorum, SendTrust,
};
use tokio::time::Instant;

use super::MemoryChain;
use super::endpoint::Method;
use super::endpoint_view::{EndpointView, matching_receipts};
use super::false_fees::QuotedPrices;
use super::ledger::Ledger;
use crate::event::WorldEvent;
use crate::network::{Link, LinkFaults, NoAnswer};
use crate::world::Feature;

/// Stale and refused answers: as behind a load balancer, each read may reach another server. Rates are per
/// thousand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staleness {
    /// Reads that are stale.
    pub permille: u64,
    /// By how many heads a stale read is behind, at most.
    pub heads_max: u64,
    /// Sends that are refused because the endpoint is busy.
    pub busy: u64,
    /// Sends that are refused by a policy of the endpoint.
    pub refused: u64,
    /// Consumer lookups that reach a server without old blocks.
    pub without_old_blocks: u64,
}

impl Staleness {
    /// Always the newest head.
    pub const NONE: Self = Self {
        permille: 0,
        heads_max: 1,
        busy: 0,
        refused: 0,
        without_old_blocks: 0,
    };
}

/// A [`MemoryChain`] over [`Link`]s. Clones are the same view.
#[derive(Clone)]
pub struct RemoteChain {
    pub(super) chain: MemoryChain,
    /// One per endpoint.
    pub(super) links: Arc<Vec<Link>>,
    /// How many endpoints get each transaction at once.
    pub(super) send_to: usize,
    /// Whether new heads are announced.
    announces: bool,
    /// The node that uses this view, for the trace.
    pub(super) owner: Option<NodeName>,
    staleness: Arc<Mutex<Staleness>>,
    /// Sends over these links hang, while queries are answered.
    pub(super) hangs_on_sends: Arc<AtomicBool>,
    /// When each endpoint last left a call without an answer, if it hangs on a method.
    unanswered: Arc<Mutex<BTreeMap<usize, Instant>>>,
    /// What this view's node knows of prices, where an endpoint reports wrong ones; `None` where all are right.
    pub(super) prices: Option<Arc<Mutex<QuotedPrices>>>,
}

/// How long a read waits for an endpoint while another one is left that answers; how long it waits for the last one;
/// and how long an endpoint ranks last after that.
const READ_SHARE: Duration = Duration::from_secs(2);
const READ_TIMEOUT: Duration = Duration::from_secs(10);
const COOL_DOWN: Duration = Duration::from_secs(5);

impl RemoteChain {
    /// The first endpoint of `chain`, reached over `link`.
    #[must_use]
    pub fn new(chain: MemoryChain, link: Link, staleness: Staleness) -> Self {
        Self::with_links(chain, vec![link], staleness)
    }

    /// As many endpoints of `chain` as there are links.
    #[must_use]
    pub fn with_links(chain: MemoryChain, links: Vec<Link>, staleness: Staleness) -> Self {
        let known = chain.lock().endpoints.len();
        assert!((1..=known).contains(&links.len()), "one link per endpoint");
        Self {
            chain,
            links: Arc::new(links),
            send_to: 1,
            announces: false,
            owner: None,
            staleness: Arc::new(Mutex::new(staleness)),
            hangs_on_sends: Arc::default(),
            unanswered: Arc::default(),
            prices: None,
        }
    }

    /// Fees are compared between endpoints and with those of the blocks before, as the adapter for real endpoints does.
    #[must_use]
    pub fn checking_prices(self) -> Self {
        Self {
            prices: Some(Arc::default()),
            ..self
        }
    }

    /// The sends of this view's node hang, or no longer do.
    pub fn set_hangs_on_sends(&self, hangs: bool) {
        self.hangs_on_sends.store(hangs, Ordering::SeqCst);
    }

    /// Sends go to `send_to` endpoints at once.
    #[must_use]
    pub fn with_send_count(self, send_to: usize) -> Self {
        Self { send_to, ..self }
    }

    /// New heads are announced, if the link to the first endpoint is good enough.
    #[must_use]
    pub fn with_announcements(self, announces: bool) -> Self {
        Self { announces, ..self }
    }

    /// Records in the trace that this node sends.
    #[must_use]
    pub fn owned_by(self, owner: &NodeName) -> Self {
        Self {
            owner: Some(owner.clone()),
            ..self
        }
    }

    /// Changes the staleness of the endpoints.
    pub fn set_staleness(&self, staleness: Staleness) {
        *self
            .staleness
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = staleness;
    }

    /// Whether a call over one of the links had no answer.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.links.iter().any(Link::has_failed)
    }

    /// Changes the faults of all links.
    pub fn set_links(&self, faults: LinkFaults) {
        self.links.iter().for_each(|link| link.set_faults(faults));
    }

    pub(super) fn staleness(&self) -> Staleness {
        *self
            .staleness
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The endpoints in the order in which they are called: first the healthy ones, then those that lag, then
    /// those that are down.
    pub(super) fn endpoint_order(&self) -> Vec<usize> {
        let ledger = self.chain.lock();
        let mut order: Vec<usize> = (0..self.links.len()).collect();
        order.sort_by_key(|at| {
            let endpoint = &ledger.endpoints[*at];
            (endpoint.is_down, self.is_cooling_down(*at), endpoint.lag)
        });
        order
    }

    fn is_cooling_down(&self, at: usize) -> bool {
        let unanswered = self.unanswered.lock();
        let unanswered = unanswered.unwrap_or_else(PoisonError::into_inner);
        let last = unanswered.get(&at);
        last.is_some_and(|last| last.elapsed() < COOL_DOWN)
    }

    /// Waits in vain if the endpoint hangs on this method.
    async fn wait_if_hung(&self, at: usize, method: Method) -> Result<(), ChainError> {
        if self.chain.lock().endpoints[at].hung_method != Some(method) {
            return Ok(());
        }
        self.chain.fire(Feature::HungMethods);
        let others = (0..self.links.len()).filter(|other| *other != at);
        let has_next = others.into_iter().any(|other| {
            !self.is_cooling_down(other) && !self.chain.lock().endpoints[other].is_down
        });
        let share = if has_next { READ_SHARE } else { READ_TIMEOUT };
        tokio::time::sleep(share).await;
        let unanswered = self.unanswered.lock();
        let mut unanswered = unanswered.unwrap_or_else(PoisonError::into_inner);
        unanswered.insert(at, Instant::now());
        Err(unreachable(at, NoAnswer::Lost))
    }

    /// Calls one endpoint.
    pub(super) async fn call_endpoint<T: Send + 'static>(
        &self,
        at: usize,
        method: Method,
        query: impl FnOnce(EndpointView, &Ledger) -> T + Send + 'static,
    ) -> Result<T, ChainError> {
        self.wait_if_hung(at, method).await?;
        let (chain, endpoint_view) = (self.chain.clone(), self.endpoint_view(at));
        let query = async move {
            let ledger = chain.lock();
            let is_up = !ledger.endpoints[at].is_down;
            is_up.then(|| query(endpoint_view, &ledger))
        };
        match self.links[at].call(query).await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(unreachable(at, NoAnswer::Refused)),
            Err(why) => Err(unreachable(at, why)),
        }
    }

    fn endpoint_view(&self, endpoint: usize) -> EndpointView {
        let Staleness {
            permille,
            heads_max,
            ..
        } = self.staleness();
        let rng = self.links[endpoint].rng();
        let (is_stale, behind) = (rng.permille(permille), rng.between(1, heads_max.max(1)));
        if is_stale {
            self.chain.fire(Feature::Stale);
        }
        EndpointView {
            endpoint,
            behind: if is_stale { behind } else { 0 },
        }
    }

    /// Calls one endpoint after the other until one answers; returns which one.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        method: Method,
        query: impl FnOnce(EndpointView, &Ledger) -> T + Clone + Send + 'static,
    ) -> Result<(usize, T), ChainError> {
        let mut last = ChainError::Unreachable("there is no endpoint".to_owned());
        for at in self.endpoint_order() {
            match self.call_endpoint(at, method, query.clone()).await {
                Ok(answer) => return Ok((at, answer)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The best endpoint besides this one.
    pub(super) fn second_endpoint(&self, first: usize) -> Option<usize> {
        self.endpoint_order().into_iter().find(|at| *at != first)
    }

    fn record_balance(&self, account: Address, answer: Option<AccountBalance>) {
        if let Some(node) = &self.owner {
            self.chain.record(|| WorldEvent::BalanceQueried {
                lane: self.chain.lane(account),
                node: node.clone(),
                answer,
            });
        }
    }

    fn lacks_old_blocks(&self, at: usize) -> bool {
        self.links[at]
            .rng()
            .permille(self.staleness().without_old_blocks)
    }

    async fn consumers_at(
        &self,
        at: usize,
        account: Address,
        nonces: Range<u64>,
        up_to: Header,
    ) -> Result<Vec<ConsumedNonce>, ChainError> {
        let is_blind = self.lacks_old_blocks(at);
        let found = self
            .call_endpoint(at, Method::Consumer, move |endpoint_view, ledger| {
                endpoint_view.find_consumers(ledger, account, nonces, up_to)
            })
            .await?;
        let missing = || {
            let text = format!("endpoint {at} does not have block {}", up_to.number);
            ChainError::Unusable(text)
        };
        let mut found = found.ok_or_else(missing)?;
        if is_blind {
            found.iter_mut().for_each(|one| one.transaction = None);
        }
        Ok(found)
    }

    async fn consumer_at(
        &self,
        at: usize,
        account: Address,
        nonce: Nonce,
        up_to: Header,
    ) -> Result<NonceConsumer, ChainError> {
        let is_blind = self.lacks_old_blocks(at);
        let recorded = self
            .call_endpoint(at, Method::Consumer, move |endpoint_view, ledger| {
                endpoint_view.find_consumer(ledger, account, nonce, up_to)
            })
            .await?;
        match recorded {
            Some(NonceConsumer::Transaction { .. }) if is_blind => Ok(NonceConsumer::Unattributed),
            Some(consumer) => Ok(consumer),
            None => {
                let text = format!("endpoint {at} does not have block {}", up_to.number);
                Err(ChainError::Unusable(text))
            }
        }
    }
}

#[async_trait]
impl Chain for RemoteChain {
    fn id(&self) -> ChainId {
        self.chain.id
    }

    fn endpoints(&self) -> Vec<(String, bool)> {
        let links = self.links.iter().enumerate();
        links
            .map(|(at, link)| (format!("memory {at}"), !link.faults().cut))
            .collect()
    }

    async fn header(&self, block: BlockTag) -> Result<Option<Header>, ChainError> {
        let query =
            move |endpoint_view: EndpointView, ledger: &Ledger| endpoint_view.header(ledger, block);
        Ok(self.read(Method::Headers, query).await?.1)
    }

    async fn headers(&self, from: u64, count: u64) -> Result<Vec<Header>, ChainError> {
        let query = move |endpoint_view: EndpointView, ledger: &Ledger| {
            endpoint_view.headers(ledger, from, count)
        };
        Ok(self.read(Method::Headers, query).await?.1)
    }

    async fn block_receipts(
        &self,
        block: B256,
        is_ours: HashFilter<'_>,
    ) -> Result<Option<Vec<Inclusion>>, ChainError> {
        let query = move |endpoint_view: EndpointView, ledger: &Ledger| {
            endpoint_view.block_receipts(ledger, block)
        };
        let receipts = self.read(Method::Receipts, query).await?.1;
        Ok(receipts.map(|receipts| matching_receipts(receipts, is_ours)))
    }

    async fn knows_transaction(&self, hash: B256, quorum: Quorum) -> Result<bool, ChainError> {
        let query = move |endpoint_view: EndpointView, ledger: &Ledger| {
            endpoint_view.knows_transaction(ledger, hash)
        };
        let (first, has) = self.read(Method::Receipts, query).await?;
        if has || quorum == Quorum::One {
            return Ok(has);
        }
        for other in self.endpoint_order().into_iter().filter(|at| *at != first) {
            if self
                .call_endpoint(other, Method::Receipts, query)
                .await
                .unwrap_or(false)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn receipts(
        &self,
        hashes: &[B256],
        quorum: Quorum,
    ) -> Result<Vec<Inclusion>, ChainError> {
        let requested = hashes.to_vec();
        let query = move |endpoint_view: EndpointView, ledger: &Ledger| {
            endpoint_view.receipts(ledger, &requested)
        };
        let (first, mut found) = self.read(Method::Receipts, query.clone()).await?;
        let others: Vec<usize> = self
            .endpoint_order()
            .into_iter()
            .filter(|at| *at != first)
            .collect();
        let mut answer_count = 1;
        for at in &others {
            if found.len() == hashes.len() {
                return Ok(found);
            }
            // An endpoint that does not answer proves nothing.
            let Ok(more) = self
                .call_endpoint(*at, Method::Receipts, query.clone())
                .await
            else {
                continue;
            };
            answer_count += 1;
            for inclusion in more {
                if !found.iter().any(|held| held.tx_hash == inclusion.tx_hash) {
                    found.push(inclusion);
                }
            }
        }
        if quorum == Quorum::Two
            && found.len() < hashes.len()
            && answer_count < 2.min(others.len() + 1)
        {
            return Err(ChainError::Unreachable(
                "no second endpoint confirms that it is absent".into(),
            ));
        }
        Ok(found)
    }

    async fn revert_reason(&self, inclusion: &Inclusion) -> Result<Option<String>, ChainError> {
        self.chain.revert_reason(inclusion).await
    }

    async fn account_nonces(
        &self,
        account: Address,
        query: ChainQuery,
        quorum: Quorum,
    ) -> Result<EndpointNonces, ChainError> {
        let query = move |endpoint_view: EndpointView, ledger: &Ledger| {
            endpoint_view.account_nonces(ledger, account, query)
        };
        let (at, first) = self.read(Method::Nonces, query).await?;
        let mut others = self
            .endpoint_order()
            .into_iter()
            .filter(|other| *other != at);
        let (second, agreement) = match (quorum, others.next()) {
            (_, None) => (None, Agreement::Quorum),
            (Quorum::One, Some(_)) => (None, Agreement::One),
            (Quorum::Two, Some(other)) => match self
                .call_endpoint(other, Method::Nonces, query)
                .await
            {
                Ok(second) => (Some(second), Agreement::Quorum),
                // An endpoint that is down counts as dead at once: the rules hold however long a node waits.
                Err(_) if self.chain.lock().endpoints[other].is_down => (None, Agreement::Living),
                Err(error) => return Err(error),
            },
        };
        let mut nonces = EndpointNonces::new(first, second, agreement);
        if let Some(third) = others.next().filter(|_| nonces.is_contradictory()) {
            nonces.third = self.call_endpoint(third, Method::Nonces, query).await.ok();
        }
        Ok(nonces)
    }

    async fn account_balance(
        &self,
        account: Address,
        not_below: u64,
    ) -> Result<AccountBalance, ChainError> {
        let query = move |endpoint_view: EndpointView, ledger: &Ledger| {
            endpoint_view.account_balance(ledger, account, not_below)
        };
        self.record_balance(account, None);
        let mut last = ChainError::Unreachable("there is no endpoint".to_owned());
        for at in self.endpoint_order() {
            match self.call_endpoint(at, Method::Balance, query).await {
                Ok(Some(found)) => {
                    self.record_balance(account, Some(found));
                    return Ok(found);
                }
                Ok(None) => last = ChainError::Unusable(format!("endpoint {at} is behind")),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn find_consumer(
        &self,
        account: Address,
        nonce: Nonce,
        up_to: Header,
    ) -> Result<NonceConsumer, ChainError> {
        let mut unseen = 0;
        for at in self.endpoint_order() {
            match self.consumer_at(at, account, nonce, up_to).await {
                Ok(NonceConsumer::Unattributed) => unseen += 1,
                Ok(found @ (NonceConsumer::Transaction { .. } | NonceConsumer::NotConsumed)) => {
                    return Ok(found);
                }
                Err(_) => {}
            }
        }
        if unseen >= self.links.len().min(2) {
            return Ok(NonceConsumer::Unattributed);
        }
        Err(ChainError::Unreachable(
            "too few endpoints show the consumer of the nonce".to_owned(),
        ))
    }

    async fn find_consumers(
        &self,
        account: Address,
        nonces: Range<u64>,
        up_to: Header,
    ) -> Result<Vec<ConsumedNonce>, ChainError> {
        let needed = self.links.len().min(2);
        let mut answers = Vec::new();
        for at in self.endpoint_order() {
            let answer = self.consumers_at(at, account, nonces.clone(), up_to).await;
            answers.extend(answer.ok());
        }
        agree_on_consumers(&answers, needed).map_err(|why| ChainError::Unusable(why.to_string()))
    }

    async fn fee_quote(&self, followed: &Header) -> Result<FeeQuote, ChainError> {
        match &self.prices {
            Some(prices) => self.quote_checked(prices, followed).await,
            None => {
                let quote = |_, ledger: &Ledger| ledger.quote();
                Ok(self.read(Method::Fees, quote).await?.1)
            }
        }
    }

    async fn estimate_gas(&self, call: &CallRequest) -> Result<u64, CallError> {
        let call = call.clone();
        let query = move |endpoint_view: EndpointView, ledger: &Ledger| {
            endpoint_view.estimate_gas(ledger, &call)
        };
        self.read(Method::Estimates, query).await?.1
    }

    async fn wait_for_head(&self) {
        if !self.announces {
            return std::future::pending().await;
        }
        loop {
            self.chain.announced.notified().await;
            // An announcement that is lost wakes nothing.
            if self.links[0].call(std::future::ready(())).await.is_ok() {
                return;
            }
        }
    }

    async fn send(
        &self,
        account: Address,
        outgoing: &[OutgoingEnvelope],
        trust: SendTrust<'_>,
    ) -> Vec<SendOutcome> {
        self.record_sending(account, outgoing);
        self.send_in_order(outgoing, trust).await
    }
}

fn unreachable(at: usize, why: NoAnswer) -> ChainError {
    ChainError::Unreachable(format!("endpoint {at}: no answer: {why:?}"))
}
