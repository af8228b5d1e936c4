//! What a holder may say of his nonce.

use domain::{Holder, Mark, MarkRefusal, Nonce, Reservation, ReservationState};
use engine::ports::{Chain as _, NonceReservations, ReservationError};
use uuid::Uuid;

use super::super::kit::{FOREIGN_DEPTH, hash, lane};
use super::{Process, World};

async fn say(
    process: &Process,
    nonce: Nonce,
    holder: Holder,
    mark: Mark,
) -> Result<Reservation, ReservationError> {
    process.component.mark(lane(1), nonce, holder, mark).await
}

/// One of every kind.
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

pub(crate) async fn used_by_the_same_transaction_twice_is_fine(world: &World) {
    let process = world.process().await;
    let lent = process.borrow().await;
    let used = process.use_up(&lent, hash(1)).await;
    assert_eq!(
        (used.state, used.tx_hash),
        (ReservationState::Used, Some(hash(1)))
    );
    assert_eq!(process.use_up(&lent, hash(1)).await, used);
    let other = say(&process, lent.nonce, lent.holder, Mark::Used(hash(2))).await;
    let refused = MarkRefusal::IsUsed {
        nonce: lent.nonce,
        by: hash(1).to_string(),
    };
    assert_eq!(other, Err(refused.into()));
    assert_eq!(process.row(&lent).await, used);
}

pub(crate) async fn submitted_twice_is_fine_and_the_last_word_counts(world: &World) {
    let process = world.process().await;
    let lent = process.borrow().await;
    for tx_hash in [hash(1), hash(1), hash(2)] {
        let said = process.submit(&lent, tx_hash).await;
        assert_eq!(
            (said.state, said.tx_hash),
            (ReservationState::Reserved, Some(tx_hash))
        );
    }
    assert_eq!(process.row(&lent).await.tx_hash, Some(hash(2)));
    let used = process.use_up(&lent, hash(3)).await;
    assert_eq!(
        (used.state, used.tx_hash),
        (ReservationState::Used, Some(hash(3)))
    );
}

pub(crate) async fn given_back_twice_is_fine(world: &World) {
    let process = world.process().await;
    let lent = process.borrow().await;
    let given = process.give_back(&lent).await;
    assert_eq!(given.state, ReservationState::Recyclable);
    assert_eq!(given.reason.as_deref(), Some("not needed"));
    assert_eq!(
        process.give_back(&lent).await.state,
        ReservationState::Recyclable
    );
    assert_eq!(process.borrow().await.nonce, lent.nonce, "it is free once");
    assert_eq!(process.borrow().await.nonce, lent.nonce.next());
}

pub(crate) async fn a_former_holder_is_refused(world: &World) {
    let process = world.process().await;
    let former = process.borrow().await;
    process.give_back(&former).await;
    let present = process.borrow().await;
    assert_eq!(present.nonce, former.nonce);
    for mark in all_marks() {
        let said = say(&process, former.nonce, former.holder, mark).await;
        assert_eq!(said, Err(MarkRefusal::NotHolder(former.nonce).into()));
    }
    assert_eq!(process.row(&present).await, present);
}

pub(crate) async fn a_stranger_is_refused(world: &World) {
    let process = world.process().await;
    let lent = process.borrow().await;
    let stranger = Holder(Uuid::from_u128(99));
    for mark in all_marks() {
        let said = say(&process, lent.nonce, stranger, mark).await;
        assert_eq!(said, Err(MarkRefusal::NotHolder(lent.nonce).into()));
    }
    assert_eq!(process.row(&lent).await, lent);
}

pub(crate) async fn what_was_never_lent_is_refused(world: &World) {
    let process = world.process().await;
    let not_lent = async |nonce: Nonce, holder: Holder| {
        for mark in all_marks() {
            let said = say(&process, nonce, holder, mark).await;
            assert_eq!(said, Err(MarkRefusal::NotLent(nonce).into()));
        }
        assert_eq!(
            process.scheme.reservation(lane(1), nonce, holder).await,
            Ok(None)
        );
    };
    // A lane that nobody knows, then nonces above all that were lent, then impossible ones.
    not_lent(Nonce(0), Holder(Uuid::from_u128(1))).await;
    let lent = process.borrow().await;
    for nonce in [1_000_000, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX] {
        not_lent(Nonce(nonce), lent.holder).await;
    }
}

pub(crate) async fn what_is_free_cannot_be_used(world: &World) {
    let process = world.process().await;
    let lent = process.borrow().await;
    process.give_back(&lent).await;
    for mark in [Mark::Submitted(hash(1)), Mark::Used(hash(1))] {
        let said = say(&process, lent.nonce, lent.holder, mark).await;
        assert_eq!(said, Err(MarkRefusal::IsFree(lent.nonce).into()));
    }
}

pub(crate) async fn what_is_used_cannot_be_given_back(world: &World) {
    let process = world.process().await;
    let lent = process.borrow().await;
    process.use_up(&lent, hash(1)).await;
    let mark = Mark::Recyclable {
        reason: "changed my mind".into(),
        asked: None,
    };
    let said = say(&process, lent.nonce, lent.holder, mark).await;
    assert!(
        matches!(
            said,
            Err(ReservationError::Refused(MarkRefusal::IsUsed { .. }))
        ),
        "{said:?}"
    );
    assert_eq!(process.borrow().await.nonce, lent.nonce.next());
}

/// A word of the holder that comes between the question to the chain and the mark is not lost.
pub(crate) async fn what_was_named_after_the_chain_was_asked_cannot_be_given_back(world: &World) {
    let process = world.process().await;
    let lent = process.borrow().await;
    let give_back = async |asked| {
        let reason = "not needed".into();
        let mark = Mark::Recyclable { reason, asked };
        let scheme = &process.scheme;
        scheme.mark(lane(1), lent.nonce, lent.holder, mark).await
    };
    let submitted = process.submit(&lent, hash(1)).await;
    for asked in [None, Some(hash(2))] {
        let refused = MarkRefusal::NamedSince {
            nonce: lent.nonce,
            hash: hash(1).to_string(),
        };
        assert_eq!(give_back(asked).await, Err(refused.into()));
        assert_eq!(process.row(&lent).await, submitted);
    }
    assert_eq!(process.borrow().await.nonce, lent.nonce.next());
    let given = give_back(Some(hash(1))).await.unwrap();
    assert_eq!(given.state, ReservationState::Recyclable);
    assert_eq!(process.borrow().await.nonce, lent.nonce);
}

/// A pool may keep the earlier one behind a nonce that is missing, and no node that is asked shows it.
pub(crate) async fn a_nonce_with_two_named_transactions_is_not_given_back(world: &World) {
    let process = world.process().await;
    let lent = process.borrow().await;
    assert!(!process.submit(&lent, hash(1)).await.was_replaced);
    process.submit(&lent, hash(2)).await;
    let replaced = process.submit(&lent, hash(1)).await;
    assert!(replaced.was_replaced);
    let refused = ReservationError::Refused(MarkRefusal::TwoNamed(lent.nonce));
    assert!(!refused.is_worth_repeating());
    for process in [&process, &world.process().await] {
        for asked in [None, Some(hash(1)), Some(hash(2))] {
            let reason = "not needed".into();
            let mark = Mark::Recyclable { reason, asked };
            let scheme = &process.scheme;
            let said = scheme.mark(lane(1), lent.nonce, lent.holder, mark).await;
            assert_eq!(said, Err(refused.clone()));
        }
        let component = &process.component;
        let said = component.mark_recyclable(lane(1), lent.nonce, lent.holder, "not needed");
        assert_eq!(said.await, Err(refused.clone()));
        assert_eq!(process.row(&lent).await, replaced);
    }
    assert_eq!(process.borrow().await.nonce, lent.nonce.next());
    // Either may be mined, and closes it.
    world.chain.send(lane(1).signer, lent.nonce.0, hash(2));
    world.chain.mine(1 + FOREIGN_DEPTH);
    let mut sweep = process.component.sweep();
    let state = ReservationState::Used;
    let used = process.sweep_until(&mut sweep, &lent, state).await;
    assert_eq!(used.tx_hash, Some(hash(2)));
}

pub(crate) async fn any_words_in_any_order_do_what_the_one_table_says(world: &World) {
    let process = world.process().await;
    let mut chance: u64 = 0x5EED;
    let mut draw = |below: u64| {
        chance = chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (chance >> 33) % below
    };
    for loan in 0..20 {
        let mut model = process.borrow().await;
        let (owner, stranger) = (model.holder, Holder(Uuid::from_u128(99)));
        for _ in 0..5 {
            // A transaction has one nonce, so every loan has two of its own.
            let tx_hash = hash(u8::try_from(2 * loan + draw(2)).expect("small") + 1);
            let mark = match draw(3) {
                0 => Mark::Submitted(tx_hash),
                1 => Mark::Used(tx_hash),
                // The chain shows nothing, so it speaks against nothing.
                _ => Mark::Recyclable {
                    reason: format!("reason {tx_hash}"),
                    asked: model.tx_hash, // as the component asks
                },
            };
            let holder = if draw(5) == 0 { stranger } else { owner };
            let expected = model.mark(holder, &mark);
            let said = say(&process, model.nonce, holder, mark.clone()).await;
            match expected {
                Ok(()) => assert_eq!(said, Ok(model.clone()), "after {mark:?}"),
                Err(refused) => assert_eq!(said, Err(refused.into()), "after {mark:?}"),
            }
            assert_eq!(process.row(&model).await, model);
        }
    }
}

pub(crate) async fn marks_are_durable_when_they_are_answered(world: &World) {
    let process = world.process().await;
    let lent = process.borrow_many(3).await;
    let said = [
        process.submit(&lent[0], hash(1)).await,
        process.use_up(&lent[1], hash(2)).await,
        process.give_back(&lent[2]).await,
    ];
    // Another process knows nothing but the books.
    let other = world.process().await;
    for (index, said) in said.iter().enumerate() {
        assert_eq!(other.row(&lent[index]).await, *said);
    }
}

pub(crate) async fn any_process_hears_any_holder(world: &World) {
    let first = world.process().await;
    let ids = [&world.chain, &world.other_chain].map(|chain| chain.id());
    let lanes = ids.into_iter().flat_map(|chain_id| {
        let of = move |signer| domain::LaneKey {
            chain_id,
            ..lane(signer)
        };
        [1, 2, 9].map(of)
    });
    let mut lent = Vec::new();
    for lane in lanes {
        for _ in 0..3 {
            lent.push(first.component.allocate(lane).await.unwrap());
        }
    }
    // Processes that came later and lent nothing.
    let later = [world.process().await, world.process().await];
    for (one, name) in lent.iter().zip(1..) {
        let process = &later[usize::from(name) % 2];
        let said = process.submit(one, hash(name)).await;
        assert_eq!(said.tx_hash, Some(hash(name)));
        assert_eq!(
            process.use_up(one, hash(name)).await.state,
            ReservationState::Used
        );
    }
}

pub(crate) async fn any_reason_is_taken(world: &World) {
    let process = world.process().await;
    for reason in [
        "",
        "a\0b",
        "'; DROP TABLE nonce_lane; --",
        &"ü".repeat(10_000),
    ] {
        let lent = process.borrow().await;
        let mark = Mark::Recyclable {
            reason: reason.to_owned(),
            asked: None,
        };
        let said = say(&process, lent.nonce, lent.holder, mark).await.unwrap();
        assert_eq!(said.state, ReservationState::Recyclable);
        assert_eq!(process.row(&lent).await, said);
    }
}
