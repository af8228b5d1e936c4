//! Meetings: some actors in a scene, perhaps with a session that holds a row, in one order after another.

use std::sync::Arc;

use rig::postgres::Server;

use crate::actors::{Kind, Play};
use crate::checks::check;
use crate::facts::Facts;
use crate::locks::Lock;
use crate::orders::Orders;
use crate::scene::{Base, Stage};
use crate::turns::{Actor, Hand, play};

/// A stage is cleared after this many orders: a sweep of the feed reads every lane.
const ORDERS_PER_STAGE: u64 = 1_500;

/// The most orders of three actors that are played one after the other: some triples have millions, most
/// of them equal but for statements that do not touch. As many again are drawn by chance from all. Of
/// two actors every order is played.
const ORDERS_OF_THREE_MAX: u64 = 500;
/// The same with a held row (actors that find it locked again and again have a hundred thousand orders).
const ORDERS_WITH_LOCK_MAX: u64 = 300;
/// The same for three actors with a held row.
const ORDERS_OF_THREE_WITH_LOCK_MAX: u64 = 50;

/// The most unsafe orders that are reported in full.
const REPORTED_MAX: usize = 5;

/// The actors of a meeting, and their scene.
#[derive(Clone, Debug)]
pub(crate) struct Meeting {
    pub(crate) kinds: Vec<Kind>,
    pub(crate) base: Base,
    /// Whether transactions stay open between turns.
    pub(crate) is_held: bool,
    pub(crate) lock: Option<Lock>,
}

impl Meeting {
    /// After how many orders chance takes over.
    fn orders_max(&self) -> Option<u64> {
        match (self.kinds.len(), self.lock) {
            (2, None) => None,
            (2, Some(_)) => Some(ORDERS_WITH_LOCK_MAX),
            (_, None) => Some(ORDERS_OF_THREE_MAX),
            (_, Some(_)) => Some(ORDERS_OF_THREE_WITH_LOCK_MAX),
        }
    }
}

/// The results of many orders.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) orders: u64,
    pub(crate) unsafe_orders: u64,
    /// How often an actor waited for another inside the database.
    pub(crate) waits: u64,
    pub(crate) deadlocks: u64,
    /// Orders in which the database decided which actor was first, and decided otherwise than before.
    pub(crate) strayed: u64,
    /// Meetings that have more orders than were played.
    pub(crate) cut_short: u64,
    /// The first unsafe orders.
    pub(crate) received: Vec<String>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.orders += other.orders;
        self.unsafe_orders += other.unsafe_orders;
        self.waits += other.waits;
        self.deadlocks += other.deadlocks;
        self.strayed += other.strayed;
        self.cut_short += other.cut_short;
        self.received.extend(other.received);
        self.received.truncate(REPORTED_MAX);
    }

    pub(crate) fn note(&mut self, violations: &[String], story: impl FnOnce() -> String) {
        self.orders += 1;
        if violations.is_empty() {
            return;
        }
        self.unsafe_orders += 1;
        self.deadlocks += u64::from(violations.iter().any(|text| text.contains("40P01")));
        if self.received.len() < REPORTED_MAX {
            self.received
                .push(format!("{}\n  {}", story(), violations.join("\n  ")));
        }
    }
}

/// A place to meet at on one server.
pub(crate) struct Theatre {
    server: Server,
    stage: Stage,
    played: u64,
}

impl Theatre {
    pub(crate) async fn new(server: Server) -> Self {
        Self {
            stage: Stage::new(&server).await,
            server,
            played: 0,
        }
    }

    /// Plays a meeting in these orders, as far as there is room.
    pub(crate) async fn play(&mut self, meeting: &Meeting, mut orders: Orders) -> Tally {
        let mut tally = Tally::default();
        loop {
            if self.played == ORDERS_PER_STAGE {
                self.stage = Stage::new(&self.server).await;
                self.played = 0;
            }
            self.played += 1;
            self.play_once(meeting, &mut orders, &mut tally).await;
            if !orders.advance() {
                return tally;
            }
            if let Some(most) = meeting.orders_max()
                && tally.orders == most
            {
                orders = orders.rest_by_chance(most);
                tally.cut_short += 1;
            }
        }
    }

    async fn play_once(&mut self, meeting: &Meeting, orders: &mut Orders, tally: &mut Tally) {
        let stage = &mut self.stage;
        let scene = stage.scene(meeting.base).await;
        let feed_from = match meeting.kinds.contains(&Kind::Read) {
            true => stage.feed_end().await,
            false => None,
        };
        let shared = Arc::new(Play {
            scene: Arc::clone(&scene),
            store: Arc::clone(&stage.store),
            facts: Facts::default(),
            feed_from,
        });
        let mut actors = Vec::new();
        let mut sessions = stage.sessions.iter();
        if let Some(lock) = meeting.lock {
            let session = sessions.next().expect("there are enough");
            lock.take(session, &scene).await;
            actors.push(holder(Hand::new(session, false)));
        }
        for (n, kind) in meeting.kinds.iter().enumerate() {
            let session = sessions.next().expect("there are enough");
            let (kind, shared) = (*kind, Arc::clone(&shared));
            let is_second = meeting.kinds[..n].contains(&kind);
            let hand = Hand::new(session, meeting.is_held);
            actors.push(Actor::start(kind.name(), hand, |hand| {
                kind.program(shared, hand, is_second)
            }));
        }
        let (story, waits) = play(&stage.watcher, actors, orders).await;
        tally.waits += waits;
        tally.strayed += u64::from(orders.has_strayed());
        let (violations, end) = check(&shared, &stage.snapshots).await;
        stage.set_feed_end(end);
        tally.note(&violations, || format!("{meeting:?}: {}", story.join(", ")));
    }
}

/// A session that holds a row lock, and releases it when it is its turn.
pub(crate) fn holder(hand: Hand) -> Actor {
    Actor::start("holder", hand, |hand| {
        Box::pin(async move {
            hand.turn("gives the row free").await;
            let client = &hand.session.client;
            client.batch_execute("ROLLBACK").await.expect("a rollback");
        })
    })
}
