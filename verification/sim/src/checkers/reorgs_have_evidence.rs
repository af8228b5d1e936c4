//! Absence is never evidence: a block is reported as reorged out only when a reorg dropped it, or when another
//! block ever existed at its height or below, so that some endpoint may show another branch. A lagging endpoint
//! shows fewer blocks, not other ones.

use std::collections::{BTreeMap, BTreeSet};

use domain::{B256, ChainId, EventKind};

use super::{Checker, applied};
use crate::event::WorldEvent;

#[derive(Default)]
pub struct ReorgsHaveEvidence {
    /// The first block that was seen at each height.
    firsts: BTreeMap<(ChainId, u64), B256>,
    /// The lowest height with another block, on each chain.
    forked_at: BTreeMap<ChainId, u64>,
    /// Blocks that were reorged out.
    dropped: BTreeSet<B256>,
}

impl ReorgsHaveEvidence {
    fn mined(&mut self, chain: ChainId, number: u64, hash: B256) {
        let first = *self.firsts.entry((chain, number)).or_insert(hash);
        if first != hash {
            let lowest = self.forked_at.entry(chain).or_insert(number);
            *lowest = number.min(*lowest);
        }
    }

    fn reorged_out(&self, chain: ChainId, number: u64, hash: B256) -> Result<(), String> {
        let forked_at = self.forked_at.get(&chain);
        let has_other = forked_at.is_some_and(|height| *height <= number);
        if has_other || self.dropped.contains(&hash) {
            return Ok(());
        }
        Err(format!(
            "block {number} {hash} is reported as reorged out, and no other ever existed at or below its height"
        ))
    }
}

impl Checker for ReorgsHaveEvidence {
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
                self.reorged_out(lane.chain_id, *block_number, *block_hash)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{applied, block, forked, lane, lane_event};
    use super::*;

    #[test]
    fn only_another_block_proves_a_reorg() {
        let reorged = || {
            let kind = EventKind::TxReorged {
                block_number: 7,
                block_hash: B256::with_last_byte(7),
                after_final: false,
            };
            applied(lane(1), |w| w.events = vec![lane_event(1, 1, kind)])
        };
        let mut checker = ReorgsHaveEvidence::default();
        assert_eq!(checker.after(&block(7, Vec::new())), Ok(()));
        assert!(checker.after(&reorged()).is_err());
        let mut forking = ReorgsHaveEvidence::default();
        assert_eq!(forking.after(&block(7, Vec::new())), Ok(()));
        assert_eq!(forking.after(&forked(7)), Ok(()));
        assert_eq!(
            forking.after(&reorged()),
            Ok(()),
            "its tx may be in another block by now"
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
