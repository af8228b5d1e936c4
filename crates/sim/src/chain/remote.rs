//! The chain as one node of the cluster sees it: over a network, through a node that lags behind.

use std::sync::{Arc, Mutex, PoisonError};

use alloy_primitives::U256;
use async_trait::async_trait;
use domain::attempt::Outgoing;
use domain::lane::{ChainNonces, ChainQuery};
use domain::{Address, B256, ChainId, FeeQuote, Header, Inclusion, Payload, SendOutcome};
use engine::ports::{BlockTag, Call, CallFailed, Chain, ChainError};

use super::MemoryChain;
use super::ledger::{Ledger, REVERTS};
use crate::wire::{NoAnswer, Wire};

/// How a node of the chain lags: as behind a load balancer, each read may hit another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staleness {
    /// So many reads in a thousand are stale.
    pub permille: u64,
    /// A stale one is behind by up to so many heads.
    pub heads_max: u64,
    /// So many sends in a thousand are refused because the node is busy.
    pub busy: u64,
}

impl Staleness {
    /// Always the newest head.
    pub const NONE: Self = Self {
        permille: 0,
        heads_max: 1,
        busy: 0,
    };
}

/// A [`MemoryChain`] at the other end of a [`Wire`]. Clones are the same view.
#[derive(Clone)]
pub struct RemoteChain {
    chain: MemoryChain,
    wire: Wire,
    staleness: Arc<Mutex<Staleness>>,
}

impl RemoteChain {
    /// `chain`, seen through `wire`.
    #[must_use]
    pub fn new(chain: MemoryChain, wire: Wire, staleness: Staleness) -> Self {
        Self {
            chain,
            wire,
            staleness: Arc::new(Mutex::new(staleness)),
        }
    }

    /// Makes the node lag more or less.
    pub fn set(&self, staleness: Staleness) {
        *self
            .staleness
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = staleness;
    }

    fn staleness(&self) -> Staleness {
        *self
            .staleness
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn sight(&self) -> Sight {
        let Staleness {
            permille,
            heads_max,
            ..
        } = self.staleness();
        let (is_stale, behind) = (
            self.wire.rng().permille(permille),
            self.wire.rng().between(1, heads_max.max(1)),
        );
        Sight {
            behind: if is_stale { behind } else { 0 },
        }
    }

    async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(Sight, &Ledger) -> T + Send + 'static,
    ) -> Result<T, ChainError> {
        let (chain, sight) = (self.chain.clone(), self.sight());
        let answer = self
            .wire
            .call(async move { look(sight, &chain.lock()) })
            .await;
        answer.map_err(|why| ChainError::Unreachable(format!("no answer: {why:?}")))
    }
}

#[async_trait]
impl Chain for RemoteChain {
    fn id(&self) -> ChainId {
        self.chain.id
    }

    fn endpoints(&self) -> Vec<(String, bool)> {
        vec![("memory".to_owned(), !self.wire.faults().cut)]
    }

    async fn header(&self, block: BlockTag) -> Result<Option<Header>, ChainError> {
        self.read(move |sight, ledger| sight.header(ledger, block))
            .await
    }

    async fn headers(&self, from: u64, count: u64) -> Result<Vec<Header>, ChainError> {
        self.read(move |sight, ledger| sight.headers(ledger, from, count))
            .await
    }

    async fn block_receipts(&self, block: B256) -> Result<Option<Vec<Inclusion>>, ChainError> {
        self.read(move |sight, ledger| sight.block_receipts(ledger, block))
            .await
    }

    async fn receipts(&self, hashes: &[B256]) -> Result<Vec<Inclusion>, ChainError> {
        let hashes = hashes.to_vec();
        self.read(move |sight, ledger| sight.receipts(ledger, &hashes))
            .await
    }

    async fn revert_reason(&self, inclusion: &Inclusion) -> Result<Option<String>, ChainError> {
        self.chain.revert_reason(inclusion).await
    }

    async fn nonces(&self, account: Address, query: ChainQuery) -> Result<ChainNonces, ChainError> {
        self.read(move |sight, ledger| sight.nonces(ledger, account, query))
            .await
    }

    async fn fee_quote(&self) -> Result<FeeQuote, ChainError> {
        self.read(|_, ledger| FeeQuote {
            base_fee: Some(ledger.base_fee),
            tip: ledger.tip,
        })
        .await
    }

    async fn estimate_gas(&self, call: &Call) -> Result<u64, CallFailed> {
        let call = call.clone();
        self.read(move |sight, ledger| sight.estimate_gas(ledger, &call))
            .await?
    }

    async fn send(&self, outgoing: &[Outgoing]) -> Vec<SendOutcome> {
        if self.wire.rng().permille(self.staleness().busy) {
            return vec![SendOutcome::Busy("the node is syncing".to_owned()); outgoing.len()];
        }
        let (chain, bytes) = (self.chain.clone(), outgoing.to_vec());
        let outcome = match self.wire.call(async move { chain.receive(&bytes) }).await {
            Ok(outcomes) => return outcomes,
            Err(NoAnswer::Refused) => SendOutcome::Busy("connection refused".to_owned()),
            Err(NoAnswer::Lost) => SendOutcome::Unknown("the answer was lost".to_owned()),
        };
        vec![outcome; outgoing.len()]
    }
}

/// What a node that is so many heads behind knows of the chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    pub(super) behind: u64,
}

impl Sight {
    fn head(self, ledger: &Ledger) -> B256 {
        let behind = usize::try_from(self.behind).unwrap_or(usize::MAX);
        let place = (ledger.heads.len() - 1).saturating_sub(behind);
        ledger.heads[place]
    }

    pub(super) fn header(self, ledger: &Ledger, block: BlockTag) -> Option<Header> {
        let head = self.head(ledger);
        match block {
            BlockTag::Latest => Some(ledger.blocks[&head].header),
            BlockTag::Number(number) => at_height(ledger, head, number),
            BlockTag::Hash(hash) => {
                let known = ledger.blocks[&head].made;
                ledger
                    .blocks
                    .get(&hash)
                    .filter(|block| block.made <= known)
                    .map(|b| b.header)
            }
        }
    }

    pub(super) fn headers(self, ledger: &Ledger, from: u64, count: u64) -> Vec<Header> {
        let head = self.head(ledger);
        let heights = from..from.saturating_add(count);
        heights
            .map_while(|number| at_height(ledger, head, number))
            .collect()
    }

    pub(super) fn block_receipts(self, ledger: &Ledger, hash: B256) -> Option<Vec<Inclusion>> {
        self.header(ledger, BlockTag::Hash(hash))?;
        Some(ledger.blocks[&hash].receipts.clone())
    }

    pub(super) fn receipts(self, ledger: &Ledger, hashes: &[B256]) -> Vec<Inclusion> {
        hashes
            .iter()
            .filter_map(|hash| self.receipt(ledger, *hash))
            .collect()
    }

    fn receipt(self, ledger: &Ledger, hash: B256) -> Option<Inclusion> {
        let head = self.head(ledger);
        let blocks = ledger
            .mined_in
            .get(&hash)?
            .iter()
            .map(|block| &ledger.blocks[block]);
        let block = blocks.into_iter().find(|block| {
            let standing = at_height(ledger, head, block.header.number);
            standing.is_some_and(|there| there.hash == block.header.hash)
        })?;
        block
            .receipts
            .iter()
            .find(|inclusion| inclusion.tx_hash == hash)
            .cloned()
    }

    pub(super) fn nonces(
        self,
        ledger: &Ledger,
        account: Address,
        query: ChainQuery,
    ) -> ChainNonces {
        let latest = ledger.account(self.head(ledger), account).nonce;
        let pending = match query {
            ChainQuery::Pending => ledger.pool.pending(account, latest),
            ChainQuery::Latest | ChainQuery::Off => latest,
        };
        ChainNonces { latest, pending }
    }

    pub(super) fn estimate_gas(self, ledger: &Ledger, call: &Call) -> Result<u64, CallFailed> {
        if call.data.starts_with(&REVERTS) {
            return Err(CallFailed::Reverted("reverted by its call data".to_owned()));
        }
        let balance: U256 = ledger.account(self.head(ledger), call.from).balance;
        if balance < call.value {
            return Err(CallFailed::Underfunded(
                "insufficient funds for transfer".to_owned(),
            ));
        }
        let mut payload = Payload::transfer(Address::ZERO, call.value);
        payload.to = call.to;
        payload.data = call.data.clone();
        Ok(payload.intrinsic_gas())
    }
}

/// The block at a height, on the branch that ends in `head`.
fn at_height(ledger: &Ledger, head: B256, number: u64) -> Option<Header> {
    let mut header = ledger.blocks[&head].header;
    if number > header.number {
        return None;
    }
    loop {
        let height = usize::try_from(header.number).ok()?;
        // Below here the branch is the present chain: no need to walk.
        if ledger.canonical.get(height) == Some(&header.hash) {
            let there = ledger.canonical[usize::try_from(number).ok()?];
            return Some(ledger.blocks[&there].header);
        }
        if header.number == number {
            return Some(header);
        }
        header = ledger.blocks[&header.parent_hash].header;
    }
}
