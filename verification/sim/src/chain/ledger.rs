//! Blocks and accounts. All branches are kept; `canonical` is the present one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::{Address, B256, U256, keccak256};
use domain::{ChainId, FeeQuote, Header, Inclusion, Nonce, Payload};

use super::endpoint::Endpoint;
use super::pool::{ChainTx, Place};

/// The default balance of an account: a million ether.
pub(super) const BALANCE_DEFAULT: U256 =
    U256::from_limbs([2_003_764_205_206_896_640, 54_210, 0, 0]);

/// Call data with this prefix reverts.
pub const REVERTS: [u8; 4] = [0xde, 0xad, 0xbe, 0xef];

/// The most gas of one block.
pub const BLOCK_GAS: u64 = 30_000_000;

const SAFE_DEPTH_DEFAULT: u64 = 2;
const FINAL_DEPTH_DEFAULT: u64 = 4;

const GENESIS_TIMESTAMP: u64 = 1_767_225_600;
const BLOCK_SECONDS: u64 = 2;

#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) id: ChainId,
    pub(super) blocks: BTreeMap<B256, Block>,
    /// The canonical chain, by height.
    pub(super) canonical: Vec<B256>,
    /// Every head there ever was, in order: what a lagging endpoint still shows.
    pub(super) heads: Vec<B256>,
    /// The blocks, of any branch, that contain a transaction.
    pub(super) mined_in: BTreeMap<B256, Vec<B256>>,
    /// Never empty.
    pub(super) endpoints: Vec<Endpoint>,
    /// The endpoint whose mempool the next block is built from first.
    pub(super) producer: usize,
    /// Private transactions: no endpoint shows them.
    pub(super) private: BTreeMap<Place, Arc<ChainTx>>,
    /// Foreign transactions, and whether each is pending somewhere.
    pub(super) foreign: BTreeMap<B256, bool>,
    /// How many blocks below its head an endpoint calls safe, and finalized.
    pub(super) safe_depth: u64,
    pub(super) final_depth: u64,
    pub(super) base_fee: u128,
    pub(super) tip: u128,
    /// How many transactions fit into a block.
    pub(super) block_room: usize,
    pub(super) auto_mine: bool,
    /// How long an endpoint needs to show why a transaction reverted.
    pub(super) reason_delay: Duration,
}

#[derive(Debug)]
pub(super) struct Block {
    pub(super) header: Header,
    /// How many blocks existed before it: an endpoint that shows an older head does not know it.
    pub(super) made: usize,
    pub(super) txs: Vec<Arc<ChainTx>>,
    pub(super) receipts: Vec<Inclusion>,
    /// The accounts after it.
    accounts: Arc<BTreeMap<Address, Account>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) nonce: Nonce,
    pub(super) balance: U256,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            nonce: Nonce(0),
            balance: BALANCE_DEFAULT,
        }
    }
}

impl Block {
    /// An account as of this block.
    pub(super) fn account(&self, address: Address) -> Account {
        self.accounts.get(&address).copied().unwrap_or_default()
    }
}

impl Ledger {
    pub(super) fn new(id: ChainId) -> Self {
        let hash = keccak256(id.0.to_be_bytes());
        let header = Header {
            number: 0,
            hash,
            parent_hash: B256::ZERO,
            timestamp: GENESIS_TIMESTAMP,
        };
        let genesis = Block {
            header,
            made: 0,
            txs: Vec::new(),
            receipts: Vec::new(),
            accounts: Arc::default(),
        };
        Self {
            id,
            blocks: BTreeMap::from([(hash, genesis)]),
            canonical: vec![hash],
            heads: vec![hash],
            mined_in: BTreeMap::new(),
            endpoints: vec![Endpoint::default()],
            producer: 0,
            private: BTreeMap::new(),
            foreign: BTreeMap::new(),
            safe_depth: SAFE_DEPTH_DEFAULT,
            final_depth: FINAL_DEPTH_DEFAULT,
            base_fee: 1_000_000_000,
            tip: 1_000_000_000,
            block_room: usize::MAX,
            auto_mine: false,
            reason_delay: Duration::ZERO,
        }
    }

    pub(super) fn head(&self) -> B256 {
        *self.canonical.last().expect("the genesis block stays")
    }

    /// An account as of a block.
    pub(super) fn account(&self, at: B256, address: Address) -> Account {
        let block = self.blocks.get(&at);
        block.map_or_else(Account::default, |block| block.account(address))
    }

    /// Sets the balance of an account, from the head on.
    pub(super) fn fund(&mut self, address: Address, balance: U256) {
        let head = self.head();
        let block = self.blocks.get_mut(&head).expect("the head is a block");
        Arc::make_mut(&mut block.accounts)
            .entry(address)
            .or_default()
            .balance = balance;
    }

    /// The present price.
    pub(super) fn quote(&self) -> FeeQuote {
        FeeQuote {
            base_fee: Some(self.base_fee),
            tip: self.tip,
            block_gas_limit: Some(BLOCK_GAS),
            no_op_gas: None,
            has_data_floor: false,
            recent_max: None,
        }
    }

    /// Mines a block on the head with all pending transactions that can pay and are `wanted`, in nonce order.
    pub(super) fn mine(&mut self, mut wanted: impl FnMut(&ChainTx) -> bool) -> Header {
        let parent = &self.blocks[&self.head()];
        let mut accounts = Arc::clone(&parent.accounts);
        let mut txs: Vec<Arc<ChainTx>> = Vec::new();
        for choice in self.block_candidates().into_values() {
            let fits = |tx: &Arc<ChainTx>| self.fits(tx, &accounts);
            let Some(tx) = choice.into_iter().find(fits) else {
                continue;
            };
            // Checked last, so that randomness is drawn only for transactions that could be mined.
            if txs.len() < self.block_room && wanted(&tx) {
                execute(Arc::make_mut(&mut accounts), &tx, self.base_fee);
                txs.push(tx);
            }
        }
        let header = self.next_header(&txs);
        let receipts = txs
            .iter()
            .map(|tx| receipt(&header, tx, self.base_fee))
            .collect();
        for tx in &txs {
            self.mined_in.entry(tx.hash).or_default().push(header.hash);
        }
        let made = self.blocks.len();
        self.blocks.insert(
            header.hash,
            Block {
                header,
                made,
                txs,
                receipts,
                accounts,
            },
        );
        self.canonical.push(header.hash);
        header
    }

    fn fits(&self, tx: &ChainTx, accounts: &BTreeMap<Address, Account>) -> bool {
        let envelope = &tx.envelope;
        let account = accounts.get(&envelope.signer).copied().unwrap_or_default();
        let (max_fee, _) = tx.offer();
        envelope.nonce == account.nonce
            && max_fee >= self.base_fee
            && account.balance >= cost(tx, envelope.gas, max_fee)
    }

    /// Removes the newest block; returns its transactions to the caller.
    pub(super) fn remove_head(&mut self) -> Option<(Header, Vec<Arc<ChainTx>>)> {
        if self.canonical.len() < 2 {
            return None;
        }
        let hash = self.canonical.pop()?;
        let block = &self.blocks[&hash];
        Some((block.header, block.txs.clone()))
    }

    /// Appends the present head to the list of heads.
    pub(super) fn announce(&mut self) {
        let head = self.head();
        if self.heads.last() != Some(&head) {
            self.heads.push(head);
        }
        self.prune();
    }

    fn next_header(&self, txs: &[Arc<ChainTx>]) -> Header {
        let parent = &self.blocks[&self.head()].header;
        let mut seed = parent.hash.to_vec();
        // Makes two empty blocks on the same parent differ.
        seed.extend_from_slice(&self.blocks.len().to_be_bytes());
        txs.iter()
            .for_each(|tx| seed.extend_from_slice(tx.hash.as_slice()));
        Header {
            number: parent.number + 1,
            hash: keccak256(&seed),
            parent_hash: parent.hash,
            timestamp: parent.timestamp + BLOCK_SECONDS,
        }
    }
}

fn execute(accounts: &mut BTreeMap<Address, Account>, tx: &ChainTx, base_fee: u128) {
    let envelope = &tx.envelope;
    let gas_cost = U256::from(gas_used(tx)) * U256::from(effective_price(tx, base_fee));
    let moved = if succeeds(tx) {
        envelope.value
    } else {
        U256::ZERO
    };
    let sender = accounts.entry(envelope.signer).or_default();
    sender.nonce = sender.nonce.next();
    sender.balance = sender
        .balance
        .saturating_sub(gas_cost)
        .saturating_sub(moved);
    if let Some(to) = envelope.to.filter(|_| !moved.is_zero()) {
        let receiver = accounts.entry(to).or_default();
        receiver.balance = receiver.balance.saturating_add(moved);
    }
}

fn receipt(header: &Header, tx: &ChainTx, base_fee: u128) -> Inclusion {
    let envelope = &tx.envelope;
    let created = keccak256([envelope.signer.as_slice(), &envelope.nonce.0.to_be_bytes()].concat());
    Inclusion {
        tx_hash: tx.hash,
        block_number: header.number,
        block_hash: header.hash,
        succeeded: succeeds(tx),
        gas_used: gas_used(tx),
        effective_gas_price: effective_price(tx, base_fee),
        contract_address: (envelope.to.is_none() && succeeds(tx))
            .then_some(Address::from_word(created)),
        revert_reason: None,
    }
}

/// The minimum gas of a call.
pub(super) fn intrinsic_gas(tx: &ChainTx) -> u64 {
    let envelope = &tx.envelope;
    let mut payload = Payload::transfer(Address::ZERO, envelope.value);
    payload.to = envelope.to;
    payload.data = envelope.data.clone();
    payload.intrinsic_gas()
}

fn gas_used(tx: &ChainTx) -> u64 {
    intrinsic_gas(tx).min(tx.envelope.gas)
}

fn succeeds(tx: &ChainTx) -> bool {
    !tx.envelope.data.starts_with(&REVERTS)
}

fn effective_price(tx: &ChainTx, base_fee: u128) -> u128 {
    let (max_fee, tip) = tx.offer();
    max_fee.min(base_fee.saturating_add(tip))
}

/// The maximum cost of a transaction for its account.
pub(super) fn cost(tx: &ChainTx, gas: u64, per_gas: u128) -> U256 {
    let gas_cost = U256::from(gas).saturating_mul(U256::from(per_gas));
    tx.envelope.value.saturating_add(gas_cost)
}
