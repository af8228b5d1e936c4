//! Sends requests for the poisoned lane to all nodes.

use std::sync::Arc;

use alloy_primitives::{Address, Bytes, U256};
use domain::{Payload, RequestId};
use engine::node::{NewTx, Origin};
use tokio::sync::Semaphore;

use super::WorkloadContext;
use crate::chain::{REJECTED, UNSIGNABLE};
use crate::world::features::Feature;
use crate::world::poison::{Poison, PoisonKind};

/// The longest pause between two requests.
const PAUSE_MS_MAX: u64 = 500;
/// How many of them wait for an answer at once.
const AT_ONCE: usize = 64;

pub(super) async fn send_requests(context: WorkloadContext) {
    let Some(poison) = context.plan.poison else {
        return;
    };
    let seats = Arc::new(Semaphore::new(AT_ONCE));
    for number in 0_u64.. {
        context.pause(0, PAUSE_MS_MAX).await;
        context.trace.fire(Feature::Poison);
        let Ok(seat) = Arc::clone(&seats).try_acquire_owned() else {
            continue;
        };
        let (context, new) = (context.clone(), request(&poison, number));
        // Detached: the task ends by itself, or with the world.
        drop(tokio::spawn(async move {
            let machine = context.pick_machine().clone();
            let answer = context.call_node(&machine, |node| async move { node.create(new).await });
            drop(answer.await); // any answer is fine for this lane
            drop(seat);
        }));
    }
}

fn request(poison: &Poison, number: u64) -> NewTx {
    let id = format!("poison-{number}");
    let mark: &[u8] = match poison.kind {
        PoisonKind::Unsignable => &UNSIGNABLE,
        PoisonKind::Rejected => &REJECTED,
        PoisonKind::SignerHangs
        | PoisonKind::SignerDown
        | PoisonKind::Broke
        | PoisonKind::Unreadable
        | PoisonKind::Unwritable => &[],
    };
    let mut payload = Payload::transfer(Address::repeat_byte(0xee), U256::from(number));
    payload.data = Bytes::from([mark, id.as_bytes()].concat());
    payload.gas = Some(100_000);
    NewTx {
        lane: poison.lane(),
        request_id: RequestId::parse(id).expect("a valid request id"),
        payload,
        estimated_gas: None,
        origin: Origin::default(),
    }
}
