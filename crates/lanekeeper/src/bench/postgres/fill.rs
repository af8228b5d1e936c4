//! Finished txs, put into the tables before a run: what years of use leave behind.

use std::sync::Arc;

use alloy_primitives::Address;
use domain::{ChainId, LaneKey};
use engine::ports::Store;
use indicatif::{ProgressBar, ProgressStyle};

use super::super::filler::{Filler, Rows};
use super::super::null_chain::{CHAIN_ID, EndpointNonces};
use crate::failure::Failure;

/// One in so many finished txs is in a measured lane.
const MEASURED_SHARE: u64 = 5;
/// The rest is spread over at least so many lanes.
const OTHER_LANES_MIN: u64 = 100;
/// Lanes that are filled at once, and rows of each in one commit: several connections are busy, and
/// batches are as large as the gate likes them.
const LANES_AT_ONCE: usize = 4;
const BATCH: u64 = 100;

/// How many finished txs each lane gets.
pub(super) struct Fill {
    lanes: Vec<(Address, u64)>,
}

impl Fill {
    pub(super) fn plan(measured: &[Address], idle: &[Address], finished: u64) -> Self {
        let in_measured = finished / MEASURED_SHARE;
        // Idle lanes first; without enough of them, lanes that no node has.
        let strangers = (0..OTHER_LANES_MIN).map(|n| Address::left_padding_from(&n.to_be_bytes()));
        let others: Vec<Address> = match idle.len() {
            0 => strangers.collect(),
            _ => idle.to_vec(),
        };
        let mut lanes = Vec::new();
        lanes.extend(shares(measured, in_measured));
        lanes.extend(shares(&others, finished - in_measured));
        lanes.retain(|(_, count)| *count > 0);
        Self { lanes }
    }

    /// What the chain must say of these accounts.
    pub(super) fn nonces(&self) -> EndpointNonces {
        let lanes = self.lanes.iter();
        lanes
            .map(|(address, count)| (address.to_string().to_lowercase(), *count))
            .collect()
    }
}

fn shares(lanes: &[Address], count: u64) -> impl Iterator<Item = (Address, u64)> {
    let places = u64::try_from(lanes.len()).unwrap_or(u64::MAX).max(1);
    (0..).zip(lanes).map(move |(place, lane)| {
        let share = count / places + u64::from(place < count % places);
        (*lane, share)
    })
}

/// Writes all of it through the gate.
pub(super) async fn fill(store: Arc<dyn Store>, fill: &Fill) -> Result<(), Failure> {
    let total = fill.lanes.iter().map(|(_, count)| count).sum();
    let bar = ProgressBar::new(total);
    let style = ProgressStyle::with_template("{prefix:<28} {bar:32} {pos} of {len}, {eta} left");
    bar.set_style(style.expect("a fixed template is valid"));
    bar.set_prefix("finished txs");
    let key = |(signer, _): &(Address, u64)| LaneKey {
        chain_id: ChainId(CHAIN_ID),
        signer: *signer,
    };
    let keys: Vec<LaneKey> = fill.lanes.iter().map(key).collect();
    let mut filler = Filler::open(store, &keys, Rows::Finished).await?;
    let mut left: Vec<u64> = fill.lanes.iter().map(|(_, count)| *count).collect();
    while left.iter().any(|left| *left > 0) {
        let mut wanted = Vec::new();
        let open = left.iter_mut().enumerate().filter(|(_, left)| **left > 0);
        for (place, left) in open.take(LANES_AT_ONCE) {
            let rows = (*left).min(BATCH);
            *left -= rows;
            bar.inc(rows);
            wanted.push((place, usize::try_from(rows).unwrap_or(0)));
        }
        let batches = filler.batches(&wanted);
        filler.commit(batches).await?;
    }
    bar.finish_and_clear();
    filler.close().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_is_in_the_measured_lanes_and_nothing_is_lost() {
        let lane = |n: u8| Address::repeat_byte(n);
        let plan = Fill::plan(&[lane(1), lane(2)], &[], 1_003);
        let sum: u64 = plan.lanes.iter().map(|(_, count)| count).sum();
        assert_eq!(sum, 1_003);
        assert_eq!(plan.lanes[..2], [(lane(1), 100), (lane(2), 100)]);
        let idle: Vec<Address> = (10..20).map(lane).collect();
        let plan = Fill::plan(&[lane(1)], &idle, 1_000);
        assert_eq!(plan.lanes.len(), 11);
        assert_eq!(plan.nonces()[&lane(10).to_string().to_lowercase()], 80);
    }
}
