//! Readers of the PostgreSQL store where they differ from the embedded one's: bounds, joins, the feed
//! that is written behind the gate, and nodes that beat at the same moment.

mod events;
mod nodes;
mod txs;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use domain::{Address, ChainId, LaneKey, TxId, TxState};
use engine::ports::{EventFilter, EventPage, EventRecord, Store, TxFilter, TxRecord};
use rig::postgres::{Database, majors, shared};
use store::postgres::{PostgresConfig, PostgresStore, migrate};
use uuid::Uuid;

/// A store, and the database below it to put rows into.
pub(crate) struct World {
    pub(crate) store: Arc<PostgresStore>,
    pub(crate) database: Database,
}

impl World {
    /// Lanes 1 to 3 on chains 1 to 3.
    pub(crate) async fn new(hint: &str) -> Self {
        // Long, because the timeouts that follow from it also hold for filling the database.
        let lease = Duration::from_secs(600);
        let database = shared(majors()[0]).database(hint);
        let url = database.url().to_owned();
        migrate(&url, None, lease).await.expect("migrate");
        let pool_size = 9;
        let config = PostgresConfig {
            url,
            pool_size,
            lease,
        };
        let store = PostgresStore::open(config).await.expect("open");
        let world = Self {
            store: Arc::new(store),
            database,
        };
        world.exec(
            "INSERT INTO lane (chain_id, signer)
             SELECT n, decode(repeat(lpad(to_hex(n), 2, '0'), 20), 'hex') FROM generate_series(1, 3) n",
        );
        world
    }

    pub(crate) fn exec(&self, sql: &str) {
        self.database.exec(sql);
    }

    /// Txs with these numbers as ids, nonces and request ids, all of one lane and state.
    pub(crate) fn insert_txs(&self, lane: u64, state: TxState, range: Range<u64>, bytes: usize) {
        let (from, to) = (range.start, range.end - 1);
        let state = TxState::ALL.iter().position(|other| *other == state);
        let state = state.expect("it is one of them");
        self.exec(&format!(
            "INSERT INTO managed_tx
               (lane_id, created_at, gas, tx_id, request_id, fingerprint, value, data, state, signed,
                nonce, token, updated_at, event_seqs)
             SELECT {lane}, n, 21000, lpad(to_hex(n), 32, '0')::uuid, 'r' || n, sha256('x'), '',
                    decode(repeat('ab', {bytes}), 'hex'), {state}, true, n, 1, n, ''
             FROM generate_series({from}, {to}) AS n"
        ));
    }

    /// A chain of headers at these heights.
    pub(crate) fn insert_headers(&self, chain: u64, branch: &str, range: Range<u64>) {
        let (from, to) = (range.start, range.end - 1);
        self.exec(&format!(
            "INSERT INTO chain_header (chain_id, number, timestamp, hash, parent_hash)
             SELECT {chain}, n, n, sha256(('{branch}' || n)::bytea), sha256(('{branch}' || n - 1)::bytea)
             FROM generate_series({from}, {to}) AS n"
        ));
    }

    /// Says that a tx stands in a block, and up to which header it was counted.
    pub(crate) fn mine(&self, tx: u64, block: &str, counted: &str) {
        let block = format!("sha256('{block}'::bytea)");
        self.exec(&format!(
            "UPDATE managed_tx SET counted = sha256('{counted}'::bytea),
               inclusion = '\\x01'::bytea || sha256('tx'::bytea) || {block}
                 || decode(repeat('00', 32), 'hex')
             WHERE tx_id = lpad(to_hex({tx}), 32, '0')::uuid"
        ));
    }

    /// A turn of a lane with `count` events about foreign nonces, or, when `kind` is 2, about own ones.
    pub(crate) fn insert_turn(&self, lane: u64, first_seq: u64, count: u64, kind: u8) {
        self.exec(&format!(
            "INSERT INTO lane_event (lane_id, first_seq, at, token, count, node, body)
             SELECT {lane}, {first_seq}, 0, 1, {count}, 'a',
                    decode('01' || repeat('{kind:02x}0007', {count}), 'hex')"
        ));
    }

    /// The next position of the feed.
    pub(crate) fn feed(&self, lane: u64, first_seq: u64, last_seq: u64) {
        self.exec(&format!(
            "UPDATE feed_head SET position = position + 1;
             INSERT INTO event_feed (position, lane_id, first_seq, last_seq)
             SELECT position, {lane}, {first_seq}, {last_seq} FROM feed_head"
        ));
    }

    /// All pages of a list, and how many there were.
    pub(crate) async fn list(&self, mut filter: TxFilter) -> (Vec<TxRecord>, usize) {
        let mut txs = Vec::new();
        let mut pages = 0;
        loop {
            let page = self.store.txs(&filter).await.expect("txs");
            assert!(page.txs.len() <= filter.limit, "no more than asked");
            txs.extend(page.txs);
            pages += 1;
            match page.next {
                Some(next) => filter.after = Some(next),
                None => return (txs, pages),
            }
        }
    }

    pub(crate) async fn page(&self, filter: &EventFilter) -> EventPage {
        self.store.events(filter).await.expect("events")
    }

    /// All pages of the feed, and how many there were before its end.
    pub(crate) async fn feed_to_end(&self, mut filter: EventFilter) -> (Vec<EventRecord>, usize) {
        let mut events = Vec::new();
        let mut pages = 0;
        loop {
            let page = self.page(&filter).await;
            assert!(page.events.len() <= filter.limit, "no more than asked");
            events.extend(page.events);
            if filter.after.as_ref() == Some(&page.next) {
                return (events, pages);
            }
            filter.after = Some(page.next);
            pages += 1;
        }
    }
}

pub(crate) fn tx_id(number: u64) -> TxId {
    TxId(Uuid::from_u128(number.into()))
}

pub(crate) fn numbers(txs: &[TxRecord]) -> Vec<u64> {
    txs.iter()
        .map(|record| record.tx.nonce.expect("all have one").0)
        .collect()
}

pub(crate) fn lane(n: u8) -> LaneKey {
    LaneKey {
        chain_id: ChainId(n.into()),
        signer: Address::repeat_byte(n),
    }
}

pub(crate) fn places(events: &[EventRecord]) -> Vec<(u64, u64)> {
    events
        .iter()
        .map(|record| (record.lane.chain_id.0, record.event.seq))
        .collect()
}
