//! A scripted chain.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use domain::admission::HeadLimits;
use domain::attempt::OutgoingEnvelope;
use domain::lane::{
    AccountBalance, AccountNonces, Agreement, ChainQuery, ConsumedNonce, EndpointNonces,
    NonceConsumer,
};
use domain::{
    Address, B256, ChainId, EffectDigest, FeeQuote, Header, Inclusion, Nonce, SendOutcome, U256,
};
use engine::ports::{
    BlockTag, CallError, CallRequest, Chain, ChainError, HashFilter, Quorum, SendTrust,
};

use super::Latch;

pub(crate) struct FakeChain {
    id: ChainId,
    state: Mutex<State>,
    /// Blocks answers about nonces while closed.
    latch: Latch,
}

struct State {
    blocks: Vec<Block>,
    pool: BTreeMap<(Address, u64), B256>,
    /// First nonce of each account.
    start_nonces: BTreeMap<Address, u64>,
    /// The answer of a second endpoint, if there is one.
    second: Option<AccountNonces>,
    /// The answer of a third endpoint, which is queried when the others contradict each other.
    third: Option<AccountNonces>,
    is_unreachable: bool,
    /// Number of queries for account nonces.
    nonce_queries: usize,
    branch: u8,
}

struct Block {
    header: Header,
    transactions: Vec<(Address, u64, B256)>,
}

impl FakeChain {
    pub(crate) fn new(id: ChainId) -> Arc<Self> {
        let chain = Self {
            id,
            state: Mutex::new(State {
                blocks: Vec::new(),
                pool: BTreeMap::new(),
                start_nonces: BTreeMap::new(),
                second: None,
                third: None,
                is_unreachable: false,
                nonce_queries: 0,
                branch: 0,
            }),
            latch: Latch::open(),
        };
        chain.lock().append_block();
        Arc::new(chain)
    }

    /// Sets the first nonce of an account.
    pub(crate) fn set_start_nonce(&self, account: Address, nonce: u64) {
        self.lock().start_nonces.insert(account, nonce);
    }

    /// Adds a transaction to the mempool.
    pub(crate) fn send(&self, account: Address, nonce: u64, hash: B256) {
        self.lock().pool.insert((account, nonce), hash);
    }

    /// Drops all pending transactions.
    pub(crate) fn empty_pool(&self) {
        self.lock().pool.clear();
    }

    /// Mines blocks, the first with the executable transactions of the mempool.
    pub(crate) fn mine(&self, count: u64) {
        let mut state = self.lock();
        for _ in 0..count {
            state.append_block();
        }
    }

    /// Replaces the newest blocks by as many empty ones.
    pub(crate) fn reorg(&self, depth: usize) {
        let mut state = self.lock();
        let pool = std::mem::take(&mut state.pool);
        let remaining = state.blocks.len() - depth;
        state.blocks.truncate(remaining);
        state.branch += 1;
        for _ in 0..depth {
            state.append_block();
        }
        state.pool = pool;
    }

    pub(crate) fn set_unreachable(&self, is_unreachable: bool) {
        self.lock().is_unreachable = is_unreachable;
    }

    /// Adds a second endpoint with these nonces for every account.
    pub(crate) fn set_second_endpoint(&self, latest: u64, pending: u64) {
        self.lock().second = Some(AccountNonces {
            latest: Nonce(latest),
            pending: Nonce(pending),
        });
    }

    /// Adds a third endpoint with these nonces for every account.
    pub(crate) fn set_third_endpoint(&self, latest: u64, pending: u64) {
        self.lock().third = Some(AccountNonces {
            latest: Nonce(latest),
            pending: Nonce(pending),
        });
    }

    /// Number of queries for account nonces.
    pub(crate) fn nonce_queries(&self) -> usize {
        self.lock().nonce_queries
    }

    /// Blocks answers about nonces while closed.
    pub(crate) fn latch(&self) -> &Latch {
        &self.latch
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn lock_if_reachable(&self) -> Result<MutexGuard<'_, State>, ChainError> {
        let state = self.lock();
        match state.is_unreachable {
            true => Err(ChainError::Unreachable(
                "set unreachable by the test".into(),
            )),
            false => Ok(state),
        }
    }
}

impl State {
    fn append_block(&mut self) {
        let number = self.blocks.len() as u64;
        let mut hash = [self.branch; 32];
        hash[24..].copy_from_slice(&number.to_be_bytes());
        let parent = self.blocks.last().map(|block| block.header.hash);
        let mut transactions: Vec<(Address, u64, B256)> = Vec::new();
        for ((account, nonce), hash) in std::mem::take(&mut self.pool) {
            let before = transactions
                .iter()
                .filter(|(from, ..)| *from == account)
                .count() as u64;
            match nonce == self.latest(account) + before {
                true => transactions.push((account, nonce, hash)),
                false => {
                    self.pool.insert((account, nonce), hash);
                }
            }
        }
        self.blocks.push(Block {
            header: Header {
                number,
                hash: B256::from(hash),
                parent_hash: parent.unwrap_or_default(),
                timestamp: 1_700_000_000 + number,
            },
            transactions,
        });
    }

    fn transactions(&self) -> impl DoubleEndedIterator<Item = (&Header, &(Address, u64, B256))> {
        self.blocks
            .iter()
            .flat_map(|block| block.transactions.iter().map(|tx| (&block.header, tx)))
    }

    fn latest(&self, account: Address) -> u64 {
        let mined = self
            .transactions()
            .filter(|(_, (from, ..))| *from == account)
            .count() as u64;
        mined + self.start_nonces.get(&account).copied().unwrap_or_default()
    }

    fn account_nonces(&self, account: Address) -> AccountNonces {
        let latest = self.latest(account);
        let mut pending = latest;
        while self.pool.contains_key(&(account, pending)) {
            pending += 1;
        }
        AccountNonces {
            latest: Nonce(latest),
            pending: Nonce(pending),
        }
    }
}

fn inclusion((header, (.., hash)): (&Header, &(Address, u64, B256))) -> Inclusion {
    Inclusion {
        tx_hash: *hash,
        block_number: header.number,
        block_hash: header.hash,
        succeeded: true,
        gas_used: 21_000,
        effective_gas_price: 1,
        contract_address: None,
        revert_reason: None,
    }
}

#[async_trait]
impl Chain for FakeChain {
    fn id(&self) -> ChainId {
        self.id
    }

    fn endpoints(&self) -> Vec<(String, bool)> {
        vec![("fake".into(), !self.lock().is_unreachable)]
    }

    async fn header(&self, block: BlockTag) -> Result<Option<Header>, ChainError> {
        let state = self.lock_if_reachable()?;
        let mut headers = state.blocks.iter().map(|block| block.header);
        Ok(match block {
            BlockTag::Latest => headers.next_back(),
            BlockTag::Safe | BlockTag::Finalized => headers.next(),
            BlockTag::Number(number) => headers.find(|header| header.number == number),
            BlockTag::Hash(hash) => headers.find(|header| header.hash == hash),
        })
    }

    async fn headers(&self, from: u64, count: u64) -> Result<Vec<Header>, ChainError> {
        let state = self.lock_if_reachable()?;
        let headers = state.blocks.iter().map(|block| block.header);
        let wanted = headers.filter(|header| (from..from + count).contains(&header.number));
        Ok(wanted.collect())
    }

    async fn block_receipts(
        &self,
        block: B256,
        is_ours: HashFilter<'_>,
    ) -> Result<Option<Vec<Inclusion>>, ChainError> {
        let state = self.lock_if_reachable()?;
        let known = state.blocks.iter().any(|known| known.header.hash == block);
        let all = state
            .transactions()
            .filter(|(header, _)| header.hash == block);
        let ours = all.filter(|(_, (.., hash))| is_ours(*hash)).map(inclusion);
        Ok(known.then(|| ours.collect()))
    }

    async fn receipts(
        &self,
        hashes: &[B256],
        _quorum: Quorum,
    ) -> Result<Vec<Inclusion>, ChainError> {
        let state = self.lock_if_reachable()?;
        let found = state
            .transactions()
            .filter(|(_, (.., hash))| hashes.contains(hash));
        Ok(found.map(inclusion).collect())
    }

    async fn revert_reason(&self, _inclusion: &Inclusion) -> Result<Option<String>, ChainError> {
        Ok(None)
    }

    async fn account_nonces(
        &self,
        account: Address,
        _query: ChainQuery,
        quorum: Quorum,
    ) -> Result<EndpointNonces, ChainError> {
        self.lock().nonce_queries += 1;
        self.latch.wait_until_open().await;
        let state = self.lock_if_reachable()?;
        let agreement = match state.second.is_none() || quorum == Quorum::Two {
            true => Agreement::Quorum,
            false => Agreement::One,
        };
        let second = state.second.filter(|_| quorum == Quorum::Two);
        let nonces = EndpointNonces::new(state.account_nonces(account), second, agreement);
        Ok(EndpointNonces {
            third: state.third.filter(|_| nonces.is_contradictory()),
            ..nonces
        })
    }

    async fn account_balance(
        &self,
        _account: Address,
        _not_below: u64,
        _quorum: Quorum,
    ) -> Result<AccountBalance, ChainError> {
        let why = "reservations cost nothing here".to_owned();
        Err(ChainError::Unusable(why))
    }

    async fn knows_transaction(&self, hash: B256, _quorum: Quorum) -> Result<bool, ChainError> {
        let state = self.lock_if_reachable()?;
        let is_mined = state.transactions().any(|(_, (.., mined))| *mined == hash);
        Ok(is_mined || state.pool.values().any(|waiting| *waiting == hash))
    }

    async fn find_consumer(
        &self,
        account: Address,
        nonce: Nonce,
        up_to: Header,
    ) -> Result<NonceConsumer, ChainError> {
        let state = self.lock_if_reachable()?;
        if state
            .start_nonces
            .get(&account)
            .is_some_and(|began| nonce.0 < *began)
        {
            return Ok(NonceConsumer::Unattributed);
        }
        let mut below = state
            .transactions()
            .filter(|(header, _)| header.number <= up_to.number);
        let found = below.find(|(_, (from, used, _))| (*from, *used) == (account, nonce.0));
        Ok(found.map_or(NonceConsumer::NotConsumed, |(_, (.., hash))| {
            NonceConsumer::Transaction {
                hash: *hash,
                effect_digest: EffectDigest::of(None, U256::ZERO, &[]),
            }
        }))
    }

    async fn find_consumers(
        &self,
        _account: Address,
        _nonces: Range<u64>,
        _up_to: Header,
    ) -> Result<Vec<ConsumedNonce>, ChainError> {
        let why = "reservations attribute no nonces".to_owned();
        Err(ChainError::Unusable(why))
    }

    async fn fee_quote(&self, _followed: &Header) -> Result<FeeQuote, ChainError> {
        Ok(FeeQuote {
            base_fee: Some(7),
            tip: 1,
            block_gas_limit: None,
            no_op_gas: None,
            has_data_floor: false,
            recent_max: None,
        })
    }

    async fn head_limits(&self) -> Result<HeadLimits, ChainError> {
        Ok(HeadLimits::default())
    }

    async fn estimate_gas(&self, _call: &CallRequest) -> Result<u64, CallError> {
        Err(CallError::Refused("not used in these tests".into()))
    }

    async fn send(
        &self,
        _account: Address,
        outgoing: &[OutgoingEnvelope],
        _trust: SendTrust<'_>,
    ) -> Vec<SendOutcome> {
        panic!("the component must send nothing, and this is sent: {outgoing:?}");
    }
}
