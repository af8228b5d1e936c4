//! What must be true when a healed world has come to rest: everything accepted has ended, the chain
//! shows each payload once, readers see a whole story, and nothing stirs any more.
//!
//! Lanes that lost commits in a failover are another matter: they may stand still until an operator
//! decides, and what was lost is lost. What holds for them too is watched by the checkers.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::lane::OnForeignNonce;
use domain::{B256, Incarnation, LaneKey, NodeName, SubState, TxId, TxState};
use engine::ports::{Clock as _, EventFilter, LeaseRequest, Store, TxRecord};
use tokio::time::Instant;
use uuid::Uuid;

use super::World;
use super::client::{Fate, Request};
use super::parts::Parts;
use crate::event::WorldEvent;

/// How often a healed world is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The page size of the feed's reader: small, so that there are many pages.
const PAGE: usize = 7;

/// How long the feed may lag behind when everything has ended: keepers that died left it to a sweep.
const FEED_PATIENCE: Duration = Duration::from_secs(60);

/// How many tasks a node without work has at most: those for ever, a few per shard and lane, and one queue
/// to each other node.
const TASKS_AT_REST_MAX: usize = 40;

impl World {
    /// Judges it, and says when everything had ended.
    pub(super) async fn judge(
        &self,
        accepted: Vec<(Request, TxId)>,
        deadline: Instant,
    ) -> Option<Instant> {
        self.trace.tell(WorldEvent::Phase("finish"));
        let lost = self.store.loss();
        let is_live_for = |(request, tx): &(Request, TxId)| {
            !lost.lanes.contains(&request.lane) && !lost.txs.contains(tx)
        };
        let accepted: Vec<_> = accepted.into_iter().filter(is_live_for).collect();
        let txs: Vec<TxId> = accepted.iter().map(|(_, tx)| *tx).collect();
        while !(self.all_ended(&txs).await && self.all_rest().await) {
            if Instant::now() >= deadline {
                self.tell_unfinished(&txs).await;
                return None;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        let ended_at = Instant::now();
        // What the last questions and takeovers stirred up may settle first.
        tokio::time::sleep(self.plan.lease.duration).await;
        self.trace.tell(WorldEvent::Phase("silence"));
        let before = self.events_written();
        tokio::time::sleep(self.silence()).await;
        let new = self.events_written() - before;
        if new > 0 {
            self.trace.violation(&format!(
                "nothing stirs at the end: {new} events after everything had ended"
            ));
        }
        for (request, tx) in &accepted {
            self.judge_tx(request, *tx).await;
        }
        self.judge_lanes().await;
        self.judge_feed().await;
        self.judge_readers().await;
        self.judge_rest().await;
        Some(ended_at)
    }

    async fn judge_tx(&self, request: &Request, id: TxId) {
        let Some(record) = self.record(id).await else {
            self.trace.violation(&format!(
                "nothing accepted is lost: {} was {id}",
                request.id
            ));
            return;
        };
        if is_held(&record) {
            self.judge_held(request, &record);
            return;
        }
        let may_end = match request.fate {
            Fate::Succeeds => [TxState::Confirmed].as_slice(),
            Fate::Reverts | Fate::UnsignedEnvelope | Fate::Rejected => &[TxState::FailedFinal],
            Fate::Wavers => &[TxState::Confirmed, TxState::FailedFinal],
        };
        let state = record.tx.state;
        if !may_end.contains(&state) {
            let (name, state, reason) = (&request.id, state.as_str(), &record.tx.reason);
            self.trace.violation(&format!(
                "requests end well: {name} as {state} ({reason:?})"
            ));
        }
        if self.is_forsaken(request, &record).await {
            return;
        }
        let is_due = state == TxState::Confirmed || request.fate == Fate::Reverts;
        self.judge_effects(request, &record, is_due);
        self.judge_history(request, &record).await;
    }

    /// Whether a fork that went deeper than final took its block back after its lane had been given up: a
    /// lane without open work is not watched until something opens it, and the documents say so.
    async fn is_forsaken(&self, request: &Request, record: &TxRecord) -> bool {
        let goes_deeper = self.plan.chain.fork_max > self.plan.final_depth();
        let told = record.tx.inclusion.as_ref().map(|mined| mined.tx_hash);
        let is_gone = told.is_some_and(|hash| !self.chain.mined().iter().any(|tx| tx.hash == hash));
        if !goes_deeper || !is_gone {
            return false;
        }
        let lanes = self.store.lanes(&[request.lane]).await;
        let lanes = lanes.expect("the twin's reads do not fail");
        let now = self.clock.now();
        !lanes
            .iter()
            .filter_map(|lane| lane.lease.as_ref())
            .any(|lease| lease.expires_at > now)
    }

    /// The chain shows the payload once, in the transaction that the tx names; or not at all, and then
    /// what the tx names does nothing.
    fn judge_effects(&self, request: &Request, record: &TxRecord, is_due: bool) {
        let mined = self.chain.mined();
        let of_lane = || {
            let ours = mined.iter();
            ours.filter(|tx| tx.envelope.signer == request.lane.signer)
        };
        let effects = of_lane().filter(|tx| tx.envelope.data == request.payload.data);
        let hashes: Vec<B256> = effects.map(|tx| tx.hash).collect();
        let told = record.tx.inclusion.as_ref().map(|mined| mined.tx_hash);
        let is_noop = |hash: B256| {
            let mut found = of_lane().filter(|tx| tx.hash == hash);
            found.any(|tx| tx.envelope.data.is_empty())
        };
        let is_right = match (is_due, hashes.as_slice()) {
            (true, [once]) => told == Some(*once),
            (false, []) => told.is_none_or(is_noop),
            (true | false, _) => false,
        };
        if !is_right {
            let name = &request.id;
            self.trace.violation(&format!(
                "txs name their effects: {name}: the chain has {hashes:?}, the tx {told:?}"
            ));
        }
    }

    /// A tx that waits for a decision because somebody else has its nonce: that must be true, and a rule.
    fn judge_held(&self, request: &Request, record: &TxRecord) {
        let name = &request.id;
        let is_rule = self.plan.lane.on_foreign_nonce == OnForeignNonce::Hold
            || self.plan.lossy_failover.is_some()
            || self.plan.chain.staleness.blind > 0;
        if !is_rule {
            self.trace
                .violation(&format!("STUCK only by a rule: {name} is held"));
        }
        self.judge_effects(request, record, false);
    }

    async fn judge_history(&self, request: &Request, record: &TxRecord) {
        let history = self.store.tx_events(record.tx.id).await;
        let history = history
            .expect("the twin's reads do not fail")
            .unwrap_or_default();
        let words: Vec<&str> = history
            .iter()
            .map(|told| told.event.kind.as_str())
            .collect();
        let last = if record.tx.state == TxState::Confirmed {
            "TxConfirmed"
        } else {
            "TxFailed"
        };
        if words.first() != Some(&"TxAccepted") || words.last() != Some(&last) {
            self.trace
                .violation(&format!("stories are whole: {} has {words:?}", request.id));
        }
    }

    async fn judge_lanes(&self) {
        let lanes = self.store.lanes(&self.plan.judged_lanes()).await;
        for lane in lanes.expect("the twin's reads do not fail") {
            let (key, out, queued) = (lane.key, lane.in_flight, lane.queued);
            if (out != 0 || queued != 0) && !self.is_hurt(key) {
                self.trace.violation(&format!(
                    "nothing stirs at the end: {key} has {out} txs in flight and {queued} queued"
                ));
            }
        }
        // A lane row that says of itself that it has work would be adopted again and again.
        let stranger = LeaseRequest {
            node: NodeName("nobody".to_owned()),
            incarnation: Incarnation(Uuid::nil()),
            duration: self.plan.lease.duration,
            skew: Duration::ZERO,
            alive: Vec::new(),
            silent: self.lives().await,
        };
        let work = self.store.lanes_with_work(&stranger).await;
        let judged = self.plan.judged_lanes();
        for work in work.expect("the twin's reads do not fail") {
            let lane = work.lane;
            if judged.contains(&lane) && !self.is_hurt(lane) {
                self.trace.violation(&format!(
                    "nothing stirs at the end: {lane} says it has work"
                ));
            }
        }
    }

    /// The lives that hold leases.
    async fn lives(&self) -> Vec<Incarnation> {
        let lanes = self.store.lanes(&self.plan.judged_lanes()).await;
        let lanes = lanes.expect("the twin's reads do not fail").into_iter();
        lanes
            .filter_map(|lane| Some(lane.lease?.incarnation))
            .collect()
    }

    /// Reads the whole feed page by page, as a consumer does: no lane's story may have a hole, and
    /// none may be missing for long.
    async fn judge_feed(&self) {
        let deadline = Instant::now() + FEED_PATIENCE;
        while self.store.events_written().iter().any(|lane| lane.2 > 0) {
            if Instant::now() >= deadline {
                let lag = self.store.events_written();
                self.trace
                    .violation(&format!("the feed is whole: it lacks {lag:?}"));
                break;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
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
            for told in &page.events {
                let seq = last.entry(told.lane).or_default();
                *seq += 1;
                if told.event.seq != *seq {
                    let (lane, found) = (told.lane, told.event.seq);
                    self.trace
                        .violation(&format!("the feed is whole: {lane} has {found} at {seq}"));
                }
            }
            if filter.after.as_ref() == Some(&page.next) {
                return;
            }
            filter.after = Some(page.next);
        }
    }

    /// Those who read along have everything too, in the end. (A feed that was lost is another matter.)
    async fn judge_readers(&self) {
        if self.plan.lossy_failover.is_some() {
            return;
        }
        let mut deadline = Instant::now() + FEED_PATIENCE;
        let mut before = self.progress.events();
        while let Some(lag) = self.readers_lag() {
            let read = self.progress.events();
            if read > before {
                deadline = Instant::now() + FEED_PATIENCE; // slow is not wrong
                before = read;
            }
            if Instant::now() >= deadline {
                self.trace
                    .violation(&format!("readers skip nothing: in the end {lag}"));
                return;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// What a reader lacks, in words.
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

    /// A node without work holds on to nothing: no message, no caller, and no task but those for ever.
    async fn judge_rest(&self) {
        if self.plan.habits == Parts::default() || self.plan.poison.is_some() {
            return; // a poisoned lane is never at rest
        }
        for machine in self.machines.iter() {
            let Some(node) = machine.handle() else {
                continue;
            };
            let load = tokio::time::timeout(LOOK_INTERVAL, node.load()).await;
            let Ok(load) = load else { continue };
            // Whoever waits for a tx of a lane that stands still may wait on; each is a task.
            let tasks = load.tasks.saturating_sub(load.waiters);
            let is_at_rest = load.callers == 0 && load.outgoing == 0;
            if !is_at_rest || tasks > TASKS_AT_REST_MAX {
                let node = machine.name();
                self.trace.violation(&format!(
                    "memory and queues are bounded: {node} at rest has {load:?}"
                ));
            }
        }
    }

    async fn all_ended(&self, txs: &[TxId]) -> bool {
        for id in txs {
            let record = self.record(*id).await;
            if !record.is_some_and(|record| record.tx.state.is_terminal() || is_held(&record)) {
                return false;
            }
        }
        true
    }

    /// Whether no lane that lost nothing has open txs, also of requests that were lost and sent again, and nobody
    /// will say anything of a nonce.
    async fn all_rest(&self) -> bool {
        if !self.speakers.are_silent() {
            return false;
        }
        let lanes = self.store.lanes(&self.plan.judged_lanes()).await;
        let mut lanes = lanes.expect("the twin's reads do not fail").into_iter();
        lanes.all(|lane| self.is_hurt(lane.key) || (lane.in_flight == 0 && lane.queued == 0))
    }

    async fn tell_unfinished(&self, txs: &[TxId]) {
        for id in txs {
            let Some(record) = self.record(*id).await else {
                continue;
            };
            let tx = &record.tx;
            if !tx.state.is_terminal() && !is_held(&record) {
                let (nonce, sub) = (tx.nonce, tx.sub_state);
                let (name, state, reason) = (&tx.request_id, tx.state.as_str(), &tx.reason);
                self.trace.violation(&format!(
                    "everything ends: {name} is {state} {sub:?} at nonce {nonce:?}, {reason:?}"
                ));
            }
        }
        if !self.all_rest().await {
            self.trace
                .violation("everything ends: lanes still have work");
        }
        for machine in self.machines.iter() {
            let Some(handle) = machine.handle() else {
                continue;
            };
            let lanes = tokio::time::timeout(LOOK_INTERVAL, handle.lanes()).await;
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

    /// How many events the lanes wrote that lost nothing.
    fn events_written(&self) -> u64 {
        let lanes = self.store.events_written();
        let judged = self.plan.judged_lanes();
        let whole = lanes
            .iter()
            .filter(|lane| judged.contains(&lane.0) && !self.is_hurt(lane.0));
        whole.map(|lane| lane.1).sum()
    }

    fn is_hurt(&self, lane: LaneKey) -> bool {
        self.store.loss().lanes.contains(&lane)
    }
}

/// Whether it waits for a decision because somebody else has its nonce.
fn is_held(record: &TxRecord) -> bool {
    let tx = &record.tx;
    tx.state == TxState::Stuck && tx.sub_state == Some(SubState::ForeignNonce)
}
