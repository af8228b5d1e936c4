//! A feed reader never skips and never repeats an event: page after page, from any node, through lost answers
//! and failovers, the numbers of each lane are consecutive.
//!
//! A standby that is promoted without the last commits has lost a part of the feed too, and assigns its
//! positions again. Readers have no promise after that, as documented: the promise requires synchronous
//! replication.

use std::collections::BTreeMap;

use domain::LaneKey;

use super::Checker;
use crate::event::WorldEvent;

#[derive(Default)]
pub struct ReadersSkipNothing {
    last: BTreeMap<(usize, LaneKey), u64>,
    standby_stopped: bool,
    has_lost: bool,
}

impl ReadersSkipNothing {
    pub(super) const PROMISE: &'static str = "readers skip nothing";

    fn read(&mut self, reader: usize, read: &[(LaneKey, u64)]) -> Result<(), String> {
        for (lane, seq) in read {
            let last = self.last.entry((reader, *lane)).or_default();
            let due = *last + 1;
            *last = *seq;
            if *seq != due {
                return Err(format!(
                    "reader {reader} got event {seq} of {lane} where {due} was next"
                ));
            }
        }
        Ok(())
    }
}

impl Checker for ReadersSkipNothing {
    fn name(&self) -> &'static str {
        Self::PROMISE
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        if matches!(event, WorldEvent::StandbyStopped) {
            self.standby_stopped = true;
        }
        if matches!(event, WorldEvent::FailedOver { .. }) {
            self.has_lost |= self.standby_stopped;
        }
        if self.has_lost {
            return Ok(());
        }
        if let WorldEvent::FeedRestarted { reader } = event {
            return Err(format!(
                "the cursor of reader {reader} is not valid any more"
            ));
        }
        if let WorldEvent::FeedRead { reader, read, .. } = event {
            return self.read(*reader, read);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{failed_over, feed_read, lane};
    use super::*;

    #[test]
    fn each_reader_and_lane_is_tracked_separately() {
        let mut checker = ReadersSkipNothing::default();
        let (one, two) = (lane(1), lane(2));
        assert_eq!(
            checker.after(&feed_read(0, &[(one, 1), (two, 1), (one, 2)])),
            Ok(())
        );
        assert_eq!(checker.after(&feed_read(1, &[(one, 1)])), Ok(()));
        assert_eq!(checker.after(&failed_over(&[])), Ok(()));
        assert_eq!(checker.after(&feed_read(0, &[(two, 2), (one, 3)])), Ok(()));
        assert!(
            checker.after(&feed_read(1, &[(one, 3)])).is_err(),
            "skipped"
        );
        assert!(checker.after(&feed_read(0, &[(one, 3)])).is_err(), "twice");
        assert!(
            checker
                .after(&WorldEvent::FeedRestarted { reader: 0 })
                .is_err()
        );
    }

    #[test]
    fn lost_feed_is_not_expected() {
        let mut checker = ReadersSkipNothing::default();
        assert_eq!(checker.after(&feed_read(0, &[(lane(1), 1)])), Ok(()));
        assert_eq!(checker.after(&WorldEvent::StandbyStopped), Ok(()));
        assert_eq!(checker.after(&failed_over(&[1])), Ok(()));
        assert_eq!(checker.after(&feed_read(0, &[(lane(1), 4)])), Ok(()));
    }
}
