//! Turns: a session runs its next statement on command, and nothing in between.
//!
//! Several actors run at once, each on a connection of its own. Before every statement an actor waits
//! for its turn, so the scheduler decides in which order the statements run. A statement
//! that waits inside the database is left there, and the turns go on (as PostgreSQL's own isolation
//! tests do it).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use store::postgres::sql::Param;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, NoTls, Row};

use crate::orders::Orders;

/// Nothing here waits this long, unless it waits for ever.
const WITHIN: Duration = Duration::from_secs(30);

/// How long a statement may run before the database is queried whether it waits.
const SOON: Duration = Duration::from_millis(1);

/// A connection, and its name inside the server.
pub(crate) struct Session {
    pub(crate) client: Client,
    pid: i32,
}

impl Session {
    /// A session that waits for locks as long as it takes, and reports deadlocks soon.
    pub(crate) async fn open(url: &str) -> Self {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
        // A broken connection is seen by the client's next call.
        tokio::spawn(async move { connection.await.ok() });
        let settings = "SELECT set_config(name, '0', false) FROM pg_settings \
             WHERE name IN ('lock_timeout', 'statement_timeout', 'transaction_timeout', \
                            'idle_in_transaction_session_timeout'); \
             SET deadlock_timeout = '10ms'";
        client.batch_execute(settings).await.expect("settings");
        let row = client.query_typed_one("SELECT pg_backend_pid()", &[]).await;
        let pid = row.expect("every session has a number").get(0);
        Self { client, pid }
    }
}

/// An actor's hand on its session.
pub(crate) struct Hand {
    pub(crate) session: Arc<Session>,
    place: Arc<Place>,
    /// Whether its transactions stay open until another turn. Otherwise statements stand alone.
    is_held: bool,
}

impl Hand {
    pub(crate) fn new(session: &Arc<Session>, is_held: bool) -> Self {
        Self {
            session: Arc::clone(session),
            place: Arc::default(),
            is_held,
        }
    }

    /// Waits for the next turn.
    pub(crate) async fn turn(&self, what: &'static str) {
        *self.place.what() = Some(what);
        self.place.moved.notify_one();
        let turn = self.place.turns.acquire().await;
        turn.expect("nobody closes it").forget();
    }

    /// A statement at its turn. With held transactions its commit has a turn of its own.
    pub(crate) async fn write(
        &self,
        what: &'static str,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Error> {
        self.turn(what).await;
        if !self.is_held {
            return self.at_once(sql, params).await;
        }
        let client = &self.session.client;
        let (began, rows) = futures::join!(
            client.batch_execute("BEGIN"),
            client.query_typed(sql, params)
        );
        began?;
        match rows {
            Ok(rows) => {
                self.turn("commit").await;
                client.batch_execute("COMMIT").await?;
                Ok(rows)
            }
            Err(error) => {
                client.batch_execute("ROLLBACK").await?;
                Err(error)
            }
        }
    }

    /// A statement at its turn that stands alone even where others are held.
    pub(crate) async fn write_in_one_turn(
        &self,
        what: &'static str,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Error> {
        self.turn(what).await;
        self.at_once(sql, params).await
    }

    /// A statement within the present turn.
    pub(crate) async fn at_once(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        self.session.client.query_typed(sql, params).await
    }
}

/// Where an actor stands.
#[derive(Debug)]
struct Place {
    /// The statement that it waits to run. `None`: it is running.
    what: Mutex<Option<&'static str>>,
    turns: Semaphore,
    /// It came to a turn, or to its end.
    moved: Notify,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            what: Mutex::default(),
            turns: Semaphore::new(0),
            moved: Notify::new(),
        }
    }
}

impl Place {
    fn what(&self) -> MutexGuard<'_, Option<&'static str>> {
        self.what.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An actor on its way.
pub(crate) struct Actor {
    name: &'static str,
    place: Arc<Place>,
    pid: i32,
    task: JoinHandle<()>,
}

impl Actor {
    pub(crate) fn start(
        name: &'static str,
        hand: Hand,
        program: impl FnOnce(Hand) -> BoxFuture<'static, ()>,
    ) -> Self {
        let (place, pid) = (Arc::clone(&hand.place), hand.session.pid);
        let task = tokio::spawn({
            let (program, place) = (program(hand), Arc::clone(&place));
            async move {
                program.await;
                place.moved.notify_one();
            }
        });
        Self {
            name,
            place,
            pid,
            task,
        }
    }

    fn at_turn(&self) -> Option<&'static str> {
        *self.place.what()
    }

    /// At a statement, or waiting inside the database.
    fn is_busy(&self) -> bool {
        !self.task.is_finished() && self.at_turn().is_none()
    }
}

/// The statements in their order: actor, statement, and whether it had to wait inside the database.
pub(crate) type Story = Vec<String>;

/// Runs the actors to their ends in the chosen order, and records the story. The last number is
/// how often one had to wait for another inside the database.
pub(crate) async fn play(
    watcher: &Session,
    mut actors: Vec<Actor>,
    orders: &mut Orders,
) -> (Story, u64) {
    let mut story = Story::new();
    let mut waits = 0;
    let began = Instant::now();
    orders.begin();
    loop {
        wait_until_settled(watcher, &actors, &story).await;
        let ready: Vec<&Actor> = actors.iter().filter(|a| a.at_turn().is_some()).collect();
        if ready.is_empty() {
            if !actors.iter().any(Actor::is_busy) {
                break;
            }
            // A circle: the database ends it.
            assert!(began.elapsed() < WITHIN, "nobody can go on: {story:?}");
            continue;
        }
        let actor = ready[orders.choose(ready.len())];
        let what = actor.place.what().take().expect("it is at its turn");
        story.push(format!("{} {what}", actor.name));
        actor.place.turns.add_permits(1);
        wait_until_settled(watcher, &actors, &story).await;
        if actor.is_busy() {
            waits += 1;
            story.push("(waits)".into());
        }
    }
    for actor in &mut actors {
        (&mut actor.task).await.expect("an actor ends in order");
    }
    (story, waits)
}

/// Returns when every actor is at its turn, at its end, or waits inside the database for one of these.
async fn wait_until_settled(watcher: &Session, actors: &[Actor], story: &Story) {
    const FREE: &str = "SELECT count(*) FROM unnest($1::integer[]) AS pid \
         WHERE cardinality(pg_blocking_pids(pid)) = 0";
    let began = Instant::now();
    loop {
        let busy = || actors.iter().filter(|actor| actor.is_busy());
        let Some(actor) = busy().next() else {
            return;
        };
        // Most statements are done soon; one that is not may be waiting.
        let moved = actor.place.moved.notified();
        if tokio::time::timeout(SOON, moved).await.is_ok() {
            continue;
        }
        let pids: Vec<i32> = busy().map(|actor| actor.pid).collect();
        let params: [Param<'_>; 1] = [(&pids, Type::INT4_ARRAY)];
        let row = watcher.client.query_typed_one(FREE, &params).await;
        let free: i64 = row.expect("the watcher can always look").get(0);
        if free == 0 && busy().map(|actor| actor.pid).eq(pids) {
            return;
        }
        assert!(
            began.elapsed() < WITHIN,
            "somebody is neither done nor waiting: {story:?}"
        );
    }
}
