//! Absence is never evidence: a block is told as taken back only when a fork dropped it, or when another
//! block ever stood at its height or below, so that some node may show another branch. A node that is only
//! behind shows less, not something else.

use std::collections::{BTreeMap, BTreeSet};

use domain::{B256, ChainId, EventKind};

use super::{Checker, applied};
use crate::event::WorldEvent;

/// See the module.
#[derive(Default)]
pub struct ForksAreReal {
    /// The first block that was seen at each height.
    firsts: BTreeMap<(ChainId, u64), B256>,
    /// The lowest height at which another one stood, on each chain.
    forked_at: BTreeMap<ChainId, u64>,
    /// Those that a fork took out of the chain.
    dropped: BTreeSet<B256>,
}

impl ForksAreReal {
    fn mined(&mut self, chain: ChainId, number: u64, hash: B256) {
        let first = *self.firsts.entry((chain, number)).or_insert(hash);
        if first != hash {
            let lowest = self.forked_at.entry(chain).or_insert(number);
            *lowest = number.min(*lowest);
        }
    }

    fn taken_back(&self, chain: ChainId, number: u64, hash: B256) -> Result<(), String> {
        let forked_at = self.forked_at.get(&chain);
        let has_other = forked_at.is_some_and(|height| *height <= number);
        if has_other || self.dropped.contains(&hash) {
            return Ok(());
        }
        Err(format!(
            "block {number} {hash} is told as taken back, and no other ever stood there or below"
        ))
    }
}

impl Checker for ForksAreReal {
    fn name(&self) -> &'static str {
        "absence is never evidence"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        if let WorldEvent::Mined {
            chain_id, header, ..
        } = event
        {
            self.mined(*chain_id, header.number, header.hash);
        }
        if let WorldEvent::Forked { dropped, .. } = event {
            self.dropped
                .extend(dropped.iter().map(|header| header.hash));
        }
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        for event in &batch.writes.events {
            if let EventKind::TxReorged {
                block_number,
                block_hash,
                ..
            } = &event.kind
            {
                self.taken_back(lane.chain_id, *block_number, *block_hash)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{applied, block, forked, lane, story};
    use super::*;

    #[test]
    fn only_another_block_takes_one_back() {
        let reorged = || {
            let kind = EventKind::TxReorged {
                block_number: 7,
                block_hash: B256::with_last_byte(7),
                after_final: false,
            };
            applied(lane(1), |w| w.events = vec![story(1, 1, kind)])
        };
        let mut checker = ForksAreReal::default();
        assert_eq!(checker.after(&block(7, Vec::new())), Ok(()));
        assert!(checker.after(&reorged()).is_err());
        let mut forking = ForksAreReal::default();
        assert_eq!(forking.after(&block(7, Vec::new())), Ok(()));
        assert_eq!(forking.after(&forked(7)), Ok(()));
        assert_eq!(
            forking.after(&reorged()),
            Ok(()),
            "its tx may be elsewhere by now"
        );
        let WorldEvent::Mined { mut header, .. } = block(7, Vec::new()) else {
            unreachable!("a block is mined")
        };
        header.hash = B256::with_last_byte(77);
        let other = WorldEvent::Mined {
            chain_id: lane(1).chain_id,
            header,
            txs: Vec::new(),
        };
        assert_eq!(checker.after(&other), Ok(()));
        assert_eq!(checker.after(&reorged()), Ok(()));
    }
}
