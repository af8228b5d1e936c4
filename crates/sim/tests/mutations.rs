//! Deliberate bugs are caught: a handful of the quickest. All of them: `proof/05-2-mutations`.
#![cfg(feature = "mutations")]

use domain::mutation::Mutation;
use sim::mutations::{hunt, unclean};

/// The most worlds of one of these mutations.
const SEEDS_MAX: u64 = 30;

#[test]
fn the_quickest_are_caught_within_a_few_worlds() {
    let quick = [
        Mutation::SendBeforeCommit,
        Mutation::AnswerBeforeCommit,
        Mutation::AdvanceCursorBeforeAck,
        Mutation::RedealNonceAfterLostAnswer,
        Mutation::ForgetFingerprint,
    ];
    let mut most = 0;
    for mutation in quick {
        let hunt = hunt(mutation, 1..1 + SEEDS_MAX);
        assert!(hunt.caught.is_some(), "{} got through", mutation.name());
        most = most.max(hunt.seeds);
    }
    let unclean = unclean(1..1 + most, 1);
    assert!(unclean.is_empty(), "without any of them: {unclean:?}");
}
