//! Somebody who asks for a lane that never works, again and again, from all nodes.

use std::sync::Arc;

use alloy_primitives::{Address, Bytes, U256};
use domain::{Payload, RequestId};
use engine::node::{NewTx, Origin};
use tokio::sync::Semaphore;

use super::Scene;
use crate::chain::{REJECTED, UNSIGNABLE};
use crate::world::poison::{Poison, PoisonWay};

/// The longest pause between two requests.
const PAUSE_MS_MAX: u64 = 500;
/// How many of them wait for an answer at once.
const AT_ONCE: usize = 64;

pub(super) async fn ask_for_ever(scene: Scene) {
    let Some(poison) = scene.plan.poison else {
        return;
    };
    let seats = Arc::new(Semaphore::new(AT_ONCE));
    for number in 0_u64.. {
        scene.rest(0, PAUSE_MS_MAX).await;
        let Ok(seat) = Arc::clone(&seats).try_acquire_owned() else {
            continue;
        };
        let (scene, new) = (scene.clone(), request(&poison, number));
        // The handle is let go: it ends by itself, or with the world.
        drop(tokio::spawn(async move {
            let machine = scene.some_machine().clone();
            let asked = scene.lease_request(&machine, |node| async move { node.create(new).await });
            drop(asked.await); // whatever it is told: nobody expects anything of this lane
            drop(seat);
        }));
    }
}

fn request(poison: &Poison, number: u64) -> NewTx {
    let id = format!("poison-{number}");
    let mark: &[u8] = match poison.way {
        PoisonWay::Unsignable => &UNSIGNABLE,
        PoisonWay::Rejected => &REJECTED,
        PoisonWay::SignerHangs
        | PoisonWay::SignerDown
        | PoisonWay::Broke
        | PoisonWay::Unreadable
        | PoisonWay::Unwritable => &[],
    };
    let mut payload = Payload::transfer(Address::repeat_byte(0xee), U256::from(number));
    payload.data = Bytes::from([mark, id.as_bytes()].concat());
    payload.gas = Some(100_000);
    NewTx {
        lane: poison.lane(),
        request_id: RequestId::parse(id).expect("keeps the rule"),
        payload,
        estimated_gas: None,
        origin: Origin::default(),
    }
}
