//! A continuous load of payments: each client repeats a payment under its request id until it is accepted, at the
//! node that the balancer selects, and records every response.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::balancer::Balancer;
use crate::ledger::{Ledger, Promise};
use crate::{NoAnswer, Outcome, ensure};

/// Before a retry, and when no node is ready.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// The shape of a load.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The unique prefix of its request ids.
    pub name: String,
    /// The sending accounts, in turn.
    pub lanes: Vec<String>,
    /// The number of clients, each with one payment at a time.
    pub clients: usize,
    /// The pause of a client between two payments.
    pub pause: Duration,
    /// The timeout of one request.
    pub timeout: Duration,
    /// Whether some payments omit the gas, so that it is estimated on the chain.
    pub estimates: bool,
}

impl Plan {
    /// A moderate load on these lanes.
    pub fn new(name: &str, lanes: &[String], clients: usize) -> Self {
        Self {
            name: name.to_owned(),
            lanes: lanes.to_vec(),
            clients,
            pause: Duration::from_millis(10),
            timeout: Duration::from_secs(10),
            estimates: true,
        }
    }
}

/// The result of one POST.
#[derive(Clone, Debug)]
pub struct Reply {
    /// When the payment was first sent, perhaps to another node.
    pub first_sent_at: Instant,
    pub sent_at: Instant,
    /// When the response arrived.
    pub answered_at: Instant,
    /// The index of the node.
    pub node: usize,
    /// The index of the lane in the plan.
    pub lane: usize,
    pub outcome: ReplyOutcome,
}

/// The outcome of a POST.
#[derive(Clone, Debug)]
pub enum ReplyOutcome {
    /// 2xx.
    Accepted {
        tx_id: String,
        /// `None` before a nonce is allocated.
        nonce: Option<u64>,
        /// The token of its last write.
        token: u64,
    },
    /// Any other status, with the problem document.
    Refused(u16, Value),
    /// No response.
    Nothing(NoAnswer),
}

impl ReplyOutcome {
    pub fn is_accepted(&self) -> bool {
        matches!(self, Self::Accepted { .. })
    }

    /// Whether it was accepted with a nonce, with at least this token.
    pub fn has_nonce_under(&self, least: u64) -> bool {
        matches!(self, Self::Accepted { nonce: Some(_), token, .. } if *token >= least)
    }
}

/// A load that runs until it is stopped or dropped.
pub struct Load {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    clients: JoinSet<()>,
}

struct Shared {
    plan: Plan,
    balancer: Arc<Balancer>,
    ledger: Arc<Ledger>,
    count: AtomicU64,
    replies: Mutex<Vec<Reply>>,
    contradictions: Mutex<Vec<String>>,
}

impl Load {
    pub fn start(plan: Plan, balancer: &Arc<Balancer>, ledger: &Arc<Ledger>) -> Self {
        let clients_count = plan.clients;
        let shared = Arc::new(Shared {
            plan,
            balancer: Arc::clone(balancer),
            ledger: Arc::clone(ledger),
            count: AtomicU64::new(0),
            replies: Mutex::default(),
            contradictions: Mutex::default(),
        });
        let stop = watch::Sender::new(false);
        let mut clients = JoinSet::new();
        for _ in 0..clients_count {
            let (shared, stopped) = (Arc::clone(&shared), stop.subscribe());
            clients.spawn(async move { pay_until_stopped(&shared, &stopped).await });
        }
        Self {
            shared,
            stop,
            clients,
        }
    }

    pub fn replies(&self) -> Vec<Reply> {
        lock(&self.shared.replies).clone()
    }

    pub fn len(&self) -> usize {
        lock(&self.shared.replies).len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first matching reply at or after index `from`.
    pub fn find(&self, from: usize, mut is_wanted: impl FnMut(&Reply) -> bool) -> Option<Reply> {
        let replies = lock(&self.shared.replies);
        let mut new = replies.iter().skip(from);
        new.find(|reply| is_wanted(reply)).cloned()
    }

    /// Stops it; every client gets the response to its last request. Fails if two responses to one request
    /// contradict each other.
    pub async fn stop(mut self) -> Outcome<Vec<Reply>> {
        self.stop.send_replace(true);
        while let Some(ended) = self.clients.join_next().await {
            ended?;
        }
        let contradictions = lock(&self.shared.contradictions).clone();
        ensure(
            contradictions.is_empty(),
            format!("responses contradict each other: {contradictions:?}"),
        )?;
        Ok(self.replies())
    }
}

async fn pay_until_stopped(shared: &Shared, stopped: &watch::Receiver<bool>) {
    while !*stopped.borrow() {
        let number = shared.count.fetch_add(1, Ordering::Relaxed);
        pay(shared, number, stopped).await;
        tokio::time::sleep(shared.plan.pause).await;
    }
}

/// Retries until it is accepted, or until the load is stopped.
async fn pay(shared: &Shared, number: u64, stopped: &watch::Receiver<bool>) {
    let plan = &shared.plan;
    let lane = usize::try_from(number).unwrap_or_default() % plan.lanes.len();
    let request_id = format!("{}-{number}", plan.name);
    let signer = &plan.lanes[lane];
    let body = match plan.estimates {
        true => shared.ledger.transfer_body(signer, &request_id),
        false => shared.ledger.transfer_body_with_gas(signer, &request_id),
    };
    let first_sent_at = Instant::now();
    loop {
        if let Some((node, api)) = shared.balancer.pick() {
            let sent_at = Instant::now();
            let answer = api.request(Method::POST, "/api/v1/tx", Some(&body), plan.timeout);
            let outcome = match answer.await {
                Ok(answer) if answer.status.is_success() => {
                    accepted(shared, &request_id, &answer.body)
                }
                Ok(answer) => ReplyOutcome::Refused(answer.status.as_u16(), answer.body),
                Err(why) => ReplyOutcome::Nothing(why),
            };
            let is_accepted = outcome.is_accepted();
            lock(&shared.replies).push(Reply {
                first_sent_at,
                sent_at,
                answered_at: Instant::now(),
                node,
                lane,
                outcome,
            });
            if is_accepted {
                return;
            }
        }
        if *stopped.borrow() {
            return;
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
}

fn accepted(shared: &Shared, request_id: &str, tx: &Value) -> ReplyOutcome {
    let promise = Promise::read(tx);
    let (tx_id, nonce) = (promise.tx_id.clone(), promise.nonce);
    if let Err(contradiction) = shared.ledger.record_promise(request_id, promise) {
        lock(&shared.contradictions).push(contradiction);
    }
    ReplyOutcome::Accepted {
        tx_id,
        nonce,
        token: tx["fencingToken"].as_u64().unwrap_or_default(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds this")
}
