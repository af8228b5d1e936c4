//! Final means final depth: a confirmed result is on the canonical chain below the configured number of
//! blocks. (A lagging endpoint may delay the report, but never make it early.)

use std::collections::BTreeMap;

use domain::{B256, ChainId, EventKind, Header};

use super::{Checker, applied};
use crate::event::WorldEvent;

pub struct FinalDepth {
    required: Box<dyn Fn(ChainId) -> u64 + Send>,
    /// The canonical chain, by height.
    canonical: BTreeMap<(ChainId, u64), B256>,
}

impl FinalDepth {
    pub(super) const PROMISE: &'static str = "final means final depth";

    /// `required` returns how many blocks must be above a final one.
    #[must_use]
    pub fn new(required: impl Fn(ChainId) -> u64 + Send + 'static) -> Self {
        Self {
            required: Box::new(required),
            canonical: BTreeMap::new(),
        }
    }

    fn confirmed(&self, chain: ChainId, number: u64, hash: B256) -> Result<(), String> {
        if self.canonical.get(&(chain, number)) != Some(&hash) {
            return Err(format!(
                "block {number} {hash} is reported as final and is not canonical"
            ));
        }
        let heights = self.canonical.range((chain, 0)..=(chain, u64::MAX));
        let head = heights.last().map_or(0, |((_, number), _)| *number);
        let required = (self.required)(chain);
        if head.saturating_sub(number) < required {
            return Err(format!(
                "block {number} is reported as final at head {head}, not {required} deep"
            ));
        }
        Ok(())
    }

    fn forked(&mut self, chain: ChainId, dropped: &[Header]) {
        for header in dropped {
            self.canonical.remove(&(chain, header.number));
        }
    }
}

impl Checker for FinalDepth {
    fn name(&self) -> &'static str {
        Self::PROMISE
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        if let WorldEvent::Mined {
            chain_id, header, ..
        } = event
        {
            self.canonical
                .insert((*chain_id, header.number), header.hash);
        }
        if let WorldEvent::Forked { chain_id, dropped } = event {
            self.forked(*chain_id, dropped);
        }
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        for event in &batch.writes.events {
            if let EventKind::TxConfirmed {
                block_number,
                block_hash,
                ..
            } = &event.kind
            {
                self.confirmed(lane.chain_id, *block_number, *block_hash)?;
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
    fn depth_and_branch_are_both_checked() {
        let reported = |number: u8| {
            let hash = B256::with_last_byte(number);
            let kind = EventKind::TxConfirmed {
                tx_hash: B256::ZERO,
                block_number: u64::from(number),
                block_hash: hash,
                counted: hash,
                new_fork: false,
            };
            applied(lane(1), |writes| {
                writes.events = vec![lane_event(1, 1, kind)]
            })
        };
        let mut checker = FinalDepth::new(|_| 2);
        for number in 1..=3 {
            assert_eq!(checker.after(&block(number, Vec::new())), Ok(()));
        }
        assert_eq!(checker.after(&reported(1)), Ok(()));
        assert!(
            checker.after(&reported(2)).is_err(),
            "one block on it is not two"
        );
        assert_eq!(checker.after(&forked(1)), Ok(()));
        assert!(
            checker.after(&reported(1)).is_err(),
            "it is not canonical any more"
        );
    }
}
