//! Marks of a holder.

use domain::{Holder, Mark, MarkRefusal, Nonce, Reservation, ReservationState};
use engine::ports::{Chain as _, NonceReservations, ReservationError};
use nonce::ReservationKey;
use uuid::Uuid;

use super::super::kit::{FOREIGN_DEPTH, hash, lane};
use super::{Process, Scenario};

async fn send_mark(
    process: &Process,
    nonce: Nonce,
    holder: Holder,
    mark: Mark,
) -> Result<Reservation, ReservationError> {
    process.component.mark(lane(1), nonce, holder, mark).await
}

/// One mark of every kind.
fn all_marks() -> [Mark; 3] {
    [
        Mark::Submitted(hash(8)),
        Mark::Used(hash(8)),
        Mark::Recyclable {
            reason: "no".into(),
            asked: None,
        },
    ]
}

pub(crate) async fn mark_used_is_idempotent_for_the_same_hash(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve().await;
    let used = process.mark_used(&reserved, hash(1)).await;
    assert_eq!(
        (used.state, used.tx_hash),
        (ReservationState::Used, Some(hash(1)))
    );
    assert_eq!(process.mark_used(&reserved, hash(1)).await, used);
    let other = send_mark(
        &process,
        reserved.nonce,
        reserved.holder,
        Mark::Used(hash(2)),
    )
    .await;
    let refused = MarkRefusal::IsUsed {
        nonce: reserved.nonce,
        by: hash(1).to_string(),
    };
    assert_eq!(other, Err(refused.into()));
    assert_eq!(process.row(&reserved).await, used);
}

pub(crate) async fn last_submitted_hash_replaces_earlier_ones(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve().await;
    for tx_hash in [hash(1), hash(1), hash(2)] {
        let marked = process.mark_submitted(&reserved, tx_hash).await;
        assert_eq!(
            (marked.state, marked.tx_hash),
            (ReservationState::Reserved, Some(tx_hash))
        );
    }
    assert_eq!(process.row(&reserved).await.tx_hash, Some(hash(2)));
    let used = process.mark_used(&reserved, hash(3)).await;
    assert_eq!(
        (used.state, used.tx_hash),
        (ReservationState::Used, Some(hash(3)))
    );
}

pub(crate) async fn mark_recyclable_is_idempotent(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve().await;
    let recycled = process.recycle(&reserved).await;
    assert_eq!(recycled.state, ReservationState::Recyclable);
    assert_eq!(recycled.reason.as_deref(), Some("not needed"));
    assert_eq!(
        process.recycle(&reserved).await.state,
        ReservationState::Recyclable
    );
    assert_eq!(
        process.reserve().await.nonce,
        reserved.nonce,
        "it is recycled once"
    );
    assert_eq!(process.reserve().await.nonce, reserved.nonce.next());
}

pub(crate) async fn marks_of_a_former_holder_are_refused(scenario: &Scenario) {
    let process = scenario.process().await;
    let former = process.reserve().await;
    process.recycle(&former).await;
    let present = process.reserve().await;
    assert_eq!(present.nonce, former.nonce);
    for mark in all_marks() {
        let marked = send_mark(&process, former.nonce, former.holder, mark).await;
        assert_eq!(marked, Err(MarkRefusal::NotHolder(former.nonce).into()));
    }
    assert_eq!(process.row(&present).await, present);
}

pub(crate) async fn marks_of_an_unknown_holder_are_refused(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve().await;
    let stranger = Holder(Uuid::from_u128(99));
    for mark in all_marks() {
        let marked = send_mark(&process, reserved.nonce, stranger, mark).await;
        assert_eq!(marked, Err(MarkRefusal::NotHolder(reserved.nonce).into()));
    }
    assert_eq!(process.row(&reserved).await, reserved);
}

pub(crate) async fn marks_on_a_never_reserved_nonce_are_refused(scenario: &Scenario) {
    let process = scenario.process().await;
    let assert_not_reserved = async |nonce: Nonce, holder: Holder| {
        for mark in all_marks() {
            let marked = send_mark(&process, nonce, holder, mark).await;
            assert_eq!(marked, Err(MarkRefusal::NotReserved(nonce).into()));
        }
        assert_eq!(
            process
                .scheme
                .find_reservation(ReservationKey {
                    lane: lane(1),
                    nonce,
                    holder,
                })
                .await,
            Ok(None)
        );
    };
    // An unknown lane, then nonces above all reserved ones, then out of range.
    assert_not_reserved(Nonce(0), Holder(Uuid::from_u128(1))).await;
    let reserved = process.reserve().await;
    for nonce in [1_000_000, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX] {
        assert_not_reserved(Nonce(nonce), reserved.holder).await;
    }
}

pub(crate) async fn recyclable_nonce_cannot_be_submitted_or_used(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve().await;
    process.recycle(&reserved).await;
    for mark in [Mark::Submitted(hash(1)), Mark::Used(hash(1))] {
        let marked = send_mark(&process, reserved.nonce, reserved.holder, mark).await;
        assert_eq!(marked, Err(MarkRefusal::IsFree(reserved.nonce).into()));
    }
}

pub(crate) async fn used_nonce_cannot_be_recycled(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve().await;
    process.mark_used(&reserved, hash(1)).await;
    let mark = Mark::Recyclable {
        reason: "not sent".into(),
        asked: None,
    };
    let marked = send_mark(&process, reserved.nonce, reserved.holder, mark).await;
    assert!(
        matches!(
            marked,
            Err(ReservationError::Refused(MarkRefusal::IsUsed { .. }))
        ),
        "{marked:?}"
    );
    assert_eq!(process.reserve().await.nonce, reserved.nonce.next());
}

/// A mark that arrives between the chain check and the recycling is not lost.
pub(crate) async fn hash_submitted_after_the_chain_check_blocks_recycling(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve().await;
    let recycle = async |asked| {
        let reason = "not needed".into();
        let mark = Mark::Recyclable { reason, asked };
        let scheme = &process.scheme;
        scheme.mark(ReservationKey::from(&reserved), mark).await
    };
    let submitted = process.mark_submitted(&reserved, hash(1)).await;
    for asked in [None, Some(hash(2))] {
        let refused = MarkRefusal::NamedSince {
            nonce: reserved.nonce,
            hash: hash(1).to_string(),
        };
        assert_eq!(recycle(asked).await, Err(refused.into()));
        assert_eq!(process.row(&reserved).await, submitted);
    }
    assert_eq!(process.reserve().await.nonce, reserved.nonce.next());
    let recycled = recycle(Some(hash(1))).await.unwrap();
    assert_eq!(recycled.state, ReservationState::Recyclable);
    assert_eq!(process.reserve().await.nonce, reserved.nonce);
}

/// A mempool may keep the earlier transaction behind a missing nonce, where no queried node shows it.
pub(crate) async fn nonce_with_two_submitted_hashes_cannot_be_recycled(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve().await;
    assert!(
        !process
            .mark_submitted(&reserved, hash(1))
            .await
            .was_replaced
    );
    process.mark_submitted(&reserved, hash(2)).await;
    let replaced = process.mark_submitted(&reserved, hash(1)).await;
    assert!(replaced.was_replaced);
    let refused = ReservationError::Refused(MarkRefusal::TwoNamed(reserved.nonce));
    assert!(!refused.is_worth_repeating());
    for process in [&process, &scenario.process().await] {
        for asked in [None, Some(hash(1)), Some(hash(2))] {
            let reason = "not needed".into();
            let mark = Mark::Recyclable { reason, asked };
            let scheme = &process.scheme;
            let marked = scheme.mark(ReservationKey::from(&reserved), mark).await;
            assert_eq!(marked, Err(refused.clone()));
        }
        let component = &process.component;
        let marked =
            component.mark_recyclable(lane(1), reserved.nonce, reserved.holder, "not needed");
        assert_eq!(marked.await, Err(refused.clone()));
        assert_eq!(process.row(&reserved).await, replaced);
    }
    assert_eq!(process.reserve().await.nonce, reserved.nonce.next());
    // Either transaction may be mined, and closes the reservation.
    scenario
        .chain
        .send(lane(1).signer, reserved.nonce.0, hash(2));
    scenario.chain.mine(1 + FOREIGN_DEPTH);
    let mut sweep = process.component.sweep();
    let state = ReservationState::Used;
    let used = process.sweep_until(&mut sweep, &reserved, state).await;
    assert_eq!(used.tx_hash, Some(hash(2)));
}

pub(crate) async fn random_marks_follow_the_domain_rules(scenario: &Scenario) {
    let process = scenario.process().await;
    let mut chance: u64 = 0x5EED;
    let mut draw = |below: u64| {
        chance = chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (chance >> 33) % below
    };
    for round in 0..20 {
        let mut model = process.reserve().await;
        let (owner, stranger) = (model.holder, Holder(Uuid::from_u128(99)));
        for _ in 0..5 {
            // A transaction has one nonce, so every reservation has two hashes of its own.
            let tx_hash = hash(u8::try_from(2 * round + draw(2)).expect("small") + 1);
            let mark = match draw(3) {
                0 => Mark::Submitted(tx_hash),
                1 => Mark::Used(tx_hash),
                // The chain shows nothing, so the chain check passes.
                _ => Mark::Recyclable {
                    reason: format!("reason {tx_hash}"),
                    asked: model.tx_hash, // as the component does
                },
            };
            let holder = if draw(5) == 0 { stranger } else { owner };
            let expected = model.mark(holder, &mark);
            let marked = send_mark(&process, model.nonce, holder, mark.clone()).await;
            match expected {
                Ok(()) => assert_eq!(marked, Ok(model.clone()), "after {mark:?}"),
                Err(refused) => assert_eq!(marked, Err(refused.into()), "after {mark:?}"),
            }
            assert_eq!(process.row(&model).await, model);
        }
    }
}

pub(crate) async fn acknowledged_marks_are_durable(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve_many(3).await;
    let marked = [
        process.mark_submitted(&reserved[0], hash(1)).await,
        process.mark_used(&reserved[1], hash(2)).await,
        process.recycle(&reserved[2]).await,
    ];
    // Another process knows only the ledger.
    let other = scenario.process().await;
    for (index, marked) in marked.iter().enumerate() {
        assert_eq!(other.row(&reserved[index]).await, *marked);
    }
}

pub(crate) async fn any_process_accepts_marks_of_any_holder(scenario: &Scenario) {
    let first = scenario.process().await;
    let ids = [&scenario.chain, &scenario.other_chain].map(|chain| chain.id());
    let lanes = ids.into_iter().flat_map(|chain_id| {
        let of = move |signer| domain::LaneKey {
            chain_id,
            ..lane(signer)
        };
        [1, 2, 9].map(of)
    });
    let mut reserved = Vec::new();
    for lane in lanes {
        for _ in 0..3 {
            reserved.push(first.component.allocate(lane).await.unwrap());
        }
    }
    // Processes that started later and reserved nothing.
    let later = [scenario.process().await, scenario.process().await];
    for (one, name) in reserved.iter().zip(1..) {
        let process = &later[usize::from(name) % 2];
        let marked = process.mark_submitted(one, hash(name)).await;
        assert_eq!(marked.tx_hash, Some(hash(name)));
        assert_eq!(
            process.mark_used(one, hash(name)).await.state,
            ReservationState::Used
        );
    }
}

pub(crate) async fn any_recycle_reason_is_accepted(scenario: &Scenario) {
    let process = scenario.process().await;
    for reason in [
        "",
        "a\0b",
        "'; DROP TABLE nonce_lane; --",
        &"ü".repeat(10_000),
    ] {
        let reserved = process.reserve().await;
        let mark = Mark::Recyclable {
            reason: reason.to_owned(),
            asked: None,
        };
        let marked = send_mark(&process, reserved.nonce, reserved.holder, mark)
            .await
            .unwrap();
        assert_eq!(marked.state, ReservationState::Recyclable);
        assert_eq!(process.row(&reserved).await, marked);
    }
}
