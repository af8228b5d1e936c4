//! Marks in SQL follow the rules of `domain`.

use domain::{B256, Header, Mark, MarkRefusal, Nonce, Reservation, ReservationState};
use engine::ports::ReservationError;
use nonce::{ConditionalVerdict, RowLock, Scheme, Verdict, WatchedReservation};

use crate::kit::{database, db, holder, key, lane, request};

const A: B256 = B256::repeat_byte(0xaa);
const B: B256 = B256::repeat_byte(0xbb);

/// Histories of a nonce before the mark.
const HISTORIES: [&[PastStep]; 9] = [
    &[],
    &[PastStep::Marked(0)],
    &[PastStep::Marked(0), PastStep::Marked(1)],
    &[
        PastStep::Marked(0),
        PastStep::Marked(1),
        PastStep::Marked(0),
    ],
    &[PastStep::Marked(2)],
    &[PastStep::Marked(0), PastStep::Marked(3)],
    &[PastStep::Marked(4)],
    &[PastStep::Marked(0), PastStep::Marked(5)],
    &[PastStep::ConsumedByUnknownTx],
];

#[derive(Clone, Copy, Debug)]
enum PastStep {
    /// One of the marks below.
    Marked(usize),
    ConsumedByUnknownTx,
}

fn marks() -> [Mark; 6] {
    [
        Mark::Submitted(A),
        Mark::Submitted(B),
        Mark::Used(A),
        Mark::Used(B),
        Mark::Recyclable {
            reason: "not needed".into(),
            asked: None,
        },
        Mark::Recyclable {
            reason: "not needed".into(),
            asked: Some(A),
        },
    ]
}

#[tokio::test]
async fn every_mark_in_every_state_agrees_with_the_rules() {
    let database = database("rules").await;
    let scheme = RowLock::new(db(database.url(), 2), None);
    let (mut compared, mut number) = (0, 0);
    for past in HISTORIES {
        for (mark, by_holder) in marks()
            .into_iter()
            .flat_map(|m| [(m.clone(), true), (m, false)])
        {
            number += 1; // a lane each, without other recyclable nonces
            let before = build_reservation(&scheme, number, past).await;
            let marker = if by_holder { before.holder } else { holder() };
            let mut expected = before.clone();
            let verdict = expected.mark(marker, &mark);
            let marked = scheme
                .mark(key(before.lane, before.nonce, marker), mark.clone())
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
                .find_reservation(key(before.lane, before.nonce, before.holder))
                .await;
            assert_eq!(found.unwrap().unwrap(), expected, "{past:?} {mark:?}");
            compared += 1;
        }
    }
    assert_eq!(compared, HISTORIES.len() * 12);
}

async fn build_reservation(scheme: &RowLock, number: u8, past: &[PastStep]) -> Reservation {
    let mut made = scheme.allocate(lane(number), request()).await.unwrap();
    for step in past {
        match step {
            PastStep::Marked(mark) => {
                let mark = marks()[*mark].clone();
                made = scheme
                    .mark(key(made.lane, made.nonce, made.holder), mark)
                    .await
                    .unwrap();
            }
            PastStep::ConsumedByUnknownTx => {
                let block = Header {
                    number: 1,
                    hash: A,
                    parent_hash: B,
                    timestamp: 1,
                };
                let conditional = ConditionalVerdict {
                    seen: WatchedReservation {
                        reservation: made.clone(),
                        closed_in: None,
                    },
                    verdict: Verdict::Used {
                        tx_hash: None,
                        block,
                    },
                };
                scheme.apply_verdicts(&[conditional]).await.unwrap();
                made.state = ReservationState::Used;
            }
        }
    }
    made
}

#[tokio::test]
async fn unreserved_nonce_cannot_be_marked() {
    let database = database("never").await;
    let scheme = RowLock::new(db(database.url(), 2), None);
    for nonce in [Nonce(0), Nonce(u64::MAX)] {
        let refused = scheme
            .mark(key(lane(1), nonce, holder()), Mark::Used(A))
            .await;
        assert_eq!(refused, Err(MarkRefusal::NotReserved(nonce).into()));
        assert_eq!(
            scheme.find_reservation(key(lane(1), nonce, holder())).await,
            Ok(None)
        );
    }
    let reserved = scheme.allocate(lane(1), request()).await.unwrap();
    let refused = scheme
        .mark(key(lane(1), Nonce(1), reserved.holder), Mark::Used(A))
        .await;
    assert_eq!(refused, Err(MarkRefusal::NotReserved(Nonce(1)).into()));
    // A reason may contain any bytes, and any number of them.
    let reason = format!("\0{}", "ä".repeat(2_000));
    let marked = scheme
        .mark(
            key(lane(1), Nonce(0), reserved.holder),
            Mark::Recyclable {
                reason,
                asked: None,
            },
        )
        .await;
    let rest = marked.unwrap().reason.unwrap();
    assert!(rest.len() <= 1_000 && rest.ends_with('ä'), "{rest}");
}
