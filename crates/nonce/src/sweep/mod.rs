//! Looks after lent nonces: whose time is over, whose transaction is mined, whose block a fork took back.
//!
//! The books say what to look at, the chain says what became of it, the books take the verdict if nothing has
//! changed meanwhile. So any number of processes may sweep at once.

mod look;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::{B256, ChainId, Holder, LaneKey, MonotonicTime, Nonce};
use engine::ports::{Clock, ReservationError};
use futures::future::join_all;
use metrics::counter;

use crate::config::{LentChains, Settings};
use crate::scheme::{Scheme, Settlement, Verdict, Watched};
use look::Sight;

/// How many nonces are looked at in one pass; the next pass takes the next ones.
pub const SWEPT_MAX: usize = 500;
/// How many sights are remembered of each kind. Beyond, the oldest overdue nonces that were seen unused are forgotten and
/// wait anew.
const SIGHTS_MAX: usize = 10_000;

/// The sweep. One at a time per process is enough.
pub struct Sweep {
    interval: Duration,
    free_grace: Duration,
    scheme: Arc<dyn Scheme>,
    chains: LentChains,
    clock: Arc<dyn Clock>,
    /// Since when the chain was seen to show nothing of these overdue loans.
    unused_since: BTreeMap<ReservationTerms, MonotonicTime>,
    /// Of which loans it was told that what was named for them is not theirs: once is enough.
    not_its: BTreeSet<(ReservationTerms, B256)>,
}

/// One loan of one nonce: whoever borrows it next is another holder.
type ReservationTerms = (LaneKey, Nonce, Holder);

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// How many nonces were looked at.
    pub watched: usize,
    /// How many verdicts the books were given.
    pub settled: usize,
}

impl Sweep {
    pub(crate) fn new(
        settings: &Settings,
        scheme: Arc<dyn Scheme>,
        chains: LentChains,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            interval: settings.sweep_interval,
            free_grace: settings.free_grace,
            scheme,
            chains,
            clock,
            unused_since: BTreeMap::new(),
            not_its: BTreeSet::new(),
        }
    }

    /// Sweeps for ever. What fails is tried again at the next pass.
    pub async fn run(mut self) {
        loop {
            match self.pass().await {
                // There may be more, but never faster than the chain can be asked.
                Ok(swept) if swept.settled > 0 && swept.watched >= SWEPT_MAX => {}
                Ok(_) => self.clock.sleep(self.interval).await,
                Err(error) => {
                    tracing::warn!(%error, "lent nonces could not be looked after");
                    self.clock.sleep(self.interval).await;
                }
            }
        }
    }

    /// One pass.
    pub async fn pass(&mut self) -> Result<Swept, ReservationError> {
        let watched = self.scheme.to_watch(SWEPT_MAX).await?;
        let count = watched.len();
        let mut by_chain: BTreeMap<ChainId, Vec<Watched>> = BTreeMap::new();
        for one in watched {
            let chain = one.reservation.lane.chain_id;
            by_chain.entry(chain).or_default().push(one);
        }
        // All chains at once: one that does not answer keeps no other waiting.
        let looks = by_chain.into_iter().filter_map(|(id, watched)| {
            let Some(lent) = self.chains.get(&id) else {
                tracing::warn!(chain = %id, "nonces are lent on a chain that is not configured here");
                return None;
            };
            Some(look::look(lent, watched))
        });
        let seen: Vec<(Watched, Sight)> = join_all(looks).await.into_iter().flatten().collect();
        let settlements = self.judge(seen);
        if !settlements.is_empty() {
            self.scheme.settle(&settlements).await?;
        }
        for Settlement { verdict, .. } in &settlements {
            counter!("lanekeeper_nonce_settled_total", "verdict" => verdict_label(verdict))
                .increment(1);
        }
        Ok(Swept {
            watched: count,
            settled: settlements.len(),
        })
    }

    fn judge(&mut self, seen: Vec<(Watched, Sight)>) -> Vec<Settlement> {
        let now = self.clock.monotonic();
        let mut settlements = Vec::new();
        for (watched, sight) in seen {
            let reservation = &watched.reservation;
            let loan = (reservation.lane, reservation.nonce, reservation.holder);
            let verdict = match sight {
                Sight::Verdict(verdict) => verdict,
                Sight::Unused => {
                    let since = *self.unused_since.entry(loan).or_insert(now);
                    if now.since(since) < self.free_grace {
                        continue;
                    }
                    Verdict::Free
                }
                Sight::Waits => {
                    self.unused_since.remove(&loan);
                    continue;
                }
                Sight::NotIts(tx_hash) => {
                    self.warn_once(loan, tx_hash);
                    continue;
                }
                // A chain that does not answer proves nothing, neither way.
                Sight::Unknown => continue,
            };
            self.unused_since.remove(&loan);
            let seen = watched;
            settlements.push(Settlement { seen, verdict });
        }
        self.forget_the_oldest();
        settlements
    }

    fn warn_once(&mut self, loan: ReservationTerms, tx_hash: B256) {
        if self.not_its.len() >= SIGHTS_MAX {
            self.not_its.clear(); // it is told again
        }
        if self.not_its.insert((loan, tx_hash)) {
            let (lane, nonce, _) = loan;
            tracing::warn!(
                %lane, %nonce, %tx_hash,
                "what was named for a lent nonce is mined and did not consume it: it stays open"
            );
        }
    }

    fn forget_the_oldest(&mut self) {
        while self.unused_since.len() > SIGHTS_MAX {
            let oldest = self.unused_since.iter().min_by_key(|(_, since)| **since);
            let Some(loan) = oldest.map(|(loan, _)| *loan) else {
                return;
            };
            self.unused_since.remove(&loan);
        }
    }
}

/// For the counters.
fn verdict_label(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Free => "free",
        Verdict::Used { .. } => "used",
        Verdict::Reopened => "reopened",
        Verdict::Buried => "buried",
    }
}
