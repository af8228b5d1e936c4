//! The account's money: whether it can pay for one more request, by its balance and nonce of one block and by what the
//! lane's open txs can cost.
//!
//! The balance is cached: what this lane spends is counted here, so it goes on serving until it gets old. No request is
//! refused by it unless it was queried after the request had come, because the account may have been funded since.
//!
//! Invariants: of what is open, only txs below the account's nonce at that block are paid for by its balance. What was at
//! or above it and has left memory since stays counted: that balance does not know of it.

use std::time::Duration;

use crate::admission::{self, AccountFunds, AdmissionError};
use crate::{MonotonicTime, Nonce};

use super::slots::Slot;
use super::{AccountBalance, AdmittedRequest, BalanceCheck, Lane, OpenCost};

/// A balance serves that long, unless a later one is known.
const BALANCE_AGE_MAX: Duration = Duration::from_secs(30);
/// A balance that still serves is queried again in the background after this time, if there is a new block.
const BALANCE_REFRESH_AFTER: Duration = Duration::from_secs(1);
/// After a query without an answer requests are accepted that long without another query.
const UNAVAILABLE_PAUSE: Duration = Duration::from_secs(5);

/// What is known of the account's money.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Funds {
    known: Option<KnownBalance>,
    /// When the balance was queried in vain, if it was not answered since.
    unavailable_at: Option<MonotonicTime>,
}

#[derive(Clone, Copy, Debug)]
struct KnownBalance {
    account: AccountBalance,
    queried_at: MonotonicTime,
    /// Of the open txs below the account's nonce: the balance has paid for them.
    paid: OpenCost,
    /// Of the txs at or above the account's nonce that are finished since: the balance has not paid for them.
    spent: OpenCost,
}

/// Whether a request is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FundsDecision {
    /// The account can pay for it, or that cannot be known.
    Accept,
    /// The balance must be queried first: none is known, or the request does not fit into one that is older than it.
    QueryBalance,
    /// The account cannot pay for it.
    Refuse(AdmissionError),
}

impl Funds {
    /// A balance serves no more: its block may have been reorged out.
    pub(super) fn forget(&mut self) {
        self.known = None;
    }

    /// A tx with this nonce and cost is finished: its nonce is consumed.
    fn on_finished(&mut self, nonce: Nonce, cost: OpenCost) {
        let Some(known) = &mut self.known else {
            return;
        };
        if nonce < known.account.nonce {
            known.paid = known.paid.minus(cost);
        } else {
            known.spent = known.spent.plus(cost);
        }
    }

    /// A tx has lost this nonce without being mined there: it was not paid for.
    fn on_nonce_lost(&mut self, nonce: Nonce, cost: OpenCost) {
        if let Some(known) = self.known.as_mut().filter(|k| nonce < k.account.nonce) {
            known.paid = known.paid.minus(cost);
        }
    }
}

impl Lane {
    /// What its open txs can cost.
    #[must_use]
    pub fn open_cost(&self) -> OpenCost {
        self.journal.open_cost
    }

    /// Whether the account can pay for a request that came at this time.
    #[must_use]
    pub fn check_funds(
        &self,
        request: &AdmittedRequest,
        arrived_at: MonotonicTime,
    ) -> FundsDecision {
        if !self.checks_balance() {
            return FundsDecision::Accept;
        }
        let Some(view) = &self.chain.view else {
            return FundsDecision::Accept; // no price is known
        };
        let funds = &self.chain.funds;
        let serves = |known: &KnownBalance| arrived_at.since(known.queried_at) < BALANCE_AGE_MAX;
        let refusal = match funds.known.filter(serves) {
            Some(known) => {
                let open = self.journal.open_cost.minus(known.paid).plus(known.spent);
                let (rules, quote) = (&self.rules.fee, view.fee);
                let account = AccountFunds {
                    block: known.account.block,
                    balance: known.account.balance,
                    committed: open.at(rules, quote),
                };
                let quoted = admission::cost(rules, quote, (&request.payload, request.gas));
                // At least what it is counted with once it is open: that can be more than the quote, where a head has no
                // base fee or the request names its tip alone.
                let unsigned = OpenCost::unsigned(&request.payload, request.gas);
                let needed = quoted.max(unsigned.at(rules, quote));
                match admission::check_balance(account, needed) {
                    Ok(()) => return FundsDecision::Accept,
                    Err(refusal) => (known.queried_at >= arrived_at).then_some(refusal),
                }
            }
            None => None,
        };
        let is_unavailable = |at: MonotonicTime| arrived_at < at.plus(UNAVAILABLE_PAUSE);
        match refusal {
            Some(refusal) => FundsDecision::Refuse(refusal),
            None if funds.unavailable_at.is_some_and(is_unavailable) => FundsDecision::Accept,
            None => FundsDecision::QueryBalance,
        }
    }

    /// Whether the balance should be queried in the background, for a lane that accepts requests.
    #[must_use]
    pub fn is_balance_due(&self, now: MonotonicTime) -> bool {
        let Some(known) = self.chain.funds.known.filter(|_| self.checks_balance()) else {
            return false;
        };
        let tip = self.chain.view.as_ref().and_then(|view| view.headers.tip());
        let has_new_block = tip.is_some_and(|tip| tip.number > known.account.block);
        has_new_block && now.since(known.queried_at) >= BALANCE_REFRESH_AFTER
    }

    fn checks_balance(&self) -> bool {
        self.rules.balance == BalanceCheck::Check && !self.is_reserving()
    }

    /// The answer to a query for the account's balance; `None` when no endpoint gave one.
    pub(super) fn on_balance(&mut self, queried_at: MonotonicTime, answer: Option<AccountBalance>) {
        let Some(account) = answer else {
            self.chain.funds.unavailable_at = Some(queried_at);
            return;
        };
        // Txs that this block does not know have left memory as final: they would count as free money.
        if account.nonce < self.ledger.consumed_below() {
            return;
        }
        let below = self.slots.iter().take_while(|(at, _)| *at < account.nonce);
        let paid = below.fold(OpenCost::default(), |sum, (_, slot)| sum.plus(slot.cost()));
        self.chain.funds = Funds {
            known: Some(KnownBalance {
                account,
                queried_at,
                paid,
                spent: OpenCost::default(),
            }),
            unavailable_at: None,
        };
    }

    /// A tx is open from now on.
    pub(super) fn commit_funds(&mut self, cost: OpenCost) {
        self.journal.open_cost = self.journal.open_cost.plus(cost);
    }

    /// A tx is finished: its nonce is consumed.
    pub(super) fn spend_funds(&mut self, nonce: Nonce, slot: &Slot) {
        let cost = slot.cost();
        self.journal.open_cost = self.journal.open_cost.minus(cost);
        self.chain.funds.on_finished(nonce, cost);
    }

    /// A tx loses its nonce, at which it was not mined. What it costs at another one is committed anew.
    pub(super) fn release_funds(&mut self, nonce: Nonce, slot: &Slot) {
        let cost = slot.cost();
        self.journal.open_cost = self.journal.open_cost.minus(cost);
        self.chain.funds.on_nonce_lost(nonce, cost);
    }
}

impl Slot {
    /// What it can cost.
    pub(super) fn cost(&self) -> OpenCost {
        OpenCost::of_tx(&self.tx, self.attempts())
    }
}
