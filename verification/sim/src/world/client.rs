//! The business: sends each request to some node until one says "accepted", as its library would.
//! Some requests are sent by two threads at once, some to all nodes at once, some again later, some
//! again with another payload.

use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::{Address, Bytes, U256};
use domain::{LaneKey, Payload, RequestId, TxId};
use engine::node::{NewTx, Origin, Refusal};
use futures::future::join_all;

use super::habits::Promised;
use super::machine::Machine;
use super::plan::{Plan, Workload};
use crate::chain::{DISPUTED, REJECTED, REVERTS, UNSIGNABLE, WAVERING};
use crate::event::{Answer, WorldEvent};
use crate::rng::Rng;
use crate::store::MemoryStore;
use crate::trace::Trace;

/// One request of the workload.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) lane: LaneKey,
    pub(super) id: RequestId,
    pub(super) payload: Payload,
    pub(super) fate: Fate,
}

/// How a request must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// On chain, with success.
    Succeeds,
    /// On chain, without the effect.
    Reverts,
    /// Nowhere: nobody signs it.
    UnsignedEnvelope,
    /// Nowhere: no node takes it.
    Rejected,
    /// On chain, with success, or nowhere: nodes do not know what they want.
    Wavers,
}

/// Everything that a client needs.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) machines: Arc<Vec<Machine>>,
    /// To know which lanes a failover has hurt.
    pub(super) store: MemoryStore,
    pub(super) trace: Trace,
    /// Where it writes down what it was promised.
    pub(super) promised: Promised,
    /// Whether it sends more than it must.
    pub(super) repeats: bool,
    pub(super) rng: Rng,
}

impl Request {
    /// The n-th request. Its call data carries its key, so that effects on chain can be told apart.
    pub(super) fn new(rng: &Rng, plan: &Plan, number: u64) -> Self {
        let id = RequestId::parse(format!("r{number}")).expect("keeps the rule");
        let (fate, mark) = fate(rng, plan.workload);
        let mut data = mark.map_or_else(Vec::new, |mark| mark.to_vec());
        data.extend_from_slice(id.as_str().as_bytes());
        let mut payload = Payload::transfer(Address::repeat_byte(0xee), U256::from(number));
        payload.data = Bytes::from(data);
        // Without a gas limit the call is tried out first, and one that reverts is refused.
        let has_limit = fate == Fate::Reverts || rng.permille(500);
        payload.gas = has_limit.then_some(100_000);
        Self {
            lane: *rng.pick(&plan.lanes()),
            id,
            payload,
            fate,
        }
    }

    /// As it comes through the door.
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

/// How a request ends, and the mark of its call data that makes it so.
fn fate(rng: &Rng, workload: Workload) -> (Fate, Option<[u8; 4]>) {
    let fates = [
        (workload.reverting, Fate::Reverts, REVERTS),
        (workload.unsignable, Fate::UnsignedEnvelope, UNSIGNABLE),
        (workload.rejected, Fate::Rejected, REJECTED),
        (workload.disputed, Fate::Succeeds, DISPUTED),
        (workload.wavering, Fate::Wavers, WAVERING),
    ];
    let mut draw = rng.below(1_000);
    for (chance, fate, mark) in fates {
        if draw < chance {
            return (fate, Some(mark));
        }
        draw -= chance;
    }
    (Fate::Succeeds, None)
}

impl Client {
    /// Sends a request until it is accepted, and perhaps again. Gives the tx; `None` when its lane was
    /// hurt by a failover and takes nothing any more.
    pub(super) async fn send(self, request: Request, first_at: Duration) -> Option<TxId> {
        tokio::time::sleep(first_at).await;
        let twin = self.again(200).then(|| {
            let (client, request) = (self.clone(), request.clone());
            tokio::spawn(async move { client.insist(&request).await })
        });
        if self.again(150) {
            let asks = self.machines.iter();
            join_all(asks.map(|machine| self.lease_request(machine, &request))).await;
        }
        let tx = self.insist(&request).await;
        if let Some(twin) = twin {
            twin.await.expect("clients do not panic");
        }
        if self.again(200) {
            tokio::time::sleep(self.rng.millis(0, 30_000)).await;
            self.insist(&request).await;
        }
        // What was never accepted, or was lost again, has no key that could be taken.
        if tx.is_some() && !self.is_hurt(&request) && self.again(100) {
            self.reuse_key(&request).await;
        }
        tx
    }

    /// Whether it does this too, so many times in a thousand.
    fn again(&self, chance: u64) -> bool {
        self.rng.permille(chance) && self.repeats
    }

    async fn insist(&self, request: &Request) -> Option<TxId> {
        loop {
            let machine = self.rng.pick(&self.machines);
            match self.lease_request(machine, request).await {
                Answer::Accepted { tx_id, .. } => return Some(tx_id),
                Answer::Refused(Refusal::Halted(_)) if self.is_hurt(request) => return None,
                Answer::Refused(refusal) if !is_worth_repeating(&refusal) => {
                    let id = &request.id;
                    self.trace
                        .violation(&format!("good requests are accepted: {id}: {refusal}"));
                    // Nothing to hope for: the run has failed, and waits for its end.
                    std::future::pending::<()>().await;
                }
                Answer::Refused(_) | Answer::Silence => {
                    tokio::time::sleep(self.rng.millis(100, 3_000)).await;
                }
            }
        }
    }

    /// Whether a failover took commits of its lane, or the request itself.
    fn is_hurt(&self, request: &Request) -> bool {
        self.store.loss().lanes.contains(&request.lane)
    }

    /// The same key with another payload must be refused once the key is taken.
    async fn reuse_key(&self, request: &Request) {
        let mut other = request.clone();
        other.payload.value += U256::from(1);
        other.payload.gas = Some(100_000);
        loop {
            if self.is_hurt(request) {
                return; // the key may be gone
            }
            let machine = self.rng.pick(&self.machines);
            match self.lease_request(machine, &other).await {
                Answer::Refused(Refusal::KeyReused(_)) => return,
                Answer::Accepted { tx_id, .. } => {
                    let id = &request.id;
                    let key = (request.lane, id.clone());
                    if !self.store.loss().requests.contains(&key) {
                        self.trace
                            .violation(&format!("a key is used once: {id} became {tx_id} too"));
                    }
                    return;
                }
                Answer::Refused(_) | Answer::Silence => {
                    tokio::time::sleep(self.rng.millis(100, 3_000)).await;
                }
            }
        }
    }

    async fn lease_request(&self, machine: &Machine, request: &Request) -> Answer {
        if !machine.is_up() {
            // A load balancer would not send it there either; a frozen node it may not know.
            if self.rng.permille(900) {
                return Answer::Silence;
            }
        }
        let (lane, request_id, node) = (request.lane, request.id.clone(), machine.name().clone());
        let asked = WorldEvent::Asked {
            lane,
            request_id: request_id.clone(),
            node: node.clone(),
        };
        self.trace.tell(asked);
        let new = request.to_new();
        let patience = self.rng.millis(1_000, 40_000);
        let answer = match tokio::time::timeout(patience, machine.lease_request(new)).await {
            Ok(Some(Ok(accepted))) => Answer::Accepted {
                tx_id: accepted.record.tx.id,
                is_new: accepted.is_new,
            },
            Ok(Some(Err(refusal))) => Answer::Refused(refusal),
            Ok(None) | Err(_) => Answer::Silence,
        };
        if let Answer::Accepted { tx_id, .. } = answer {
            self.promised.add(lane, &request_id, tx_id);
        }
        self.trace.tell(WorldEvent::Answered {
            lane,
            request_id,
            node,
            answer: answer.clone(),
        });
        answer
    }
}

/// Whether the same request may be accepted later, or elsewhere.
fn is_worth_repeating(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::Busy
        | Refusal::NotKeeper(_)
        | Refusal::ChainUnavailable(_)
        | Refusal::Underfunded(_)
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
