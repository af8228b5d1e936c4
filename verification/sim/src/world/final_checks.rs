//! The checks of a healed world that has finished: everything accepted has ended, the chain shows each
//! payload once, readers have a complete event log, and no further event happens.
//!
//! Lanes that lost commits in a failover are excluded: they may halt until an operator decides. The
//! promises that hold for them as well are watched by the checkers.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::lane::OnForeignNonce;
use domain::{Attempt, AttemptKind, B256, Incarnation, LaneKey, NodeName, SubState, TxId, TxState};
use engine::ports::{EventFilter, LeaseRequest, Store, TxRecord};
use tokio::time::Instant;
use uuid::Uuid;

use super::World;
use super::client::{ExpectedEnd, Request};
use super::features::FeatureSet;
use crate::event::WorldEvent;

/// How often a healed world is polled.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The page size of the feed's reader: small, so that there are many pages.
const PAGE: usize = 7;

/// How long the feed may lag behind when everything has ended: crashed keepers leave it to a sweep.
const FEED_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum number of tasks of an idle node: the permanent ones, a few per shard and lane, and one
/// queue to each other node.
const IDLE_TASKS_MAX: usize = 40;

impl World {
    /// Checks the finished world, and returns when everything had ended.
    pub(super) async fn run_final_checks(
        &self,
        accepted: Vec<(Request, TxId)>,
        deadline: Instant,
    ) -> Option<Instant> {
        self.trace.record(WorldEvent::Phase("finish"));
        let lost = self.store.loss();
        let is_kept = |(request, tx): &(Request, TxId)| {
            !lost.lanes.contains(&request.lane) && !lost.txs.contains(tx)
        };
        let accepted: Vec<_> = accepted.into_iter().filter(is_kept).collect();
        let txs: Vec<TxId> = accepted.iter().map(|(_, tx)| *tx).collect();
        let ended_at = loop {
            while !(self.have_all_ended(&txs).await && self.are_lanes_idle().await) {
                if Instant::now() >= deadline {
                    self.report_unfinished(&txs).await;
                    return None;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            let ended_at = Instant::now();
            // The effects of the last requests and takeovers may finish first. A request that the network delayed may
            // begin anew.
            tokio::time::sleep(self.plan.lease.duration).await;
            if self.are_lanes_idle().await {
                break ended_at;
            }
        };
        self.trace.record(WorldEvent::Phase("quiet"));
        let before = self.events_written();
        tokio::time::sleep(self.quiet_period()).await;
        let new = self.events_written() - before;
        if new > 0 {
            self.trace.violation(&format!(
                "finished worlds are quiet: {new} events after everything had ended"
            ));
        }
        for (request, tx) in &accepted {
            self.check_tx(request, *tx).await;
        }
        self.check_lanes().await;
        self.check_feed().await;
        self.check_readers().await;
        self.check_idle_nodes().await;
        Some(ended_at)
    }

    async fn check_tx(&self, request: &Request, id: TxId) {
        let Some(record) = self.record(id).await else {
            self.trace.violation(&format!(
                "nothing accepted is lost: {} was {id}",
                request.id
            ));
            return;
        };
        if is_held(&record) {
            self.check_held(request, &record);
            return;
        }
        let may_end = match request.expected_end {
            ExpectedEnd::Succeeds => [TxState::Confirmed].as_slice(),
            ExpectedEnd::Reverts | ExpectedEnd::NeverSigned | ExpectedEnd::Rejected => {
                &[TxState::FailedFinal]
            }
            ExpectedEnd::MayBeRejected => &[TxState::Confirmed, TxState::FailedFinal],
        };
        let state = record.tx.state;
        let is_ended_early = self.is_ended_early(&record);
        if !may_end.contains(&state) && !is_ended_early {
            let (name, state, reason) = (&request.id, state.as_str(), &record.tx.reason);
            self.trace.violation(&format!(
                "requests end as expected: {name} as {state} ({reason:?})"
            ));
        }
        let reverts = request.expected_end == ExpectedEnd::Reverts && !is_ended_early;
        let is_due = state == TxState::Confirmed || reverts;
        self.check_effects(request, &record, is_due);
        self.check_history(request, &record).await;
    }

    /// Whether a no-op took the nonce of a tx because it had blocked its lane for too long.
    fn is_ended_early(&self, record: &TxRecord) -> bool {
        let mined = record.tx.inclusion.as_ref().map(|mined| mined.tx_hash);
        // The payload may have been mined although a no-op was signed, and then it ends as what it did.
        let took_nonce = |attempt: &Attempt| {
            attempt.kind == AttemptKind::Cancel && mined.is_none_or(|hash| hash == attempt.hash)
        };
        record.tx.state == TxState::FailedFinal
            && self.plan.lane.blocked_timeout.is_some()
            && record.attempts.iter().any(took_nonce)
    }

    /// The chain shows the payload once, in the transaction that the tx names; or not at all, and then the
    /// named transaction has no effect.
    fn check_effects(&self, request: &Request, record: &TxRecord, is_due: bool) {
        let mined = self.chain.mined();
        let of_lane = || {
            let ours = mined.iter();
            ours.filter(|tx| tx.envelope.signer == request.lane.signer)
        };
        let effects = of_lane().filter(|tx| tx.envelope.data == request.payload.data);
        let hashes: Vec<B256> = effects.map(|tx| tx.hash).collect();
        let recorded = record.tx.inclusion.as_ref().map(|mined| mined.tx_hash);
        let is_noop = |hash: B256| {
            let mut found = of_lane().filter(|tx| tx.hash == hash);
            found.any(|tx| tx.envelope.data.is_empty())
        };
        let is_right = match (is_due, hashes.as_slice()) {
            (true, [once]) => recorded == Some(*once),
            (false, []) => recorded.is_none_or(is_noop),
            (true | false, _) => false,
        };
        if !is_right {
            let name = &request.id;
            self.trace.violation(&format!(
                "txs name their effects on chain: {name}: the chain has {hashes:?}, the tx {recorded:?}"
            ));
        }
    }

    /// A tx that waits for a decision because a foreign transaction consumed its nonce: that must be true, and a rule.
    fn check_held(&self, request: &Request, record: &TxRecord) {
        let name = &request.id;
        let is_rule = self.plan.lane.nonce.on_foreign_nonce == OnForeignNonce::Hold
            || self.plan.lossy_failover.is_some()
            || self.plan.chain.staleness.without_old_blocks > 0;
        if !is_rule {
            self.trace
                .violation(&format!("STUCK only by a rule: {name} is held"));
        }
        self.check_effects(request, record, false);
    }

    async fn check_history(&self, request: &Request, record: &TxRecord) {
        let history = self.store.tx_events(record.tx.id).await;
        let history = history
            .expect("the twin's reads do not fail")
            .unwrap_or_default();
        let kinds: Vec<&str> = history
            .iter()
            .map(|recorded| recorded.event.kind.as_str())
            .collect();
        let last = if record.tx.state == TxState::Confirmed {
            "TxConfirmed"
        } else {
            "TxFailed"
        };
        if kinds.first() != Some(&"TxAccepted") || kinds.last() != Some(&last) {
            self.trace.violation(&format!(
                "tx histories are complete: {} has {kinds:?}",
                request.id
            ));
        }
    }

    async fn check_lanes(&self) {
        let lanes = self.store.lanes(&self.plan.checked_lanes()).await;
        for lane in lanes.expect("the twin's reads do not fail") {
            let (key, in_flight, queued) = (lane.key, lane.in_flight, lane.queued);
            if (in_flight != 0 || queued != 0) && !self.has_lost_commits(key) {
                self.trace.violation(&format!(
                    "finished worlds are quiet: {key} has {in_flight} txs in flight and {queued} queued"
                ));
            }
        }
        // A lane row that claims to have work would be adopted again and again.
        let observer = LeaseRequest {
            node: NodeName("observer".to_owned()),
            incarnation: Incarnation(Uuid::nil()),
            duration: self.plan.lease.duration,
            skew: Duration::ZERO,
            alive: Vec::new(),
            silent: self.start_count().await,
        };
        let work = self.store.lanes_with_work(&observer).await;
        let checked = self.plan.checked_lanes();
        for work in work.expect("the twin's reads do not fail") {
            let lane = work.lane;
            if checked.contains(&lane) && !self.has_lost_commits(lane) {
                self.trace.violation(&format!(
                    "finished worlds are quiet: {lane} claims to have work"
                ));
            }
        }
    }

    /// The incarnations that hold leases.
    async fn start_count(&self) -> Vec<Incarnation> {
        let lanes = self.store.lanes(&self.plan.checked_lanes()).await;
        let lanes = lanes.expect("the twin's reads do not fail").into_iter();
        lanes
            .filter_map(|lane| Some(lane.lease?.incarnation))
            .collect()
    }

    /// Reads the whole feed page by page, as a consumer does: the events of each lane must be gapless, and
    /// complete before long.
    async fn check_feed(&self) {
        let deadline = Instant::now() + FEED_TIMEOUT;
        while self.store.events_written().iter().any(|lane| lane.2 > 0) {
            if Instant::now() >= deadline {
                let lag = self.store.events_written();
                self.trace
                    .violation(&format!("the feed is complete: it lacks {lag:?}"));
                break;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let mut last: BTreeMap<LaneKey, u64> = BTreeMap::new();
        let mut filter = EventFilter {
            limit: PAGE,
            ..EventFilter::default()
        };
        loop {
            let page = self
                .store
                .events(&filter)
                .await
                .expect("the cursor is the store's own");
            for recorded in &page.events {
                let seq = last.entry(recorded.lane).or_default();
                *seq += 1;
                if recorded.event.seq != *seq {
                    let (lane, found) = (recorded.lane, recorded.event.seq);
                    self.trace.violation(&format!(
                        "the feed is complete: {lane} has {found} at {seq}"
                    ));
                }
            }
            if filter.after.as_ref() == Some(&page.next) {
                return;
            }
            filter.after = Some(page.next);
        }
    }

    /// The readers of the workload are complete in the end, too. (A lost feed is excluded.)
    async fn check_readers(&self) {
        if self.plan.lossy_failover.is_some() {
            return;
        }
        let mut deadline = Instant::now() + FEED_TIMEOUT;
        let mut before = self.progress.events();
        while let Some(lag) = self.readers_lag() {
            let read = self.progress.events();
            if read > before {
                deadline = Instant::now() + FEED_TIMEOUT; // slow readers are allowed
                before = read;
            }
            if Instant::now() >= deadline {
                self.trace
                    .violation(&format!("readers skip nothing: in the end {lag}"));
                return;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// What a reader lacks, as text.
    fn readers_lag(&self) -> Option<String> {
        let written = self.store.events_written();
        for (reader, seen) in self.progress.all() {
            let lanes = written.iter();
            let mut wanted = lanes.filter(|(lane, ..)| seen.only.is_none_or(|only| only == *lane));
            let lacks = wanted.find(|(lane, count, _)| {
                seen.last.get(lane).copied().unwrap_or_default() != *count
            });
            if let Some((lane, count, _)) = lacks {
                return Some(format!(
                    "reader {reader} lacks some of the {count} of {lane}"
                ));
            }
        }
        None
    }

    /// An idle node holds no resources: no message, no caller, and only its permanent tasks.
    async fn check_idle_nodes(&self) {
        if self.plan.workloads == FeatureSet::default() || self.plan.poison.is_some() {
            return; // a poisoned lane is never idle
        }
        if self.has_work_in_lossy_lanes().await {
            return; // nothing is waited for there: each may be halted, or still at work
        }
        for machine in self.machines.iter() {
            let Some(node) = machine.handle() else {
                continue;
            };
            let load = tokio::time::timeout(POLL_INTERVAL, node.load()).await;
            let Ok(load) = load else { continue };
            // Callers that wait for a tx of a halted lane may continue to wait; each is a task.
            let tasks = load.tasks.saturating_sub(load.waiters);
            let is_at_rest = load.callers == 0 && load.outgoing == 0;
            if !is_at_rest || tasks > IDLE_TASKS_MAX {
                let node = machine.name();
                self.trace.violation(&format!(
                    "memory and queues are bounded: {node} at rest has {load:?}"
                ));
            }
        }
    }

    async fn have_all_ended(&self, txs: &[TxId]) -> bool {
        for id in txs {
            let record = self.record(*id).await;
            if !record.is_some_and(|record| record.tx.state.is_terminal() || is_held(&record)) {
                return false;
            }
        }
        true
    }

    /// Whether no lane without losses has open txs (also of requests that were lost and sent again), and no
    /// holder will send another mark.
    async fn are_lanes_idle(&self) -> bool {
        if !self.active_holders.is_empty() {
            return false;
        }
        let lanes = self.store.lanes(&self.plan.checked_lanes()).await;
        let mut lanes = lanes.expect("the twin's reads do not fail").into_iter();
        lanes.all(|lane| {
            self.has_lost_commits(lane.key) || (lane.in_flight == 0 && lane.queued == 0)
        })
    }

    /// Whether a lane that lost commits has open txs.
    async fn has_work_in_lossy_lanes(&self) -> bool {
        let lanes = self.store.lanes(&self.plan.checked_lanes()).await;
        let mut lanes = lanes.expect("the twin's reads do not fail").into_iter();
        lanes.any(|lane| self.has_lost_commits(lane.key) && (lane.in_flight > 0 || lane.queued > 0))
    }

    async fn report_unfinished(&self, txs: &[TxId]) {
        for id in txs {
            let Some(record) = self.record(*id).await else {
                continue;
            };
            let tx = &record.tx;
            if !tx.state.is_terminal() && !is_held(&record) {
                let (nonce, sub) = (tx.nonce, tx.sub_state);
                let (name, state, reason) = (&tx.request.request_id, tx.state.as_str(), &tx.reason);
                self.trace.violation(&format!(
                    "everything ends: {name} is {state} {sub:?} at nonce {nonce:?}, {reason:?}"
                ));
            }
        }
        if !self.active_holders.is_empty() {
            self.trace
                .violation("everything ends: a holder still repeats a mark");
        } else if !self.are_lanes_idle().await {
            self.trace
                .violation("everything ends: lanes still have work");
        }
        for machine in self.machines.iter() {
            let Some(handle) = machine.handle() else {
                continue;
            };
            let lanes = tokio::time::timeout(POLL_INTERVAL, handle.lanes(None, usize::MAX)).await;
            self.trace
                .note(&format!("lanes of {}: {lanes:?}", machine.name()));
        }
    }

    async fn record(&self, id: TxId) -> Option<TxRecord> {
        self.store
            .tx(id)
            .await
            .expect("the twin's reads do not fail")
    }

    /// The number of events of lanes without losses.
    fn events_written(&self) -> u64 {
        let lanes = self.store.events_written();
        let checked = self.plan.checked_lanes();
        let whole = lanes
            .iter()
            .filter(|lane| checked.contains(&lane.0) && !self.has_lost_commits(lane.0));
        whole.map(|lane| lane.1).sum()
    }

    fn has_lost_commits(&self, lane: LaneKey) -> bool {
        self.store.loss().lanes.contains(&lane)
    }
}

/// Whether it waits for a decision because a foreign transaction consumed its nonce.
fn is_held(record: &TxRecord) -> bool {
    let tx = &record.tx;
    tx.state == TxState::Stuck && tx.sub_state == Some(SubState::ForeignNonce)
}
