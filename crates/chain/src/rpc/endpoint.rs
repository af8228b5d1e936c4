//! One endpoint: its chain, its capabilities, and calls to it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::ChainId;
use futures::future::try_join_all;
use reqwest::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout};

use super::answers::Quantity;
use super::failure::Failure;
use super::health::{EndpointStatus, Health};
use super::http::{Http, HttpReply, RetryPolicy, failure_from_status};
use super::limits;
use super::rate_limiter::RateLimiter;
use super::send::SendStrategy;
use super::wire::{self, BatchAnswer, NodeError, Outcome};
use crate::classify::NodeErrorKind;

const SEND_METHOD: &str = "eth_sendRawTransaction";

pub(super) struct Endpoint {
    http: Http,
    chain: ChainId,
    pub(super) health: Health,
    /// Whether batches or single calls are faster here.
    pub(super) strategy: SendStrategy,
    /// Cleared permanently when the endpoint refuses a batch.
    can_batch: AtomicBool,
    has_block_receipts: AtomicBool,
    rate_limiter: Option<RateLimiter>,
    /// The most calls in one batch.
    pub(super) batch_max: usize,
    sends: Semaphore,
    dry_runs: Semaphore,
    reads: Semaphore,
}

/// What a request is for: each kind has its own limit, and its own meaning for the endpoint's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    Send,
    /// An execution of a payload that a customer may have chosen.
    DryRun,
    Read,
}

impl CallKind {
    fn of(method: &str) -> Self {
        match method {
            SEND_METHOD => Self::Send,
            "eth_estimateGas" | "eth_call" => Self::DryRun,
            _ => Self::Read,
        }
    }
}

/// A request that the limits on requests have admitted.
pub(super) struct Admission<'a> {
    /// When.
    pub(super) at: Instant,
    _permit: SemaphorePermit<'a>,
}

/// The outcome of a batch.
pub(super) enum BatchOutcome<T> {
    /// In the order of the calls; `None` where the answer lacks one.
    Each(Vec<Option<Outcome<T>>>),
    /// The endpoint accepts no batches; no call was executed.
    Unsupported,
}

impl Endpoint {
    pub(super) fn new(http: Http, chain: ChainId, requests_per_second: Option<u32>) -> Self {
        // A gateway refuses a batch with more calls than it allows per second.
        let allowed = requests_per_second.and_then(|most| usize::try_from(most).ok());
        Self {
            http,
            chain,
            health: Health::new(),
            strategy: SendStrategy::default(),
            can_batch: AtomicBool::new(true),
            has_block_receipts: AtomicBool::new(true),
            rate_limiter: requests_per_second.map(RateLimiter::new),
            batch_max: allowed.map_or(limits::BATCH_MAX, |most| most.min(limits::BATCH_MAX)),
            sends: Semaphore::new(limits::CONCURRENT_SENDS_MAX),
            dry_runs: Semaphore::new(limits::CONCURRENT_DRY_RUNS_MAX),
            reads: Semaphore::new(limits::CONCURRENT_READS_MAX),
        }
    }

    /// Host and port.
    pub(super) fn name(&self) -> &str {
        self.http.url().name()
    }

    /// How long the limit on requests per second delays the next one.
    pub(super) fn next_wait(&self) -> Duration {
        let limiter = self.rate_limiter.as_ref();
        limiter.map_or(Duration::ZERO, RateLimiter::next_wait)
    }

    pub(super) fn can_batch(&self) -> bool {
        self.can_batch.load(Ordering::Relaxed)
    }

    pub(super) fn has_block_receipts(&self) -> bool {
        self.has_block_receipts.load(Ordering::Relaxed)
    }

    /// Records that the endpoint lacks `eth_getBlockReceipts`.
    pub(super) fn mark_block_receipts_unsupported(&self) {
        self.has_block_receipts.store(false, Ordering::Relaxed);
        let (chain, endpoint) = (self.chain, self.name());
        tracing::info!(%chain, endpoint, "the endpoint lacks eth_getBlockReceipts; reading receipts one by one");
    }

    /// One call. An error of the node is a failure.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: &Value,
    ) -> Result<T, Failure> {
        self.check_chain().await?;
        self.call_unchecked(method, params).await
    }

    /// One call. An error of the node is an outcome, not a failure.
    pub(super) async fn query<T: DeserializeOwned>(
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

    /// Several calls of one method, results in order. One error of the node fails all.
    pub(super) async fn call_many<T: DeserializeOwned>(
        &self,
        method: &'static str,
        calls: &[Value],
    ) -> Result<Vec<T>, Failure> {
        let outcomes = self.query_many(method, calls).await?;
        outcomes
            .into_iter()
            .map(|outcome| outcome.map_err(Failure::Node))
            .collect()
    }

    /// Several calls of one method, outcomes in order.
    pub(super) async fn query_many<T: DeserializeOwned>(
        &self,
        method: &'static str,
        calls: &[Value],
    ) -> Result<Vec<Outcome<T>>, Failure> {
        let mut outcomes = Vec::with_capacity(calls.len());
        for part in calls.chunks(self.batch_max) {
            match self.batch(method, part).await? {
                BatchOutcome::Each(each) => {
                    let complete: Option<Vec<Outcome<T>>> = each.into_iter().collect();
                    let missing = || Failure::Malformed("a batch lacks an answer".to_owned());
                    outcomes.extend(complete.ok_or_else(missing)?);
                }
                BatchOutcome::Unsupported => {
                    for few in part.chunks(limits::CONCURRENT_SINGLE_CALLS_MAX) {
                        let singly = few.iter().map(|params| self.query(method, params));
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
    ) -> Result<BatchOutcome<T>, Failure> {
        // A batch of one gains nothing, and some endpoints accept no batches.
        if let [params] = calls {
            let outcome = self.query(method, params).await?;
            return Ok(BatchOutcome::Each(vec![Some(outcome)]));
        }
        if calls.is_empty() {
            return Ok(BatchOutcome::Each(Vec::new()));
        }
        self.check_chain().await?;
        if !self.can_batch() {
            return Ok(BatchOutcome::Unsupported);
        }
        let admission = self.admit(method, calls.len(), self.http.timeout()).await?;
        self.batch_admitted(admission, method, calls).await
    }

    /// Waits for the admission of so many sends in one request, not longer than `patience`.
    pub(super) async fn admit_sends(
        &self,
        sends: usize,
        patience: Duration,
    ) -> Result<Admission<'_>, Failure> {
        let began = Instant::now();
        let checked = timeout(patience, self.check_chain()).await;
        checked.unwrap_or(Err(Failure::NotAdmitted))?;
        let left = patience.saturating_sub(began.elapsed());
        self.admit(SEND_METHOD, sends, left).await
    }

    /// Sends one envelope. An error of the node is an outcome, not a failure.
    pub(super) async fn send_one(
        &self,
        admission: Admission<'_>,
        params: &Value,
    ) -> Result<Outcome<Box<RawValue>>, Failure> {
        match self.call_admitted(admission, SEND_METHOD, params).await {
            Ok(result) => Ok(Ok(result)),
            Err(Failure::Node(error)) => Ok(Err(error)),
            Err(failure) => Err(failure),
        }
    }

    /// Sends one batch of at most [`Self::batch_max`] envelopes.
    pub(super) async fn send_batch(
        &self,
        admission: Admission<'_>,
        calls: &[Value],
    ) -> Result<BatchOutcome<Box<RawValue>>, Failure> {
        if let [params] = calls {
            let outcome = self.send_one(admission, params).await?;
            return Ok(BatchOutcome::Each(vec![Some(outcome)]));
        }
        if !self.can_batch() {
            return Ok(BatchOutcome::Unsupported);
        }
        self.batch_admitted(admission, SEND_METHOD, calls).await
    }

    async fn batch_admitted<T: DeserializeOwned>(
        &self,
        admission: Admission<'_>,
        method: &'static str,
        calls: &[Value],
    ) -> Result<BatchOutcome<T>, Failure> {
        match self.post_batch(admission, method, calls).await {
            Ok(BatchAnswer::Each(each)) => {
                self.health.record_answer();
                for outcome in &each {
                    let result = match outcome {
                        Some(Ok(_)) => "ok",
                        Some(Err(error)) => {
                            self.honour_backoff_request(error);
                            "error"
                        }
                        None => "lost",
                    };
                    self.count_calls(method, result, 1);
                }
                Ok(BatchOutcome::Each(each))
            }
            Ok(BatchAnswer::Refused(error)) => self.batch_refused(method, error),
            Err(failure) => {
                self.record_failure(method, calls.len(), &failure);
                Err(failure)
            }
        }
    }

    async fn post_batch<T: DeserializeOwned>(
        &self,
        admission: Admission<'_>,
        method: &'static str,
        calls: &[Value],
    ) -> Result<BatchAnswer<T>, Failure> {
        let body = wire::encode_batch(method, calls);
        let reply = self.post(admission, method, body).await?;
        match wire::decode_batch(&reply.body, calls.len()) {
            Ok(BatchAnswer::Refused(error)) if reply.status == StatusCode::TOO_MANY_REQUESTS => {
                Err(Failure::Refused(throttled_text(&error)))
            }
            Ok(answer) => Ok(answer),
            Err(_) if reply.status == StatusCode::PAYLOAD_TOO_LARGE => {
                Ok(BatchAnswer::Refused(NodeError::default()))
            }
            Err(malformed) => Err(failure_from_status(reply.status, malformed)),
        }
    }

    fn batch_refused<T>(
        &self,
        method: &'static str,
        error: NodeError,
    ) -> Result<BatchOutcome<T>, Failure> {
        // A rate limit is temporary; every other refusal is permanent.
        self.honour_backoff_request(&error);
        let kind = error.kind();
        if [NodeErrorKind::NotReady, NodeErrorKind::RateLimited].contains(&kind) {
            let failure = Failure::Refused(error.message);
            self.record_failure(method, 1, &failure);
            return Err(failure);
        }
        self.count_calls(method, "error", 1);
        self.can_batch.store(false, Ordering::Relaxed);
        let (chain, endpoint) = (self.chain, self.name());
        tracing::info!(%chain, endpoint, error = error.message, "the endpoint accepts no batches; sending single calls");
        Ok(BatchOutcome::Unsupported)
    }

    async fn call_unchecked<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: &Value,
    ) -> Result<T, Failure> {
        let admission = self.admit(method, 1, self.http.timeout()).await?;
        self.call_admitted(admission, method, params).await
    }

    async fn call_admitted<T: DeserializeOwned>(
        &self,
        admission: Admission<'_>,
        method: &'static str,
        params: &Value,
    ) -> Result<T, Failure> {
        let body = wire::encode_single(method, params);
        let posted = self.post(admission, method, body).await;
        let outcome = posted.and_then(|reply| match wire::decode_single(&reply.body) {
            Ok(Err(error)) if reply.status == StatusCode::TOO_MANY_REQUESTS => {
                Err(Failure::Refused(throttled_text(&error)))
            }
            Ok(outcome) => Ok(outcome),
            Err(malformed) => Err(failure_from_status(reply.status, malformed)),
        });
        match outcome {
            Ok(Ok(result)) => {
                self.health.record_answer();
                self.count_calls(method, "ok", 1);
                Ok(result)
            }
            Ok(Err(error)) => {
                self.health.record_answer();
                self.honour_backoff_request(&error);
                self.count_calls(method, "error", 1);
                Err(Failure::Node(error))
            }
            Err(failure) => {
                self.record_failure(method, 1, &failure);
                Err(failure)
            }
        }
    }

    /// Starts a backoff if the error requests one.
    fn honour_backoff_request(&self, error: &NodeError) {
        if error.kind() == NodeErrorKind::RateLimited {
            self.health.back_off(error.requested_backoff());
        }
    }

    /// Fails for an endpoint of another chain: nothing but `eth_chainId` is ever sent to it.
    pub(super) async fn check_chain(&self) -> Result<(), Failure> {
        match self.health.status() {
            EndpointStatus::Serving | EndpointStatus::Degraded { .. } => return Ok(()),
            EndpointStatus::WrongChain { found, at }
                if at.elapsed() < limits::WRONG_CHAIN_RECHECK =>
            {
                return Err(Failure::WrongChain(found));
            }
            EndpointStatus::WrongChain { .. } | EndpointStatus::Unchecked { .. } => {}
        }
        let answer = self.call_unchecked("eth_chainId", &json!([])).await;
        let Quantity(found) = answer.map_err(|failure| Failure::Unchecked(Box::new(failure)))?;
        let found = ChainId(found);
        self.health.record_chain_id(found, self.chain);
        if found == self.chain {
            return Ok(());
        }
        let (endpoint, expected) = (self.name(), self.chain);
        tracing::error!(endpoint, %expected, %found, "an endpoint serves another chain and is not used; correct its URL in the configuration");
        self.count_calls("eth_chainId", "wrong_chain", 1);
        Err(Failure::WrongChain(found))
    }

    /// The admission ends with the answer.
    async fn post(
        &self,
        _admission: Admission<'_>,
        method: &'static str,
        body: Vec<u8>,
    ) -> Result<HttpReply, Failure> {
        let retry_policy = match CallKind::of(method) {
            CallKind::Send => RetryPolicy::Never,
            CallKind::DryRun | CallKind::Read => RetryPolicy::Once,
        };
        let reply = self.http.post(body, retry_policy).await?;
        let wants_backoff = match reply.status {
            StatusCode::TOO_MANY_REQUESTS => true,
            // A starting node also returns 503, usually without a time.
            StatusCode::SERVICE_UNAVAILABLE => reply.retry_after.is_some(),
            _ => false,
        };
        if wants_backoff {
            self.health.back_off(reply.retry_after);
        }
        Ok(reply)
    }

    /// Waits until the limits on concurrent requests and on requests per second admit a request of so many calls. Fails
    /// during a backoff.
    async fn admit(
        &self,
        method: &'static str,
        calls: usize,
        patience: Duration,
    ) -> Result<Admission<'_>, Failure> {
        let permits = match CallKind::of(method) {
            CallKind::Send => &self.sends,
            CallKind::DryRun => &self.dry_runs,
            CallKind::Read => &self.reads,
        };
        let admission = self.wait_for_admission(permits, calls, patience).await;
        admission.inspect_err(|failure| self.record_failure(method, calls, failure))
    }

    async fn wait_for_admission<'a>(
        &self,
        permits: &'a Semaphore,
        calls: usize,
        patience: Duration,
    ) -> Result<Admission<'a>, Failure> {
        self.check_backoff()?;
        let began = Instant::now();
        let permit = timeout(patience, permits.acquire()).await;
        let permit = permit.ok().and_then(Result::ok);
        let permit = permit.ok_or(Failure::NotAdmitted)?;
        if let Some(rate_limiter) = &self.rate_limiter {
            let left = patience.saturating_sub(began.elapsed());
            let wait = rate_limiter.claim_slot(calls, left);
            sleep(wait.ok_or(Failure::NotAdmitted)?).await;
        }
        self.check_backoff()?; // a backoff may have begun meanwhile
        Ok(Admission {
            at: Instant::now(),
            _permit: permit,
        })
    }

    fn check_backoff(&self) -> Result<(), Failure> {
        match self.health.backoff_left() {
            Some(left) => Err(Failure::BackingOff(left)),
            None => Ok(()),
        }
    }

    fn record_failure(&self, method: &'static str, calls: usize, failure: &Failure) {
        self.record_health(CallKind::of(method), failure);
        self.count_calls(method, failure.as_str(), calls);
        let (chain, endpoint) = (self.chain, self.name());
        tracing::debug!(%chain, endpoint, method, %failure, "JSON-RPC call failed");
    }

    /// A payload may be why its dry run is not answered, so only a connection that cannot be made counts for the other
    /// requests.
    fn record_health(&self, kind: CallKind, failure: &Failure) {
        match (kind, failure) {
            (
                CallKind::DryRun,
                Failure::AnswerLost(_) | Failure::Malformed(_) | Failure::Refused(_),
            ) => {
                self.health.record_dry_run_failure();
            }
            (CallKind::DryRun | CallKind::Send | CallKind::Read, _) => {
                self.health.record_failure(failure);
            }
        }
    }

    /// Records that a query was given up after its share of the time, because others are left to be queried.
    pub(super) fn record_unanswered(&self, kind: CallKind, share: Duration) -> Failure {
        let failure = Failure::AnswerLost(format!("no answer within {share:?}"));
        self.record_health(kind, &failure);
        let (chain, endpoint) = (self.chain, self.name());
        tracing::debug!(%chain, endpoint, ?share, "a query is not answered; the next endpoint is queried");
        failure
    }

    /// Reports how many blocks this endpoint is behind the best known head.
    pub(super) fn report_lag(&self, blocks: u64) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge for people")]
        metrics::gauge!(
            "lanekeeper_rpc_head_lag_blocks",
            "chain" => self.chain.to_string(), "endpoint" => self.name().to_owned()
        )
        .set(blocks as f64);
    }

    fn count_calls(&self, method: &'static str, result: &'static str, calls: usize) {
        metrics::counter!(
            "lanekeeper_rpc_calls_total",
            "chain" => self.chain.to_string(), "endpoint" => self.name().to_owned(),
            "method" => method, "result" => result
        )
        .increment(calls as u64);
    }
}

fn throttled_text(error: &NodeError) -> String {
    format!("HTTP 429: {}", error.message)
}
