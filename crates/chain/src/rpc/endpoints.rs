//! All endpoints of a chain: the order in which they are queried, and which head counts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use domain::{Address, Header};
use engine::ports::ChainError;
use futures::future::BoxFuture;
use serde_json::json;
use tokio::time::timeout;

use super::answers::{Block, Quantity};
use super::endpoint::{CallKind, Endpoint};
use super::failure::{Failure, endpoints_failed};
use super::health::Rank;
use super::limits;
use super::read;

/// An endpoint in query order.
#[derive(Clone, Copy)]
pub(super) struct Turn<'a> {
    pub(super) endpoint: &'a Endpoint,
    index: usize,
    rank: Rank,
    kind: CallKind,
    /// Whether one that is not failing comes after it.
    has_next: bool,
}

impl Turn<'_> {
    /// The turn of an endpoint that confirms another one's answer: it never has more than its share of the time. `None`
    /// where it is behind or failing.
    pub(super) fn to_confirm(self) -> Option<Self> {
        let has_next = true;
        (self.rank <= Rank::Slow).then_some(Self { has_next, ..self })
    }

    /// Waits for the endpoint's answer to a query of so many requests, one after the other. While another endpoint is left
    /// that is not failing, each request has only a share of its time: an endpoint that hangs on a method must not hold up
    /// what others answer. The last one has the whole time, so that an answer that takes long everywhere arrives.
    pub(super) async fn answer<T>(
        &self,
        requests: usize,
        query: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        if !self.has_next {
            return query.await;
        }
        let requests = u32::try_from(requests.max(1)).unwrap_or(u32::MAX);
        let share = limits::READ_SHARE.saturating_mul(requests);
        match timeout(share, query).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(self.endpoint.record_unanswered(self.kind, share)),
        }
    }
}

pub(super) struct Endpoints {
    list: Vec<Endpoint>,
    /// The index whose head was used last. It stays first while it is as good as the others, so that the head does
    /// not jump back and forth between nodes.
    current: AtomicUsize,
    /// After failing for this long, an endpoint counts as dead.
    dead_after: Duration,
}

impl Endpoints {
    pub(super) fn new(list: Vec<Endpoint>, dead_after: Duration) -> Self {
        Self {
            list,
            current: AtomicUsize::new(0),
            dead_after,
        }
    }

    /// Whether an endpoint has failed for so long that the others need not wait for it to agree.
    pub(super) fn is_dead(&self, endpoint: &Endpoint) -> bool {
        let failing_for = endpoint.health.failing_for();
        failing_for.is_some_and(|failing_for| failing_for >= self.dead_after)
    }

    /// In configured order.
    pub(super) fn list(&self) -> &[Endpoint] {
        &self.list
    }

    /// In query order: by health, then the one in use, then as configured.
    pub(super) fn in_order(&self) -> Vec<&Endpoint> {
        let ranked = self.ranked(CallKind::Read).into_iter();
        ranked.map(|(_, index)| &self.list[index]).collect()
    }

    /// In query order, each with what comes after it.
    pub(super) fn turns(&self) -> Vec<Turn<'_>> {
        self.turns_for(CallKind::Read)
    }

    pub(super) fn turns_for(&self, kind: CallKind) -> Vec<Turn<'_>> {
        let ranked = self.ranked(kind);
        let healthy = ranked.iter().rposition(|(rank, _)| *rank < Rank::Failed);
        let turns = ranked.iter().enumerate();
        turns
            .map(|(position, (rank, index))| Turn {
                endpoint: &self.list[*index],
                index: *index,
                rank: *rank,
                kind,
                has_next: healthy.is_some_and(|last| last > position),
            })
            .collect()
    }

    /// In the order in which they get the envelopes of an account: those on which sends hang come last, however well
    /// they answer queries.
    pub(super) fn in_send_order(&self, account: Address) -> Vec<&Endpoint> {
        let mut order = self.in_order();
        order.sort_by_key(|endpoint| endpoint.health.hangs_on_sends(account)); // stable
        order
    }

    fn ranked(&self, kind: CallKind) -> Vec<(Rank, usize)> {
        let current = self.current.load(Ordering::Relaxed);
        let fastest = self.fastest();
        let rank = |index: usize| {
            let health = &self.list[index].health;
            match kind {
                CallKind::DryRun => health.dry_run_rank(fastest),
                CallKind::Send | CallKind::Read => health.rank(fastest),
            }
        };
        let mut order: Vec<(Rank, usize)> = (0..self.list.len())
            .map(|index| (rank(index), index))
            .collect();
        order.sort_by_key(|(rank, index)| (*rank, *index != current, *index));
        order
    }

    fn fastest(&self) -> Option<Duration> {
        let latencies = self.list.iter().filter_map(|one| one.health.latency());
        latencies.min()
    }

    /// Queries one endpoint after the other until one returns a result.
    pub(super) async fn read_first<'a, T>(
        &'a self,
        query: impl Fn(&'a Endpoint) -> BoxFuture<'a, Result<T, Failure>> + Send,
    ) -> Result<T, ChainError> {
        self.query_first(CallKind::Read, 1, query).await
    }

    /// The same for an execution of a payload, by so many requests.
    pub(super) async fn dry_run<'a, T>(
        &'a self,
        requests: usize,
        query: impl Fn(&'a Endpoint) -> BoxFuture<'a, Result<T, Failure>> + Send,
    ) -> Result<T, ChainError> {
        self.query_first(CallKind::DryRun, requests, query).await
    }

    async fn query_first<'a, T>(
        &'a self,
        kind: CallKind,
        requests: usize,
        query: impl Fn(&'a Endpoint) -> BoxFuture<'a, Result<T, Failure>> + Send,
    ) -> Result<T, ChainError> {
        let mut failures = Vec::new();
        for turn in self.turns_for(kind) {
            match turn.answer(requests, query(turn.endpoint)).await {
                Ok(result) => return Ok(result),
                Err(failure) => failures.push((turn.endpoint.name(), failure)),
            }
        }
        Err(endpoints_failed(&failures))
    }

    /// The results of two endpoints, where two return one: something that one of them may report wrongly.
    pub(super) async fn query_two<'a, T>(
        &'a self,
        kind: CallKind,
        query: impl Fn(&'a Endpoint) -> BoxFuture<'a, Result<T, Failure>> + Send,
    ) -> Result<(T, Option<T>), ChainError> {
        let mut failures = Vec::new();
        let mut first: Option<T> = None;
        for turn in self.turns_for(kind) {
            if first.is_some() && turn.rank > Rank::Slow {
                break;
            }
            let endpoint = turn.endpoint;
            if let Some(first) = first {
                // The second is a precaution: an endpoint that hangs must not hold up the first.
                let second = timeout(limits::FEE_EXTRA_PATIENCE, query(endpoint)).await;
                return Ok((first, second.ok().and_then(Result::ok)));
            }
            match turn.answer(1, query(endpoint)).await {
                Ok(result) => first = Some(result),
                Err(failure) => failures.push((endpoint.name(), failure)),
            }
        }
        match first {
            Some(first) => Ok((first, None)),
            None => Err(endpoints_failed(&failures)),
        }
    }

    /// Queries endpoints, by so many requests each, until one has a complete result, else returns the most complete one.
    /// Something counts as absent only after all endpoints were queried, except those that are known to be behind.
    pub(super) async fn read_most<'a, T>(
        &'a self,
        requests: usize,
        is_all: impl Fn(&T) -> bool + Send,
        is_more: impl Fn(&T, &T) -> bool + Send,
        query: impl Fn(&'a Endpoint) -> BoxFuture<'a, Result<T, Failure>> + Send,
    ) -> Result<T, ChainError> {
        let mut failures = Vec::new();
        let mut most: Option<T> = None;
        for turn in self.turns() {
            if most.is_some() && turn.rank > Rank::Slow {
                break;
            }
            let endpoint = turn.endpoint;
            match turn.answer(requests, query(endpoint)).await {
                Ok(found) if is_all(&found) => return Ok(found),
                Ok(found) => {
                    let is_most = most.as_ref().is_none_or(|most| is_more(&found, most));
                    most = if is_most { Some(found) } else { most };
                }
                Err(failure) => failures.push((endpoint.name(), failure)),
            }
        }
        most.ok_or_else(|| endpoints_failed(&failures))
    }

    /// The first result that is not `None`; `None` after all endpoints that are not behind returned it.
    pub(super) async fn find_first<'a, T>(
        &'a self,
        query: impl Fn(&'a Endpoint) -> BoxFuture<'a, Result<Option<T>, Failure>> + Send,
    ) -> Result<Option<T>, ChainError> {
        self.read_most(1, Option::is_some, |_, _| false, query)
            .await
    }

    /// The newest block of an endpoint that is not behind another one; if all are behind, the newest of them.
    pub(super) async fn fetch_latest_block(&self) -> Result<Option<Block>, ChainError> {
        let current = self.current.load(Ordering::Relaxed);
        let mut failures = Vec::new();
        let mut is_absent = false;
        let mut newest: Option<(usize, Header, Block)> = None;
        for turn in self.turns() {
            let Turn {
                endpoint, index, ..
            } = turn;
            let began = Instant::now();
            match turn.answer(1, read::latest_block(endpoint)).await {
                Ok(Some(block)) => {
                    let header = block.header();
                    let lag = self.record_head(index, header.number, began.elapsed());
                    let is_newest = newest
                        .as_ref()
                        .is_none_or(|(_, other, _)| header.number > other.number);
                    if is_newest {
                        newest = Some((index, header, block));
                    }
                    if lag <= limits::LAG_BLOCKS_MAX {
                        break;
                    }
                }
                Ok(None) => is_absent = true,
                Err(failure) => failures.push((endpoint.name(), failure)),
            }
        }
        match newest {
            Some((index, _, block)) => {
                // Fails if a poll has chosen a better endpoint meanwhile, which is as good.
                self.current
                    .compare_exchange(current, index, Ordering::Relaxed, Ordering::Relaxed)
                    .ok();
                Ok(Some(block))
            }
            None if is_absent => Ok(None),
            None => Err(endpoints_failed(&failures)),
        }
    }

    /// Records an endpoint's head; returns how many blocks another one is ahead of it.
    fn record_head(&self, index: usize, number: u64, took: Duration) -> u64 {
        let mut best = 0;
        for (other, endpoint) in self.list.iter().enumerate() {
            if other != index {
                best = best.max(endpoint.health.recent_head().unwrap_or(0));
                endpoint.health.record_other_head(number);
            }
        }
        let lag = best.saturating_sub(number);
        let endpoint = &self.list[index];
        endpoint.health.record_head(number, lag, took);
        endpoint.report_lag(lag);
        lag
    }

    /// The endpoints whose heads are due for a poll. Records each poll as started.
    pub(super) fn claim_due_polls(&self, request_timeout: Duration) -> Vec<usize> {
        if self.list.len() < 2 {
            return Vec::new();
        }
        let every = limits::HEAD_POLL_INTERVAL.max(request_timeout);
        let current = self.current.load(Ordering::Relaxed);
        let others = self.list.iter().enumerate();
        others
            .filter(|(index, one)| *index != current && one.health.start_poll_if_due(every))
            .map(|(index, _)| index)
            .collect()
    }

    /// Reads an endpoint's head, so that a repaired endpoint is used again. An endpoint that is configured before
    /// the current one and has the same height becomes the current one.
    pub(super) async fn poll_head(&self, index: usize) {
        let endpoint = &self.list[index];
        let began = Instant::now();
        let answer: Result<Quantity, Failure> = endpoint.call("eth_blockNumber", &json!([])).await;
        let Ok(Quantity(number)) = answer else {
            return; // the call itself records and counts the failure
        };
        let lag = self.record_head(index, number, began.elapsed());
        let current = self.current.load(Ordering::Relaxed);
        let is_fine = endpoint.health.rank(self.fastest()) == Rank::Healthy;
        if lag == 0 && is_fine && index < current {
            self.current.store(index, Ordering::Relaxed);
        }
    }
}
