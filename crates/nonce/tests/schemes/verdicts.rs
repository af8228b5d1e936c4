//! Watched reservations, and the effect of the sweep's verdicts.

use std::time::Duration;

use domain::{B256, Header, Mark, Nonce, Reservation, ReservationState};
use nonce::{ConditionalVerdict, ReserveRequest, RowLock, Scheme, Verdict, WatchedReservation};

use crate::kit::{LONG, database, db, holder, key, lane, request, request_at_least};

const A: B256 = B256::repeat_byte(0xaa);

fn header(number: u64) -> Header {
    Header {
        number,
        hash: B256::with_last_byte(u8::try_from(number).unwrap()),
        parent_hash: A,
        timestamp: 1_000 + number,
    }
}

fn overdue() -> ReserveRequest {
    ReserveRequest {
        timeout: Duration::ZERO,
        ..request()
    }
}

async fn seen(scheme: &RowLock, nonce: u64) -> Option<WatchedReservation> {
    let watched = scheme.list_watched(100).await.unwrap();
    let mut watched = watched.into_iter();
    watched.find(|watched| watched.reservation.nonce == Nonce(nonce))
}

async fn apply_verdicts(
    scheme: &RowLock,
    seen: &WatchedReservation,
    verdict: Verdict,
) -> Reservation {
    let conditional = ConditionalVerdict {
        seen: seen.clone(),
        verdict,
    };
    scheme.apply_verdicts(&[conditional]).await.unwrap();
    let Reservation {
        lane,
        nonce,
        holder,
        ..
    } = seen.reservation;
    scheme
        .find_reservation(key(lane, nonce, holder))
        .await
        .unwrap()
        .unwrap()
}

#[tokio::test]
async fn only_due_reservations_are_watched_page_by_page() {
    let database = database("watch").await;
    let scheme = RowLock::new(db(database.url(), 2), None);
    let mut due = Vec::new();
    for number in 1..=3 {
        for round in 0..10 {
            let wanted = if round % 2 == 0 { overdue() } else { request() };
            let reserved = scheme.allocate(lane(number), wanted).await.unwrap();
            let is_due = round % 2 == 0 || round == 5;
            if round == 5 {
                let mark = Mark::Submitted(A);
                scheme
                    .mark(key(reserved.lane, reserved.nonce, reserved.holder), mark)
                    .await
                    .unwrap();
            }
            if is_due {
                due.push((reserved.lane, reserved.nonce));
            }
        }
    }
    let mut pages = Vec::new();
    for _ in 0..4 {
        let page = scheme.list_watched(5).await.unwrap();
        assert!(page.len() <= 5);
        pages.extend(
            page.into_iter()
                .map(|w| (w.reservation.lane, w.reservation.nonce)),
        );
    }
    assert_eq!(pages, due, "each once, then from the start");
    assert_eq!(scheme.list_watched(100).await.unwrap().len(), due.len());
}

#[tokio::test]
async fn recyclable_nonces_below_the_chain_are_watched_and_closed() {
    let database = database("below").await;
    let scheme = RowLock::new(db(database.url(), 2), None);
    let reserved = scheme.allocate(lane(1), request()).await.unwrap();
    let mark = Mark::Recyclable {
        reason: "too expensive".into(),
        asked: None,
    };
    scheme
        .mark(key(lane(1), reserved.nonce, reserved.holder), mark)
        .await
        .unwrap();
    assert_eq!(seen(&scheme, 0).await, None);
    scheme.allocate(lane(1), request_at_least(3)).await.unwrap();
    let watched = scheme.list_watched(100).await.unwrap();
    let nonces: Vec<u64> = watched.iter().map(|w| w.reservation.nonce.0).collect();
    assert_eq!(nonces, [0, 1, 2]);
    let (tx_hash, block) = (Some(A), header(7));
    let closed = apply_verdicts(&scheme, &watched[0], Verdict::Used { tx_hash, block }).await;
    assert_eq!(
        (closed.state, closed.tx_hash),
        (ReservationState::Used, Some(A))
    );
    let next = scheme.allocate(lane(1), request()).await.unwrap();
    assert_eq!(next.nonce, Nonce(1), "a used nonce is not recyclable");
}

#[tokio::test]
async fn only_expired_unsubmitted_unchanged_reservation_is_recycled() {
    let database = database("free").await;
    let scheme = RowLock::new(db(database.url(), 2), None);
    let early = scheme.allocate(lane(1), request()).await.unwrap();
    let early = WatchedReservation {
        reservation: early,
        closed_in: None,
    };
    let rest = apply_verdicts(&scheme, &early, Verdict::Free).await;
    assert_eq!(rest.state, ReservationState::Reserved, "it has not expired");

    let late = scheme.allocate(lane(1), overdue()).await.unwrap();
    let watched = seen(&scheme, 1).await.unwrap();
    assert_eq!(watched.reservation, late);
    let mark = Mark::Submitted(A);
    scheme
        .mark(key(lane(1), Nonce(1), late.holder), mark)
        .await
        .unwrap();
    let rest = apply_verdicts(&scheme, &watched, Verdict::Free).await;
    assert_eq!(
        rest.state,
        ReservationState::Reserved,
        "its holder marked it meanwhile"
    );
    let watched = seen(&scheme, 1).await.unwrap();
    let rest = apply_verdicts(&scheme, &watched, Verdict::Free).await;
    assert_eq!(rest.state, ReservationState::Reserved, "it is submitted");

    let silent = scheme.allocate(lane(1), overdue()).await.unwrap();
    let watched = seen(&scheme, 2).await.unwrap();
    let free = apply_verdicts(&scheme, &watched, Verdict::Free).await;
    assert_eq!(free.state, ReservationState::Recyclable);
    assert!(free.reason.is_some());
    let again = scheme.allocate(lane(1), overdue()).await.unwrap();
    assert_eq!(
        (again.nonce, again.holder == silent.holder),
        (Nonce(2), false)
    );
    // The same verdict a second time, about the former holder.
    let conditional = ConditionalVerdict {
        seen: watched,
        verdict: Verdict::Free,
    };
    scheme.apply_verdicts(&[conditional]).await.unwrap();
    let found = scheme
        .find_reservation(key(lane(1), Nonce(2), again.holder))
        .await
        .unwrap();
    assert_eq!(found, Some(again));
    let late_mark = scheme
        .mark(key(lane(1), Nonce(2), silent.holder), Mark::Used(A))
        .await;
    assert!(late_mark.is_err());
}

#[tokio::test]
async fn used_nonce_is_watched_until_final_and_reopened_by_a_reorg() {
    let database = database("closed").await;
    let scheme = RowLock::new(db(database.url(), 2), None);
    let reserved = scheme.allocate(lane(1), request()).await.unwrap();
    scheme
        .mark(key(lane(1), Nonce(0), reserved.holder), Mark::Submitted(A))
        .await
        .unwrap();
    let submitted = seen(&scheme, 0).await.unwrap();
    let used = |block| Verdict::Used {
        tx_hash: None,
        block,
    };
    let closed = apply_verdicts(&scheme, &submitted, used(header(5))).await;
    assert_eq!(closed.state, ReservationState::Used);
    assert_eq!(closed.tx_hash, Some(A), "the hash of its holder is kept");
    let watched = seen(&scheme, 0).await.unwrap();
    assert_eq!(watched.closed_in, Some(header(5)));

    let seen_in_old_block = watched.clone();
    let open = apply_verdicts(&scheme, &watched, Verdict::Reopened).await;
    assert_eq!(
        (open.state, open.tx_hash),
        (ReservationState::Reserved, Some(A))
    );
    // Stale, like every observation from before the reorg.
    let open = apply_verdicts(&scheme, &watched, Verdict::Buried).await;
    assert_eq!(open.state, ReservationState::Reserved);
    let watched = seen(&scheme, 0).await.unwrap();
    assert_eq!(watched.closed_in, None);
    apply_verdicts(&scheme, &watched, used(header(6))).await;
    let closed = apply_verdicts(&scheme, &seen_in_old_block, Verdict::Reopened).await;
    assert_eq!(
        closed.state,
        ReservationState::Used,
        "another block closed it"
    );
    let watched = seen(&scheme, 0).await.unwrap();
    let buried = apply_verdicts(&scheme, &watched, Verdict::Buried).await;
    assert_eq!(buried.state, ReservationState::Used);
    assert_eq!(seen(&scheme, 0).await, None);
}

#[tokio::test]
async fn concurrent_sweeps_apply_many_verdicts_without_deadlock() {
    let database = database("many").await;
    let scheme = RowLock::new(db(database.url(), 2), None);
    for number in 1..=12 {
        for _ in 0..50 {
            scheme.allocate(lane(number), overdue()).await.unwrap();
        }
    }
    let watched = scheme.list_watched(1_000).await.unwrap();
    assert_eq!(watched.len(), 600);
    let verdicts: Vec<ConditionalVerdict> = watched
        .into_iter()
        .map(|seen| ConditionalVerdict {
            seen,
            verdict: Verdict::Free,
        })
        .collect();
    // Two concurrent sweeps do not deadlock.
    let mut backwards = verdicts.clone();
    backwards.reverse();
    let (one, other) = tokio::join!(
        scheme.apply_verdicts(&verdicts),
        scheme.apply_verdicts(&backwards)
    );
    assert_eq!((one, other), (Ok(()), Ok(())));
    assert_eq!(scheme.list_watched(1_000).await.unwrap(), []);
    let again = ReserveRequest {
        holder: holder(),
        at_least: Nonce(0),
        timeout: LONG,
    };
    assert_eq!(
        scheme.allocate(lane(3), again).await.unwrap().nonce,
        Nonce(0)
    );
}

/// A nonce that its holder forgot is listed at once, however many submitted ones come before it.
#[tokio::test]
async fn overdue_reservations_are_listed_apart_from_submitted_ones() {
    let database = database("overdue").await;
    let scheme = RowLock::new(db(database.url(), 2), None);
    for _ in 0..20 {
        let reserved = scheme.allocate(lane(1), request()).await.unwrap();
        let key = key(reserved.lane, reserved.nonce, reserved.holder);
        scheme.mark(key, Mark::Submitted(A)).await.unwrap();
    }
    let mut forgotten = Vec::new();
    for number in [1, 2, 2] {
        scheme.allocate(lane(number), request()).await.unwrap();
        let reserved = scheme.allocate(lane(number), overdue()).await.unwrap();
        forgotten.push((reserved.lane, reserved.nonce));
    }
    let page = async |limit| {
        let page = scheme.list_overdue(limit).await.unwrap().into_iter();
        let keys = page.map(|one| (one.reservation.lane, one.reservation.nonce));
        keys.collect::<Vec<_>>()
    };
    assert_eq!(page(2).await, forgotten[..2]);
    assert_eq!(page(2).await, forgotten[2..]);
    assert_eq!(page(10).await, forgotten, "from the start again");
    let watched = scheme.list_watched(10).await.unwrap();
    let submitted = watched.iter().all(|one| one.reservation.tx_hash.is_some());
    assert!(submitted, "the first page of all has none of them");
}
