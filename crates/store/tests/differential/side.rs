//! A store with what it alone knows: its numbers for lanes, its cursors. Asks it, and masks its answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{History, LaneId, LeaseGrant};
use engine::ports::{
    AcquireOutcome, EventFilter, EventRecord, LaneBatch, Store, StoreError, TxFilter, TxPage,
};

use crate::answers::Answer;
use crate::masks::{self, Mask};
use crate::operation::{After, Incident, LeaseCall, Load, Operation, ReadCall, Write};
use crate::subjects::Subject;
use crate::universe::{self, LANES};

/// The id of no lane, in every store.
const NOBODYS: LaneId = LaneId(i64::MAX);

/// One of the stores.
pub(crate) struct Side {
    pub(crate) subject: Box<dyn Subject>,
    store: Arc<dyn Store>,
    /// By place; learned when a lane is granted.
    lanes: Vec<Option<LaneId>>,
    /// Its history as of the last grant. A promotion since makes it stale.
    history: History,
    /// Every cursor that it returned, in order.
    marks: Vec<String>,
    /// How long all its answers took.
    pub(crate) spent: Duration,
}

impl Side {
    pub(crate) fn new(subject: Box<dyn Subject>) -> Self {
        Self {
            store: subject.store(),
            subject,
            lanes: vec![None; LANES],
            history: masks::HISTORY,
            marks: Vec::new(),
            spent: Duration::ZERO,
        }
    }

    /// Begins anew.
    pub(crate) async fn clear(&mut self) {
        self.subject.clear().await;
        self.store = self.subject.store();
        self.lanes = vec![None; LANES];
        self.marks.clear();
    }

    pub(crate) fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    pub(crate) async fn answer(&mut self, operation: &Operation) -> Answer {
        let began = Instant::now();
        let answer = match operation {
            Operation::LeaseCall(lease_call) => self.lease_call(lease_call).await,
            Operation::Write(write) => self.write(write).await,
            Operation::Load(load) => self.load(load).await,
            Operation::ReadCall(read_call) => self.read_call(read_call).await,
            Operation::Incident(incident) => self.incident(incident).await,
        };
        self.spent += began.elapsed();
        answer.unwrap_or_else(|error| Answer::Refused(masks::refusal(error)))
    }

    async fn lease_call(&mut self, lease_call: &LeaseCall) -> Result<Answer, StoreError> {
        let store = Arc::clone(&self.store);
        Ok(match lease_call {
            LeaseCall::Acquire(lease_request, lanes) => {
                let answers = store.acquire(lease_request, lanes).await?;
                for ((key, _), answer) in lanes.iter().zip(&answers) {
                    if let AcquireOutcome::Granted {
                        lease_grant,
                        history,
                        ..
                    } = answer
                    {
                        self.history = *history;
                        self.lanes[universe::place_of(*key)] = Some(lease_grant.lane);
                    }
                }
                let mask = self.mask();
                Answer::AcquireOutcome(answers.into_iter().map(|a| mask.acquired(a)).collect())
            }
            LeaseCall::Renew(lease_request, lease_grants) => Answer::Renewed(
                store
                    .renew(lease_request, &self.lease_grants(lease_grants))
                    .await?,
            ),
            LeaseCall::Release(lease_request, lease_grants) => {
                store
                    .release(lease_request, &self.lease_grants(lease_grants))
                    .await?;
                Answer::Done
            }
            LeaseCall::Regrant(lease_grant, grant) => {
                let regranted = store
                    .regrant(self.lease_grant(*lease_grant), *grant)
                    .await?;
                Answer::RegrantOutcome(self.mask().regranted(regranted))
            }
            LeaseCall::MarkReconciled(lease_grant) => {
                let lease_grant = self.lease_grant(*lease_grant);
                Answer::Whether(store.mark_reconciled(lease_grant, self.history).await?)
            }
            LeaseCall::Halt(lease_grant, reason) => {
                Answer::Whether(store.halt(self.lease_grant(*lease_grant), reason).await?)
            }
            LeaseCall::AcceptLoss(key) => Answer::Whether(store.accept_loss(*key).await?),
        })
    }

    async fn write(&mut self, write: &Write) -> Result<Answer, StoreError> {
        let store = Arc::clone(&self.store);
        Ok(match write {
            Write::Commit(batches) => {
                let batches = batches.iter().map(|batch| {
                    Arc::new(LaneBatch {
                        lease_grant: self.lease_grant(batch.lease_grant),
                        ..batch.clone()
                    })
                });
                let outcomes = store.commit(batches.collect()).await;
                Answer::Outcomes(outcomes.into_iter().map(masks::outcome).collect())
            }
            Write::Queue(requests) => {
                let txs = store.queue_requests(requests.clone()).await?;
                Answer::Txs(txs.into_iter().map(masks::tx).collect())
            }
            Write::PutHeaders(chain, headers) => {
                store.put_headers(*chain, headers).await?;
                Answer::Done
            }
            Write::ExtendFeed(lanes) => {
                let lanes: Vec<LaneId> = lanes.iter().map(|lane| self.lane(*lane)).collect();
                store.extend_feed(&lanes).await?;
                Answer::Done
            }
            Write::Heartbeat(member) => {
                Answer::HeartbeatOutcome(masks::beat(store.heartbeat(member).await?))
            }
        })
    }

    async fn load(&mut self, load: &Load) -> Result<Answer, StoreError> {
        let store = Arc::clone(&self.store);
        Ok(match load {
            Load::Image(key, lease_grant, depth) => {
                let image = store
                    .load(*key, self.lease_grant(*lease_grant), *depth)
                    .await?;
                Answer::Image(image.map(|image| self.mask().image(image)))
            }
            Load::Backlog(lane, from, limit) => {
                let txs = store.load_backlog(self.lane(*lane), *from, *limit).await?;
                Answer::Txs(txs.into_iter().map(masks::tx).collect())
            }
            Load::Queued(lane, limit) => {
                let txs = store.load_queued(self.lane(*lane), *limit).await?;
                Answer::Txs(txs.into_iter().map(masks::tx).collect())
            }
            Load::FindRequests(requests) => {
                let found = store.find_requests(requests).await?;
                Answer::Found(found.into_iter().map(|tx| tx.map(masks::tx)).collect())
            }
            Load::LanesWithWork(lease_request) => {
                Answer::Work(store.lanes_with_work(lease_request).await?)
            }
        })
    }

    async fn read_call(&mut self, read_call: &ReadCall) -> Result<Answer, StoreError> {
        let store = Arc::clone(&self.store);
        let one = |found: Option<_>| Answer::Record(found.map(masks::record).map(Box::new));
        Ok(match read_call {
            ReadCall::Members => Answer::Members(store.members().await?),
            ReadCall::Tx(id) => one(store.tx(*id).await?),
            ReadCall::TxByRequest(key, request) => one(store.tx_by_request(*key, request).await?),
            ReadCall::TxByHash(hash) => one(store.tx_by_hash(*hash).await?),
            ReadCall::Txs(filter) => Answer::Page(self.txs(filter).await?),
            ReadCall::TxEvents(id) => {
                let history = store.tx_events(*id).await?;
                if let Some(events) = &history {
                    self.mark(events);
                }
                Answer::History(
                    history.map(|events| events.into_iter().map(masks::event).collect()),
                )
            }
            ReadCall::Events(after, filter) => {
                let filter = EventFilter {
                    after: self.after(after),
                    ..filter.clone()
                };
                let page = store.events(&filter).await?;
                self.mark(&page.events);
                self.marks.push(page.next);
                Answer::Events(page.events.into_iter().map(masks::event).collect())
            }
            ReadCall::Lanes(keys) => {
                let (records, mask) = (store.lanes(keys).await?, self.mask());
                Answer::Lanes(records.into_iter().map(|lane| mask.lane(lane)).collect())
            }
        })
    }

    async fn incident(&mut self, incident: &Incident) -> Result<Answer, StoreError> {
        match incident {
            Incident::Advance(by) => self.subject.advance(*by).await,
            Incident::Promote => self.subject.change_history().await,
        }
        Ok(Answer::Done)
    }

    /// A page, or, where it is filtered, all of them together.
    async fn txs(&self, filter: &TxFilter) -> Result<TxPage, StoreError> {
        let mut page = self.store.txs(filter).await?;
        let is_filtered =
            filter.state.is_some() || filter.chain_id.is_some() || filter.signer.is_some();
        let mut next = page.next.filter(|_| is_filtered);
        while let Some(after) = next {
            let filter = TxFilter {
                after: Some(after),
                ..filter.clone()
            };
            let more = self.store.txs(&filter).await?;
            page.txs.extend(more.txs);
            next = more.next;
            page.next = None;
        }
        if filter.is_by_lane() {
            // The order of lanes is the store's own.
            page.txs.sort_by_key(|record| (record.lane, record.tx.id));
        }
        page.txs = page.txs.into_iter().map(masks::record).collect();
        Ok(page)
    }

    /// The store's own id of a lane.
    pub(crate) fn lane(&self, lane: LaneId) -> LaneId {
        let place = usize::try_from(lane.0).ok();
        let known = place.and_then(|place| self.lanes.get(place));
        known.copied().flatten().unwrap_or(NOBODYS)
    }

    fn lease_grant(&self, lease_grant: LeaseGrant) -> LeaseGrant {
        LeaseGrant {
            lane: self.lane(lease_grant.lane),
            ..lease_grant
        }
    }

    fn lease_grants(&self, lease_grants: &[LeaseGrant]) -> Vec<LeaseGrant> {
        lease_grants
            .iter()
            .map(|lease_grant| self.lease_grant(*lease_grant))
            .collect()
    }

    fn mask(&self) -> Mask {
        Mask {
            now: self.subject.now(),
            lanes: self.lanes.clone(),
        }
    }

    fn mark(&mut self, events: &[EventRecord]) {
        let cursors = events.iter().map(|event| event.cursor.clone());
        self.marks.extend(cursors);
    }

    fn after(&self, after: &After) -> Option<String> {
        match after {
            After::Start => None,
            After::Mark(n) => Some(self.marks[*n].clone()),
            After::Nonsense(text) => Some((*text).to_owned()),
        }
    }
}
