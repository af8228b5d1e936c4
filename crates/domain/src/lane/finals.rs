//! Final results that are still watched for reorgs, and those that a reorg took back.
//!
//! Invariants: a block is watched until it was seen on the chain since the lane was loaded and lies deeper than
//! `confirmations.watchDepth`. A tx of a block that was reorged out is reopened once, when its row is read again.
//! Blocks below the view are checked by one query at a time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use alloy_primitives::B256;

use super::{FinalTx, ReorgDepth, WatchedBlock};
use crate::headers::BlockPosition;
use crate::{ChainView, Header, Timestamp, TxId};

/// How often blocks below the view are checked while that ends nothing.
const BELOW_VIEW_PAUSE: Duration = Duration::from_secs(10);
/// How far below the view blocks are checked.
pub const BELOW_VIEW_MAX: u64 = 1_024;

/// The watched final results of a lane.
#[derive(Clone, Debug, Default)]
pub(super) struct WatchedFinals {
    blocks: VecDeque<FinalBlock>,
    /// Txs whose block was reorged out and whose rows are being read again.
    reopening: BTreeMap<TxId, ReorgDepth>,
    /// When headers below the view were last queried.
    below_view_queried_at: Option<Timestamp>,
    is_querying_below_view: bool,
}

#[derive(Clone, Debug)]
struct FinalBlock {
    number: u64,
    hash: B256,
    txs: Vec<TxId>,
    /// Whether it was seen on the chain since the lane was loaded: before that no keeper may have watched it.
    is_seen: bool,
}

impl WatchedFinals {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The watched block with the greatest height.
    pub(super) fn newest(&self) -> Option<WatchedBlock> {
        let newest = self.blocks.iter().max_by_key(|block| block.number)?;
        Some(WatchedBlock {
            number: newest.number,
            hash: newest.hash,
        })
    }

    pub(super) fn is_reopening(&self) -> bool {
        !self.reopening.is_empty()
    }

    /// Watches a result that is final.
    pub(super) fn watch(&mut self, tx: FinalTx) {
        let mut known = self.blocks.iter_mut().rev();
        match known.find(|block| block.hash == tx.block_hash) {
            Some(block) => block.txs.push(tx.id),
            None => self.blocks.push_back(FinalBlock {
                number: tx.block_number,
                hash: tx.block_hash,
                txs: vec![tx.id],
                is_seen: false,
            }),
        }
    }

    /// Stops watching blocks that are deep enough, and returns the txs of those that were reorged out. `old` are
    /// headers below the view.
    pub(super) fn check(
        &mut self,
        view: &ChainView,
        old: &[Header],
        watch_depth: u64,
        reorg: ReorgDepth,
    ) -> Vec<TxId> {
        let Some(tip) = view.headers.tip() else {
            return Vec::new();
        };
        let base = view.headers.base().map_or(0, |header| header.number);
        let mut reorged = Vec::new();
        self.blocks.retain_mut(|block| {
            match block.position(view, old) {
                BlockPosition::Replaced => {
                    reorged.extend_from_slice(&block.txs);
                    return false;
                }
                BlockPosition::On { .. } => block.is_seen = true,
                // Blocks this deep are not checked any more.
                BlockPosition::Outside => {
                    block.is_seen |= base.saturating_sub(block.number) > BELOW_VIEW_MAX;
                }
            }
            !block.is_seen || tip.number.saturating_sub(block.number) <= watch_depth
        });
        self.reopening.extend(reorged.iter().map(|id| (*id, reorg)));
        reorged
    }

    /// Whether the row of this tx was read because of a reorg, and how deep that went; once.
    pub(super) fn take_reopening(&mut self, id: TxId) -> Option<ReorgDepth> {
        self.reopening.remove(&id)
    }

    /// The heights below the view at which blocks were not seen yet.
    pub(super) fn unseen_below(&self, base: u64) -> impl Iterator<Item = u64> {
        let unseen = self.blocks.iter().filter(|block| !block.is_seen);
        unseen.map(|block| block.number).filter(move |n| *n < base)
    }

    pub(super) fn can_check_below_view(&self, now: Timestamp) -> bool {
        let is_over = |at: Timestamp| now.since(at) >= BELOW_VIEW_PAUSE;
        !self.is_querying_below_view && self.below_view_queried_at.is_none_or(is_over)
    }

    pub(super) fn start_below_view_check(&mut self, now: Timestamp) {
        self.below_view_queried_at = Some(now);
        self.is_querying_below_view = true;
    }

    /// The last check ended something: the next one need not wait.
    pub(super) fn end_below_view_pause(&mut self) {
        self.below_view_queried_at = None;
    }

    pub(super) fn finish_below_view_check(&mut self) {
        self.is_querying_below_view = false;
    }

    /// Recorded times never lie ahead of a wall clock that was set back.
    pub(super) fn clamp_times(&mut self, now: Timestamp) {
        self.below_view_queried_at = self.below_view_queried_at.map(|at| at.min(now));
    }
}

impl FinalBlock {
    /// Where it stands, by the view or by a header below it.
    fn position(&self, view: &ChainView, old: &[Header]) -> BlockPosition {
        let below = old.iter().find(|header| header.number == self.number);
        match (view.headers.position_of(self.number, self.hash), below) {
            (BlockPosition::Outside, Some(header)) if header.hash == self.hash => {
                BlockPosition::On { above: 0 }
            }
            (BlockPosition::Outside, Some(_)) => BlockPosition::Replaced,
            (position, _) => position,
        }
    }
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "an overflow fails the test")]
mod tests {
    use super::*;
    use crate::headers::HeaderChain;
    use crate::lane::tests::tx_id;
    use crate::{FeeQuote, Nonce};

    fn header(number: u64) -> Header {
        let hash = |number: u64| B256::left_padding_from(&(number + 1).to_be_bytes());
        Header {
            number,
            hash: hash(number),
            parent_hash: hash(number.wrapping_sub(1)),
            timestamp: 0,
        }
    }

    fn view(from: u64, tip: u64) -> ChainView {
        let mut headers = HeaderChain::new(100);
        let branch: Vec<Header> = (from..=tip).map(header).collect();
        headers.adopt(&branch).expect("linked");
        let fee = FeeQuote {
            base_fee: None,
            tip: 0,
            block_gas_limit: None,
            no_op_gas: None,
            has_data_floor: false,
            recent_max: None,
        };
        ChainView {
            headers,
            fee,
            final_up_to: None,
            deep_forks: 0,
        }
    }

    fn final_tx(id: u64, number: u64, block_hash: B256) -> FinalTx {
        FinalTx {
            nonce: Nonce(id),
            id: tx_id(id),
            block_number: number,
            block_hash,
        }
    }

    #[test]
    fn block_is_watched_until_it_was_seen_and_is_deep_enough() {
        let mut finals = WatchedFinals::default();
        finals.watch(final_tx(1, 3, header(3).hash));
        finals.check(&view(50, 60), &[], 8, ReorgDepth::Watched);
        assert!(!finals.is_empty(), "deep, and never seen");
        let reorged = finals.check(&view(50, 60), &[header(3)], 8, ReorgDepth::Watched);
        assert!(finals.is_empty() && reorged.is_empty());
    }

    #[test]
    fn reorged_result_is_reopened_once() {
        let mut finals = WatchedFinals::default();
        finals.watch(final_tx(1, 55, B256::repeat_byte(9)));
        let reorged = finals.check(&view(50, 60), &[], 8, ReorgDepth::Deep);
        assert_eq!(reorged, [tx_id(1)]);
        assert!(finals.is_reopening());
        assert_eq!(finals.take_reopening(tx_id(1)), Some(ReorgDepth::Deep));
        assert_eq!(finals.take_reopening(tx_id(1)), None);
    }

    #[test]
    fn headers_below_the_view_are_queried_once_at_a_time() {
        let mut finals = WatchedFinals::default();
        finals.start_below_view_check(Timestamp(0));
        assert!(!finals.can_check_below_view(Timestamp(60_000)));
        finals.finish_below_view_check();
        assert!(!finals.can_check_below_view(Timestamp(9_999)));
        assert!(finals.can_check_below_view(Timestamp(10_000)));
    }
}
