//! The endpoints of a chain together: in which order they are asked, and whose head is believed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use domain::Header;
use engine::ports::ChainError;
use futures::future::BoxFuture;
use serde_json::json;

use super::answers::{Block, Quantity};
use super::endpoint::Endpoint;
use super::failure::{Failure, all_failed};
use super::health::Rank;
use super::limits;
use super::read;

pub(super) struct Endpoints {
    list: Vec<Endpoint>,
    /// The one whose head was taken last. It stays the first while it is as good as the others, so
    /// that the chain does not seem to jump back and forth between nodes.
    current: AtomicUsize,
}

impl Endpoints {
    pub(super) fn new(list: Vec<Endpoint>) -> Self {
        Self {
            list,
            current: AtomicUsize::new(0),
        }
    }

    /// As they were configured.
    pub(super) fn list(&self) -> &[Endpoint] {
        &self.list
    }

    /// In the order in which they are asked: by health, then the one in use, then as configured.
    pub(super) fn in_order(&self) -> Vec<&Endpoint> {
        let ranked = self.ranked().into_iter();
        ranked.map(|(_, index)| &self.list[index]).collect()
    }

    fn ranked(&self) -> Vec<(Rank, usize)> {
        let current = self.current.load(Ordering::Relaxed);
        let fastest = self.fastest();
        let rank = |index: usize| self.list[index].health().rank(fastest);
        let mut order: Vec<(Rank, usize)> = (0..self.list.len())
            .map(|index| (rank(index), index))
            .collect();
        order.sort_by_key(|(rank, index)| (*rank, *index != current, *index));
        order
    }

    fn fastest(&self) -> Option<Duration> {
        let latencies = self.list.iter().filter_map(|one| one.health().latency());
        latencies.min()
    }

    /// Asks one endpoint after the other until one gives a result.
    pub(super) async fn read<'a, T>(
        &'a self,
        ask: impl Fn(&'a Endpoint) -> BoxFuture<'a, Result<T, Failure>> + Send,
    ) -> Result<T, ChainError> {
        let mut failures = Vec::new();
        for endpoint in self.in_order() {
            match ask(endpoint).await {
                Ok(result) => return Ok(result),
                Err(failure) => failures.push((endpoint.name(), failure)),
            }
        }
        Err(all_failed(&failures))
    }

    /// Asks until one endpoint has it all, and takes the most that any has. What one lacks is asked
    /// of the others before it counts as absent, but not of those that are known to be behind.
    pub(super) async fn read_most<'a, T>(
        &'a self,
        is_all: impl Fn(&T) -> bool + Send,
        is_more: impl Fn(&T, &T) -> bool + Send,
        ask: impl Fn(&'a Endpoint) -> BoxFuture<'a, Result<T, Failure>> + Send,
    ) -> Result<T, ChainError> {
        let mut failures = Vec::new();
        let mut most: Option<T> = None;
        for (rank, index) in self.ranked() {
            if most.is_some() && rank > Rank::Slow {
                break;
            }
            let endpoint = &self.list[index];
            match ask(endpoint).await {
                Ok(found) if is_all(&found) => return Ok(found),
                Ok(found) => {
                    let is_most = most.as_ref().is_none_or(|most| is_more(&found, most));
                    most = if is_most { Some(found) } else { most };
                }
                Err(failure) => failures.push((endpoint.name(), failure)),
            }
        }
        most.ok_or_else(|| all_failed(&failures))
    }

    /// Something, from whoever has it; `None` when nobody does who should.
    pub(super) async fn find<'a, T>(
        &'a self,
        ask: impl Fn(&'a Endpoint) -> BoxFuture<'a, Result<Option<T>, Failure>> + Send,
    ) -> Result<Option<T>, ChainError> {
        self.read_most(Option::is_some, |_, _| false, ask).await
    }

    /// The newest block, of an endpoint that is not behind what another has shown; where there is
    /// none, the newest that there is.
    pub(super) async fn latest(&self) -> Result<Option<Block>, ChainError> {
        let current = self.current.load(Ordering::Relaxed);
        let mut failures = Vec::new();
        let mut is_absent = false;
        let mut newest: Option<(usize, Header, Block)> = None;
        for (_, index) in self.ranked() {
            let endpoint = &self.list[index];
            let began = Instant::now();
            match read::latest(endpoint).await {
                Ok(Some(block)) => {
                    let header = block.header();
                    let lag = self.saw_head(index, header.number, began.elapsed());
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
                // Fails where a look has found a better one meanwhile, which is as good.
                self.current
                    .compare_exchange(current, index, Ordering::Relaxed, Ordering::Relaxed)
                    .ok();
                Ok(Some(block))
            }
            None if is_absent => Ok(None),
            None => Err(all_failed(&failures)),
        }
    }

    /// Notes an endpoint's head; says how many blocks another one was ahead of it.
    fn saw_head(&self, index: usize, number: u64, took: Duration) -> u64 {
        let mut best = 0;
        for (other, endpoint) in self.list.iter().enumerate() {
            if other != index {
                best = best.max(endpoint.health().recent_head().unwrap_or(0));
                endpoint.health().other_saw_head(number);
            }
        }
        let lag = best.saturating_sub(number);
        let endpoint = &self.list[index];
        endpoint.health().saw_head(number, lag, took);
        endpoint.show_lag(lag);
        lag
    }

    /// The endpoints whose heads nobody has seen for a while. Each counts as looked at from now on.
    pub(super) fn unseen(&self, request_timeout: Duration) -> Vec<usize> {
        if self.list.len() < 2 {
            return Vec::new();
        }
        let every = limits::LOOK_EVERY.max(request_timeout);
        let current = self.current.load(Ordering::Relaxed);
        let others = self.list.iter().enumerate();
        others
            .filter(|(index, one)| *index != current && one.health().is_due(every))
            .map(|(index, _)| index)
            .collect()
    }

    /// Asks an endpoint for its head: that is how one that was put right is found again. One that
    /// is configured before the one in use, and is as far, is used again.
    pub(super) async fn look_at(&self, index: usize) {
        let endpoint = &self.list[index];
        let began = Instant::now();
        let answer: Result<Quantity, Failure> = endpoint.call("eth_blockNumber", &json!([])).await;
        let Ok(Quantity(number)) = answer else {
            return; // noted and counted by the call itself
        };
        let lag = self.saw_head(index, number, began.elapsed());
        let current = self.current.load(Ordering::Relaxed);
        let is_fine = endpoint.health().rank(self.fastest()) == Rank::Fine;
        if lag == 0 && is_fine && index < current {
            self.current.store(index, Ordering::Relaxed);
        }
    }
}
