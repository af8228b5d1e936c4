//! The gate: the one place through which every critical write passes.
//!
//! The drafts of a turn come in. Each gives at most one batch, all batches go to the store in one commit, and the
//! store answers for each lane. Only an applied draft becomes memory; its callers are answered and its effects
//! dispatched after that. Every other outcome drops the draft:
//!
//! | outcome | the lane | its callers |
//! |---|---|---|
//! | Applied | continues as drafted | get their txs |
//! | Fenced | leaves memory: another node keeps it | are rerouted |
//! | Conflict of a request id | continues without the requests, which are looked up | get the stored txs, or are accepted again |
//! | another Conflict | is read again from the store | are stepped again; refused after a few conflicts |
//! | Locked, Unknown | waits for a regrant, which alone proves what landed | wait for the regrant |
//! | NotApplied | is read again, with backoff | are refused: nothing was stored |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{B256, ChainId, Header, RequestId, Timestamp, TxId};
use metrics::{counter, histogram};

use crate::draft::LaneDraft;
use crate::node::{AcceptedTx, Refusal};
use crate::ownership;
use crate::ports::{CommitOutcome, Conflict, LaneBatch};
use crate::shard::{
    EventCounts, LaneCell, PendingCreate, Shard, ShardOutcome, UnknownBatch, refuse_creates,
};

/// How often a request is stepped again after conflicts before its caller is refused.
const CONFLICT_TRIES_MAX: u32 = 3;
/// For how long request ids are looked up before the commit, after a repeated one was seen.
pub(crate) const FIND_REQUESTS_AFTER_REPEAT: Duration = Duration::from_secs(10);
/// How many stored headers are remembered, so that they are not written again.
const STORED_HEADERS_MAX: usize = 4_096;

/// A lane's part of the commit in flight.
struct CommittingLane {
    draft: LaneDraft,
    batch: Arc<LaneBatch>,
    /// The answers for its callers, true once the batch is applied.
    records: Vec<AcceptedTx>,
    changed: Vec<TxId>,
    event_counts: EventCounts,
}

/// A draft without the requests of its turn: one of them has a request id that is stored already.
pub(crate) struct RetractedDraft {
    pub(crate) draft: LaneDraft,
    pub(crate) creates: Vec<PendingCreate>,
}

impl Shard {
    /// Commits the drafts of a turn, all at once, and acts upon the outcome of each. Returns those whose turn is to
    /// continue without a repeated request.
    pub(crate) async fn commit_drafts(
        &mut self,
        mut drafts: Vec<LaneDraft>,
        now: Timestamp,
    ) -> Vec<RetractedDraft> {
        let header_failures = self.store_headers(&mut drafts).await;
        let mut batches = Vec::with_capacity(drafts.len());
        let mut lanes = Vec::with_capacity(drafts.len());
        for mut draft in drafts {
            let Some(batch) = draft.take_batch(&self.core.config.name, now) else {
                self.apply_draft(draft, now);
                continue;
            };
            if let Some(why) = header_failures.get(&draft.lane.key().chain_id) {
                self.on_not_applied(draft, why.clone());
                continue;
            }
            let rows = batch.writes.inserts.iter().chain(&batch.writes.updates);
            let changed = rows.map(|tx| tx.id).collect();
            let batch = Arc::new(batch);
            batches.push(Arc::clone(&batch));
            lanes.push(CommittingLane {
                records: draft.accepted_records(&batch),
                changed,
                event_counts: EventCounts::from_events(&batch.writes.events),
                draft,
                batch,
            });
        }
        if batches.is_empty() {
            return Vec::new();
        }
        let accepted = lanes.iter().map(|lane| lane.records.len()).sum::<usize>();
        let started = self.core.ports.clock.monotonic();
        let outcomes = self.core.ports.store.commit(batches).await;
        let took = self.core.ports.clock.monotonic().since(started);
        let kind = if accepted > 0 { "accept" } else { "progress" };
        counter!("lanekeeper_gate_commits_total", "kind" => kind).increment(1);
        counter!("lanekeeper_gate_txs_total").increment(accepted as u64);
        histogram!("lanekeeper_gate_commit_seconds").record(took.as_secs_f64());
        assert_eq!(outcomes.len(), lanes.len(), "the store answers every batch");
        let outcomes = lanes.into_iter().zip(outcomes);
        outcomes
            .filter_map(|(lane, outcome)| self.on_commit_outcome(lane, outcome, now))
            .collect()
    }

    /// Decides what becomes of a draft and of its callers.
    fn on_commit_outcome(
        &mut self,
        lane: CommittingLane,
        outcome: CommitOutcome,
        now: Timestamp,
    ) -> Option<RetractedDraft> {
        let key = lane.draft.lane.key();
        match outcome {
            CommitOutcome::Applied => self.on_applied(lane, now),
            CommitOutcome::Fenced => self.on_fenced(lane.draft),
            CommitOutcome::Conflict(Conflict::RequestId(id)) => return self.on_repeat(lane, &id),
            CommitOutcome::Conflict(conflict) => self.on_conflict(lane.draft, &conflict),
            CommitOutcome::NotApplied(why) => self.on_not_applied(lane.draft, why),
            CommitOutcome::Locked => {
                // The regrant waits for the row, apart from this turn's other lanes.
                tracing::warn!(lane = %key, "another transaction holds a row of this lane; waiting for it");
                counter!("lanekeeper_lease_locked_total").increment(1);
                self.await_regrant(lane);
            }
            CommitOutcome::Unknown(why) => {
                tracing::warn!(lane = %key, %why, "the outcome of a commit is unknown; querying the store");
                self.await_regrant(lane);
            }
        }
        None
    }

    fn on_applied(&mut self, lane: CommittingLane, now: Timestamp) {
        let mut draft = lane.draft;
        draft.lane.count_batch();
        self.core.record_commit(&draft.lane);
        for (create, record) in draft.creates.drain(..).zip(lane.records) {
            create.answer(ShardOutcome::Accepted(Box::new(record)));
        }
        self.failures.remove(&draft.lane.key());
        let lease_grant = draft.lane.lease_grant();
        self.announce(
            draft.lane.key(),
            lease_grant,
            lane.changed,
            &lane.event_counts,
        );
        self.apply_draft(draft, now);
    }

    /// The draft becomes memory, and its effects are dispatched.
    fn apply_draft(&mut self, mut draft: LaneDraft, now: Timestamp) {
        draft.lane.on_commit(now);
        for (mark, outcome) in draft.marks.drain(..) {
            mark.answer.send(outcome).ok(); // the holder may have gone
        }
        self.dispatch_effects(&mut draft);
        let idle_since = draft.idle_since.filter(|_| draft.lane.is_idle());
        self.lanes.insert(
            draft.lane.key(),
            LaneCell::Ready {
                lane: Box::new(draft.lane),
                epoch: draft.epoch,
                idle_since,
            },
        );
    }

    /// Another node keeps the lane: this one forgets it, and its callers find the new keeper.
    fn on_fenced(&mut self, draft: LaneDraft) {
        let (key, token) = (draft.lane.key(), draft.lane.lease_grant().token);
        tracing::warn!(lane = %key, %token, "fenced: another node keeps this lane now");
        counter!("lanekeeper_lease_fenced_total", "op" => "gate").increment(1);
        self.drop_lane_memory(&draft.lane);
        self.resend_creates(key, draft.creates);
    }

    /// This is how a repeated request id is found that was not looked up: the store is well, and nothing of the lane is
    /// in doubt. The turn continues without its requests; they are looked up before they are accepted again.
    fn on_repeat(&mut self, lane: CommittingLane, repeated: &RequestId) -> Option<RetractedDraft> {
        let CommittingLane {
            mut draft, batch, ..
        } = lane;
        let key = draft.lane.key();
        tracing::debug!(lane = %key, request = %repeated, "a repeated request; the turn continues without it");
        let batch = Arc::unwrap_or_clone(batch);
        let Some(mut creates) = draft.retract_creates(batch.writes) else {
            let conflict = Conflict::Rows(format!("no request of this turn has the id {repeated}"));
            self.on_conflict(draft, &conflict);
            return None;
        };
        let mut waiting = Vec::with_capacity(creates.len());
        for mut create in creates.drain(..) {
            create.tries += u32::from(create.request.request_id == *repeated);
            waiting.extend(refuse_after_conflicts(create));
        }
        Some(RetractedDraft {
            draft,
            creates: waiting,
        })
    }

    /// Reads the lane again. A request whose batch conflicts repeatedly is refused.
    fn on_conflict(&mut self, draft: LaneDraft, conflict: &Conflict) {
        let key = draft.lane.key();
        self.drop_lane_memory(&draft.lane);
        let mut waiting = Vec::new();
        for mut create in draft.creates {
            create.tries += 1;
            create.is_repeat = true;
            waiting.extend(refuse_after_conflicts(create));
        }
        tracing::warn!(lane = %key, ?conflict, "a batch conflicts with rows of the store; the lane is read again");
        self.reopen_with_backoff(key, waiting);
    }

    fn on_not_applied(&mut self, draft: LaneDraft, why: String) {
        let key = draft.lane.key();
        tracing::warn!(lane = %key, %why, "the store did not apply a batch; the lane is read again");
        refuse_creates(draft.creates, &Refusal::StoreUnavailable(why));
        self.drop_lane_memory(&draft.lane);
        self.reopen_with_backoff(key, Vec::new());
    }

    /// The batch may have landed, or may still land. Nothing is answered before a regrant has proved it
    /// (`resolve_unknown_commit`).
    fn await_regrant(&mut self, lane: CommittingLane) {
        self.drop_lane_memory(&lane.draft.lane);
        let (key, lease_grant) = (lane.draft.lane.key(), lane.draft.lane.lease_grant());
        let batch = UnknownBatch {
            batch_seq_before: lane.draft.lane.batch_seq(),
            creates: lane.draft.creates,
            records: lane.records,
            changed: lane.changed,
            event_counts: lane.event_counts,
        };
        self.lanes.insert(
            key,
            LaneCell::UnknownCommit {
                batch,
                waiting: Vec::new(),
                since: self.core.ports.clock.monotonic(),
            },
        );
        let core = Arc::clone(&self.core);
        self.core.tasks.spawn("resolve unknown commit", async move {
            ownership::resolve_unknown_commit(&core, key, lease_grant).await
        });
    }

    /// Stores the headers that this turn's writes name, and returns the chains where that failed: nothing may be
    /// written that names a header which is not stored.
    async fn store_headers(&mut self, drafts: &mut [LaneDraft]) -> BTreeMap<ChainId, String> {
        let mut named: BTreeMap<ChainId, BTreeMap<B256, Header>> = BTreeMap::new();
        for draft in drafts {
            let headers = draft.take_headers(&self.stored_headers).into_iter();
            let of_chain = named.entry(draft.lane.key().chain_id).or_default();
            of_chain.extend(headers.map(|header| (header.hash, header)));
        }
        let mut failures = BTreeMap::new();
        for (chain, headers) in named.into_iter().filter(|(_, headers)| !headers.is_empty()) {
            let headers: Vec<Header> = headers.into_values().collect();
            match self.core.ports.store.put_headers(chain, &headers).await {
                Ok(()) => {
                    if self.stored_headers.len() > STORED_HEADERS_MAX {
                        self.stored_headers.clear();
                    }
                    let hashes = headers.iter().map(|header| header.hash);
                    self.stored_headers.extend(hashes);
                }
                Err(error) => drop(failures.insert(chain, error.to_string())),
            }
        }
        failures
    }
}

/// Refuses a request whose batches conflicted too often; returns it otherwise.
fn refuse_after_conflicts(create: PendingCreate) -> Option<PendingCreate> {
    if create.tries <= CONFLICT_TRIES_MAX {
        return Some(create);
    }
    let why = "the lane's batch conflicts repeatedly with rows of the store";
    refuse_creates([create], &Refusal::StoreUnavailable(why.into()));
    None
}
