//! Known requests that are sent again: one at a time, and many at once to one node; some with another payload, which must be
//! refused.

use std::sync::Arc;

use alloy_primitives::{Address, U256};
use domain::{LaneKey, Payload, RequestId};
use engine::node::{NewTx, Origin};
use futures::future::join_all;

use super::WorkloadContext;
use crate::event::Answer;
use crate::world::features::Feature;

/// The pause before each.
const PAUSE_MS: (u64, u64) = (500, 10_000);
/// How many requests a lane of its own has.
const KNOWN_MAX: u64 = 5;
/// How many repeats are sent at once.
const FLOOD: (u64, u64) = (10, 40);
/// How often a repeat is a flood, and how often it has another payload, per thousand.
const FLOOD_PERMILLE: u64 = 300;
const OTHER_PERMILLE: u64 = 150;
/// The gas of a request.
const GAS: u64 = 100_000;

pub(super) async fn repeat_requests(context: WorkloadContext) {
    let lanes = context.plan.harmed_lanes();
    let known: Arc<Vec<NewTx>> = Arc::new(
        (0..KNOWN_MAX)
            .map(|number| request(*context.rng.pick(&lanes), number))
            .collect(),
    );
    loop {
        context.pause(PAUSE_MS.0, PAUSE_MS.1).await;
        let new = context.rng.pick(&known).clone();
        let count = match context.rng.permille(FLOOD_PERMILLE) {
            true => context.rng.between(FLOOD.0, FLOOD.1),
            false => 1,
        };
        let first = context.submit_harmful(new.clone()).await;
        if !matches!(first, Answer::Accepted { .. }) {
            continue; // not known yet
        }
        context.trace.fire(Feature::RepeatFloods);
        let repeats = (0..count).map(|_| context.submit_harmful(new.clone()));
        join_all(repeats).await;
        if context.rng.permille(OTHER_PERMILLE) {
            reuse_key(&context, new).await;
        }
    }
}

/// The same key with another payload is refused, unless the store lost the request.
async fn reuse_key(context: &WorkloadContext, mut new: NewTx) {
    let key = (new.lane, new.request_id.clone());
    new.payload.value += U256::from(1);
    let answer = context.submit_harmful(new).await;
    let lost = context.store.loss();
    let is_lost = lost.lanes.contains(&key.0) || lost.requests.contains(&key);
    if matches!(answer, Answer::Accepted { .. }) && !is_lost {
        let id = key.1;
        context.trace.violation(&format!(
            "an idempotency key is used once: {id} with another payload"
        ));
    }
}

fn request(lane: LaneKey, number: u64) -> NewTx {
    let id = format!("repeat-{number}");
    let mut payload = Payload::transfer(Address::repeat_byte(0xee), U256::from(number));
    payload.data = id.clone().into_bytes().into();
    payload.gas = Some(GAS);
    NewTx {
        lane,
        request_id: RequestId::parse(id).expect("a valid request id"),
        payload,
        origin: Origin::default(),
        estimated_gas: None,
    }
}
