//! Every order in which the store's statements can meet on a real PostgreSQL.
//!
//! The statements are the shipped ones (`store::postgres::sql`), on connections of their own, so that
//! this harness decides when each of them runs, and stops them in their middle by rows that another session
//! holds. After each order the invariants are checked. Then the naive forms, which must fail
//! at the same place; what a deposed keeper tries; and figures through the port.
//!
//! By default a run takes a share of the orders. `LANEKEEPER_INTERLEAVINGS=full` takes all of
//! them (`proof/03-2-interleavings`).

mod actors;
mod checks;
mod deposed;
mod facts;
mod figures;
mod kit;
mod locks;
mod meetings;
mod naive;
mod naive_numbers;
mod orders;
mod plan;
mod report;
mod scene;
mod snapshots;
mod turns;

use std::time::Duration;

use rig::postgres::shared;

use crate::naive::Naive;
use crate::plan::Share;
use crate::report::{figure, majors};
use crate::scene::Stage;

/// How long a share of the orders is played on each major.
const SHARE: Duration = Duration::from_secs(6);

#[tokio::test]
async fn naive_forms_fail() {
    for major in majors() {
        let mut stage = Stage::new(&shared(major)).await;
        for naive in Naive::ALL {
            let tally = naive.play(&mut stage).await;
            let name = naive.name();
            figure(&format!("{major}: orders of naive {name}"), tally.orders);
            figure(
                &format!("{major}: unsafe orders of naive {name}"),
                tally.unsafe_orders,
            );
            assert!(tally.unsafe_orders > 0, "{name} is not found out");
        }
    }
}

#[test]
fn shipped_statements_are_safe_in_every_order() {
    let seed = u64::from(std::process::id());
    let share = match report::is_full() {
        true => Share::All,
        false => Share::Within(SHARE),
    };
    for major in majors() {
        let played = plan::play(&shared(major), plan::all(), share, seed);
        figure(&format!("{major}: meetings"), played.meetings);
        for (name, tally) in [("pairs", &played.of_pairs), ("triples", &played.of_triples)] {
            figure(&format!("{major}: orders of {name}"), tally.orders);
            figure(
                &format!("{major}: waits inside the database of {name}"),
                tally.waits,
            );
            figure(
                &format!("{major}: orders that strayed of {name}"),
                tally.strayed,
            );
            figure(
                &format!("{major}: meetings cut short of {name}"),
                tally.cut_short,
            );
            figure(&format!("{major}: deadlocks of {name}"), tally.deadlocks);
            figure(
                &format!("{major}: unsafe orders of {name}"),
                tally.unsafe_orders,
            );
            assert!(tally.orders > 0, "nothing was played");
            assert_eq!(
                tally.unsafe_orders,
                0,
                "seed {seed}: {}",
                tally.received.join("\n")
            );
        }
    }
}
