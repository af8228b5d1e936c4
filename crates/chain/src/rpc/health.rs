//! How an endpoint fares: whether it answers, how far its chain is, how long it takes.

use std::sync::Mutex;
use std::time::Duration;

use domain::ChainId;
use tokio::time::Instant;

use super::failure::Failure;
use super::limits;

/// What is known of an endpoint at present.
pub(super) struct Health(Mutex<Known>);

struct Known {
    standing: BlockPosition,
    rests_until: Option<Instant>,
    head: Option<Head>,
    latency: Option<Duration>,
    looked_at: Option<Instant>,
}

/// What the last contact showed.
#[derive(Clone, Copy)]
pub(super) enum BlockPosition {
    /// Not asked yet, or not reached the last time: its chain must be checked before it is used.
    Unchecked { failed_at: Option<Instant> },
    /// Serves our chain.
    Serves,
    /// Serves our chain, but the last request was turned away or answered with garbage.
    Stumbled { at: Instant },
    /// Serves another chain.
    WrongChain { found: ChainId, at: Instant },
}

/// The newest block that it has shown.
#[derive(Clone, Copy)]
struct Head {
    number: u64,
    seen_at: Instant,
    /// How many blocks another endpoint was ahead at that moment.
    lag: u64,
}

/// How good an endpoint is; the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    Fine,
    /// It answers, but others do so much faster.
    Slow,
    /// Others have newer blocks.
    Behind,
    /// It failed a moment ago.
    Failed,
    /// It wants to be left alone.
    Resting,
    /// It is none of this chain.
    WrongChain,
}

impl Health {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Known {
            standing: BlockPosition::Unchecked { failed_at: None },
            rests_until: None,
            head: None,
            latency: None,
            looked_at: None,
        }))
    }

    fn with<T>(&self, look: impl FnOnce(&mut Known) -> T) -> T {
        look(&mut self.0.lock().expect("nothing panics while holding it"))
    }

    pub(super) fn standing(&self) -> BlockPosition {
        self.with(|known| known.standing)
    }

    /// Whether the last contact went well.
    pub(super) fn answers(&self) -> bool {
        matches!(self.standing(), BlockPosition::Serves)
    }

    /// Its place among others, the fastest of which takes so long.
    pub(super) fn rank(&self, fastest: Option<Duration>) -> Rank {
        self.with(|known| known.rank(fastest))
    }

    /// How long it takes to answer, while it does.
    pub(super) fn latency(&self) -> Option<Duration> {
        self.with(|known| known.latency.filter(|_| known.fails_with().is_none()))
    }

    /// For how long it is still to be left alone.
    pub(super) fn rests_for(&self) -> Option<Duration> {
        self.with(|known| known.rests_for())
    }

    /// It throttles: it is left alone for a while, for as long as it wishes within reason.
    pub(super) fn rest(&self, wish: Option<Duration>) {
        let until = Instant::now() + wish.unwrap_or(limits::REST).min(limits::REST_MAX);
        self.with(|known| {
            known.rests_until = known.rests_until.max(Some(until));
        });
    }

    /// The newest block that it has shown, while that still says how far others should be.
    pub(super) fn recent_head(&self) -> Option<u64> {
        self.with(|known| {
            let head = known.head?;
            let counts = head.seen_at.elapsed() < limits::HEAD_COUNTS_FOR;
            counts.then_some(head.number)
        })
    }

    /// It has shown a head, after so long, while another was `lag` blocks ahead.
    pub(super) fn saw_head(&self, number: u64, lag: u64, took: Duration) {
        let seen_at = Instant::now();
        self.with(|known| {
            known.head = Some(Head {
                number,
                seen_at,
                lag,
            });
            known.latency = Some(average(known.latency, took));
        });
    }

    /// Another endpoint has shown a head. Where this one was asked a moment ago, it is behind.
    pub(super) fn other_saw_head(&self, number: u64) {
        self.with(|known| {
            let recent = known
                .head
                .as_mut()
                .filter(|head| head.seen_at.elapsed() < limits::HEADS_TOGETHER);
            if let Some(head) = recent {
                head.lag = head.lag.max(number.saturating_sub(head.number));
            }
        });
    }

    /// Whether it is time to ask for its head, because nobody does otherwise. Then it counts as
    /// asked.
    pub(super) fn is_due(&self, every: Duration) -> bool {
        self.with(|known| {
            let seen_at = known.head.map(|head| head.seen_at);
            let is_due = known
                .looked_at
                .max(seen_at)
                .is_none_or(|at| at.elapsed() >= every);
            if is_due {
                known.looked_at = Some(Instant::now());
            }
            is_due
        })
    }

    /// An answer came. That does not prove its chain: see [`Self::named_chain`].
    pub(super) fn answered(&self) {
        self.with(|known| {
            if let BlockPosition::Stumbled { .. } = known.standing {
                known.standing = BlockPosition::Serves;
            }
        });
    }

    /// It named its chain: ours, or another.
    pub(super) fn named_chain(&self, found: ChainId, ours: ChainId) {
        let at = Instant::now();
        self.with(|known| {
            known.standing = if found == ours {
                BlockPosition::Serves
            } else {
                BlockPosition::WrongChain { found, at }
            };
        });
    }

    pub(super) fn failed(&self, failure: &Failure) {
        let at = Instant::now();
        self.with(|known| {
            known.standing = match (failure, known.standing) {
                // Behind an address that must be connected to again may stand another node.
                (Failure::NotConnected(_) | Failure::Lost(_), _)
                | (
                    Failure::TurnedAway(_) | Failure::Malformed(_),
                    BlockPosition::Unchecked { .. },
                ) => BlockPosition::Unchecked {
                    failed_at: Some(at),
                },
                (
                    Failure::TurnedAway(_) | Failure::Malformed(_),
                    BlockPosition::Serves | BlockPosition::Stumbled { .. },
                ) => BlockPosition::Stumbled { at },
                (
                    Failure::TurnedAway(_) | Failure::Malformed(_),
                    standing @ BlockPosition::WrongChain { .. },
                )
                | (
                    Failure::Resting(_)
                    | Failure::WrongChain(_)
                    | Failure::Unchecked(_)
                    | Failure::Node(_),
                    standing,
                ) => standing,
            };
        });
    }
}

impl Known {
    fn rests_for(&self) -> Option<Duration> {
        let left = self.rests_until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Why it should not be asked first, apart from being slow or behind.
    fn fails_with(&self) -> Option<Rank> {
        let failed_at = match self.standing {
            BlockPosition::WrongChain { .. } => return Some(Rank::WrongChain),
            BlockPosition::Unchecked { failed_at } => failed_at,
            BlockPosition::Stumbled { at } => Some(at),
            BlockPosition::Serves => None,
        };
        if self.rests_for().is_some() {
            return Some(Rank::Resting);
        }
        let failed = failed_at.is_some_and(|at| at.elapsed() < limits::COOL_DOWN);
        failed.then_some(Rank::Failed)
    }

    fn rank(&self, fastest: Option<Duration>) -> Rank {
        if let Some(rank) = self.fails_with() {
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
        if is_slow { Rank::Slow } else { Rank::Fine }
    }
}

/// A moving average, in which the newest counts for a quarter.
pub(super) fn average(before: Option<Duration>, newest: Duration) -> Duration {
    before.map_or(newest, |before| (before * 3).saturating_add(newest) / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn serving() -> Health {
        let health = Health::new();
        health.named_chain(ChainId(1), ChainId(1));
        health
    }

    #[tokio::test(start_paused = true)]
    async fn trouble_passes() {
        let health = serving();
        assert_eq!(health.rank(None), Rank::Fine);
        health.failed(&Failure::Malformed(String::new()));
        assert_eq!(health.rank(None), Rank::Failed);
        tokio::time::advance(limits::COOL_DOWN).await;
        assert_eq!(health.rank(None), Rank::Fine);
        health.rest(Some(Duration::from_secs(7)));
        health.rest(None);
        assert_eq!(health.rank(None), Rank::Resting);
        assert_eq!(health.rests_for(), Some(Duration::from_secs(7)));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(health.rank(None), Rank::Fine);
        health.rest(Some(Duration::from_secs(86_400)));
        assert_eq!(health.rests_for(), Some(limits::REST_MAX));
        health.named_chain(ChainId(5), ChainId(1));
        assert_eq!(health.rank(None), Rank::WrongChain);
    }

    #[tokio::test(start_paused = true)]
    async fn lag_and_time_count() {
        let health = serving();
        health.saw_head(10, 3, MS);
        assert_eq!(health.rank(None), Rank::Behind);
        health.saw_head(11, 2, MS);
        assert_eq!(health.rank(None), Rank::Fine);
        assert_eq!(health.recent_head(), Some(11));
        health.other_saw_head(14);
        assert_eq!(health.rank(None), Rank::Behind);
        health.saw_head(14, 0, MS);
        tokio::time::advance(limits::HEADS_TOGETHER).await;
        health.other_saw_head(20);
        assert_eq!(health.rank(None), Rank::Fine, "it may be there by now");
        tokio::time::advance(limits::HEAD_COUNTS_FOR).await;
        assert_eq!(health.recent_head(), None);
        for _ in 0..20 {
            health.saw_head(12, 0, MS * 500);
        }
        assert_eq!(health.rank(Some(MS * 10)), Rank::Slow);
        assert_eq!(health.rank(Some(MS * 200)), Rank::Fine);
        assert!(!health.is_due(MS * 10));
        tokio::time::advance(MS * 10).await;
        assert!(health.is_due(MS * 10));
        assert!(!health.is_due(MS * 10), "it counts as asked");
    }
}
