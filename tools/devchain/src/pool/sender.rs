//! The txs of one sender, in nonce order. Those that follow the account's nonce without a gap are
//! executable, the others are queued until the gap closes.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::U256;

use super::Refusal;
use super::refusal::Overdraft;
use crate::state::Account;
use crate::transaction::SignedTx;

/// A replacement must raise both fee fields by this much.
const REPLACEMENT_BUMP_PERCENT: u128 = 10;

pub(super) struct Sender {
    /// The account as of the head.
    nonce: u64,
    balance: U256,
    txs: BTreeMap<u64, Pooled>,
    /// First nonce after the executable run. Invariant: every nonce from `nonce` up to here has
    /// a tx, and here there is none.
    executable_end: u64,
    /// Sum of the costs of the executable run: what the balance must still cover.
    executable_cost: U256,
    /// No tx costs more than this. Spares the scan for unaffordable ones while the balance is
    /// above it, which it nearly always is.
    cost_ceiling: U256,
}

pub(super) struct Pooled {
    pub(super) tx: Arc<SignedTx>,
    pub(super) cost: U256,
    /// Order of arrival, to break ties between equal tips.
    pub(super) arrival: u64,
}

impl Sender {
    pub(super) fn new(account: Account) -> Self {
        Self {
            nonce: account.nonce,
            balance: account.balance,
            txs: BTreeMap::new(),
            executable_end: account.nonce,
            executable_cost: U256::ZERO,
            cost_ceiling: U256::ZERO,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.txs.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.txs.len()
    }

    pub(super) fn get(&self, nonce: u64) -> Option<&Arc<SignedTx>> {
        self.txs.get(&nonce).map(|pooled| &pooled.tx)
    }

    /// The nonce that the next tx of this sender should have.
    pub(super) fn next_nonce(&self) -> u64 {
        self.executable_end
    }

    pub(super) fn executable_len(&self) -> usize {
        usize::try_from(self.executable_end - self.nonce).expect("each of them is in the map")
    }

    pub(super) fn executable(&self) -> impl Iterator<Item = &Pooled> {
        self.txs
            .range(self.nonce..self.executable_end)
            .map(|(_, pooled)| pooled)
    }

    pub(super) fn queued(&self) -> impl Iterator<Item = &Pooled> {
        self.txs
            .range(self.executable_end..)
            .map(|(_, pooled)| pooled)
    }

    /// geth's checks against the account, in geth's order.
    pub(super) fn check(&self, tx: &SignedTx, cost: U256) -> Result<(), Refusal> {
        let (balance, nonce) = (self.balance, tx.nonce());
        if nonce < self.nonce {
            return Err(Refusal::NonceTooLow {
                next: self.nonce,
                nonce,
            });
        }
        if balance < cost {
            return Err(Refusal::Funds { balance, cost });
        }
        let queued = self.executable_cost;
        let replaced = self.txs.get(&nonce);
        match replaced.filter(|_| nonce < self.executable_end) {
            Some(old) => {
                let bump = cost.saturating_sub(old.cost);
                Overdraft::check(balance, queued, bump).map_err(Refusal::FundsBumped)?;
            }
            None => Overdraft::check(balance, queued, cost).map_err(Refusal::FundsQueued)?,
        }
        match replaced {
            Some(old) if !outbids(tx, &old.tx) => Err(Refusal::ReplacementUnderpriced),
            Some(_) | None => Ok(()),
        }
    }

    /// Inserts a checked tx; returns the one that it replaces.
    pub(super) fn insert(&mut self, pooled: Pooled) -> Option<Arc<SignedTx>> {
        let (nonce, cost) = (pooled.tx.nonce(), pooled.cost);
        self.cost_ceiling = self.cost_ceiling.max(cost);
        let replaced = self.txs.insert(nonce, pooled);
        if let Some(old) = &replaced
            && nonce < self.executable_end
        {
            self.executable_cost = self.executable_cost.saturating_sub(old.cost);
            self.executable_cost = self.executable_cost.saturating_add(cost);
        }
        self.extend_executable();
        replaced.map(|old| old.tx)
    }

    /// Removes one tx. What follows it becomes queued.
    pub(super) fn remove(&mut self, nonce: u64) -> Option<Arc<SignedTx>> {
        let removed = self.txs.remove(&nonce)?;
        if nonce < self.executable_end {
            self.recount();
        }
        Some(removed.tx)
    }

    /// Follows the account to a new head; returns the txs that this has used up or priced out.
    pub(super) fn set_account(&mut self, account: Account) -> Vec<Arc<SignedTx>> {
        self.balance = account.balance;
        let mut removed = self.set_nonce(account.nonce);
        if self.cost_ceiling > self.balance {
            let balance = self.balance;
            let priced_out = self.txs.extract_if(.., |_, pooled| pooled.cost > balance);
            removed.extend(priced_out.map(|(_, pooled)| pooled.tx));
            self.cost_ceiling = balance;
            self.recount();
        }
        removed
    }

    fn set_nonce(&mut self, nonce: u64) -> Vec<Arc<SignedTx>> {
        let kept = self.txs.split_off(&nonce);
        let used = std::mem::replace(&mut self.txs, kept);
        let is_within_run = (self.nonce..=self.executable_end).contains(&nonce);
        self.nonce = nonce;
        if is_within_run {
            for pooled in used.values() {
                self.executable_cost = self.executable_cost.saturating_sub(pooled.cost);
            }
        } else {
            // A reorg or a control call: the run starts somewhere else.
            self.recount();
        }
        used.into_values().map(|pooled| pooled.tx).collect()
    }

    fn recount(&mut self) {
        self.executable_end = self.nonce;
        self.executable_cost = U256::ZERO;
        self.extend_executable();
    }

    fn extend_executable(&mut self) {
        for (nonce, pooled) in self.txs.range(self.executable_end..) {
            if *nonce != self.executable_end {
                break;
            }
            self.executable_end += 1;
            self.executable_cost = self.executable_cost.saturating_add(pooled.cost);
        }
    }
}

fn outbids(new: &SignedTx, old: &SignedTx) -> bool {
    // Also strictly above, because ten percent of a few wei is nothing.
    let enough = |new: u128, old: u128| {
        let factor = U256::from(100 + REPLACEMENT_BUMP_PERCENT);
        let threshold = U256::from(old) * factor / U256::from(100);
        new > old && U256::from(new) >= threshold
    };
    enough(new.fee_cap(), old.fee_cap()) && enough(new.tip_cap(), old.tip_cap())
}
