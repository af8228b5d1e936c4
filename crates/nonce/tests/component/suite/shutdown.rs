//! The shutdown of a process.

use std::time::Duration;

use domain::ReservationState;
use engine::ports::ReservationError;

use super::super::kit::{hash, lane};
use super::{Scenario, nonces_of};

const WITHIN: Duration = Duration::from_secs(20);

pub(crate) async fn closed_process_reserves_nothing_and_returns_unused_nonces(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve_many(5).await;
    process.recycle(&reserved[2]).await;
    process.component.close(WITHIN).await.unwrap();
    let refused = process.component.allocate(lane(1)).await.unwrap_err();
    assert!(
        matches!(refused, ReservationError::Unavailable(_)),
        "{refused:?}"
    );
    process
        .component
        .close(WITHIN)
        .await
        .expect("a second close is harmless");
    // Reserved nonces stay reserved; recyclable and unissued ones are available to the next process.
    let next = scenario.process().await;
    assert_eq!(nonces_of(&next.reserve_many(3).await), [2, 5, 6]);
}

pub(crate) async fn marks_survive_the_shutdown_of_their_process(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve_many(3).await;
    let (used, submitted) = (
        process.mark_used(&reserved[0], hash(1)).await,
        process.mark_submitted(&reserved[1], hash(2)).await,
    );
    process.component.close(WITHIN).await.unwrap();
    let next = scenario.process().await;
    assert_eq!(next.row(&reserved[0]).await, used);
    assert_eq!(next.row(&reserved[1]).await, submitted);
    // A holder outlives the process that reserved its nonce.
    let used = next.mark_used(&reserved[2], hash(3)).await;
    assert_eq!(
        (used.state, used.tx_hash),
        (ReservationState::Used, Some(hash(3)))
    );
}
