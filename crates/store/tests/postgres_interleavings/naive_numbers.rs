//! Naive forms around numbers that writers give themselves. They need no lane: two writers and a table of
//! their own show it.

use sim::rng::Rng;
use store::postgres::sql::Param;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::meetings::Tally;
use crate::naive::Naive;
use crate::orders::Orders;
use crate::scene::Stage;
use crate::turns::{Actor, Hand, play};

pub(crate) enum Numbers {
    /// A reader after the highest number misses a smaller one that is committed later.
    Read,
    /// The lock is fresh, the snapshot of the same statement is not: both take the same number.
    Allocated,
}

impl Numbers {
    pub(crate) fn of(naive: Naive) -> Option<Self> {
        match naive {
            Naive::IdAboveCursor => Some(Self::Read),
            Naive::MaxPlusOne => Some(Self::Allocated),
            Naive::ExistsNow
            | Naive::ExistsClock
            | Naive::UpdateFrom
            | Naive::RowToken
            | Naive::KeyShare
            | Naive::UnreferencedCte
            | Naive::RepeatableRead
            | Naive::TakeoverAndLoad => None,
        }
    }

    /// Plays it in every order.
    pub(crate) async fn play(self, stage: &Stage, tally: &mut Tally) {
        stage.exec(match self {
            Self::Read => "CREATE TABLE naive_log (id bigserial PRIMARY KEY)",
            Self::Allocated => {
                "CREATE TABLE naive_lane (id bigint); INSERT INTO naive_lane VALUES (1); \
                 CREATE TABLE naive_nonce (nonce bigint)"
            }
        });
        let mut orders = Orders::all(Rng::new(1));
        loop {
            match self {
                Self::Read => read_once(stage, &mut orders, tally).await,
                Self::Allocated => allocate_once(stage, &mut orders, tally).await,
            }
            if !orders.advance() {
                return;
            }
        }
    }
}

/// Two writers that each do this once.
fn writers(stage: &Stage, sql: &'static str) -> Vec<Actor> {
    let names = ["one writer", "other writer"].into_iter();
    let both = names.zip(&stage.sessions);
    both.map(|(name, session)| {
        Actor::start(name, Hand::new(session, true), |hand| {
            Box::pin(async move {
                let written = hand.write("writes", sql, &[]).await;
                written.expect("a row of its own");
            })
        })
    })
    .collect()
}

async fn allocate_once(stage: &Stage, orders: &mut Orders, tally: &mut Tally) {
    const SQL: &str = "WITH held AS (SELECT id FROM naive_lane WHERE id = 1 FOR UPDATE) \
         INSERT INTO naive_nonce \
         SELECT (SELECT coalesce(max(nonce), -1) + 1 FROM naive_nonce) FROM held";
    let client = &stage.watcher.client;
    let emptied = client.batch_execute("TRUNCATE naive_nonce").await;
    emptied.expect("nobody is at it");
    let (story, waits) = play(&stage.watcher, writers(stage, SQL), orders).await;
    tally.waits += waits;
    let count = "SELECT count(DISTINCT nonce) FROM naive_nonce";
    let row = client.query_typed_one(count, &[]).await.expect("a look");
    let violations: Vec<String> = match row.get::<_, i64>(0) {
        2 => Vec::new(),
        different => vec![format!(
            "two numbers were taken, {different} of them different"
        )],
    };
    tally.note(&violations, || story.join(", "));
}

/// Two writers and a reader of one log.
async fn read_once(stage: &Stage, orders: &mut Orders, tally: &mut Tally) {
    let client = &stage.watcher.client;
    let first: i64 = last_id(client).await;
    let mut actors = writers(stage, "INSERT INTO naive_log DEFAULT VALUES");
    let (received, seen) = tokio::sync::oneshot::channel();
    actors.push(Actor::start(
        "reader",
        Hand::new(&stage.sessions[2], false),
        |hand| {
            Box::pin(async move {
                let mut ids = vec![first];
                for _ in 0..2 {
                    hand.turn("reads").await;
                    read_behind(&hand.session.client, &mut ids).await;
                }
                received.send(ids).ok(); // the requester waits for it
            })
        },
    ));
    let (story, waits) = play(&stage.watcher, actors, orders).await;
    tally.waits += waits;
    let mut ids = seen.await.expect("the reader tells");
    read_behind(client, &mut ids).await;
    let violations: Vec<String> = match ids.len() {
        3 => Vec::new(),
        _ => vec![format!(
            "two rows were written, and the reader has seen {:?}",
            &ids[1..]
        )],
    };
    tally.note(&violations, || story.join(", "));
}

async fn last_id(client: &Client) -> i64 {
    let sql = "SELECT coalesce(max(id), 0) FROM naive_log";
    client
        .query_typed_one(sql, &[])
        .await
        .expect("a look")
        .get(0)
}

async fn read_behind(client: &Client, ids: &mut Vec<i64>) {
    let after = *ids.last().expect("it begins somewhere");
    let params: [Param<'_>; 1] = [(&after, Type::INT8)];
    let sql = "SELECT id FROM naive_log WHERE id > $1 ORDER BY id";
    let rows = client.query_typed(sql, &params).await.expect("a look");
    ids.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
}
