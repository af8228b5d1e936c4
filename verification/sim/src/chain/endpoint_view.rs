//! What one endpoint knows of the chain, at its lag.

use std::collections::BTreeMap;
use std::ops::Range;

use domain::admission::HeadLimits;
use domain::lane::{AccountBalance, AccountNonces, ChainQuery, ConsumedNonce, NonceConsumer};
use domain::{Address, B256, Header, Inclusion, Nonce, Payload};
use engine::ports::{BlockTag, CallError, CallRequest, HashFilter};

use super::false_fees::FeeReport;
use super::ledger::{BLOCK_GAS, Ledger, REVERTS};

#[derive(Clone, Copy, Debug)]
pub(super) struct EndpointView {
    /// The endpoint.
    pub(super) endpoint: usize,
    /// Heads behind, on top of the endpoint's own lag.
    pub(super) behind: u64,
}

impl EndpointView {
    /// The first endpoint, without staleness.
    pub(super) const FIRST: Self = Self {
        endpoint: 0,
        behind: 0,
    };

    fn head(self, ledger: &Ledger) -> B256 {
        ledger.head_of(self.endpoint, self.behind)
    }

    pub(super) fn header(self, ledger: &Ledger, block: BlockTag) -> Option<Header> {
        let head = self.head(ledger);
        let newest = ledger.blocks[&head].header;
        let below = |depth: u64| at_height(ledger, head, newest.number.saturating_sub(depth));
        match block {
            BlockTag::Latest => Some(newest),
            BlockTag::Safe => below(ledger.safe_depth),
            BlockTag::Finalized => below(ledger.final_depth),
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

    /// Whether the endpoint has a transaction, in its mempool or in a block.
    pub(super) fn knows_transaction(self, ledger: &Ledger, hash: B256) -> bool {
        let pool = &ledger.endpoints[self.endpoint].pool;
        pool.iter().any(|tx| tx.hash == hash) || self.receipt(ledger, hash).is_some()
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

    pub(super) fn account_nonces(
        self,
        ledger: &Ledger,
        account: Address,
        query: ChainQuery,
    ) -> AccountNonces {
        let latest = ledger.account(self.head(ledger), account).nonce;
        let pool = &ledger.endpoints[self.endpoint].pool;
        let pending = match query {
            ChainQuery::Pending => pool.pending(account, latest),
            ChainQuery::Latest | ChainQuery::Off => latest,
        };
        AccountNonces { latest, pending }
    }

    /// The account at the endpoint's newest block; `None` when that is lower.
    pub(super) fn account_balance(
        self,
        ledger: &Ledger,
        address: Address,
        not_below: u64,
    ) -> Option<AccountBalance> {
        let head = &ledger.blocks[&self.head(ledger)];
        let account = head.account(address);
        (head.header.number >= not_below).then_some(AccountBalance {
            block: head.header.number,
            nonce: account.nonce,
            balance: ledger.endpoints[self.endpoint]
                .false_balance
                .unwrap_or(account.balance),
        })
    }

    /// The transaction that consumed a nonce in blocks up to a height; `None` when the endpoint does not have
    /// that height yet.
    pub(super) fn find_consumer(
        self,
        ledger: &Ledger,
        account: Address,
        nonce: Nonce,
        up_to: Header,
    ) -> Option<NonceConsumer> {
        let mut header = at_height(ledger, self.head(ledger), up_to.number)?;
        if header.hash != up_to.hash {
            return None;
        }
        if ledger.account(header.hash, account).nonce <= nonce {
            return Some(NonceConsumer::NotConsumed);
        }
        while ledger.account(header.parent_hash, account).nonce > nonce {
            header = ledger.blocks[&header.parent_hash].header;
        }
        let mut txs = ledger.blocks[&header.hash].txs.iter();
        let tx = txs.find(|tx| tx.place() == (account, nonce));
        Some(tx.map_or(NonceConsumer::Unattributed, |tx| tx.find_consumer()))
    }

    /// The transactions that consumed these nonces in blocks up to a height, in order; `None` when the endpoint does not
    /// have that height yet.
    pub(super) fn find_consumers(
        self,
        ledger: &Ledger,
        account: Address,
        nonces: Range<u64>,
        up_to: Header,
    ) -> Option<Vec<ConsumedNonce>> {
        let mut header = at_height(ledger, self.head(ledger), up_to.number)?;
        if header.hash != up_to.hash {
            return None;
        }
        let consumed = ledger.account(header.hash, account).nonce.0.min(nonces.end);
        let mut found = BTreeMap::new();
        while ledger.account(header.hash, account).nonce.0 > nonces.start {
            let block = &ledger.blocks[&header.hash];
            let ours = block.txs.iter().filter(|tx| tx.place().0 == account);
            found.extend(ours.map(|tx| (tx.place().1, tx.to_mined())));
            if header.number == 0 {
                break;
            }
            header = ledger.blocks[&header.parent_hash].header;
        }
        let consumed = (nonces.start..consumed).map(Nonce);
        let consumed = consumed.map(|nonce| ConsumedNonce {
            nonce,
            transaction: found.remove(&nonce),
        });
        Some(consumed.collect())
    }

    pub(super) fn head_limits(self, ledger: &Ledger) -> HeadLimits {
        let endpoint = &ledger.endpoints[self.endpoint];
        HeadLimits {
            has_base_fee: endpoint.fee_report != FeeReport::NoBaseFee,
            gas_limit: Some(endpoint.false_gas_limit.unwrap_or(BLOCK_GAS)),
        }
    }

    pub(super) fn estimate_gas(
        self,
        ledger: &Ledger,
        call: &CallRequest,
    ) -> Result<u64, CallError> {
        if let Some(estimate) = &ledger.endpoints[self.endpoint].false_estimate {
            return estimate.clone();
        }
        if call.data.starts_with(&REVERTS) {
            return Err(CallError::Reverted("reverted by its call data".to_owned()));
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
        // Below here the branch is canonical: no need to walk.
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

/// The receipts of a block that match the filter.
pub(super) fn matching_receipts(
    mut receipts: Vec<Inclusion>,
    is_ours: HashFilter<'_>,
) -> Vec<Inclusion> {
    receipts.retain(|inclusion| is_ours(inclusion.tx_hash));
    receipts
}
