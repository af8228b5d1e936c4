//! The nonces that the canonical chain has consumed, by block, so that a reorg takes them back.

use std::collections::BTreeMap;

use domain::{B256, LaneKey, Nonce};

use crate::event::WorldEvent;

#[derive(Default)]
pub(super) struct ConsumedNonces {
    by_block: BTreeMap<B256, Vec<(LaneKey, Nonce)>>,
}

impl ConsumedNonces {
    /// Every checker that has one passes each event to it before it inspects it.
    pub(super) fn follow(&mut self, event: &WorldEvent) {
        if let WorldEvent::Forked { dropped, .. } = event {
            for header in dropped {
                self.by_block.remove(&header.hash);
            }
        }
        if let WorldEvent::Mined {
            chain_id,
            header,
            txs,
        } = event
        {
            let consumed = txs.iter().map(|tx| {
                let lane = LaneKey {
                    chain_id: *chain_id,
                    signer: tx.envelope.signer,
                };
                (lane, tx.envelope.nonce)
            });
            self.by_block.insert(header.hash, consumed.collect());
        }
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (LaneKey, Nonce)> {
        self.by_block.values().flatten().copied()
    }

    /// The next nonce of an account.
    pub(super) fn next_of(&self, lane: LaneKey) -> Nonce {
        let of_lane = self.iter().filter(|(of, _)| *of == lane);
        of_lane
            .map(|(_, nonce)| nonce.next())
            .max()
            .unwrap_or(Nonce(0))
    }
}
