//! Businesses that pay, without end: each repeats a payment under its request id until it is accepted,
//! at whichever node the balancer gives it, and remembers every answer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::balancer::Balancer;
use crate::ledger::{Ledger, Promise};
use crate::{NoAnswer, Outcome, demand};

/// How long a business waits before it repeats, and for a node that is ready.
const REPEAT_AFTER: Duration = Duration::from_millis(50);

/// How a load is made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What its request ids begin with; no other load has it.
    pub name: String,
    /// From which accounts, in turn.
    pub lanes: Vec<String>,
    /// How many businesses pay at once, each one payment at a time.
    pub clients: usize,
    /// How long each rests between two payments.
    pub pause: Duration,
    /// How long each waits for an answer.
    pub patience: Duration,
    /// Whether some leave the gas out, so that the chain is asked before they are accepted.
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
            patience: Duration::from_secs(10),
            estimates: true,
        }
    }
}

/// One answer to one POST.
#[derive(Clone, Debug)]
pub struct Reply {
    /// When the payment was asked for at first, perhaps of another node.
    pub first_asked: Instant,
    /// When this POST was sent.
    pub asked: Instant,
    /// When the answer came.
    pub answered: Instant,
    /// Which node was asked.
    pub node: usize,
    /// Which of the plan's lanes.
    pub lane: usize,
    /// What was said.
    pub said: Said,
}

/// What a node said to a POST.
#[derive(Clone, Debug)]
pub enum Said {
    /// 2xx.
    Accepted {
        /// The tx, for ever.
        tx_id: String,
        /// Its nonce, when it has one already.
        nonce: Option<u64>,
        /// The token under which it was last written.
        token: u64,
    },
    /// Anything else, with the problem document.
    Refused(u16, Value),
    /// Nothing.
    Nothing(NoAnswer),
}

impl Said {
    /// Whether it was accepted.
    pub fn is_accepted(&self) -> bool {
        matches!(self, Self::Accepted { .. })
    }

    /// Whether it was accepted with a nonce, under at least this token.
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
    /// Starts it.
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
            clients.spawn(async move { pay_for_ever(&shared, &stopped).await });
        }
        Self {
            shared,
            stop,
            clients,
        }
    }

    /// All answers so far.
    pub fn replies(&self) -> Vec<Reply> {
        lock(&self.shared.replies).clone()
    }

    /// How many answers there are so far.
    pub fn len(&self) -> usize {
        lock(&self.shared.replies).len()
    }

    /// Whether there is none yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first answer from the `from`th on that is as wanted.
    pub fn find(&self, from: usize, mut is_wanted: impl FnMut(&Reply) -> bool) -> Option<Reply> {
        let replies = lock(&self.shared.replies);
        let mut new = replies.iter().skip(from);
        new.find(|reply| is_wanted(reply)).cloned()
    }

    /// Ends it in order: every business gets an answer to what it has asked last. Fails when two
    /// answers to the same request contradicted each other.
    pub async fn stop(mut self) -> Outcome<Vec<Reply>> {
        self.stop.send_replace(true);
        while let Some(ended) = self.clients.join_next().await {
            ended?;
        }
        let contradictions = lock(&self.shared.contradictions).clone();
        demand(
            contradictions.is_empty(),
            format!("answers contradict each other: {contradictions:?}"),
        )?;
        Ok(self.replies())
    }
}

async fn pay_for_ever(shared: &Shared, stopped: &watch::Receiver<bool>) {
    while !*stopped.borrow() {
        let number = shared.count.fetch_add(1, Ordering::Relaxed);
        pay(shared, number, stopped).await;
        tokio::time::sleep(shared.plan.pause).await;
    }
}

/// Until it is accepted, or the load is stopped after an answer that did not accept it.
async fn pay(shared: &Shared, number: u64, stopped: &watch::Receiver<bool>) {
    let plan = &shared.plan;
    let lane = usize::try_from(number).unwrap_or_default() % plan.lanes.len();
    let request_id = format!("{}-{number}", plan.name);
    let signer = &plan.lanes[lane];
    let body = match plan.estimates {
        true => shared.ledger.ask(signer, &request_id),
        false => shared.ledger.ask_with_gas(signer, &request_id),
    };
    let first_asked = Instant::now();
    loop {
        if let Some((node, api)) = shared.balancer.pick() {
            let asked = Instant::now();
            let answer = api.ask(Method::POST, "/api/v1/tx", Some(&body), plan.patience);
            let said = match answer.await {
                Ok(answer) if answer.status.is_success() => {
                    accepted(shared, &request_id, &answer.body)
                }
                Ok(answer) => Said::Refused(answer.status.as_u16(), answer.body),
                Err(why) => Said::Nothing(why),
            };
            let is_accepted = said.is_accepted();
            lock(&shared.replies).push(Reply {
                first_asked,
                asked,
                answered: Instant::now(),
                node,
                lane,
                said,
            });
            if is_accepted {
                return;
            }
        }
        if *stopped.borrow() {
            return;
        }
        tokio::time::sleep(REPEAT_AFTER).await;
    }
}

fn accepted(shared: &Shared, request_id: &str, tx: &Value) -> Said {
    let promise = Promise::read(tx);
    let (tx_id, nonce) = (promise.tx_id.clone(), promise.nonce);
    if let Err(contradiction) = shared.ledger.promised(request_id, promise) {
        lock(&shared.contradictions).push(contradiction);
    }
    Said::Accepted {
        tx_id,
        nonce,
        token: tx["fencingToken"].as_u64().unwrap_or_default(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds this")
}
