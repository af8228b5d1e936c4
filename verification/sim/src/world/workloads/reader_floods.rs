//! Many readers at once, more than customers have connections: what they read takes long, and the rest must not notice.

use engine::ports::{EventFilter, TxFilter};
use futures::future::join_all;

use super::WorkloadContext;
use crate::world::features::Feature;

/// The pause before each flood.
const PAUSE_MS: (u64, u64) = (3_000, 20_000);
/// How many floods there are, how many readers each has, and how often each of them reads.
const FLOODS: u64 = 2;
const READERS: (u64, u64) = (20, 40);
const READS: u64 = 8;
/// The longest pause between two reads.
const READ_PAUSE_MS_MAX: u64 = 2_000;
/// The page size of a reader.
const PAGE: usize = 10;

pub(super) async fn flood_readers(context: WorkloadContext) {
    for _ in 0..FLOODS {
        context.pause(PAUSE_MS.0, PAUSE_MS.1).await;
        context.trace.fire(Feature::ReaderFloods);
        let count = context.rng.between(READERS.0, READERS.1);
        let readers = (0..count).map(|_| read_pages(context.split()));
        join_all(readers).await;
    }
}

async fn read_pages(context: WorkloadContext) {
    for _ in 0..READS {
        context.pause(0, READ_PAUSE_MS_MAX).await;
        let machine = context.pick_running_node().clone();
        let lane = *context.rng.pick(&context.plan.harmed_lanes());
        if context.rng.permille(500) {
            let filter = TxFilter {
                signer: Some(lane.signer),
                limit: PAGE,
                ..TxFilter::default()
            };
            let page = context.call_node(&machine, |node| async move { node.txs(&filter).await });
            drop(page.await); // a reader that is refused comes again
        } else {
            let filter = EventFilter {
                signer: Some(lane.signer),
                limit: PAGE,
                ..EventFilter::default()
            };
            let page =
                context.call_node(&machine, |node| async move { node.events(&filter).await });
            drop(page.await);
        }
    }
}
