//! Finished txs, written to the tables before a run, as after years of use.

use std::sync::Arc;

use alloy_primitives::Address;
use cli::Failure;
use domain::{ChainId, LaneKey};
use engine::ports::Store;
use indicatif::{ProgressBar, ProgressStyle};

use crate::null_chain::{AccountNonces, CHAIN_ID};
use crate::row_writer::{RowKind, RowWriter};

/// One of this many finished txs is in a measured lane.
const MEASURED_SHARE: u64 = 5;
/// The number of other lanes without idle ones.
const OTHER_LANES_MIN: u64 = 100;
/// Lanes per commit, and rows of each: this uses several connections with batches of the gate's best size.
const LANES_PER_COMMIT: usize = 4;
const BATCH: u64 = 100;

/// How many finished txs each lane gets.
pub(super) struct PrefillPlan {
    lanes: Vec<(Address, u64)>,
}

impl PrefillPlan {
    pub(super) fn new(measured: &[Address], idle: &[Address], finished: u64) -> Self {
        let in_measured = finished / MEASURED_SHARE;
        // Without idle lanes, lanes that no node serves.
        let unserved = (0..OTHER_LANES_MIN).map(|n| Address::left_padding_from(&n.to_be_bytes()));
        let others: Vec<Address> = match idle.len() {
            0 => unserved.collect(),
            _ => idle.to_vec(),
        };
        let mut lanes = Vec::new();
        lanes.extend(divide(measured, in_measured));
        lanes.extend(divide(&others, finished - in_measured));
        lanes.retain(|(_, count)| *count > 0);
        Self { lanes }
    }

    /// The nonces that the chain must return for these accounts.
    pub(super) fn nonces(&self) -> AccountNonces {
        let lanes = self.lanes.iter();
        lanes
            .map(|(address, count)| (address.to_string().to_lowercase(), *count))
            .collect()
    }
}

fn divide(lanes: &[Address], count: u64) -> impl Iterator<Item = (Address, u64)> {
    let lane_count = u64::try_from(lanes.len()).unwrap_or(u64::MAX).max(1);
    (0..).zip(lanes).map(move |(index, lane)| {
        let share = count / lane_count + u64::from(index < count % lane_count);
        (*lane, share)
    })
}

/// Writes the planned txs through the gate.
pub(super) async fn prefill(store: Arc<dyn Store>, plan: &PrefillPlan) -> Result<(), Failure> {
    let total = plan.lanes.iter().map(|(_, count)| count).sum();
    let bar = ProgressBar::new(total);
    let style = ProgressStyle::with_template("{prefix:<28} {bar:32} {pos} of {len}, {eta} left");
    bar.set_style(style.expect("a fixed template is valid"));
    bar.set_prefix("finished txs");
    let key = |(signer, _): &(Address, u64)| LaneKey {
        chain_id: ChainId(CHAIN_ID),
        signer: *signer,
    };
    let keys: Vec<LaneKey> = plan.lanes.iter().map(key).collect();
    let mut writer = RowWriter::open(store, &keys, RowKind::Finished).await?;
    let mut left: Vec<u64> = plan.lanes.iter().map(|(_, count)| *count).collect();
    while left.iter().any(|left| *left > 0) {
        let mut rows_by_lane = Vec::new();
        let open = left.iter_mut().enumerate().filter(|(_, left)| **left > 0);
        for (index, left) in open.take(LANES_PER_COMMIT) {
            let rows = (*left).min(BATCH);
            *left -= rows;
            bar.inc(rows);
            rows_by_lane.push((index, usize::try_from(rows).unwrap_or(0)));
        }
        let batches = writer.build_batches(&rows_by_lane);
        writer.commit(batches).await?;
    }
    bar.finish_and_clear();
    writer.close().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_the_txs_is_in_the_measured_lanes() {
        let lane = |n: u8| Address::repeat_byte(n);
        let plan = PrefillPlan::new(&[lane(1), lane(2)], &[], 1_003);
        let sum: u64 = plan.lanes.iter().map(|(_, count)| count).sum();
        assert_eq!(sum, 1_003);
        assert_eq!(plan.lanes[..2], [(lane(1), 100), (lane(2), 100)]);
        let idle: Vec<Address> = (10..20).map(lane).collect();
        let plan = PrefillPlan::new(&[lane(1)], &idle, 1_000);
        assert_eq!(plan.lanes.len(), 11);
        assert_eq!(plan.nonces()[&lane(10).to_string().to_lowercase()], 80);
    }
}
