//! Makes a sequence on which stores differ as short as it gets: drops steps while they still do.

use std::time::{Duration, Instant};

use crate::compare::{Difference, run};
use crate::draw::Sequence;
use crate::player::Player;

/// How long shrinking takes at most: the test runner ends tests that take too long.
const WITHIN: Duration = Duration::from_secs(20);

/// The shortest sequence found, and its difference.
pub(crate) async fn shrink(
    sequence: Sequence,
    difference: Box<Difference>,
    players: &mut [Player],
) -> (Sequence, Box<Difference>) {
    let (mut shortest, mut found) = (sequence, difference);
    // Steps after the difference cannot have caused it.
    shortest.steps.truncate(found.step + 1);
    let began = Instant::now();
    // Once more, to record the operations. A difference that does not recur is reported as it was.
    match run(&shortest, players, true).await {
        Err(again) => found = again,
        Ok(_) => return (shortest, found),
    }
    let mut chunk = (shortest.steps.len() / 2).max(1);
    loop {
        let mut at = 0;
        let mut is_shorter = false;
        while at < shortest.steps.len() && began.elapsed() < WITHIN {
            let mut candidate = shortest.clone();
            let end = (at + chunk).min(candidate.steps.len());
            candidate.steps.drain(at..end);
            match run(&candidate, players, true).await {
                Err(difference) => {
                    candidate.steps.truncate(difference.step + 1);
                    (shortest, found, is_shorter) = (candidate, difference, true);
                }
                Ok(_) => at = end,
            }
        }
        if began.elapsed() >= WITHIN || (chunk == 1 && !is_shorter) {
            return (shortest, found);
        }
        chunk = (chunk / 2).max(1);
    }
}
