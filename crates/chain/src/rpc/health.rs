//! The health of an endpoint: whether it answers, its newest head, its latency.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use domain::{Address, ChainId};
use tokio::time::Instant;

use super::failure::Failure;
use super::limits;

pub(super) struct Health(Mutex<HealthState>);

struct HealthState {
    status: EndpointStatus,
    backoff_until: Option<Instant>,
    head: Option<Head>,
    latency: Option<Duration>,
    polled_at: Option<Instant>,
    /// When a dry run was not answered.
    dry_run_failed_at: Option<Instant>,
    /// The accounts whose last send was not answered in time, and when that was.
    hung_sends: BTreeMap<Address, Instant>,
    /// Since when every contact failed.
    failing_since: Option<Instant>,
    /// Since when every query of an account's nonces failed, whatever else the endpoint answers.
    nonce_queries_failing_since: Option<Instant>,
}

/// The result of the last contact.
#[derive(Clone, Copy)]
pub(super) enum EndpointStatus {
    /// Never reached, or unreachable the last time: its chain id must be checked before use.
    Unchecked { failed_at: Option<Instant> },
    /// Serves the configured chain.
    Serving,
    /// Serves the configured chain, but the last request was refused or its answer was malformed.
    Degraded { at: Instant },
    /// Serves another chain.
    WrongChain { found: ChainId, at: Instant },
}

/// The newest block that the endpoint has returned.
#[derive(Clone, Copy)]
struct Head {
    number: u64,
    seen_at: Instant,
    /// How many blocks another endpoint was ahead at that time.
    lag: u64,
}

/// The order of preference, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    Healthy,
    /// Others answer much faster.
    Slow,
    /// Others have newer blocks.
    Behind,
    /// The last request failed within [`limits::COOL_DOWN`].
    Failed,
    /// The endpoint requested a backoff.
    BackingOff,
    /// The endpoint serves another chain.
    WrongChain,
}

impl Health {
    pub(super) fn new() -> Self {
        Self(Mutex::new(HealthState {
            status: EndpointStatus::Unchecked { failed_at: None },
            backoff_until: None,
            head: None,
            latency: None,
            polled_at: None,
            dry_run_failed_at: None,
            hung_sends: BTreeMap::new(),
            failing_since: None,
            nonce_queries_failing_since: None,
        }))
    }

    fn with_state<T>(&self, update: impl FnOnce(&mut HealthState) -> T) -> T {
        update(&mut self.0.lock().expect("nothing panics while holding it"))
    }

    pub(super) fn status(&self) -> EndpointStatus {
        self.with_state(|state| state.status)
    }

    /// Records whether the endpoint returned an account's nonces.
    pub(super) fn record_nonce_query(&self, succeeded: bool) {
        let now = Instant::now();
        self.with_state(|state| match succeeded {
            true => state.nonce_queries_failing_since = None,
            false => {
                state.nonce_queries_failing_since.get_or_insert(now);
            }
        });
    }

    /// For how long the endpoint, or its answers to nonce queries, failed without an exception.
    pub(super) fn failing_for(&self) -> Option<Duration> {
        self.with_state(|state| {
            let since = [state.failing_since, state.nonce_queries_failing_since];
            let since = since.into_iter().flatten().min()?;
            Some(since.elapsed())
        })
    }

    /// Whether the last contact succeeded.
    pub(super) fn is_answering(&self) -> bool {
        matches!(self.status(), EndpointStatus::Serving)
    }

    /// The rank relative to the latency of the fastest endpoint.
    pub(super) fn rank(&self, fastest: Option<Duration>) -> Rank {
        self.with_state(|state| state.rank(fastest))
    }

    /// The rank for a dry run. One that was not answered counts here and nowhere else: its payload may be why.
    pub(super) fn dry_run_rank(&self, fastest: Option<Duration>) -> Rank {
        self.with_state(|state| {
            let failed_at = state.dry_run_failed_at;
            let has_failed = failed_at.is_some_and(|at| at.elapsed() < limits::COOL_DOWN);
            let at_best = if has_failed {
                Rank::Failed
            } else {
                Rank::Healthy
            };
            state.rank(fastest).max(at_best)
        })
    }

    /// Records that a dry run was not answered, or not usably.
    pub(super) fn record_dry_run_failure(&self) {
        let now = Instant::now();
        self.with_state(|state| state.dry_run_failed_at = Some(now));
    }

    /// The average latency, unless the endpoint is failing.
    pub(super) fn latency(&self) -> Option<Duration> {
        self.with_state(|state| state.latency.filter(|_| state.failure_rank().is_none()))
    }

    /// How much longer no request may be sent.
    pub(super) fn backoff_left(&self) -> Option<Duration> {
        self.with_state(|state| state.backoff_left())
    }

    /// Stops requests for the requested time, at most [`limits::BACKOFF_MAX`].
    pub(super) fn back_off(&self, requested: Option<Duration>) {
        let until = Instant::now()
            + requested
                .unwrap_or(limits::BACKOFF_DEFAULT)
                .min(limits::BACKOFF_MAX);
        self.with_state(|state| {
            state.backoff_until = state.backoff_until.max(Some(until));
        });
    }

    /// The newest block, while it is recent enough to compare other endpoints with.
    pub(super) fn recent_head(&self) -> Option<u64> {
        self.with_state(|state| {
            let head = state.head?;
            let counts = head.seen_at.elapsed() < limits::HEAD_AGE_MAX;
            counts.then_some(head.number)
        })
    }

    /// Records a head, the latency of its request, and how many blocks another endpoint was ahead.
    pub(super) fn record_head(&self, number: u64, lag: u64, took: Duration) {
        let seen_at = Instant::now();
        self.with_state(|state| {
            state.head = Some(Head {
                number,
                seen_at,
                lag,
            });
            state.latency = Some(average(state.latency, took));
        });
    }

    /// Records another endpoint's head. If this endpoint's own head was read just before, the difference is its lag.
    pub(super) fn record_other_head(&self, number: u64) {
        self.with_state(|state| {
            let recent = state
                .head
                .as_mut()
                .filter(|head| head.seen_at.elapsed() < limits::HEAD_COMPARE_WINDOW);
            if let Some(head) = recent {
                head.lag = head.lag.max(number.saturating_sub(head.number));
            }
        });
    }

    /// Whether the head is due for a poll because no request has read it for a while. If so, records the poll as
    /// started.
    pub(super) fn start_poll_if_due(&self, every: Duration) -> bool {
        self.with_state(|state| {
            let seen_at = state.head.map(|head| head.seen_at);
            let is_due = state
                .polled_at
                .max(seen_at)
                .is_none_or(|at| at.elapsed() >= every);
            if is_due {
                state.polled_at = Some(Instant::now());
            }
            is_due
        })
    }

    /// A send of this account was not answered in time, although the endpoint may answer queries.
    pub(super) fn record_hung_send(&self, account: Address) {
        let now = Instant::now();
        self.with_state(|state| {
            state
                .hung_sends
                .retain(|_, at| at.elapsed() < limits::HUNG_SEND_AGE_MAX);
            if state.hung_sends.len() < limits::HUNG_SENDS_MAX {
                state.hung_sends.insert(account, now);
            }
        });
    }

    /// A send of this account was answered.
    pub(super) fn record_answered_send(&self, account: Address) {
        self.with_state(|state| state.hung_sends.remove(&account));
    }

    /// Whether sends of this account hang here: its own did, or those of two others. One account alone proves nothing
    /// for the others: its bytes may be what the node cannot handle.
    pub(super) fn hangs_on_sends(&self, account: Address) -> bool {
        self.with_state(|state| {
            let count = state.recent_hung_sends().count();
            let own = state.recent_hung_sends().any(|hung| *hung == account);
            own || count >= limits::HUNG_ACCOUNTS_MIN
        })
    }

    /// Whether a send of just this account hung here.
    pub(super) fn has_hung_send(&self, account: Address) -> bool {
        self.with_state(|state| state.recent_hung_sends().any(|hung| *hung == account))
    }

    /// Records an answer. It does not prove the chain: see [`Self::record_chain_id`].
    pub(super) fn record_answer(&self) {
        self.with_state(|state| {
            if let EndpointStatus::Degraded { .. } = state.status {
                state.status = EndpointStatus::Serving;
                state.failing_since = None;
            }
        });
    }

    /// Records the chain id that the endpoint returned.
    pub(super) fn record_chain_id(&self, found: ChainId, expected: ChainId) {
        let at = Instant::now();
        self.with_state(|state| {
            state.status = if found == expected {
                state.failing_since = None;
                EndpointStatus::Serving
            } else {
                EndpointStatus::WrongChain { found, at }
            };
        });
    }

    pub(super) fn record_failure(&self, failure: &Failure) {
        let at = Instant::now();
        self.with_state(|state| {
            state.status = match failure {
                // After a reconnect another node may be behind the same address.
                Failure::NotConnected(_) | Failure::AnswerLost(_) => EndpointStatus::Unchecked {
                    failed_at: Some(at),
                },
                Failure::Refused(_) | Failure::Malformed(_) => match state.status {
                    EndpointStatus::Unchecked { .. } => EndpointStatus::Unchecked {
                        failed_at: Some(at),
                    },
                    EndpointStatus::Serving | EndpointStatus::Degraded { .. } => {
                        EndpointStatus::Degraded { at }
                    }
                    wrong @ EndpointStatus::WrongChain { .. } => wrong,
                },
                Failure::NotAdmitted
                | Failure::BackingOff(_)
                | Failure::WrongChain(_)
                | Failure::Unchecked(_)
                | Failure::Node(_) => return,
            };
            state.failing_since.get_or_insert(at);
        });
    }
}

impl HealthState {
    /// The accounts whose last send hung a short while ago.
    fn recent_hung_sends(&self) -> impl Iterator<Item = &Address> {
        let hung = self.hung_sends.iter();
        hung.filter(|(_, at)| at.elapsed() < limits::HUNG_SEND_AGE_MAX)
            .map(|(account, _)| account)
    }

    fn backoff_left(&self) -> Option<Duration> {
        let left = self
            .backoff_until?
            .saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// The rank that a failure, a backoff or a wrong chain causes.
    fn failure_rank(&self) -> Option<Rank> {
        let failed_at = match self.status {
            EndpointStatus::WrongChain { .. } => return Some(Rank::WrongChain),
            EndpointStatus::Unchecked { failed_at } => failed_at,
            EndpointStatus::Degraded { at } => Some(at),
            EndpointStatus::Serving => None,
        };
        if self.backoff_left().is_some() {
            return Some(Rank::BackingOff);
        }
        let failed = failed_at.is_some_and(|at| at.elapsed() < limits::COOL_DOWN);
        failed.then_some(Rank::Failed)
    }

    fn rank(&self, fastest: Option<Duration>) -> Rank {
        if let Some(rank) = self.failure_rank() {
            return rank;
        }
        if self
            .head
            .is_some_and(|head| head.lag > limits::LAG_BLOCKS_MAX)
        {
            return Rank::Behind;
        }
        let is_slow = self.latency.zip(fastest).is_some_and(|(own, fastest)| {
            own > fastest.saturating_mul(limits::SLOW_FACTOR)
                && own > fastest.saturating_add(limits::SLOW_BY)
        });
        if is_slow { Rank::Slow } else { Rank::Healthy }
    }
}

/// A moving average in which the newest value counts for a quarter.
pub(super) fn average(before: Option<Duration>, newest: Duration) -> Duration {
    before.map_or(newest, |before| (before * 3).saturating_add(newest) / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn serving() -> Health {
        let health = Health::new();
        health.record_chain_id(ChainId(1), ChainId(1));
        health
    }

    #[tokio::test(start_paused = true)]
    async fn failures_and_backoffs_expire() {
        let health = serving();
        assert_eq!(health.rank(None), Rank::Healthy);
        health.record_failure(&Failure::Malformed(String::new()));
        assert_eq!(health.rank(None), Rank::Failed);
        tokio::time::advance(limits::COOL_DOWN).await;
        assert_eq!(health.rank(None), Rank::Healthy);
        health.back_off(Some(Duration::from_secs(7)));
        health.back_off(None);
        assert_eq!(health.rank(None), Rank::BackingOff);
        assert_eq!(health.backoff_left(), Some(Duration::from_secs(7)));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(health.rank(None), Rank::Healthy);
        health.back_off(Some(Duration::from_secs(86_400)));
        assert_eq!(health.backoff_left(), Some(limits::BACKOFF_MAX));
        health.record_chain_id(ChainId(5), ChainId(1));
        assert_eq!(health.rank(None), Rank::WrongChain);
    }

    #[tokio::test(start_paused = true)]
    async fn sends_hang_for_their_account_and_after_two_accounts_for_all() {
        let health = serving();
        let [one, two, other] = [1, 2, 3].map(Address::repeat_byte);
        health.record_hung_send(one);
        assert!(health.hangs_on_sends(one) && !health.hangs_on_sends(other));
        health.record_hung_send(two);
        assert!(health.hangs_on_sends(other));
        assert_eq!(health.rank(None), Rank::Healthy, "it answers queries");
        health.record_answered_send(two);
        assert!(health.hangs_on_sends(one) && !health.hangs_on_sends(two));
        tokio::time::advance(limits::HUNG_SEND_AGE_MAX).await;
        assert!(!health.hangs_on_sends(one), "it is tried again");
    }

    #[tokio::test(start_paused = true)]
    async fn endpoint_fails_from_its_first_failure_until_its_next_answer() {
        let health = serving();
        assert_eq!(health.failing_for(), None);
        for _ in 0..2 {
            health.record_failure(&Failure::AnswerLost(String::new()));
            tokio::time::advance(Duration::from_secs(40)).await;
        }
        assert_eq!(health.failing_for(), Some(Duration::from_secs(80)));
        health.record_chain_id(ChainId(1), ChainId(1));
        assert_eq!(health.failing_for(), None);
        health.record_nonce_query(false);
        health.record_answer(); // of another method
        tokio::time::advance(Duration::from_secs(40)).await;
        assert_eq!(health.failing_for(), Some(Duration::from_secs(40)));
        health.record_nonce_query(true);
        assert_eq!(health.failing_for(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn lag_and_latency_lower_the_rank() {
        let health = serving();
        health.record_head(10, 3, MS);
        assert_eq!(health.rank(None), Rank::Behind);
        health.record_head(11, 2, MS);
        assert_eq!(health.rank(None), Rank::Healthy);
        assert_eq!(health.recent_head(), Some(11));
        health.record_other_head(14);
        assert_eq!(health.rank(None), Rank::Behind);
        health.record_head(14, 0, MS);
        tokio::time::advance(limits::HEAD_COMPARE_WINDOW).await;
        health.record_other_head(20);
        assert_eq!(
            health.rank(None),
            Rank::Healthy,
            "its head is too old to compare"
        );
        tokio::time::advance(limits::HEAD_AGE_MAX).await;
        assert_eq!(health.recent_head(), None);
        for _ in 0..20 {
            health.record_head(12, 0, MS * 500);
        }
        assert_eq!(health.rank(Some(MS * 10)), Rank::Slow);
        assert_eq!(health.rank(Some(MS * 200)), Rank::Healthy);
        assert!(!health.start_poll_if_due(MS * 10));
        tokio::time::advance(MS * 10).await;
        assert!(health.start_poll_if_due(MS * 10));
        assert!(!health.start_poll_if_due(MS * 10), "the poll is recorded");
    }
}
