//! Many clients that read: lists by signer, lists by state, events, and waits for txs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proof::balancer::Balancer;
use proof::load::{Load, ReplyOutcome};
use proof::{Outcome, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::wait_for_count;

/// Every reader reads a page at this interval.
const PAGE_PERIOD: Duration = Duration::from_millis(500);
/// How many rows or events it reads.
const PAGE_LEN: usize = 20;
/// How long a waiter waits for its tx to be confirmed.
const WAIT: Duration = Duration::from_secs(20);
/// No response takes longer.
const TIMEOUT: Duration = Duration::from_secs(40);
/// Before a retry, when no node is ready or nothing was accepted yet.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// How many of the last replies are searched for a tx to wait for.
const RECENT: usize = 50;
/// At least this share of all reads must be answered, and not refused: bounded queues are no excuse to refuse everything.
const ANSWERED_MIN: f64 = 0.25;

#[derive(Clone, Copy)]
enum Kind {
    BySigner,
    ByState,
    Events,
    Waiter,
}

const KINDS: [Kind; 4] = [Kind::BySigner, Kind::ByState, Kind::Events, Kind::Waiter];

/// The readers of one measurement.
pub(super) struct Crowd {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    clients: JoinSet<CrowdCounts>,
    size: usize,
}

struct Shared {
    balancer: Arc<Balancer>,
    load: Arc<Load>,
    lanes: Vec<String>,
    /// How many clients have sent their first request.
    started: AtomicUsize,
}

/// What became of the reads.
#[derive(Default)]
pub(super) struct CrowdCounts {
    rounds: usize,
    clients: usize,
    answered: usize,
    /// 429 and 503, by status.
    refused: BTreeMap<u16, usize>,
    /// The connection broke, or none was made: a node was killed.
    broken: usize,
    /// Any other status, with the first of its bodies.
    unexpected: BTreeMap<u16, String>,
}

impl Crowd {
    pub(super) fn start(
        size: usize,
        balancer: &Arc<Balancer>,
        load: &Arc<Load>,
        lanes: &[String],
    ) -> Self {
        let shared = Arc::new(Shared {
            balancer: Arc::clone(balancer),
            load: Arc::clone(load),
            lanes: lanes.to_vec(),
            started: AtomicUsize::new(0),
        });
        let stop = watch::Sender::new(false);
        let mut clients = JoinSet::new();
        for number in 0..size {
            let reader = Reader {
                shared: Arc::clone(&shared),
                kind: KINDS[number % KINDS.len()],
                lane: number / KINDS.len(),
                cursor: None,
                counts: CrowdCounts::default(),
            };
            // Spread over the period.
            let delay = PAGE_PERIOD.mul_f64(number as f64 / size as f64);
            clients.spawn(reader.run(delay, stop.subscribe()));
        }
        Self {
            shared,
            stop,
            clients,
            size,
        }
    }

    pub(super) async fn wait_until_all_read(&self) -> Outcome<()> {
        let started = || self.shared.started.load(Ordering::Relaxed);
        wait_for_count("every reader has begun", started, self.size).await
    }

    pub(super) async fn stop(mut self) -> Outcome<CrowdCounts> {
        self.stop.send_replace(true);
        let mut counts = CrowdCounts {
            rounds: 1,
            clients: self.size,
            ..CrowdCounts::default()
        };
        while let Some(ended) = self.clients.join_next().await {
            counts.merge(ended?);
        }
        Ok(counts)
    }
}

/// One client.
struct Reader {
    shared: Arc<Shared>,
    kind: Kind,
    lane: usize,
    cursor: Option<String>,
    counts: CrowdCounts,
}

impl Reader {
    async fn run(mut self, delay: Duration, mut stopped: watch::Receiver<bool>) -> CrowdCounts {
        tokio::time::sleep(delay).await;
        self.shared.started.fetch_add(1, Ordering::Relaxed);
        let mut ticks = tokio::time::interval(PAGE_PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let next_page = async {
                ticks.tick().await;
                self.read().await;
            };
            tokio::select! {
                () = until_stopped(&mut stopped) => return self.counts,
                () = next_page => {}
            }
        }
    }
}

async fn until_stopped(stopped: &mut watch::Receiver<bool>) {
    // An error is the end of the proof.
    stopped.wait_for(|stopped| *stopped).await.ok();
}

impl Reader {
    /// Reads one page, or waits for one tx.
    async fn read(&mut self) {
        let balancer = Arc::clone(&self.shared.balancer);
        let (Some((_, api)), Some(path)) = (balancer.pick(), self.path()) else {
            return tokio::time::sleep(RETRY_AFTER).await;
        };
        match api.request(Method::GET, &path, None, TIMEOUT).await {
            Ok(answer) if answer.status.is_success() => {
                self.counts.answered += 1;
                self.cursor = answer.body["next"].as_str().map(str::to_owned);
            }
            Ok(answer) => {
                let status = answer.status.as_u16();
                if matches!(status, 429 | 503) {
                    *self.counts.refused.entry(status).or_default() += 1;
                } else {
                    let unexpected = &mut self.counts.unexpected;
                    unexpected.entry(status).or_insert(answer.body.to_string());
                }
            }
            Err(_) => self.counts.broken += 1,
        }
    }

    /// What to read next; `None` when there is no tx to wait for.
    fn path(&self) -> Option<String> {
        let Shared { load, lanes, .. } = &*self.shared;
        let after = |name: &str| match &self.cursor {
            Some(cursor) => format!("&{name}={cursor}"),
            None => String::new(),
        };
        let list = |filter: String| {
            let cursor = after("cursor");
            format!("/api/v1/tx?{filter}&limit={PAGE_LEN}{cursor}")
        };
        Some(match self.kind {
            Kind::BySigner => list(format!("signer={}", lanes[self.lane % lanes.len()])),
            Kind::ByState => list("state=TRACKING".to_owned()),
            Kind::Events => format!("/api/v1/events?limit={PAGE_LEN}{}", after("after")),
            Kind::Waiter => {
                let from = load.len().saturating_sub(RECENT);
                let reply = load.find(from, |reply| reply.outcome.is_accepted())?;
                let ReplyOutcome::Accepted { tx_id, .. } = reply.outcome else {
                    return None;
                };
                let wait = WAIT.as_secs();
                format!("/api/v1/tx/{tx_id}?wait=confirmed&timeout={wait}s")
            }
        })
    }
}

impl CrowdCounts {
    /// Adds those of another measurement.
    pub(super) fn add(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.clients = other.clients;
        self.merge(other);
    }

    fn merge(&mut self, other: Self) {
        self.answered += other.answered;
        self.broken += other.broken;
        for (status, count) in other.refused {
            *self.refused.entry(status).or_default() += count;
        }
        for (status, body) in other.unexpected {
            self.unexpected.entry(status).or_insert(body);
        }
    }

    pub(super) fn rounds(&self) -> usize {
        self.rounds
    }

    fn refused(&self) -> usize {
        self.refused.values().sum()
    }

    /// Readers get an answer or a clear refusal, and not only refusals.
    pub(super) fn check(&self) -> Outcome<()> {
        ensure(
            self.unexpected.is_empty(),
            format!("reads were answered with {:?}", self.unexpected),
        )?;
        let all = self.answered + self.refused();
        ensure(
            self.answered as f64 >= all as f64 * ANSWERED_MIN,
            format!("only {} of {all} reads were answered", self.answered),
        )
    }

    pub(super) fn to_json(&self) -> Value {
        let refused = self.refused.iter();
        let refused = refused.map(|(status, count)| (status.to_string(), json!(count)));
        json!({
            "clients": self.clients,
            "answered": self.answered,
            "refused": refused.collect::<serde_json::Map<_, _>>(),
            "brokenWithTheKilledNode": self.broken,
        })
    }
}

impl fmt::Display for CrowdCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.answered + self.refused();
        write!(
            f,
            "{} waiters and readers ({} of {all} reads answered, the others 429 or 503)",
            self.clients, self.answered
        )
    }
}
