//! The end of a process.

use std::time::Duration;

use domain::ReservationState;
use engine::ports::ReservationError;

use super::super::kit::{hash, lane};
use super::{World, nonces_of};

const WITHIN: Duration = Duration::from_secs(20);

pub(crate) async fn a_closed_process_lends_nothing_and_leaves_nothing_behind(world: &World) {
    let process = world.process().await;
    let lent = process.borrow_many(5).await;
    process.give_back(&lent[2]).await;
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
        .expect("twice is fine");
    // What was lent stays lent, what was free or set aside is there for the next one.
    let next = world.process().await;
    assert_eq!(nonces_of(&next.borrow_many(3).await), [2, 5, 6]);
}

pub(crate) async fn what_was_marked_before_the_end_is_there_after_it(world: &World) {
    let process = world.process().await;
    let lent = process.borrow_many(3).await;
    let (used, submitted) = (
        process.use_up(&lent[0], hash(1)).await,
        process.submit(&lent[1], hash(2)).await,
    );
    process.component.close(WITHIN).await.unwrap();
    let next = world.process().await;
    assert_eq!(next.row(&lent[0]).await, used);
    assert_eq!(next.row(&lent[1]).await, submitted);
    // A holder outlives the process that lent to him.
    let used = next.use_up(&lent[2], hash(3)).await;
    assert_eq!(
        (used.state, used.tx_hash),
        (ReservationState::Used, Some(hash(3)))
    );
}
