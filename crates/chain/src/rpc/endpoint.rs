//! One endpoint: which chain it serves, what it can do, and how it fared last.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use domain::ChainId;
use futures::future::try_join_all;
use reqwest::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::answers::Quantity;
use super::failure::Failure;
use super::http::{Http, Repeat, failure_of};
use super::limits;
use super::wire::{self, BatchAnswer, NodeError, Outcome};
use crate::classify::Meaning;

pub(super) struct Endpoint {
    http: Http,
    chain: ChainId,
    standing: Mutex<Standing>,
    /// Cleared for good when the endpoint shows that it does not do this.
    takes_batches: AtomicBool,
    has_block_receipts: AtomicBool,
    sends: Semaphore,
    trials: Semaphore,
    reads: Semaphore,
}

/// What the last contact showed.
#[derive(Clone, Copy)]
enum Standing {
    /// Not asked yet, or not reached the last time: its chain must be checked before it is used.
    Unchecked { failed_at: Option<Instant> },
    /// Serves our chain.
    Serves,
    /// Serves our chain, but the last request was turned away or answered with garbage.
    Stumbled { at: Instant },
    /// Serves another chain.
    WrongChain { found: ChainId, at: Instant },
}

/// What came of a batch.
pub(super) enum Batch<T> {
    /// In the order of the calls; `None` where the node left one out.
    Each(Vec<Option<Outcome<T>>>),
    /// This endpoint takes no batches, and nothing was done.
    NotTaken,
}

impl Endpoint {
    pub(super) fn new(http: Http, chain: ChainId) -> Self {
        Self {
            http,
            chain,
            standing: Mutex::new(Standing::Unchecked { failed_at: None }),
            takes_batches: AtomicBool::new(true),
            has_block_receipts: AtomicBool::new(true),
            sends: Semaphore::new(limits::SENDS_AT_ONCE),
            trials: Semaphore::new(limits::TRIALS_AT_ONCE),
            reads: Semaphore::new(limits::READS_AT_ONCE),
        }
    }

    /// Host and port.
    pub(super) fn name(&self) -> &str {
        self.http.url().name()
    }

    /// Whether the last contact went well.
    pub(super) fn answers(&self) -> bool {
        matches!(self.standing(), Standing::Serves)
    }

    /// Whether others should be asked first.
    pub(super) fn comes_last(&self) -> bool {
        match self.standing() {
            Standing::Serves | Standing::Unchecked { failed_at: None } => false,
            Standing::Unchecked {
                failed_at: Some(at),
            }
            | Standing::Stumbled { at } => at.elapsed() < limits::COOL_DOWN,
            Standing::WrongChain { .. } => true,
        }
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
        for part in calls.chunks(limits::BATCH_MAX) {
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

    /// One batch of at most [`limits::BATCH_MAX`] calls.
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
        if !self.takes_batches.load(Ordering::Relaxed) {
            return Ok(Batch::NotTaken);
        }
        match self.post_batch(method, calls).await {
            Ok(BatchAnswer::Each(each)) => {
                self.answered();
                for outcome in &each {
                    let result = match outcome {
                        Some(Ok(_)) => "ok",
                        Some(Err(_)) => "error",
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
        let (status, body) = self.post(method, wire::encode_batch(method, calls)).await?;
        match wire::decode_batch(&body, calls.len()) {
            Ok(answer) => Ok(answer),
            Err(_) if status == StatusCode::PAYLOAD_TOO_LARGE => {
                Ok(BatchAnswer::Refused(NodeError::default()))
            }
            Err(malformed) => Err(failure_of(status, malformed)),
        }
    }

    fn batch_refused<T>(
        &self,
        method: &'static str,
        error: NodeError,
    ) -> Result<Batch<T>, Failure> {
        // Throttling is about now; everything else is how this endpoint is.
        if error.complaint().meaning() == Meaning::NotReady {
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
        let posted = self.post(method, wire::encode_single(method, params)).await;
        let outcome = posted.and_then(|(status, body)| {
            wire::decode_single(&body).map_err(|malformed| failure_of(status, malformed))
        });
        match outcome {
            Ok(Ok(result)) => {
                self.answered();
                self.count(method, "ok", 1);
                Ok(result)
            }
            Ok(Err(error)) => {
                self.answered();
                self.count(method, "error", 1);
                Err(Failure::Node(error))
            }
            Err(failure) => {
                self.failed(method, 1, &failure);
                Err(failure)
            }
        }
    }

    /// Refuses an endpoint of another chain: nothing but `eth_chainId` is ever asked of it.
    async fn check_chain(&self) -> Result<(), Failure> {
        match self.standing() {
            Standing::Serves | Standing::Stumbled { .. } => return Ok(()),
            Standing::WrongChain { found, at } if at.elapsed() < limits::WRONG_CHAIN_RECHECK => {
                return Err(Failure::WrongChain(found));
            }
            Standing::WrongChain { .. } | Standing::Unchecked { .. } => {}
        }
        let answer = self.call_unchecked("eth_chainId", &json!([])).await;
        let Quantity(found) = answer.map_err(|failure| Failure::Unchecked(Box::new(failure)))?;
        let found = ChainId(found);
        if found == self.chain {
            self.stand(Standing::Serves);
            return Ok(());
        }
        let (endpoint, expected) = (self.name(), self.chain);
        tracing::error!(endpoint, %expected, %found, "an endpoint serves another chain: not used");
        self.count("eth_chainId", "wrong_chain", 1);
        self.stand(Standing::WrongChain {
            found,
            at: Instant::now(),
        });
        Err(Failure::WrongChain(found))
    }

    async fn post(
        &self,
        method: &'static str,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Vec<u8>), Failure> {
        let (room, repeat) = match method {
            "eth_sendRawTransaction" => (&self.sends, Repeat::Never),
            "eth_estimateGas" | "eth_call" => (&self.trials, Repeat::Once),
            _ => (&self.reads, Repeat::Once),
        };
        let permit = timeout(self.http.timeout(), room.acquire()).await;
        let _permit = permit
            .ok()
            .and_then(Result::ok)
            .ok_or_else(|| Failure::NotConnected("too many requests are under way".to_owned()))?;
        self.http.post(body, repeat).await
    }

    fn standing(&self) -> Standing {
        *self
            .standing
            .lock()
            .expect("nothing panics while holding it")
    }

    fn stand(&self, standing: Standing) {
        *self
            .standing
            .lock()
            .expect("nothing panics while holding it") = standing;
    }

    /// An answer came. That does not prove the chain: see [`Self::check_chain`].
    fn answered(&self) {
        if let Standing::Stumbled { .. } = self.standing() {
            self.stand(Standing::Serves);
        }
    }

    fn failed(&self, method: &'static str, calls: usize, failure: &Failure) {
        let at = Instant::now();
        match (failure, self.standing()) {
            // Behind an address that must be connected to again may stand another node.
            (Failure::NotConnected(_) | Failure::Lost(_), _)
            | (Failure::TurnedAway(_) | Failure::Malformed(_), Standing::Unchecked { .. }) => {
                self.stand(Standing::Unchecked {
                    failed_at: Some(at),
                });
            }
            (
                Failure::TurnedAway(_) | Failure::Malformed(_),
                Standing::Serves | Standing::Stumbled { .. },
            ) => self.stand(Standing::Stumbled { at }),
            (Failure::TurnedAway(_) | Failure::Malformed(_), Standing::WrongChain { .. })
            | (Failure::WrongChain(_) | Failure::Unchecked(_) | Failure::Node(_), _) => {}
        }
        self.count(method, failure.word(), calls);
        let (chain, endpoint) = (self.chain, self.name());
        tracing::debug!(%chain, endpoint, method, %failure, "a call failed");
    }

    fn count(&self, method: &'static str, result: &'static str, calls: usize) {
        metrics::counter!(
            "lanekeeper_rpc_calls_total",
            "chain" => self.chain.to_string(), "method" => method, "result" => result
        )
        .increment(calls as u64);
    }
}
