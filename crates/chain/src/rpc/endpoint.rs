//! One endpoint: which chain it serves, what it can do, and calls to it.

use std::sync::atomic::{AtomicBool, Ordering};

use domain::ChainId;
use futures::future::try_join_all;
use reqwest::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout};

use super::answers::Quantity;
use super::failure::Failure;
use super::health::{BlockPosition, Health};
use super::http::{Http, Repeat, Reply, failure_of};
use super::limits;
use super::pace::Pace;
use super::send::Ways;
use super::wire::{self, BatchAnswer, NodeError, Outcome};
use crate::classify::Meaning;

pub(super) struct Endpoint {
    http: Http,
    chain: ChainId,
    health: Health,
    /// Which way of sending many is faster here.
    ways: Ways,
    /// Cleared for good when the endpoint shows that it does not do this.
    takes_batches: AtomicBool,
    has_block_receipts: AtomicBool,
    pace: Option<Pace>,
    batch_max: usize,
    sends: Semaphore,
    trials: Semaphore,
    reads: Semaphore,
}

/// What came of a batch.
pub(super) enum Batch<T> {
    /// In the order of the calls; `None` where the node left one out.
    Each(Vec<Option<Outcome<T>>>),
    /// This endpoint takes no batches, and nothing was done.
    NotTaken,
}

impl Endpoint {
    pub(super) fn new(http: Http, chain: ChainId, requests_per_second: Option<u32>) -> Self {
        // A gateway that allows so many per second refuses a batch of more.
        let allowed = requests_per_second.and_then(|most| usize::try_from(most).ok());
        Self {
            http,
            chain,
            health: Health::new(),
            ways: Ways::default(),
            takes_batches: AtomicBool::new(true),
            has_block_receipts: AtomicBool::new(true),
            pace: requests_per_second.map(Pace::new),
            batch_max: allowed.map_or(limits::BATCH_MAX, |most| most.min(limits::BATCH_MAX)),
            sends: Semaphore::new(limits::SENDS_AT_ONCE),
            trials: Semaphore::new(limits::TRIALS_AT_ONCE),
            reads: Semaphore::new(limits::READS_AT_ONCE),
        }
    }

    /// Host and port.
    pub(super) fn name(&self) -> &str {
        self.http.url().name()
    }

    pub(super) fn health(&self) -> &Health {
        &self.health
    }

    pub(super) fn ways(&self) -> &Ways {
        &self.ways
    }

    /// How many calls fit into one batch.
    pub(super) fn batch_max(&self) -> usize {
        self.batch_max
    }

    pub(super) fn takes_batches(&self) -> bool {
        self.takes_batches.load(Ordering::Relaxed)
    }

    pub(super) fn has_block_receipts(&self) -> bool {
        self.has_block_receipts.load(Ordering::Relaxed)
    }

    /// Remembers that `eth_getBlockReceipts` is of no use here.
    pub(super) fn lacks_block_receipts(&self) {
        self.has_block_receipts.store(false, Ordering::Relaxed);
        let (chain, endpoint) = (self.chain, self.name());
        tracing::info!(%chain, endpoint, "no eth_getBlockReceipts; asking for single receipts");
    }

    /// One call.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: &Value,
    ) -> Result<T, Failure> {
        self.check_chain().await?;
        self.call_unchecked(method, params).await
    }

    /// One call whose error is an answer as well.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: &Value,
    ) -> Result<Outcome<T>, Failure> {
        match self.call(method, params).await {
            Ok(result) => Ok(Ok(result)),
            Err(Failure::Node(error)) => Ok(Err(error)),
            Err(failure) => Err(failure),
        }
    }

    /// Many calls of one method; the results in their order. One error fails all.
    pub(super) async fn call_many<T: DeserializeOwned>(
        &self,
        method: &'static str,
        calls: &[Value],
    ) -> Result<Vec<T>, Failure> {
        let outcomes = self.ask_many(method, calls).await?;
        outcomes
            .into_iter()
            .map(|outcome| outcome.map_err(Failure::Node))
            .collect()
    }

    /// Many calls of one method, whose errors are answers as well.
    pub(super) async fn ask_many<T: DeserializeOwned>(
        &self,
        method: &'static str,
        calls: &[Value],
    ) -> Result<Vec<Outcome<T>>, Failure> {
        let mut outcomes = Vec::with_capacity(calls.len());
        for part in calls.chunks(self.batch_max) {
            match self.batch(method, part).await? {
                Batch::Each(each) => {
                    let complete: Option<Vec<Outcome<T>>> = each.into_iter().collect();
                    let missing = || Failure::Malformed("a batch lacks an answer".to_owned());
                    outcomes.extend(complete.ok_or_else(missing)?);
                }
                Batch::NotTaken => {
                    for few in part.chunks(limits::SINGLE_CALLS_AT_ONCE) {
                        let singly = few.iter().map(|params| self.ask(method, params));
                        outcomes.extend(try_join_all(singly).await?);
                    }
                }
            }
        }
        Ok(outcomes)
    }

    /// One batch of at most [`Self::batch_max`] calls.
    pub(super) async fn batch<T: DeserializeOwned>(
        &self,
        method: &'static str,
        calls: &[Value],
    ) -> Result<Batch<T>, Failure> {
        // A batch of one gains nothing, and some endpoints know no batches at all.
        if let [params] = calls {
            return Ok(Batch::Each(vec![Some(self.ask(method, params).await?)]));
        }
        if calls.is_empty() {
            return Ok(Batch::Each(Vec::new()));
        }
        self.check_chain().await?;
        if !self.takes_batches() {
            return Ok(Batch::NotTaken);
        }
        match self.post_batch(method, calls).await {
            Ok(BatchAnswer::Each(each)) => {
                self.health.answered();
                for outcome in &each {
                    let result = match outcome {
                        Some(Ok(_)) => "ok",
                        Some(Err(error)) => {
                            self.heed(error);
                            "error"
                        }
                        None => "lost",
                    };
                    self.count(method, result, 1);
                }
                Ok(Batch::Each(each))
            }
            Ok(BatchAnswer::Refused(error)) => self.batch_refused(method, error),
            Err(failure) => {
                self.failed(method, calls.len(), &failure);
                Err(failure)
            }
        }
    }

    async fn post_batch<T: DeserializeOwned>(
        &self,
        method: &'static str,
        calls: &[Value],
    ) -> Result<BatchAnswer<T>, Failure> {
        let body = wire::encode_batch(method, calls);
        let reply = self.post(method, body, calls.len()).await?;
        match wire::decode_batch(&reply.body, calls.len()) {
            Ok(BatchAnswer::Refused(error)) if reply.status == StatusCode::TOO_MANY_REQUESTS => {
                Err(Failure::TurnedAway(throttled(&error)))
            }
            Ok(answer) => Ok(answer),
            Err(_) if reply.status == StatusCode::PAYLOAD_TOO_LARGE => {
                Ok(BatchAnswer::Refused(NodeError::default()))
            }
            Err(malformed) => Err(failure_of(reply.status, malformed)),
        }
    }

    fn batch_refused<T>(
        &self,
        method: &'static str,
        error: NodeError,
    ) -> Result<Batch<T>, Failure> {
        // Throttling is about now; everything else is how this endpoint is.
        self.heed(&error);
        let meaning = error.complaint().meaning();
        if [Meaning::NotReady, Meaning::Throttled].contains(&meaning) {
            let failure = Failure::TurnedAway(error.message);
            self.failed(method, 1, &failure);
            return Err(failure);
        }
        self.count(method, "error", 1);
        self.takes_batches.store(false, Ordering::Relaxed);
        let (chain, endpoint) = (self.chain, self.name());
        tracing::info!(%chain, endpoint, error = error.message, "no batches; asking one by one");
        Ok(Batch::NotTaken)
    }

    async fn call_unchecked<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: &Value,
    ) -> Result<T, Failure> {
        let posted = self
            .post(method, wire::encode_single(method, params), 1)
            .await;
        let outcome = posted.and_then(|reply| match wire::decode_single(&reply.body) {
            Ok(Err(error)) if reply.status == StatusCode::TOO_MANY_REQUESTS => {
                Err(Failure::TurnedAway(throttled(&error)))
            }
            Ok(outcome) => Ok(outcome),
            Err(malformed) => Err(failure_of(reply.status, malformed)),
        });
        match outcome {
            Ok(Ok(result)) => {
                self.health.answered();
                self.count(method, "ok", 1);
                Ok(result)
            }
            Ok(Err(error)) => {
                self.health.answered();
                self.heed(&error);
                self.count(method, "error", 1);
                Err(Failure::Node(error))
            }
            Err(failure) => {
                self.failed(method, 1, &failure);
                Err(failure)
            }
        }
    }

    /// Leaves the endpoint alone for a while where an error asks for that.
    fn heed(&self, error: &NodeError) {
        if error.complaint().meaning() == Meaning::Throttled {
            self.health.rest(error.back_off());
        }
    }

    /// Refuses an endpoint of another chain: nothing but `eth_chainId` is ever asked of it.
    pub(super) async fn check_chain(&self) -> Result<(), Failure> {
        match self.health.standing() {
            BlockPosition::Serves | BlockPosition::Stumbled { .. } => return Ok(()),
            BlockPosition::WrongChain { found, at }
                if at.elapsed() < limits::WRONG_CHAIN_RECHECK =>
            {
                return Err(Failure::WrongChain(found));
            }
            BlockPosition::WrongChain { .. } | BlockPosition::Unchecked { .. } => {}
        }
        let answer = self.call_unchecked("eth_chainId", &json!([])).await;
        let Quantity(found) = answer.map_err(|failure| Failure::Unchecked(Box::new(failure)))?;
        let found = ChainId(found);
        self.health.named_chain(found, self.chain);
        if found == self.chain {
            return Ok(());
        }
        let (endpoint, expected) = (self.name(), self.chain);
        tracing::error!(endpoint, %expected, %found, "an endpoint serves another chain: not used");
        self.count("eth_chainId", "wrong_chain", 1);
        Err(Failure::WrongChain(found))
    }

    async fn post(
        &self,
        method: &'static str,
        body: Vec<u8>,
        calls: usize,
    ) -> Result<Reply, Failure> {
        let (room, repeat) = match method {
            "eth_sendRawTransaction" => (&self.sends, Repeat::Never),
            "eth_estimateGas" | "eth_call" => (&self.trials, Repeat::Once),
            _ => (&self.reads, Repeat::Once),
        };
        let _permit = self.admit(room, calls).await?;
        let reply = self.http.post(body, repeat).await?;
        let wants_rest = match reply.status {
            StatusCode::TOO_MANY_REQUESTS => true,
            // A node that starts says so too, mostly without naming a time.
            StatusCode::SERVICE_UNAVAILABLE => reply.retry_after.is_some(),
            _ => false,
        };
        if wants_rest {
            self.health.rest(reply.retry_after);
        }
        Ok(reply)
    }

    /// Waits until a request may leave: not too many at once, nor per second, and none while the
    /// endpoint wants to be left alone.
    async fn admit<'a>(
        &self,
        room: &'a Semaphore,
        calls: usize,
    ) -> Result<SemaphorePermit<'a>, Failure> {
        self.is_rested()?;
        let began = Instant::now();
        let patience = self.http.timeout();
        let permit = timeout(patience, room.acquire()).await;
        let permit = permit.ok().and_then(Result::ok).ok_or_else(too_many)?;
        if let Some(pace) = &self.pace {
            let left = patience.saturating_sub(began.elapsed());
            let wait = pace.take(calls, left).ok_or_else(too_many)?;
            sleep(wait).await;
        }
        self.is_rested()?; // it may have complained meanwhile
        Ok(permit)
    }

    fn is_rested(&self) -> Result<(), Failure> {
        match self.health.rests_for() {
            Some(left) => Err(Failure::Resting(left)),
            None => Ok(()),
        }
    }

    fn failed(&self, method: &'static str, calls: usize, failure: &Failure) {
        self.health.failed(failure);
        self.count(method, failure.as_str(), calls);
        let (chain, endpoint) = (self.chain, self.name());
        tracing::debug!(%chain, endpoint, method, %failure, "a call failed");
    }

    /// Tells how far behind the best known head this endpoint is.
    pub(super) fn show_lag(&self, blocks: u64) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge for people")]
        metrics::gauge!(
            "lanekeeper_rpc_head_lag_blocks",
            "chain" => self.chain.to_string(), "endpoint" => self.name().to_owned()
        )
        .set(blocks as f64);
    }

    fn count(&self, method: &'static str, result: &'static str, calls: usize) {
        metrics::counter!(
            "lanekeeper_rpc_calls_total",
            "chain" => self.chain.to_string(), "endpoint" => self.name().to_owned(),
            "method" => method, "result" => result
        )
        .increment(calls as u64);
    }
}

fn too_many() -> Failure {
    Failure::NotConnected("too many requests are under way".to_owned())
}

fn throttled(error: &NodeError) -> String {
    format!("HTTP 429: {}", error.message)
}
