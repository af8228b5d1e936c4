//! A keeper accepts a request only if the account can pay for all open txs that some block does not contain, by the
//! balance of that block, unless no endpoint answered its query, or the lane was read again after each of several answers.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use alloy_primitives::U256;
use domain::lane::{AccountBalance, OpenCost};
use domain::{LaneKey, NodeName, Nonce, Tx};
use engine::ports::LaneBatch;
use tokio::time::Instant;

use super::open_cost_counted::LaneRows;
use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::event::WorldEvent;

/// How long after a query a request may be accepted by it: while the balance serves, and while its callers wait.
const RECENT: Duration = Duration::from_secs(60);
/// After so many queries whose answers were of no use a request is accepted without one.
const FORGOTTEN_MAX: usize = 3;
/// The ids of what the keeper itself records begin so: nobody asks whether the account can pay for it.
const OWN_ID: &str = "lanekeeper-";

/// The checker of worlds in which balances are checked.
pub struct AcceptsWithinBalance {
    lanes: StoreModel<BTreeMap<LaneKey, LaneRows>>,
    queries: BTreeMap<(LaneKey, NodeName), VecDeque<Query>>,
    /// One above the highest nonce of a finished tx.
    consumed_below: BTreeMap<LaneKey, Nonce>,
    /// The least price at which anything is signed in this world.
    price_min: u128,
}

#[derive(Clone, Copy)]
struct Query {
    at: Instant,
    answer: Option<AccountBalance>,
    /// Whether the lane was opened again since: the answer left memory with it.
    is_forgotten: bool,
}

impl AcceptsWithinBalance {
    pub const PROMISE: &'static str = "accepted within the balance";

    /// In a world where nothing is signed at less than this price, in wei per gas.
    #[must_use]
    pub fn at_price(price_min: u128) -> Self {
        Self {
            lanes: StoreModel::default(),
            queries: BTreeMap::new(),
            consumed_below: BTreeMap::new(),
            price_min,
        }
    }

    fn follow_query(&mut self, lane: LaneKey, node: &NodeName, answer: Option<AccountBalance>) {
        let now = Instant::now();
        let queries = self.queries.entry((lane, node.clone())).or_default();
        queries.retain(|query| now.duration_since(query.at) <= RECENT);
        if answer.is_some()
            && let Some(last) = queries.back_mut()
        {
            last.answer = answer;
        } else {
            queries.push_back(Query {
                at: now,
                answer,
                is_forgotten: false,
            });
        }
    }

    /// What the txs that a block does not contain can cost, at least.
    fn committed(&self, lane: LaneKey, from: Nonce) -> U256 {
        let rows = self.lanes.get(&lane);
        let open = rows.into_iter().flat_map(LaneRows::costs);
        let open = open.filter(|(tx, _)| tx.nonce.is_none_or(|nonce| nonce >= from));
        let OpenCost { wei, unpriced_gas } = open
            .map(|(_, cost)| cost)
            .fold(OpenCost::default(), OpenCost::plus);
        wei + U256::from(unpriced_gas) * U256::from(self.price_min)
    }

    fn check(&self, lane: LaneKey, batch: &LaneBatch) -> Result<(), String> {
        let now = Instant::now();
        let queries = self.queries.get(&(lane, batch.node.clone()));
        let recent = queries.into_iter().flatten();
        let recent = recent.filter(|query| now.duration_since(query.at) <= RECENT);
        let recent: Vec<&Query> = recent.collect();
        let consumed = self.consumed_below.get(&lane).copied();
        let is_unusable = |query: &&&Query| match query.answer {
            Some(answer) => Some(answer.nonce) < consumed,
            // It failed, or is under way.
            None => true,
        };
        let forgotten = recent.iter().filter(|query| query.is_forgotten);
        if forgotten.count() >= FORGOTTEN_MAX {
            return Ok(());
        }
        // Without a query the keeper had no price yet; without a usable answer it accepts.
        if recent.is_empty() || recent.iter().any(|query| is_unusable(&query)) {
            return Ok(());
        }
        let mut answers = recent.iter().filter_map(|query| query.answer).peekable();
        if answers.peek().is_none() {
            return Ok(());
        }
        let fits = |answer: AccountBalance| self.committed(lane, answer.nonce) <= answer.balance;
        let last = recent.last().and_then(|query| query.answer);
        match answers.any(fits) {
            true => Ok(()),
            false => Err(format!(
                "{lane}: node {} accepted more than any balance that it knew; the last was {last:?}",
                batch.node
            )),
        }
    }
}

impl Checker for AcceptsWithinBalance {
    fn name(&self) -> &'static str {
        Self::PROMISE
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.lanes.follow(event);
        if let WorldEvent::BalanceQueried { lane, node, answer } = event {
            self.follow_query(*lane, node, *answer);
        }
        if let WorldEvent::Granted { lane, node, .. } = event {
            let queries = self.queries.get_mut(&(*lane, node.clone()));
            for query in queries.into_iter().flatten() {
                query.is_forgotten = true;
            }
        }
        if let WorldEvent::Started(node) = event {
            // It accepts without a query until it knows a price.
            self.queries.retain(|(_, of), _| of != node);
        }
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        self.lanes.entry(lane).or_default().write(batch);
        let ended = batch.writes.updates.iter().filter(|tx| !tx.is_open());
        if let Some(highest) = ended.filter_map(|tx| tx.nonce).max() {
            let below = self.consumed_below.entry(lane).or_insert(Nonce(0));
            *below = (*below).max(highest.next());
        }
        let is_request = |tx: &Tx| !tx.request.request_id.as_str().starts_with(OWN_ID);
        match batch.writes.inserts.iter().any(is_request) {
            true => self.check(lane, batch),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{applied, lane, tx};
    use super::*;

    fn queried(answer: Option<(u64, u64)>) -> WorldEvent {
        WorldEvent::BalanceQueried {
            lane: lane(1),
            node: NodeName("a".to_owned()),
            answer: answer.map(|(nonce, balance)| AccountBalance {
                block: 1,
                nonce: Nonce(nonce),
                balance: U256::from(balance),
            }),
        }
    }

    fn accepted(number: u128, nonce: u64) -> WorldEvent {
        let mut tx = tx(number, Some(nonce));
        tx.history.event_seqs = vec![1];
        applied(lane(1), |w| w.inserts = vec![tx])
    }

    /// What each request costs.
    const COST: u64 = 21_001;

    #[tokio::test(start_paused = true)]
    async fn accepted_requests_fit_into_one_known_balance() {
        let mut checker = AcceptsWithinBalance::at_price(1);
        let mut step = |event: WorldEvent| checker.after(&event);
        assert_eq!(step(queried(None)), Ok(()));
        assert_eq!(step(queried(Some((0, COST + 2)))), Ok(()));
        assert_eq!(step(accepted(1, 0)), Ok(()));
        assert!(step(accepted(2, 1)).is_err());
        assert_eq!(step(queried(Some((1, COST + 2)))), Ok(()));
        assert_eq!(
            step(applied(lane(1), |_| {})),
            Ok(()),
            "nothing is accepted"
        );
        assert!(step(accepted(3, 2)).is_err());
        assert_eq!(step(queried(None)), Ok(()));
        assert_eq!(step(accepted(4, 3)), Ok(()), "no endpoint answered");
    }
}
