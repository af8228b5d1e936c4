//! Marks in SQL answer as the one table of rules does.

use domain::{B256, Header, Mark, MarkRefusal, Nonce, Reservation, ReservationState};
use engine::ports::ReservationError;
use nonce::{RowLock, Scheme, Settlement, Verdict, Watched};

use crate::kit::{borrow, database, db, holder, lane};

const A: B256 = B256::repeat_byte(0xaa);
const B: B256 = B256::repeat_byte(0xbb);

/// What a nonce may have gone through before.
const PASTS: [&[Past]; 9] = [
    &[],
    &[Past::Said(0)],
    &[Past::Said(0), Past::Said(1)],
    &[Past::Said(0), Past::Said(1), Past::Said(0)],
    &[Past::Said(2)],
    &[Past::Said(0), Past::Said(3)],
    &[Past::Said(4)],
    &[Past::Said(0), Past::Said(5)],
    &[Past::ConsumedByNobodyKnown],
];

#[derive(Clone, Copy, Debug)]
enum Past {
    /// One of the marks below.
    Said(usize),
    ConsumedByNobodyKnown,
}

fn marks() -> [Mark; 6] {
    [
        Mark::Submitted(A),
        Mark::Submitted(B),
        Mark::Used(A),
        Mark::Used(B),
        Mark::Recyclable {
            reason: "given back".into(),
            asked: None,
        },
        Mark::Recyclable {
            reason: "given back".into(),
            asked: Some(A),
        },
    ]
}

#[tokio::test]
async fn every_mark_in_every_state_is_taken_or_refused_alike() {
    let database = database("rules").await;
    let scheme = RowLock::new(db(database.url(), 2), None);
    let (mut compared, mut number) = (0, 0);
    for past in PASTS {
        for (mark, by_holder) in marks()
            .into_iter()
            .flat_map(|m| [(m.clone(), true), (m, false)])
        {
            number += 1; // a lane each, so that nothing free is in the way
            let before = make(&scheme, number, past).await;
            let who = if by_holder { before.holder } else { holder() };
            let mut expected = before.clone();
            let verdict = expected.mark(who, &mark);
            let marked = scheme
                .mark(before.lane, before.nonce, who, mark.clone())
                .await;
            match verdict {
                Ok(()) => assert_eq!(marked.unwrap(), expected, "{past:?} {mark:?}"),
                Err(refused) => {
                    let refused = ReservationError::Refused(refused);
                    assert_eq!(marked.unwrap_err(), refused, "{past:?} {mark:?}");
                    expected = before.clone();
                }
            }
            let found = scheme
                .reservation(before.lane, before.nonce, before.holder)
                .await;
            assert_eq!(found.unwrap().unwrap(), expected, "{past:?} {mark:?}");
            compared += 1;
        }
    }
    assert_eq!(compared, PASTS.len() * 12);
}

async fn make(scheme: &RowLock, number: u8, past: &[Past]) -> Reservation {
    let mut made = scheme.allocate(lane(number), borrow()).await.unwrap();
    for step in past {
        match step {
            Past::Said(mark) => {
                let mark = marks()[*mark].clone();
                made = scheme
                    .mark(made.lane, made.nonce, made.holder, mark)
                    .await
                    .unwrap();
            }
            Past::ConsumedByNobodyKnown => {
                let block = Header {
                    number: 1,
                    hash: A,
                    parent_hash: B,
                    timestamp: 1,
                };
                let settlement = Settlement {
                    seen: Watched {
                        reservation: made.clone(),
                        closed_in: None,
                    },
                    verdict: Verdict::Used {
                        tx_hash: None,
                        block,
                    },
                };
                scheme.settle(&[settlement]).await.unwrap();
                made.state = ReservationState::Used;
            }
        }
    }
    made
}

#[tokio::test]
async fn what_was_never_lent_cannot_be_marked() {
    let database = database("never").await;
    let scheme = RowLock::new(db(database.url(), 2), None);
    for nonce in [Nonce(0), Nonce(u64::MAX)] {
        let refused = scheme.mark(lane(1), nonce, holder(), Mark::Used(A)).await;
        assert_eq!(refused, Err(MarkRefusal::NotLent(nonce).into()));
        assert_eq!(scheme.reservation(lane(1), nonce, holder()).await, Ok(None));
    }
    let lent = scheme.allocate(lane(1), borrow()).await.unwrap();
    let refused = scheme
        .mark(lane(1), Nonce(1), lent.holder, Mark::Used(A))
        .await;
    assert_eq!(refused, Err(MarkRefusal::NotLent(Nonce(1)).into()));
    // Whatever bytes a reason has, and however many.
    let reason = format!("\0{}", "ä".repeat(2_000));
    let marked = scheme
        .mark(
            lane(1),
            Nonce(0),
            lent.holder,
            Mark::Recyclable {
                reason,
                asked: None,
            },
        )
        .await;
    let kept = marked.unwrap().reason.unwrap();
    assert!(kept.len() <= 1_000 && kept.ends_with('ä'), "{kept}");
}
