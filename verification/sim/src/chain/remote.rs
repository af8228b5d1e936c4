//! The chain as one node of the cluster has it: several endpoints, each over its own line. What the
//! adapter for real nodes does with them is done here too: reads fail over, doubts ask a second one.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use domain::attempt::OutgoingEnvelope;
use domain::lane::{ChainQuery, EndpointNonces, NonceConsumer};
use domain::{Address, B256, ChainId, FeeQuote, Header, Inclusion, NodeName, Nonce, SendOutcome};
use engine::ports::{BlockTag, CallError, CallRequest, Chain, ChainError, HashFilter, Quorum};

use super::MemoryChain;
use super::ledger::Ledger;
use super::sight::{Sight, ours_of};
use crate::wire::{NoAnswer, Wire, WireFaults};

/// How the answers of nodes fail: as behind a load balancer, each read may hit another machine. Chances
/// are per thousand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staleness {
    /// So many reads are stale.
    pub permille: u64,
    /// A stale one is behind by up to so many heads.
    pub heads_max: u64,
    /// So many sends are refused because the node is busy.
    pub busy: u64,
    /// So many sends are refused by a policy of the node.
    pub refused: u64,
    /// So many questions who consumed a nonce find a node that does not keep old blocks.
    pub blind: u64,
}

impl Staleness {
    /// Always the newest head.
    pub const NONE: Self = Self {
        permille: 0,
        heads_max: 1,
        busy: 0,
        refused: 0,
        blind: 0,
    };
}

/// A [`MemoryChain`] at the other end of [`Wire`]s. Clones are the same view.
#[derive(Clone)]
pub struct RemoteChain {
    pub(super) chain: MemoryChain,
    /// One per endpoint.
    pub(super) wires: Arc<Vec<Wire>>,
    /// How many endpoints get the bytes at once.
    pub(super) send_to: usize,
    /// Whether new heads are announced.
    announces: bool,
    /// Whose view it is, for the trace.
    pub(super) owner: Option<NodeName>,
    staleness: Arc<Mutex<Staleness>>,
}

impl RemoteChain {
    /// The first endpoint of `chain`, seen through `wire`.
    #[must_use]
    pub fn new(chain: MemoryChain, wire: Wire, staleness: Staleness) -> Self {
        Self::over(chain, vec![wire], staleness)
    }

    /// As many endpoints of `chain` as there are wires.
    #[must_use]
    pub fn over(chain: MemoryChain, wires: Vec<Wire>, staleness: Staleness) -> Self {
        let known = chain.lock().endpoints.len();
        assert!((1..=known).contains(&wires.len()), "one wire per endpoint");
        Self {
            chain,
            wires: Arc::new(wires),
            send_to: 1,
            announces: false,
            owner: None,
            staleness: Arc::new(Mutex::new(staleness)),
        }
    }

    /// Sends go to so many endpoints at once.
    #[must_use]
    pub fn sending_to(self, send_to: usize) -> Self {
        Self { send_to, ..self }
    }

    /// New heads are announced, if the line to the first endpoint is good enough.
    #[must_use]
    pub fn announcing(self, announces: bool) -> Self {
        Self { announces, ..self }
    }

    /// Tells the trace that this node sends.
    #[must_use]
    pub fn of(self, owner: &NodeName) -> Self {
        Self {
            owner: Some(owner.clone()),
            ..self
        }
    }

    /// Makes the endpoints lag more or less.
    pub fn set(&self, staleness: Staleness) {
        *self
            .staleness
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = staleness;
    }

    /// Makes all lines better or worse.
    pub fn set_wires(&self, faults: WireFaults) {
        self.wires.iter().for_each(|wire| wire.set(faults));
    }

    pub(super) fn staleness(&self) -> Staleness {
        *self
            .staleness
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The endpoints in the order in which they are asked: those that are down come last, those that lag
    /// behind after those that do not.
    pub(super) fn order(&self) -> Vec<usize> {
        let ledger = self.chain.lock();
        let mut order: Vec<usize> = (0..self.wires.len()).collect();
        order.sort_by_key(|at| {
            let endpoint = &ledger.endpoints[*at];
            (endpoint.is_down, endpoint.lag)
        });
        order
    }

    /// Asks one endpoint.
    async fn lease_request<T: Send + 'static>(
        &self,
        at: usize,
        look: impl FnOnce(Sight, &Ledger) -> T + Send + 'static,
    ) -> Result<T, ChainError> {
        let (chain, sight) = (self.chain.clone(), self.sight(at));
        let question = async move {
            let ledger = chain.lock();
            let is_up = !ledger.endpoints[at].is_down;
            is_up.then(|| look(sight, &ledger))
        };
        match self.wires[at].call(question).await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(unreachable(at, NoAnswer::Refused)),
            Err(why) => Err(unreachable(at, why)),
        }
    }

    fn sight(&self, endpoint: usize) -> Sight {
        let Staleness {
            permille,
            heads_max,
            ..
        } = self.staleness();
        let rng = self.wires[endpoint].rng();
        let (is_stale, behind) = (rng.permille(permille), rng.between(1, heads_max.max(1)));
        Sight {
            endpoint,
            behind: if is_stale { behind } else { 0 },
        }
    }

    /// Asks one endpoint after the other until one answers; says which one.
    async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(Sight, &Ledger) -> T + Clone + Send + 'static,
    ) -> Result<(usize, T), ChainError> {
        let mut last = ChainError::Unreachable("there is no endpoint".to_owned());
        for at in self.order() {
            match self.lease_request(at, look.clone()).await {
                Ok(answer) => return Ok((at, answer)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The best endpoint besides this one.
    fn second(&self, first: usize) -> Option<usize> {
        self.order().into_iter().find(|at| *at != first)
    }

    fn is_blind(&self, at: usize) -> bool {
        self.wires[at].rng().permille(self.staleness().blind)
    }

    async fn consumer_at(
        &self,
        at: usize,
        account: Address,
        nonce: Nonce,
        up_to: Header,
    ) -> Result<NonceConsumer, ChainError> {
        let is_blind = self.is_blind(at);
        let told = self
            .lease_request(at, move |sight, ledger| {
                sight.find_consumer(ledger, account, nonce, up_to)
            })
            .await?;
        match told {
            Some(NonceConsumer::By { .. }) if is_blind => Ok(NonceConsumer::Unseen),
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
        let wires = self.wires.iter().enumerate();
        wires
            .map(|(at, wire)| (format!("memory {at}"), !wire.faults().cut))
            .collect()
    }

    async fn header(&self, block: BlockTag) -> Result<Option<Header>, ChainError> {
        let look = move |sight: Sight, ledger: &Ledger| sight.header(ledger, block);
        Ok(self.read(look).await?.1)
    }

    async fn headers(&self, from: u64, count: u64) -> Result<Vec<Header>, ChainError> {
        let look = move |sight: Sight, ledger: &Ledger| sight.headers(ledger, from, count);
        Ok(self.read(look).await?.1)
    }

    async fn block_receipts(
        &self,
        block: B256,
        is_ours: HashFilter<'_>,
    ) -> Result<Option<Vec<Inclusion>>, ChainError> {
        let look = move |sight: Sight, ledger: &Ledger| sight.block_receipts(ledger, block);
        let receipts = self.read(look).await?.1;
        Ok(receipts.map(|receipts| ours_of(receipts, is_ours)))
    }

    async fn knows_transaction(&self, hash: B256, quorum: Quorum) -> Result<bool, ChainError> {
        let look = move |sight: Sight, ledger: &Ledger| sight.knows_transaction(ledger, hash);
        let (first, has) = self.read(look).await?;
        if has || quorum == Quorum::One {
            return Ok(has);
        }
        for other in self.order().into_iter().filter(|at| *at != first) {
            if self.lease_request(other, look).await.unwrap_or(false) {
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
        let asked = hashes.to_vec();
        let look = move |sight: Sight, ledger: &Ledger| sight.receipts(ledger, &asked);
        let (first, mut found) = self.read(look.clone()).await?;
        let others: Vec<usize> = self.order().into_iter().filter(|at| *at != first).collect();
        let mut told_by = 1;
        for at in &others {
            if found.len() == hashes.len() {
                return Ok(found);
            }
            // One that does not answer tells nothing of what it has.
            let Ok(more) = self.lease_request(*at, look.clone()).await else {
                continue;
            };
            told_by += 1;
            for inclusion in more {
                if !found.iter().any(|held| held.tx_hash == inclusion.tx_hash) {
                    found.push(inclusion);
                }
            }
        }
        if quorum == Quorum::Two && found.len() < hashes.len() && told_by < 2.min(others.len() + 1)
        {
            return Err(ChainError::Unreachable(
                "no second node tells that it is absent".into(),
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
        let look =
            move |sight: Sight, ledger: &Ledger| sight.account_nonces(ledger, account, query);
        let (at, first) = self.read(look).await?;
        let second = match (quorum, self.second(at)) {
            (Quorum::Two, Some(other)) => Some(self.lease_request(other, look).await?),
            (Quorum::Two, None) | (Quorum::One, _) => None,
        };
        Ok(EndpointNonces {
            first,
            second,
            is_complete: second.is_some() || self.wires.len() == 1,
        })
    }

    async fn find_consumer(
        &self,
        account: Address,
        nonce: Nonce,
        up_to: Header,
    ) -> Result<NonceConsumer, ChainError> {
        let mut unseen = 0;
        for at in self.order() {
            match self.consumer_at(at, account, nonce, up_to).await {
                Ok(NonceConsumer::Unseen) => unseen += 1,
                Ok(found @ (NonceConsumer::By { .. } | NonceConsumer::Nobody)) => return Ok(found),
                Err(_) => {}
            }
        }
        if unseen >= self.wires.len().min(2) {
            return Ok(NonceConsumer::Unseen);
        }
        Err(ChainError::Unreachable(
            "too few endpoints say who consumed a nonce".to_owned(),
        ))
    }

    async fn fee_quote(&self) -> Result<FeeQuote, ChainError> {
        Ok(self.read(|_, ledger: &Ledger| ledger.quote()).await?.1)
    }

    async fn estimate_gas(&self, call: &CallRequest) -> Result<u64, CallError> {
        let call = call.clone();
        let look = move |sight: Sight, ledger: &Ledger| sight.estimate_gas(ledger, &call);
        self.read(look).await?.1
    }

    async fn wait_for_head(&self) {
        if !self.announces {
            return std::future::pending().await;
        }
        loop {
            self.chain.announced.notified().await;
            // An announcement that is lost on its way rings no bell.
            if self.wires[0].call(std::future::ready(())).await.is_ok() {
                return;
            }
        }
    }

    async fn send(&self, outgoing: &[OutgoingEnvelope]) -> Vec<SendOutcome> {
        self.tell_sending(outgoing);
        self.send_in_order(outgoing).await
    }
}

fn unreachable(at: usize, why: NoAnswer) -> ChainError {
    ChainError::Unreachable(format!("endpoint {at}: no answer: {why:?}"))
}
