//! A client: sends each request to some node until one accepts it, as a client library does. Some
//! requests are sent by two threads at once, some to all nodes at once, some again later, some again
//! with another payload.

use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::{Address, Bytes, U256};
use domain::{LaneKey, Payload, RequestId, TxId};
use engine::node::{NewTx, Origin, Refusal};
use futures::future::join_all;

use super::features::Feature;
use super::machine::Machine;
use super::plan::{Plan, RequestPlan};
use super::workloads::{AcceptedTxs, to_answer};
use crate::chain::{DISPUTED, REJECTED, REVERTS, SOMETIMES_REJECTED, UNSIGNABLE};
use crate::event::{Answer, WorldEvent};
use crate::rng::Rng;
use crate::store::MemoryStore;
use crate::trace::Trace;

/// One request of the plan.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) lane: LaneKey,
    pub(super) id: RequestId,
    pub(super) payload: Payload,
    pub(super) expected_end: ExpectedEnd,
}

/// How a request must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpectedEnd {
    /// On chain, with success.
    Succeeds,
    /// On chain, without the effect.
    Reverts,
    /// Failed: no signer signs it.
    NeverSigned,
    /// Failed: every endpoint rejects it.
    Rejected,
    /// On chain with success, or failed: endpoints change their policy.
    MayBeRejected,
}

/// The context of a client.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) machines: Arc<Vec<Machine>>,
    /// Shows which lanes lost commits in a failover.
    pub(super) store: MemoryStore,
    pub(super) trace: Trace,
    /// Where it records the accepted txs.
    pub(super) accepted_txs: AcceptedTxs,
    /// Whether it sends duplicates.
    pub(super) repeats: bool,
    pub(super) rng: Rng,
}

impl Request {
    /// The n-th request. Its call data contains its key, so that effects on chain can be identified.
    pub(super) fn new(rng: &Rng, plan: &Plan, number: u64) -> Self {
        let id = RequestId::parse(format!("r{number}")).expect("a valid request id");
        let (expected_end, mark) = expected_end(rng, plan.request_plan);
        let mut data = mark.map_or_else(Vec::new, |mark| mark.to_vec());
        data.extend_from_slice(id.as_str().as_bytes());
        let mut payload = Payload::transfer(Address::repeat_byte(0xee), U256::from(number));
        payload.data = Bytes::from(data);
        // Without a gas limit the call is estimated first, and one that reverts is refused.
        let has_limit = expected_end == ExpectedEnd::Reverts || rng.permille(500);
        payload.gas = has_limit.then_some(100_000);
        Self {
            lane: *rng.pick(&plan.lanes()),
            id,
            payload,
            expected_end,
        }
    }

    /// Names the most that it may pay per gas, in the fields of either envelope type.
    pub(super) fn limit_fee(&mut self, limit: u128, is_legacy: bool) {
        match is_legacy {
            true => self.payload.gas_price = Some(limit),
            false => self.payload.max_fee_per_gas = Some(limit),
        }
    }

    /// As the ingress passes it to the engine.
    pub(super) fn to_new(&self) -> NewTx {
        NewTx {
            lane: self.lane,
            request_id: self.id.clone(),
            payload: self.payload.clone(),
            origin: Origin::default(),
            estimated_gas: None,
        }
    }
}

/// How a request ends, and the prefix of its call data that causes it.
fn expected_end(rng: &Rng, request_plan: RequestPlan) -> (ExpectedEnd, Option<[u8; 4]>) {
    let ends = [
        (request_plan.reverting, ExpectedEnd::Reverts, REVERTS),
        (
            request_plan.unsignable,
            ExpectedEnd::NeverSigned,
            UNSIGNABLE,
        ),
        (request_plan.rejected, ExpectedEnd::Rejected, REJECTED),
        (request_plan.disputed, ExpectedEnd::Succeeds, DISPUTED),
        (
            request_plan.sometimes_rejected,
            ExpectedEnd::MayBeRejected,
            SOMETIMES_REJECTED,
        ),
    ];
    let mut draw = rng.below(1_000);
    for (chance, expected_end, mark) in ends {
        if draw < chance {
            return (expected_end, Some(mark));
        }
        draw -= chance;
    }
    (ExpectedEnd::Succeeds, None)
}

impl Client {
    /// Sends a request until it is accepted, and possibly again. Returns the tx; `None` when its lane lost
    /// commits in a failover and accepts nothing any more.
    pub(super) async fn send(self, request: Request, first_at: Duration) -> Option<TxId> {
        tokio::time::sleep(first_at).await;
        if request.expected_end != ExpectedEnd::Succeeds {
            self.trace.fire(Feature::BadRequests);
        }
        let twin = self.repeats(200).then(|| {
            let (client, request) = (self.clone(), request.clone());
            tokio::spawn(async move { client.send_until_accepted(&request).await })
        });
        if self.repeats(150) {
            let calls = self.machines.iter();
            join_all(calls.map(|machine| self.submit(machine, &request))).await;
        }
        let tx = self.send_until_accepted(&request).await;
        if let Some(twin) = twin {
            twin.await.expect("clients do not panic");
        }
        if self.repeats(200) {
            tokio::time::sleep(self.rng.millis(0, 30_000)).await;
            self.send_until_accepted(&request).await;
        }
        // A key that was never accepted, or was lost again, is not taken.
        if tx.is_some() && !self.has_lost_commits(&request) && self.repeats(100) {
            self.reuse_key(&request).await;
        }
        tx
    }

    /// Whether it also does this, with a probability per thousand.
    fn repeats(&self, chance: u64) -> bool {
        let repeats = self.rng.permille(chance) && self.repeats;
        if repeats {
            self.trace.fire(Feature::Repeats);
        }
        repeats
    }

    async fn send_until_accepted(&self, request: &Request) -> Option<TxId> {
        loop {
            let machine = self.rng.pick(&self.machines);
            match self.submit(machine, request).await {
                Answer::Accepted { tx_id, .. } => return Some(tx_id),
                Answer::Refused(Refusal::Halted(_)) if self.has_lost_commits(request) => {
                    return None;
                }
                Answer::Refused(refusal) if !is_worth_repeating(&refusal) => {
                    let id = &request.id;
                    self.trace
                        .violation(&format!("valid requests are accepted: {id}: {refusal}"));
                    // The run has failed: wait for its end.
                    std::future::pending::<()>().await;
                }
                Answer::Refused(_) | Answer::NoAnswer => {
                    tokio::time::sleep(self.rng.millis(100, 3_000)).await;
                }
            }
        }
    }

    /// Whether a failover lost commits of its lane, or the request itself.
    fn has_lost_commits(&self, request: &Request) -> bool {
        self.store.loss().lanes.contains(&request.lane)
    }

    /// The same key with another payload must be refused once the key is taken.
    async fn reuse_key(&self, request: &Request) {
        let mut other = request.clone();
        other.payload.value += U256::from(1);
        other.payload.gas = Some(100_000);
        loop {
            if self.has_lost_commits(request) {
                return; // the key may be lost
            }
            let machine = self.rng.pick(&self.machines);
            match self.submit(machine, &other).await {
                Answer::Refused(Refusal::KeyReused(_)) => return,
                Answer::Accepted { tx_id, .. } => {
                    let id = &request.id;
                    let key = (request.lane, id.clone());
                    if !self.store.loss().requests.contains(&key) {
                        self.trace.violation(&format!(
                            "an idempotency key is used once: {id} also became {tx_id}"
                        ));
                    }
                    return;
                }
                Answer::Refused(_) | Answer::NoAnswer => {
                    tokio::time::sleep(self.rng.millis(100, 3_000)).await;
                }
            }
        }
    }

    async fn submit(&self, machine: &Machine, request: &Request) -> Answer {
        if !machine.is_up() {
            // A load balancer does not select it either; it may select a frozen node.
            if self.rng.permille(900) {
                return Answer::NoAnswer;
            }
        }
        let (lane, request_id, node) = (request.lane, request.id.clone(), machine.name().clone());
        let sent = WorldEvent::RequestSent {
            lane,
            request_id: request_id.clone(),
            node: node.clone(),
        };
        self.trace.record(sent);
        let new = request.to_new();
        let finish_bound = self.rng.millis(1_000, 40_000);
        let answer = tokio::time::timeout(finish_bound, machine.submit(new)).await;
        let answer = to_answer(answer.ok().flatten());
        let request = (lane, request_id);
        self.accepted_txs
            .record_answer(&self.trace, request, node, answer.clone());
        answer
    }
}

/// Whether the same request may be accepted later, or by another node.
fn is_worth_repeating(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::Busy
        | Refusal::NotKeeper(_)
        | Refusal::ChainUnavailable(_)
        | Refusal::Underfunded(_)
        | Refusal::GasAboveLimit(_)
        | Refusal::GasTooLow(_)
        | Refusal::FeeBelowFloor(_)
        | Refusal::TypeNotSupported(_)
        | Refusal::StoreUnavailable(_)
        | Refusal::OutcomeUnknown
        | Refusal::Halted(_)
        | Refusal::Draining => true,
        Refusal::UnknownChain(_)
        | Refusal::UnknownSigner(..)
        | Refusal::KeyReused(_)
        | Refusal::BadPayload(_)
        | Refusal::Reverted(_) => false,
    }
}
