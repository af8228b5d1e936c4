//! All that a store holds, read through the port, when a sequence is over.

use domain::{EventKind, LaneId, LaneKey};
use engine::ports::{EventFilter, EventRecord, StoreError, TxFilter};
use sim::rng::Rng;

use crate::answers::Answer;
use crate::masks;
use crate::model::Model;
use crate::operation::{Load, Operation, ReadCall, Write};
use crate::side::Side;
use crate::universe::{self, LANES, NODES};

/// Pages of the last reading: small enough for several.
const PAGE: usize = 7;
/// The feed of a sequence ends before so many pages.
const PAGES_MAX: usize = 1_000;

/// The reads that are compared at the end.
pub(crate) fn questions(model: &Model) -> Vec<Operation> {
    let mut questions = vec![
        Operation::ReadCall(ReadCall::Members),
        Operation::ReadCall(ReadCall::Lanes(universe::lanes().to_vec())),
        Operation::ReadCall(ReadCall::Txs(TxFilter {
            limit: 1_000,
            ..TxFilter::default()
        })),
    ];
    let rng = Rng::new(0);
    for (node, incarnation) in model.incarnations.iter().enumerate().take(NODES.len()) {
        let lease_request = universe::requester(&rng, node, *incarnation);
        questions.push(Operation::Load(Load::LanesWithWork(lease_request)));
    }
    for (place, lane) in model.lanes.iter().enumerate() {
        let id = universe::lane_id(place);
        questions.push(Operation::Load(Load::Queued(id, PAGE * PAGE)));
        questions.push(Operation::Load(Load::Backlog(
            id,
            lane.floor(),
            PAGE * PAGE,
        )));
        let key = universe::lanes()[place];
        if let Some(lease_grant) = lane.lease_grant {
            questions.push(Operation::Load(Load::Image(key, lease_grant, 2)));
        }
        let requests = universe::request_ids().map(|request| (key, request));
        questions.push(Operation::Load(Load::FindRequests(requests.collect())));
        for id in lane.txs.keys() {
            questions.push(Operation::ReadCall(ReadCall::TxEvents(*id)));
        }
    }
    // From now on the feed has everything.
    questions.push(Operation::Write(Write::ExtendFeed(Vec::new())));
    questions
}

/// The whole feed, and that of one lane's acceptances only. Told lane by lane: the order between lanes is
/// each store's own, unless all of them were fed at once.
pub(crate) async fn feed(side: &Side, is_ordered: bool) -> Answer {
    let all = EventFilter {
        limit: PAGE,
        ..EventFilter::default()
    };
    let key = universe::lanes()[0];
    let some = EventFilter {
        chain_id: Some(key.chain_id),
        kinds: vec![EventKind::NAMES[0].to_owned()],
        limit: 1,
        ..EventFilter::default()
    };
    let read = async {
        let mut events = read_on(side, all).await?;
        events.extend(read_on(side, some).await?);
        Ok::<_, StoreError>(events)
    };
    match read.await {
        Ok(mut events) => {
            if !is_ordered {
                events.sort_by_key(|record| (record.lane, record.event.seq));
            }
            Answer::Events(events.into_iter().map(masks::event).collect())
        }
        Err(error) => Answer::Refused(error),
    }
}

/// All pages, until the cursor stays where it is.
async fn read_on(side: &Side, mut filter: EventFilter) -> Result<Vec<EventRecord>, StoreError> {
    let mut events = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = side.store().events(&filter).await?;
        events.extend(page.events);
        if filter.after.as_ref() == Some(&page.next) {
            return Ok(events);
        }
        filter.after = Some(page.next);
    }
    Err(StoreError::Corrupt("the feed has no end".into()))
}

/// Whether every lane's events are returned from 1 on without a gap.
pub(crate) fn has_gaps(model: &Model, returned: &Answer) -> bool {
    let Answer::Events(events) = returned else {
        return true;
    };
    let lanes: [LaneKey; LANES] = universe::lanes();
    let of = |key: LaneKey| events.iter().filter(move |record| record.lane == key);
    lanes.iter().zip(&model.lanes).any(|(key, lane)| {
        let mut seqs: Vec<u64> = of(*key).map(|record| record.event.seq).collect();
        seqs.sort_unstable();
        seqs.dedup();
        !seqs.into_iter().eq(1..=lane.event_seq)
    })
}

/// A commit's lanes, each to be fed alone so that the feed has the order of the batches.
pub(crate) fn feed_at_once(lane: LaneId) -> Operation {
    Operation::Write(Write::ExtendFeed(vec![lane]))
}
