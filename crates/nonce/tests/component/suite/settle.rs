//! Verdicts count only on what was seen.

use std::collections::BTreeMap;

use domain::{B256, Header, ReservationState};
use nonce::{Settlement, Verdict, Watched};

use super::super::kit::{hash, until};
use super::{Process, World};

fn block(number: u64) -> Header {
    Header {
        number,
        hash: B256::with_last_byte(7),
        parent_hash: B256::with_last_byte(6),
        timestamp: 1_700_000_000,
    }
}

/// What the books say must be looked at, all of it.
async fn watched(process: &Process, count: usize) -> Vec<Watched> {
    until("they are to be watched", async || {
        let page = process
            .scheme
            .to_watch(100)
            .await
            .expect("the books are there");
        (page.len() == count).then_some(page)
    })
    .await
}

async fn settle(process: &Process, seen: &Watched, verdict: Verdict) {
    let settlement = Settlement {
        seen: seen.clone(),
        verdict,
    };
    let settled = process.scheme.settle(&[settlement]).await;
    settled.expect("the books are there");
}

pub(crate) async fn a_verdict_on_what_has_changed_counts_nothing(world: &World) {
    if world.has_no_sweep() {
        return;
    }
    let process = world.hasty_process().await;
    let lent = process.borrow_many(3).await;
    let seen = watched(&process, 3).await;
    // Meanwhile one is submitted, one used, and one given back and lent anew.
    let submitted = process.submit(&lent[0], hash(1)).await;
    let used = process.use_up(&lent[1], hash(2)).await;
    process.give_back(&lent[2]).await;
    let anew = process.borrow().await;
    assert_eq!(anew.nonce, lent[2].nonce);
    for seen in &seen {
        settle(&process, seen, Verdict::Free).await;
        let tx_hash = Some(hash(9));
        let verdict = Verdict::Used {
            tx_hash,
            block: block(5),
        };
        settle(&process, seen, verdict).await;
    }
    for expected in [submitted, used, anew] {
        assert_eq!(process.row(&expected).await, expected);
    }
}

pub(crate) async fn a_verdict_twice_counts_once(world: &World) {
    if world.has_no_sweep() {
        return;
    }
    let process = world.hasty_process().await;
    let lent = process.borrow().await;
    let seen = watched(&process, 1).await.remove(0);
    settle(&process, &seen, Verdict::Free).await;
    let next = process.borrow().await;
    assert_eq!(next.nonce, lent.nonce);
    settle(&process, &seen, Verdict::Free).await;
    assert_eq!(process.row(&next).await, next, "it belongs to the next one");
    process
        .scheme
        .settle(&[])
        .await
        .expect("nothing to do is fine");
}

pub(crate) async fn the_sweep_is_given_everything_in_pages(world: &World) {
    if world.has_no_sweep() {
        return;
    }
    let process = world.hasty_process().await;
    let count = 25;
    process.borrow_many(count).await;
    watched(&process, count).await;
    let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
    until("each was on a page", async || {
        let page = process
            .scheme
            .to_watch(10)
            .await
            .expect("the books are there");
        assert!(page.len() <= 10);
        for one in page {
            assert_eq!(one.reservation.state, ReservationState::Reserved);
            *seen.entry(one.reservation.nonce.0).or_default() += 1;
        }
        (seen.len() == count).then_some(())
    })
    .await;
}
