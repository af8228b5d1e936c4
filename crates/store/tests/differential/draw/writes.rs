//! Writes without a fence: requests, headers, the feed, heartbeats.

use domain::NodeName;
use domain::lane::AdmittedRequest;
use engine::ports::{Member, QueuedRequest};
use sim::rng::Rng;

use super::{lease_calls, read_calls};
use crate::model::Model;
use crate::operation::Write;
use crate::universe::{self, NODES};

/// Requests for any lanes; some twice, some under an id that is taken.
pub(super) fn queue(rng: &Rng, model: &mut Model) -> Write {
    let count = rng.between(1, 3);
    let mut requests: Vec<QueuedRequest> = Vec::new();
    for _ in 0..count {
        let repeats = rng
            .permille(100)
            .then(|| requests.last().cloned())
            .flatten();
        let mut new = new_queued(rng, model);
        if let Some(last) = repeats {
            (new.lane, new.request.request_id) = (last.lane, last.request.request_id);
        }
        requests.push(new);
    }
    let mut new: Vec<_> = requests.iter().map(|new| new.lane).collect();
    new.retain(|key| !lease_calls::is_known(model, *key));
    new.dedup();
    if new.len() > 1 {
        // Every store numbers them in its own order, and the feed goes by these numbers.
        requests
            .retain(|new| lease_calls::is_known(model, new.lane) || !universe::is_huge(new.lane));
        requests.sort_by_key(|new| new.lane);
    }
    Write::Queue(requests)
}

fn new_queued(rng: &Rng, model: &mut Model) -> QueuedRequest {
    let payload = universe::payload(rng);
    let id = match rng.permille(60) {
        true => read_calls::tx_id(rng, model),
        false => model.tx_id(rng),
    };
    QueuedRequest {
        lane: lease_calls::key(rng),
        request: AdmittedRequest {
            id,
            request_id: universe::any_request_id(rng),
            fingerprint: payload.fingerprint(),
            payload,
            gas: rng.bits(),
        },
        at: model.time(rng),
    }
}

/// Headers, some of them known, some with another story under a known hash.
pub(super) fn put_headers(rng: &Rng) -> Write {
    let mut headers = universe::headers(rng);
    if rng.permille(100) {
        headers.push(headers[0]);
    }
    if rng.permille(100)
        && let Some(last) = headers.last_mut()
    {
        last.timestamp += 1;
    }
    Write::PutHeaders(lease_calls::key(rng).chain_id, headers)
}

/// Some lanes, or whatever is behind.
pub(super) fn extend_feed(rng: &Rng) -> Write {
    let count = rng.below(3);
    Write::ExtendFeed((0..count).map(|_| read_calls::lane(rng)).collect())
}

pub(super) fn heartbeat(rng: &Rng, model: &mut Model) -> Write {
    let (node, incarnation) = lease_calls::incarnation(rng, model);
    let advertise = rng.permille(700).then(|| "http://10.0.0.1:8645".to_owned());
    Write::Heartbeat(Member {
        node: NodeName(NODES[node].into()),
        incarnation: universe::incarnation(node, incarnation),
        advertise,
        started_at: model.time(rng),
        seen_at: model.time(rng),
        // Counted by the store.
        heartbeats: rng.below(3),
        draining: rng.permille(200),
    })
}
