//! Rows of the embedded store that were changed by hand: decoding of events, txs, attempts and receipts, and
//! cursors that a caller made up. (PostgreSQL's rows are decoded by the same functions.)
//!
//! Each part of an input is one cell: its first line has table, column and the number of the row, the rest
//! is the value. `cursor` instead of a table reads the feed from there on. Then everything is read.

mod cells;
mod reading;

use std::sync::Arc;
use std::time::Duration;

use api::Auth;
use domain::{LaneKey, Payload, RequestId, TxId, U256};
use engine::node::{NewTx, Origin, WaitFor};
use sim::chain::REVERTS;
use store::sqlite::SqliteStore;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use super::Target;
use crate::parts::{first_line, parts};
use crate::worlds::node::{CHAIN, NodeWorld, SIGNER};
use cells::Cells;
use reading::Reading;

/// The lane whose rows are changed.
const LANE: LaneKey = LaneKey {
    chain_id: CHAIN,
    signer: SIGNER,
};
/// How long the txs may take that the store is filled with.
const FILLED_AFTER_MAX: Duration = Duration::from_secs(20);

pub(super) fn make() -> Box<dyn Target> {
    let folder = scratch();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("this machine has a poll and a clock");
    SqliteStore::migrate(folder.path()).expect("a new folder can be migrated");
    let store = SqliteStore::open(folder.path()).expect("a migrated store opens");
    let store = Arc::new(store);
    let ids = runtime.block_on(fill(Arc::clone(&store)));
    let reading = runtime.block_on(Reading::new(Arc::clone(&store), ids));
    Box::new(Stored {
        cells: Cells::open(&folder.path().join("lanekeeper.db")),
        reading,
        runtime,
        _folder: folder,
    })
}

/// In memory where the machine has that: nothing of it is to be kept.
fn scratch() -> TempDir {
    let mut named = tempfile::Builder::new();
    named.prefix("lanekeeper-fuzz-");
    named
        .tempdir_in("/dev/shm")
        .or_else(|_| named.tempdir())
        .expect("a temporary folder can be made")
}

struct Stored {
    cells: Cells,
    reading: Reading,
    runtime: Runtime,
    /// Last: it is removed when nothing uses it any more.
    _folder: TempDir,
}

impl Target for Stored {
    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        let mut cursor = None;
        for part in parts(input) {
            let (place, value) = first_line(part);
            if place == "cursor" {
                cursor = Some(String::from_utf8_lossy(value).into_owned());
            } else {
                self.cells.change(&place, value);
            }
        }
        self.runtime.block_on(self.reading.read_all(cursor));
        self.cells.restore();
        Ok(())
    }
}

/// Fills the store as a node does: txs that succeed and one that reverts, up to their last event.
async fn fill(store: Arc<SqliteStore>) -> Vec<TxId> {
    let world = NodeWorld::start(Some(store), Auth::None, None).await;
    let node = world.node.handle();
    let mut ids = Vec::new();
    for number in 0..3 {
        let mut payload = Payload::transfer(SIGNER, U256::from(number));
        payload.gas = Some(100_000);
        if number == 2 {
            payload.data = REVERTS.to_vec().into();
        }
        let accepted = node.create(NewTx {
            lane: LANE,
            request_id: RequestId::parse(format!("request-{number}")).expect("a good id"),
            payload,
            estimated_gas: None,
            origin: Origin::default(),
        });
        let accepted = accepted.await.expect("a node on twins takes it");
        ids.push(accepted.record.tx.id);
    }
    let began = std::time::Instant::now();
    for id in &ids {
        let mut is_final = false;
        while !is_final && began.elapsed() < FILLED_AFTER_MAX {
            world.chain.mine();
            let waited = node.wait(*id, WaitFor::Confirmed, Duration::from_millis(300));
            let record = waited.await.expect("the store answers");
            is_final = record.is_some_and(|record| record.tx.state.is_terminal());
        }
        assert!(is_final, "tx {id} is final");
    }
    world.node.drain().await;
    ids
}
