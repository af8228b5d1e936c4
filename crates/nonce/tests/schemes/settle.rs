//! What the sweep is given, and what its verdicts change.

use std::time::Duration;

use domain::{B256, Header, Mark, Nonce, Reservation, ReservationState};
use nonce::{Borrow, RowLock, Scheme, Settlement, Verdict, Watched};

use crate::kit::{LONG, borrow, borrow_at_least, database, db, holder, lane};

const A: B256 = B256::repeat_byte(0xaa);

fn header(number: u64) -> Header {
    Header {
        number,
        hash: B256::with_last_byte(u8::try_from(number).unwrap()),
        parent_hash: A,
        timestamp: 1_000 + number,
    }
}

fn overdue() -> Borrow {
    Borrow {
        timeout: Duration::ZERO,
        ..borrow()
    }
}

async fn seen(scheme: &RowLock, nonce: u64) -> Option<Watched> {
    let watched = scheme.to_watch(100).await.unwrap();
    let mut watched = watched.into_iter();
    watched.find(|watched| watched.reservation.nonce == Nonce(nonce))
}

async fn settle(scheme: &RowLock, seen: &Watched, verdict: Verdict) -> Reservation {
    let settlement = Settlement {
        seen: seen.clone(),
        verdict,
    };
    scheme.settle(&[settlement]).await.unwrap();
    let Reservation {
        lane,
        nonce,
        holder,
        ..
    } = seen.reservation;
    scheme
        .reservation(lane, nonce, holder)
        .await
        .unwrap()
        .unwrap()
}

#[tokio::test]
async fn only_what_is_due_is_watched_page_by_page() {
    let database = database("watch").await;
    let scheme = RowLock::new(db(database.url(), 2), None);
    let mut due = Vec::new();
    for number in 1..=3 {
        for round in 0..10 {
            let wanted = if round % 2 == 0 { overdue() } else { borrow() };
            let lent = scheme.allocate(lane(number), wanted).await.unwrap();
            let is_due = round % 2 == 0 || round == 5;
            if round == 5 {
                let mark = Mark::Submitted(A);
                scheme
                    .mark(lent.lane, lent.nonce, lent.holder, mark)
                    .await
                    .unwrap();
            }
            if is_due {
                due.push((lent.lane, lent.nonce));
            }
        }
    }
    let mut pages = Vec::new();
    for _ in 0..4 {
        let page = scheme.to_watch(5).await.unwrap();
        assert!(page.len() <= 5);
        pages.extend(
            page.into_iter()
                .map(|w| (w.reservation.lane, w.reservation.nonce)),
        );
    }
    assert_eq!(pages, due, "each once, then from the start");
    assert_eq!(scheme.to_watch(100).await.unwrap().len(), due.len());
}

#[tokio::test]
async fn free_ones_below_the_chain_are_watched_and_closed() {
    let database = database("below").await;
    let scheme = RowLock::new(db(database.url(), 2), None);
    let lent = scheme.allocate(lane(1), borrow()).await.unwrap();
    let mark = Mark::Recyclable {
        reason: "too dear".into(),
        asked: None,
    };
    scheme
        .mark(lane(1), lent.nonce, lent.holder, mark)
        .await
        .unwrap();
    assert_eq!(seen(&scheme, 0).await, None);
    scheme.allocate(lane(1), borrow_at_least(3)).await.unwrap();
    let watched = scheme.to_watch(100).await.unwrap();
    let nonces: Vec<u64> = watched.iter().map(|w| w.reservation.nonce.0).collect();
    assert_eq!(nonces, [0, 1, 2]);
    let (tx_hash, block) = (Some(A), header(7));
    let closed = settle(&scheme, &watched[0], Verdict::Used { tx_hash, block }).await;
    assert_eq!(
        (closed.state, closed.tx_hash),
        (ReservationState::Used, Some(A))
    );
    let next = scheme.allocate(lane(1), borrow()).await.unwrap();
    assert_eq!(next.nonce, Nonce(1), "used is not free");
}

#[tokio::test]
async fn time_outs_free_only_what_is_overdue_unsubmitted_and_unchanged() {
    let database = database("free").await;
    let scheme = RowLock::new(db(database.url(), 2), None);
    let early = scheme.allocate(lane(1), borrow()).await.unwrap();
    let early = Watched {
        reservation: early,
        closed_in: None,
    };
    let kept = settle(&scheme, &early, Verdict::Free).await;
    assert_eq!(
        kept.state,
        ReservationState::Reserved,
        "its time is not over"
    );

    let late = scheme.allocate(lane(1), overdue()).await.unwrap();
    let watched = seen(&scheme, 1).await.unwrap();
    assert_eq!(watched.reservation, late);
    let mark = Mark::Submitted(A);
    scheme
        .mark(lane(1), Nonce(1), late.holder, mark)
        .await
        .unwrap();
    let kept = settle(&scheme, &watched, Verdict::Free).await;
    assert_eq!(kept.state, ReservationState::Reserved, "he spoke meanwhile");
    let watched = seen(&scheme, 1).await.unwrap();
    let kept = settle(&scheme, &watched, Verdict::Free).await;
    assert_eq!(kept.state, ReservationState::Reserved, "it is submitted");

    let silent = scheme.allocate(lane(1), overdue()).await.unwrap();
    let watched = seen(&scheme, 2).await.unwrap();
    let free = settle(&scheme, &watched, Verdict::Free).await;
    assert_eq!(free.state, ReservationState::Recyclable);
    assert!(free.reason.is_some());
    let again = scheme.allocate(lane(1), overdue()).await.unwrap();
    assert_eq!(
        (again.nonce, again.holder == silent.holder),
        (Nonce(2), false)
    );
    // The same verdict a second time, about the former holder.
    let settlement = Settlement {
        seen: watched,
        verdict: Verdict::Free,
    };
    scheme.settle(&[settlement]).await.unwrap();
    let found = scheme
        .reservation(lane(1), Nonce(2), again.holder)
        .await
        .unwrap();
    assert_eq!(found, Some(again));
    let late_mark = scheme
        .mark(lane(1), Nonce(2), silent.holder, Mark::Used(A))
        .await;
    assert!(late_mark.is_err());
}

#[tokio::test]
async fn closed_ones_are_watched_until_buried_and_reopened_by_a_fork() {
    let database = database("closed").await;
    let scheme = RowLock::new(db(database.url(), 2), None);
    let lent = scheme.allocate(lane(1), borrow()).await.unwrap();
    scheme
        .mark(lane(1), Nonce(0), lent.holder, Mark::Submitted(A))
        .await
        .unwrap();
    let submitted = seen(&scheme, 0).await.unwrap();
    let used = |block| Verdict::Used {
        tx_hash: None,
        block,
    };
    let closed = settle(&scheme, &submitted, used(header(5))).await;
    assert_eq!(closed.state, ReservationState::Used);
    assert_eq!(
        closed.tx_hash,
        Some(A),
        "what its holder said is not forgotten"
    );
    let watched = seen(&scheme, 0).await.unwrap();
    assert_eq!(watched.closed_in, Some(header(5)));

    let in_the_old_block = watched.clone();
    let open = settle(&scheme, &watched, Verdict::Reopened).await;
    assert_eq!(
        (open.state, open.tx_hash),
        (ReservationState::Reserved, Some(A))
    );
    // Stale by now, like everything that was seen before the fork.
    let open = settle(&scheme, &watched, Verdict::Buried).await;
    assert_eq!(open.state, ReservationState::Reserved);
    let watched = seen(&scheme, 0).await.unwrap();
    assert_eq!(watched.closed_in, None);
    settle(&scheme, &watched, used(header(6))).await;
    let closed = settle(&scheme, &in_the_old_block, Verdict::Reopened).await;
    assert_eq!(
        closed.state,
        ReservationState::Used,
        "another block closed it"
    );
    let watched = seen(&scheme, 0).await.unwrap();
    let buried = settle(&scheme, &watched, Verdict::Buried).await;
    assert_eq!(buried.state, ReservationState::Used);
    assert_eq!(seen(&scheme, 0).await, None);
}

#[tokio::test]
async fn many_verdicts_on_many_lanes_go_in_few_calls() {
    let database = database("many").await;
    let scheme = RowLock::new(db(database.url(), 2), None);
    for number in 1..=12 {
        for _ in 0..50 {
            scheme.allocate(lane(number), overdue()).await.unwrap();
        }
    }
    let watched = scheme.to_watch(1_000).await.unwrap();
    assert_eq!(watched.len(), 600);
    let settlements: Vec<Settlement> = watched
        .into_iter()
        .map(|seen| Settlement {
            seen,
            verdict: Verdict::Free,
        })
        .collect();
    // Two who sweep at once do not wait crosswise.
    let mut backwards = settlements.clone();
    backwards.reverse();
    let (one, other) = tokio::join!(scheme.settle(&settlements), scheme.settle(&backwards));
    assert_eq!((one, other), (Ok(()), Ok(())));
    assert_eq!(scheme.to_watch(1_000).await.unwrap(), []);
    let again = Borrow {
        holder: holder(),
        at_least: Nonce(0),
        timeout: LONG,
    };
    assert_eq!(
        scheme.allocate(lane(3), again).await.unwrap().nonce,
        Nonce(0)
    );
}
