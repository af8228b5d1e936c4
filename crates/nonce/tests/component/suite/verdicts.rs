//! Verdicts are applied only to an unchanged reservation.

use std::collections::BTreeMap;

use domain::{B256, Header, ReservationState};
use nonce::{ConditionalVerdict, Verdict, WatchedReservation};

use super::super::kit::{hash, wait_for};
use super::{Process, Scenario};

fn block(number: u64) -> Header {
    Header {
        number,
        hash: B256::with_last_byte(7),
        parent_hash: B256::with_last_byte(6),
        timestamp: 1_700_000_000,
    }
}

/// All reservations that the scheme lists for the sweep.
async fn list_watched(process: &Process, count: usize) -> Vec<WatchedReservation> {
    wait_for("the reservations are listed", async || {
        let page = process
            .scheme
            .list_watched(100)
            .await
            .expect("the ledger is readable");
        (page.len() == count).then_some(page)
    })
    .await
}

async fn apply_verdict(process: &Process, seen: &WatchedReservation, verdict: Verdict) {
    let conditional = ConditionalVerdict {
        seen: seen.clone(),
        verdict,
    };
    let verdicts_applied = process.scheme.apply_verdicts(&[conditional]).await;
    verdicts_applied.expect("the ledger is readable");
}

pub(crate) async fn verdict_on_a_changed_reservation_is_ignored(scenario: &Scenario) {
    if scenario.sweeps_itself() {
        return;
    }
    let process = scenario.process_with_instant_expiry().await;
    let reserved = process.reserve_many(3).await;
    let seen = list_watched(&process, 3).await;
    // In the meantime one is submitted, one used, and one recycled and reserved again.
    let submitted = process.mark_submitted(&reserved[0], hash(1)).await;
    let used = process.mark_used(&reserved[1], hash(2)).await;
    process.recycle(&reserved[2]).await;
    let anew = process.reserve().await;
    assert_eq!(anew.nonce, reserved[2].nonce);
    for seen in &seen {
        apply_verdict(&process, seen, Verdict::Free).await;
        let tx_hash = Some(hash(9));
        let verdict = Verdict::Used {
            tx_hash,
            block: block(5),
        };
        apply_verdict(&process, seen, verdict).await;
    }
    for expected in [submitted, used, anew] {
        assert_eq!(process.row(&expected).await, expected);
    }
}

pub(crate) async fn repeated_verdict_is_applied_once(scenario: &Scenario) {
    if scenario.sweeps_itself() {
        return;
    }
    let process = scenario.process_with_instant_expiry().await;
    let reserved = process.reserve().await;
    let seen = list_watched(&process, 1).await.remove(0);
    apply_verdict(&process, &seen, Verdict::Free).await;
    let next = process.reserve().await;
    assert_eq!(next.nonce, reserved.nonce);
    apply_verdict(&process, &seen, Verdict::Free).await;
    assert_eq!(process.row(&next).await, next, "the next holder keeps it");
    process
        .scheme
        .apply_verdicts(&[])
        .await
        .expect("no verdicts are fine");
}

pub(crate) async fn watched_reservations_are_listed_in_pages(scenario: &Scenario) {
    if scenario.sweeps_itself() {
        return;
    }
    let process = scenario.process_with_instant_expiry().await;
    let count = 25;
    process.reserve_many(count).await;
    list_watched(&process, count).await;
    let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
    wait_for("each was on a page", async || {
        let page = process
            .scheme
            .list_watched(10)
            .await
            .expect("the ledger is readable");
        assert!(page.len() <= 10);
        for one in page {
            assert_eq!(one.reservation.state, ReservationState::Reserved);
            *seen.entry(one.reservation.nonce.0).or_default() += 1;
        }
        (seen.len() == count).then_some(())
    })
    .await;
}
