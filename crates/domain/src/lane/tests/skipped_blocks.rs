//! A follower that is far behind skips blocks: their receipts and confirmations are found without it.

use crate::lane::{LaneRules, RECEIPTS_MAX};
use crate::window::MempoolDepth;
use crate::{Nonce, SubState};

use super::rules;
use super::world::{Job, World};

#[test]
fn receipts_of_skipped_blocks_are_fetched_without_a_nonce_query() {
    let mut world = World::ready(rules());
    for _ in 0..3 {
        world.accept();
    }
    world.deliver_all();
    world.mine(2, false); // skipped
    world.mine(1, true);
    world.deliver_all();
    assert_eq!(
        world.store.holder(Nonce(2)).and_then(|tx| tx.sub_state),
        Some(SubState::Mined)
    );
    world.mine(0, true);
    world.deliver_all();
    world.tick(3_000);
    world.commit();
    let is_fetch = |job: &Job| matches!(job, Job::Fetch(hashes) if hashes.len() == 2);
    assert!(world.jobs.iter().any(is_fetch), "{:?}", world.jobs);
    world.heal();
}

#[test]
fn mined_txs_below_the_view_end_without_pauses_between_their_queries() {
    let mut rules: LaneRules = rules();
    let count = RECEIPTS_MAX + 100;
    rules.capacity.mempool_depth = MempoolDepth::Fixed(count as u64);
    let mut world = World::ready(rules);
    for _ in 0..count {
        world.accept();
        world.deliver_all();
    }
    world.mine(count, true);
    world.deliver_all();
    for _ in 0..30 {
        world.mine(0, true);
    }
    world.skip_to_newest_head();
    world.deliver_all();
    assert!(
        world.lane.is_idle(),
        "all of them are final, at one and the same time"
    );
}
