//! Where the actors meet: three lanes, with a row of every sort for each of them to trip over.

use std::collections::VecDeque;
use std::sync::Arc;

use domain::{EventKind, LaneId, LaneKey, LastWrite, Nonce, SubState, Token, Tx, TxState, Writes};
use engine::ports::{CommitOutcome, EventFilter, LaneBatch, Store as _};
use rig::postgres::{Database, Server};
use store::postgres::PostgresStore;

use crate::kit::{
    AT, Memory, acceptance, event, keep, migrated, new_lane, new_queued, new_tx, node, open,
    request_id, sign,
};
use crate::snapshots::Snapshots;
use crate::turns::Session;

/// How many scenes are made at once.
const MADE_AT_ONCE: usize = 100;
/// As many actors as ever meet, and one that holds a row.
const SESSIONS: usize = 4;

/// How the lease of the contested lane stands when the actors begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Base {
    /// It is valid: only a released lane may be taken.
    Live,
    /// It has run out by the database's clock, unless it is renewed.
    Lapsed,
    /// It runs, but everybody takes everybody else for dead.
    Silent,
}

impl Base {
    pub(crate) const ALL: [Self; 3] = [Self::Live, Self::Lapsed, Self::Silent];
}

/// Three lanes as the actors find them.
///
/// The contested one is kept by `a` under token 1 and may be taken over. It has a sent tx at nonce 0
/// and a tx that waits for a nonce. The other two are kept by `b` and by `a`, and are not contested.
/// All their events are in the feed.
pub(crate) struct Scene {
    pub(crate) base: Base,
    pub(crate) contested: Memory,
    pub(crate) of_b: Memory,
    pub(crate) of_a: Memory,
    pub(crate) sent: Tx,
    pub(crate) waiting: Tx,
    /// The batches of `a` for the contested lane and for its own: one each.
    pub(crate) batches: [LaneBatch; 2],
}

/// The request that several nodes get at once.
pub(crate) const SHARED_REQUEST: &str = "shared";

impl Scene {
    pub(crate) fn lanes(&self) -> [LaneId; 3] {
        [&self.contested, &self.of_b, &self.of_a].map(|lane| lane.lease_grant.lane)
    }

    pub(crate) fn lane(&self) -> LaneId {
        self.contested.lease_grant.lane
    }

    pub(crate) fn memories(&self) -> [&Memory; 3] {
        [&self.contested, &self.of_b, &self.of_a]
    }

    /// The batches that `a` would commit from the same memory instead. No key conflicts with these: only the
    /// count of batches does.
    pub(crate) fn other_batches(&self) -> [LaneBatch; 2] {
        let touched = Tx {
            reason: Some("once more".into()),
            ..self.sent.clone()
        };
        let update = Writes {
            updates: vec![touched],
            ..Writes::default()
        };
        [
            self.contested.batch(update),
            self.of_a.batch(Writes::default()),
        ]
    }

    /// A batch with a write of every sort.
    fn full_batch(contested: &Memory, sent: &Tx, waiting: &Tx) -> LaneBatch {
        let token = contested.lease_grant.token;
        let mut new = new_tx(SHARED_REQUEST, contested.next_nonce, token);
        let attempt = sign(&mut new);
        let hash = sent.tx_hash.expect("it is signed");
        let mut submitted = Tx {
            written: LastWrite {
                token,
                at: domain::Timestamp(AT.0 + 1),
            },
            ..sent.clone()
        };
        submitted.transition(TxState::Tracking, SubState::Submitted, submitted.written.at);
        let nonce = contested.next_nonce.next();
        let mut adopted = Tx {
            nonce: Some(nonce),
            written: LastWrite {
                token,
                ..waiting.written
            },
            ..waiting.clone()
        };
        adopted.transition(TxState::Allocated, SubState::Waiting, AT);
        let tx_hash = hash;
        let submission = EventKind::TxSubmitted {
            tx_hash,
            nonce: Nonce(0),
        };
        contested.batch(Writes {
            events: vec![
                event(&new, EventKind::TxAccepted { nonce: new.nonce }),
                event(&submitted, submission),
                event(&adopted, EventKind::TxAllocated { nonce }),
            ],
            first_sent: vec![(hash, AT)],
            queued_removed: vec![adopted.id],
            attempts: vec![attempt],
            inserts: vec![new],
            updates: vec![submitted, adopted],
            ..Writes::default()
        })
    }
}

/// A database in which scenes are played, one after the other.
pub(crate) struct Stage {
    pub(crate) store: Arc<PostgresStore>,
    pub(crate) watcher: Session,
    pub(crate) snapshots: Snapshots,
    pub(crate) sessions: Vec<Arc<Session>>,
    /// Behind everything in the feed, when all that was written is in it.
    feed_end: Option<String>,
    is_fed: bool,
    scenes: [VecDeque<Scene>; 3],
    database: Database,
}

impl Stage {
    pub(crate) async fn new(server: &Server) -> Self {
        let database = migrated(server, "interleavings").await;
        // Rows are found as in a database of any size, not by reading a table that is small here.
        let name = database.name();
        database.exec(&format!("ALTER DATABASE {name} SET enable_seqscan = off"));
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            sessions.push(Arc::new(Session::open(database.url()).await));
        }
        Self {
            store: open(database.url(), 9).await,
            watcher: Session::open(database.url()).await,
            snapshots: Snapshots::open(database.url()).await,
            sessions,
            feed_end: None,
            is_fed: true,
            scenes: Default::default(),
            database,
        }
    }

    /// A new scene.
    pub(crate) async fn scene(&mut self, base: Base) -> Arc<Scene> {
        if self.scenes[base as usize].is_empty() {
            let scenes = self.make(base).await;
            self.scenes[base as usize] = scenes;
        }
        let scene = self.scenes[base as usize].pop_front();
        Arc::new(scene.expect("they were just made"))
    }

    async fn make(&mut self, base: Base) -> VecDeque<Scene> {
        let keys: Vec<LaneKey> = (0..3 * MADE_AT_ONCE).map(|_| new_lane()).collect();
        let (of_a, of_b) = keys.split_at(2 * MADE_AT_ONCE);
        let (a, b) = (node("a"), node("b"));
        let mut lanes = Vec::new();
        for (lease_request, keys) in [(&a, of_a), (&b, of_b)] {
            let lease_grants = keep(&*self.store, lease_request, keys).await;
            let kept = keys.iter().zip(lease_grants);
            lanes.extend(
                kept.map(|(key, lease_grant)| Memory::new(*key, lease_grant, lease_request)),
            );
        }
        let firsts: Vec<Arc<LaneBatch>> = lanes
            .iter()
            .map(|lane| lane.batch(acceptance("first", Nonce(0), Token(1))).into())
            .collect();
        let outcomes = self.store.commit(firsts.clone()).await;
        assert!(
            outcomes
                .iter()
                .all(|outcome| *outcome == CommitOutcome::Applied)
        );
        for (lane, first) in lanes.iter_mut().zip(&firsts) {
            lane.follow(first);
        }
        let contested = lanes.iter().take(MADE_AT_ONCE);
        let queued = contested.map(|lane| new_queued(lane.key, "waiting"));
        let waiting = self
            .store
            .queue_requests(queued.collect())
            .await
            .expect("queue");
        if base == Base::Lapsed {
            self.let_leases_lapse(&lanes[..MADE_AT_ONCE]).await;
        }
        self.is_fed = false;
        let of_a = lanes[MADE_AT_ONCE..2 * MADE_AT_ONCE].iter();
        let others = of_a.zip(&lanes[2 * MADE_AT_ONCE..]);
        let contested = lanes.iter().zip(&firsts).zip(waiting);
        let made = contested.zip(others);
        made.map(|(((contested, first), waiting), (of_a, of_b))| {
            let sent = first.writes.inserts[0].clone();
            assert_eq!(waiting.request.request_id, request_id("waiting"));
            let own = of_a.batch(acceptance("second", of_a.next_nonce, Token(1)));
            Scene {
                base,
                batches: [Scene::full_batch(contested, &sent, &waiting), own],
                contested: contested.clone(),
                of_b: of_b.clone(),
                of_a: of_a.clone(),
                sent,
                waiting,
            }
        })
        .collect()
    }

    async fn let_leases_lapse(&self, lanes: &[Memory]) {
        let ids: Vec<i64> = lanes.iter().map(|lane| lane.lease_grant.lane.0).collect();
        let sql = "UPDATE signer_lease SET expires_at = 1 WHERE lane_id = ANY ($1)";
        let client = &self.watcher.client;
        client.execute(sql, &[&ids]).await.expect("leases lapse");
    }

    /// Appends all events to the feed; returns the cursor after them.
    pub(crate) async fn feed_end(&mut self) -> Option<String> {
        if !self.is_fed {
            self.store.extend_feed(&[]).await.expect("extend_feed");
            while !self.read_on().await {}
            self.is_fed = true;
        }
        self.feed_end.clone()
    }

    /// Reads one page; whether it was the last.
    async fn read_on(&mut self) -> bool {
        let filter = EventFilter {
            after: self.feed_end.take(),
            limit: 1_000,
            ..EventFilter::default()
        };
        let page = self.store.events(&filter).await.expect("events");
        self.feed_end = Some(page.next);
        page.events.is_empty()
    }

    /// The end of the feed after the last order, if it is known.
    pub(crate) fn set_feed_end(&mut self, end: Option<String>) {
        self.is_fed = end.is_some();
        self.feed_end = end.or_else(|| self.feed_end.take());
    }

    /// Runs statements that belong to no actor.
    pub(crate) fn exec(&self, sql: &str) {
        self.database.exec(sql);
    }
}
