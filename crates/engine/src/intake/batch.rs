//! Many requests of one client in one call: gas is estimated for many at once, and each lane keeps the order given.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::{LaneKey, RequestId};
use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream;

use super::{RequestSource, admit_request, create_admitted};
use crate::core::Core;
use crate::node::{AcceptedTx, NewTx, Refusal};

/// How many requests of one lane are admitted at once: more would overload an endpoint with estimates.
const ADMISSIONS_MAX: usize = 64;

/// A request and its position among the answers.
type Item = (usize, NewTx);
type Answer = Result<AcceptedTx, Refusal>;

/// Accepts many requests, each on its own; answers in the order given. The requests of a lane get their nonces in that
/// order, and of equal request ids the first one wins. A lane whose chain answers slowly holds up no other lane.
pub(crate) async fn create_batch(core: &Arc<Core>, requests: Vec<NewTx>) -> Vec<Answer> {
    let mut lanes: BTreeMap<LaneKey, Vec<Item>> = BTreeMap::new();
    for item in requests.into_iter().enumerate() {
        lanes.entry(item.1.lane).or_default().push(item);
    }
    let lanes = lanes.into_values().map(|items| create_in_lane(core, items));
    let mut answers: Vec<(usize, Answer)> = join_all(lanes).await.into_iter().flatten().collect();
    answers.sort_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

async fn create_in_lane(core: &Arc<Core>, mut items: Vec<Item>) -> Vec<(usize, Answer)> {
    let mut answers = Vec::with_capacity(items.len());
    while !items.is_empty() {
        // A repeat waits until the request before it is decided: on the way to another node, or into the store's queue,
        // it could overtake that one.
        let repeats = split_off_repeats(&mut items);
        answers.extend(create_in_order(core, items).await);
        items = repeats;
    }
    answers
}

/// Removes the items whose request id an earlier item has.
fn split_off_repeats(items: &mut Vec<Item>) -> Vec<Item> {
    let mut seen: BTreeSet<RequestId> = BTreeSet::new();
    items
        .extract_if(.., |(_, new)| !seen.insert(new.request_id.clone()))
        .collect()
}

/// Admits many at once, and routes each as soon as those before it are routed. It waits for no commit in between, so that
/// requests of one batch share commits.
async fn create_in_order(core: &Arc<Core>, items: Vec<Item>) -> Vec<(usize, Answer)> {
    let count = items.len();
    let admit = |(index, new)| async move {
        let admission = admit_request(core, new, RequestSource::Client).await;
        (index, admission)
    };
    let create = |(index, admission)| async move {
        let answer = create_admitted(core, admission, RequestSource::Client).await;
        (index, answer)
    };
    stream::iter(items.into_iter().map(admit))
        .buffered(ADMISSIONS_MAX)
        .map(create)
        .buffer_unordered(count)
        .collect()
        .await
}
