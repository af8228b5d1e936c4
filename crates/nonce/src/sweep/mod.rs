//! The expiry sweep: checks expired, submitted and closed reservations against the chain.
//!
//! The scheme lists what to check, the chain shows what happened, and the scheme applies each verdict only if the
//! reservation is unchanged. So any number of processes may sweep at the same time.

mod chain_observation;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::{B256, ChainId, MonotonicTime};
use engine::ports::Clock;
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use metrics::counter;

use crate::Result;
use crate::config::{ReservationChains, Settings};
use crate::scheme::{ConditionalVerdict, ReservationKey, Scheme, Verdict, WatchedReservation};
use chain_observation::Observation;

/// Reservations per pass; the next pass continues behind them.
pub const SWEEP_BATCH_MAX: usize = 500;
/// Overdue reservations per pass, besides those: a forgotten nonce stops its lane, and must not wait until thousands of
/// submitted ones were checked.
pub const OVERDUE_BATCH_MAX: usize = 500;
/// Bound of each remembered set. Beyond it, the oldest entries are evicted and their grace starts again.
const OBSERVATIONS_MAX: usize = 10_000;

/// The sweep. One per process is enough.
pub struct Sweep {
    interval: Duration,
    free_grace: Duration,
    scheme: Arc<dyn Scheme>,
    chains: ReservationChains,
    clock: Arc<dyn Clock>,
    /// Since when the chain shows nothing of these expired reservations.
    unused_since: BTreeMap<ReservationKey, MonotonicTime>,
    /// Mismatches that were already logged.
    mismatches_warned: BTreeSet<(ReservationKey, B256)>,
}

/// Result of one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Number of reservations that were checked.
    pub watched: usize,
    /// Number of verdicts that were passed to the scheme.
    pub decided: usize,
}

impl Sweep {
    pub(crate) fn new(
        settings: &Settings,
        scheme: Arc<dyn Scheme>,
        chains: ReservationChains,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            interval: settings.sweep_interval,
            free_grace: settings.free_grace,
            scheme,
            chains,
            clock,
            unused_since: BTreeMap::new(),
            mismatches_warned: BTreeSet::new(),
        }
    }

    /// Sweeps until it is dropped. A failure is retried in the next pass.
    pub fn run(mut self) -> BoxFuture<'static, ()> {
        async move {
            loop {
                match self.run_pass().await {
                    // More may be waiting; the chain queries limit the speed.
                    Ok(swept) if swept.decided > 0 && swept.watched >= SWEEP_BATCH_MAX => {}
                    Ok(_) => self.clock.sleep(self.interval).await,
                    Err(error) => {
                        tracing::warn!(%error, "the expiry sweep failed and is retried");
                        self.clock.sleep(self.interval).await;
                    }
                }
            }
        }
        .boxed()
    }

    /// Runs one pass.
    pub async fn run_pass(&mut self) -> Result<SweepReport> {
        let watched = self.list_reservations().await?;
        let count = watched.len();
        let mut by_chain: BTreeMap<ChainId, Vec<WatchedReservation>> = BTreeMap::new();
        for one in watched {
            let chain = one.reservation.lane.chain_id;
            by_chain.entry(chain).or_default().push(one);
        }
        // All chains concurrently: an unreachable one does not block the others.
        let observations = by_chain.into_iter().filter_map(|(id, watched)| {
            let Some(chain) = self.chains.get(&id) else {
                tracing::warn!(chain = %id, "reservations exist on a chain that is not configured here: they are not swept");
                return None;
            };
            Some(chain_observation::observe_reservations(chain, watched))
        });
        let seen: Vec<(WatchedReservation, Observation)> =
            join_all(observations).await.into_iter().flatten().collect();
        let verdicts = self.decide_verdicts(seen);
        if !verdicts.is_empty() {
            self.scheme.apply_verdicts(&verdicts).await?;
        }
        for ConditionalVerdict { verdict, .. } in &verdicts {
            counter!("lanekeeper_nonce_settled_total", "verdict" => verdict_label(verdict))
                .increment(1);
        }
        Ok(SweepReport {
            watched: count,
            decided: verdicts.len(),
        })
    }

    /// The reservations of one pass, each once.
    async fn list_reservations(&self) -> Result<Vec<WatchedReservation>> {
        let mut watched = self.scheme.list_watched(SWEEP_BATCH_MAX).await?;
        let listed = watched
            .iter()
            .map(|one| ReservationKey::from(&one.reservation));
        let listed: BTreeSet<ReservationKey> = listed.collect();
        let overdue = self.scheme.list_overdue(OVERDUE_BATCH_MAX).await?;
        watched.extend(
            overdue
                .into_iter()
                .filter(|one| !listed.contains(&ReservationKey::from(&one.reservation))),
        );
        Ok(watched)
    }

    fn decide_verdicts(
        &mut self,
        seen: Vec<(WatchedReservation, Observation)>,
    ) -> Vec<ConditionalVerdict> {
        let now = self.clock.monotonic();
        let mut verdicts = Vec::new();
        for (watched, observation) in seen {
            let reservation = &watched.reservation;
            let key = ReservationKey::from(reservation);
            let verdict = match observation {
                Observation::Verdict(verdict) => verdict,
                Observation::Unused => {
                    let since = *self.unused_since.entry(key).or_insert(now);
                    if now.since(since) < self.free_grace {
                        continue;
                    }
                    Verdict::Free
                }
                Observation::Undecided => {
                    self.unused_since.remove(&key);
                    continue;
                }
                Observation::ConsumedByOther(tx_hash) => {
                    self.warn_mismatch_once(key, tx_hash);
                    continue;
                }
                // A chain that does not answer proves nothing either way.
                Observation::Unknown => continue,
            };
            self.unused_since.remove(&key);
            let seen = watched;
            verdicts.push(ConditionalVerdict { seen, verdict });
        }
        self.evict_oldest();
        verdicts
    }

    fn warn_mismatch_once(&mut self, key: ReservationKey, tx_hash: B256) {
        if self.mismatches_warned.len() >= OBSERVATIONS_MAX {
            self.mismatches_warned.clear(); // they are logged again
        }
        if self.mismatches_warned.insert((key, tx_hash)) {
            let ReservationKey { lane, nonce, .. } = key;
            tracing::warn!(
                %lane, %nonce, %tx_hash,
                "the transaction submitted for this nonce is final and did not consume it: the reservation stays open"
            );
        }
    }

    fn evict_oldest(&mut self) {
        while self.unused_since.len() > OBSERVATIONS_MAX {
            let oldest = self.unused_since.iter().min_by_key(|(_, since)| **since);
            let Some(key) = oldest.map(|(key, _)| *key) else {
                return;
            };
            self.unused_since.remove(&key);
        }
    }
}

/// The `verdict` label of the counter.
fn verdict_label(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Free => "free",
        Verdict::Used { .. } => "used",
        Verdict::Reopened => "reopened",
        Verdict::Buried => "buried",
    }
}
