//! Many requests of one lane that revert, while endpoints take long to show why.

use std::time::Duration;

use alloy_primitives::{Address, Bytes, U256};
use domain::{Payload, RequestId};
use engine::node::{NewTx, Origin};
use futures::future::join_all;

use super::WorkloadContext;
use crate::chain::REVERTS;
use crate::world::features::Feature;

/// The pause before each flood.
const PAUSE_MS: (u64, u64) = (2_000, 20_000);
/// How many floods there are, and how many requests each has.
const FLOODS: u64 = 2;
const FLOOD: (u64, u64) = (10, 30);
/// How long an endpoint needs to show why one reverted.
const REASON_DELAY: Duration = Duration::from_secs(1);
/// The gas of a request.
const GAS: u64 = 100_000;

pub(super) async fn send_reverts(context: WorkloadContext) {
    context.chain.set_reason_delay(REASON_DELAY);
    for flood in 0..FLOODS {
        context.pause(PAUSE_MS.0, PAUSE_MS.1).await;
        context.trace.fire(Feature::RevertFloods);
        let lane = *context.rng.pick(&context.plan.harmed_lanes());
        let count = context.rng.between(FLOOD.0, FLOOD.1);
        let requests = (0..count).map(|number| {
            let id = format!("revert-{flood}-{number}");
            let mut payload = Payload::transfer(Address::repeat_byte(0xee), U256::from(1));
            payload.data = Bytes::from([&REVERTS, id.as_bytes()].concat());
            payload.gas = Some(GAS);
            context.submit_harmful(NewTx {
                lane,
                request_id: RequestId::parse(id).expect("a valid request id"),
                payload,
                origin: Origin::default(),
                estimated_gas: None,
            })
        });
        join_all(requests).await;
    }
}
