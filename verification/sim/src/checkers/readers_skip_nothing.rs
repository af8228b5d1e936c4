//! A reader of the feed never skips, and sees no event twice: page after page, from whichever node, through
//! lost answers and failovers, each lane's numbers come one after another.
//!
//! A standby that takes over without the last commits has lost a part of the feed too, and gives its places
//! away again. What a reader sees after that is no promise (and is told: promises are given with synchronous
//! replication).

use std::collections::BTreeMap;

use domain::LaneKey;

use super::Checker;
use crate::event::WorldEvent;

/// See the module.
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
        if let WorldEvent::FeedBegun { reader } = event {
            return Err(format!(
                "the cursor of reader {reader} is not known any more"
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
    use super::super::testing::{failed_over, feed_read, lane};
    use super::*;

    #[test]
    fn each_reader_and_lane_counts_by_itself() {
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
        assert!(checker.after(&WorldEvent::FeedBegun { reader: 0 }).is_err());
    }

    #[test]
    fn what_a_failover_lost_is_not_expected() {
        let mut checker = ReadersSkipNothing::default();
        assert_eq!(checker.after(&feed_read(0, &[(lane(1), 1)])), Ok(()));
        assert_eq!(checker.after(&WorldEvent::StandbyStopped), Ok(()));
        assert_eq!(checker.after(&failed_over(&[1])), Ok(()));
        assert_eq!(checker.after(&feed_read(0, &[(lane(1), 4)])), Ok(()));
    }
}
