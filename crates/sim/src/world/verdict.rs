//! What must be true when a healed world has come to rest: everything accepted has ended, the chain
//! shows each payload once, readers see a whole story, and nothing stirs any more.
//!
//! Lanes that lost commits in a failover are another matter: they may stand still until an operator
//! decides, and what was lost is lost. What holds for them too is watched by the checkers.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::lane::OnForeignNonce;
use domain::{B256, Incarnation, LaneKey, NodeName, SubState, TxId, TxState};
use engine::ports::{Ask, EventFilter, Store, TxRecord};
use tokio::time::Instant;
use uuid::Uuid;

use super::World;
use super::client::{Fate, Request};
use crate::event::WorldEvent;

/// How often a healed world is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The page size of the feed's reader: small, so that there are many pages.
const PAGE: usize = 7;

/// How long the feed may lag behind when everything has ended: keepers that died left it to a sweep.
const FEED_PATIENCE: Duration = Duration::from_secs(60);

impl World {
    pub(super) async fn judge(&self, accepted: Vec<(Request, TxId)>, deadline: Instant) {
        self.trace.tell(WorldEvent::Phase("finish"));
        let lost = self.store.loss();
        let is_kept = |(request, tx): &(Request, TxId)| {
            !lost.lanes.contains(&request.lane) && !lost.txs.contains(tx)
        };
        let accepted: Vec<_> = accepted.into_iter().filter(is_kept).collect();
        let txs: Vec<TxId> = accepted.iter().map(|(_, tx)| *tx).collect();
        while !(self.all_ended(&txs).await && self.all_rest().await) {
            if Instant::now() >= deadline {
                self.tell_unfinished(&txs).await;
                return;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        // What the last questions and takeovers stirred up may settle first.
        tokio::time::sleep(self.plan.lease.duration).await;
        self.trace.tell(WorldEvent::Phase("silence"));
        let before = self.events_written();
        tokio::time::sleep(self.silence()).await;
        let new = self.events_written() - before;
        if new > 0 {
            self.trace.violation(&format!(
                "not quiet: {new} events after everything had ended"
            ));
        }
        for (request, tx) in &accepted {
            self.judge_tx(request, *tx).await;
        }
        self.judge_lanes().await;
        self.judge_feed().await;
    }

    async fn judge_tx(&self, request: &Request, id: TxId) {
        let Some(record) = self.record(id).await else {
            self.trace
                .violation(&format!("{} was accepted as {id} and is gone", request.id));
            return;
        };
        if is_held(&record) {
            self.judge_held(request, &record);
            return;
        }
        let may_end = match request.fate {
            Fate::Succeeds => [TxState::Confirmed].as_slice(),
            Fate::Reverts | Fate::Unsigned | Fate::Rejected => &[TxState::FailedFinal],
            Fate::Wavers => &[TxState::Confirmed, TxState::FailedFinal],
        };
        let state = record.tx.state;
        if !may_end.contains(&state) {
            let (name, state, reason) = (&request.id, state.word(), &record.tx.reason);
            self.trace
                .violation(&format!("{name} ended as {state} ({reason:?})"));
        }
        let is_due = state == TxState::Confirmed || request.fate == Fate::Reverts;
        self.judge_effects(request, &record, is_due);
        self.judge_history(request, &record).await;
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
                "{name}: the chain has {hashes:?}, the tx {told:?}"
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
                .violation(&format!("{name} is held, and no rule says so"));
        }
        self.judge_effects(request, record, false);
    }

    async fn judge_history(&self, request: &Request, record: &TxRecord) {
        let history = self.store.tx_events(record.tx.id).await;
        let history = history
            .expect("the twin's reads do not fail")
            .unwrap_or_default();
        let words: Vec<&str> = history.iter().map(|told| told.event.kind.word()).collect();
        let last = if record.tx.state == TxState::Confirmed {
            "TxConfirmed"
        } else {
            "TxFailed"
        };
        if words.first() != Some(&"TxAccepted") || words.last() != Some(&last) {
            self.trace
                .violation(&format!("the story of {} is {words:?}", request.id));
        }
    }

    async fn judge_lanes(&self) {
        let lanes = self.store.lanes(&self.plan.lanes()).await;
        for lane in lanes.expect("the twin's reads do not fail") {
            if (lane.in_flight != 0 || lane.queued != 0) && !self.is_hurt(lane.key) {
                self.trace.violation(&format!("not quiet: {lane:?}"));
            }
        }
        // A lane row that says of itself that it has work would be adopted again and again.
        let stranger = Ask {
            node: NodeName("nobody".to_owned()),
            incarnation: Incarnation(Uuid::nil()),
            duration: self.plan.lease.duration,
            skew: Duration::ZERO,
            lively: Vec::new(),
            silent: self.lives().await,
        };
        let work = self.store.lanes_with_work(&stranger).await;
        for work in work.expect("the twin's reads do not fail") {
            if !self.is_hurt(work.lane) {
                self.trace.violation(&format!("not quiet: {work:?}"));
            }
        }
    }

    /// The lives that hold leases.
    async fn lives(&self) -> Vec<Incarnation> {
        let lanes = self.store.lanes(&self.plan.lanes()).await;
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
                    .violation(&format!("the feed lacks events: {lag:?}"));
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
                        .violation(&format!("the feed of {lane} has {found} at {seq}"));
                }
            }
            if filter.after.as_ref() == Some(&page.next) {
                return;
            }
            filter.after = Some(page.next);
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

    /// Whether no lane that lost nothing has open txs: also of requests that were lost and sent again.
    async fn all_rest(&self) -> bool {
        let lanes = self.store.lanes(&self.plan.lanes()).await;
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
                let (name, state, reason) = (&tx.request_id, tx.state.word(), &tx.reason);
                self.trace.violation(&format!(
                    "not live: {name} is {state} {sub:?} at nonce {nonce:?}, {reason:?}"
                ));
            }
        }
        if !self.all_rest().await {
            self.trace.violation("not live: lanes still have work");
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
        let whole = lanes.iter().filter(|lane| !self.is_hurt(lane.0));
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
