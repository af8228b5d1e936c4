//! The pool on a real server: when a refusal is returned, and what a lost answer or a warning means.

use std::time::Duration;

use postgres_client::{Connector, Pool, PoolConfig, QueryError, Timeouts};
use rig::postgres::{majors, shared};
use rig::proxy::{AfterLoss, TcpProxy};

/// An empty statement, as the simple query protocol sends it.
const EMPTY_STATEMENT: &[u8] = b"Q\0\0\0\x05\0";

/// Everything that should happen happens well before this.
const SOON: Duration = Duration::from_secs(10);

fn pool(url: &str) -> Pool {
    let connector = Connector::parse(url, &Timeouts::default()).expect("an address");
    let config = PoolConfig {
        connections: 1,
        connection_within: SOON,
        waiting_max: 2,
        answer_within: 3 * SOON,
    };
    Pool::new(connector, config)
}

/// The driver returns a refusal when the error message arrives, which is before the server has released the row locks.
/// The next statement on the connection runs after that, so the pool returns the refusal only when an empty one was
/// answered.
#[tokio::test(flavor = "multi_thread")]
async fn refusal_is_returned_after_the_transaction_has_ended() {
    let database = shared(majors()[0]).database("refusal");
    let proxy = TcpProxy::in_front_of(database.server().port());
    let pool = pool(&database.url_through(proxy.port()));
    pool.query("SELECT 1", &[]).await.expect("a connection");
    proxy.hold(EMPTY_STATEMENT);
    let refused = pool.query("SELECT 1 / 0", &[]);
    tokio::pin!(refused);
    let too_soon = tokio::time::timeout(Duration::from_millis(500), refused.as_mut()).await;
    assert!(too_soon.is_err(), "{too_soon:?}");
    assert_eq!(proxy.held(), 1, "the pool waits for an empty statement");
    proxy.heal();
    let refused = tokio::time::timeout(SOON, refused).await;
    let refused = refused.expect("it is answered now");
    assert!(
        matches!(refused, Err(QueryError::Refused(_))),
        "{refused:?}"
    );
}

/// One call runs and two may wait; the next one is refused at once, not after a while.
#[tokio::test]
async fn call_beyond_the_waiting_ones_is_busy() {
    let database = shared(majors()[0]).database("busy");
    let pool = pool(database.url());
    pool.query("SELECT 1", &[]).await.expect("a connection");
    let call = || pool.query("SELECT pg_sleep(0.3)", &[]);
    let answers = tokio::join!(call(), call(), call(), call());
    assert!(answers.0.is_ok() && answers.1.is_ok() && answers.2.is_ok());
    assert!(
        matches!(answers.3, Err(QueryError::Busy(_))),
        "{:?}",
        answers.3
    );
}

#[tokio::test]
async fn lost_answer_is_unknown_and_unreachable_server_is_not_sent() {
    let database = shared(majors()[0]).database("lost_answer");
    database.exec("CREATE TABLE t (n integer)");
    let proxy = TcpProxy::in_front_of(database.server().port());
    let pool = pool(&database.url_through(proxy.port()));
    proxy.lose_answer_to("INSERT INTO t", AfterLoss::Cut);
    let lost = pool.query("INSERT INTO t VALUES (1)", &[]).await;
    assert!(matches!(lost, Err(QueryError::Unknown(_))), "{lost:?}");
    assert_eq!(
        database.query_value("SELECT count(*) FROM t").as_deref(),
        Some("1")
    );
    proxy.cut();
    let unreachable = pool.query("SELECT 1", &[]).await;
    assert!(
        matches!(unreachable, Err(QueryError::NotSent(_))),
        "{unreachable:?}"
    );
}

/// A server that stops waiting for its standbys commits all the same and only warns.
#[tokio::test]
async fn warning_makes_the_outcome_unknown() {
    let database = shared(majors()[0]).database("warning");
    let pool = pool(database.url());
    let warn = "CREATE FUNCTION warn() RETURNS void LANGUAGE plpgsql AS \
                $$ BEGIN RAISE WARNING 'not replicated'; END $$";
    database.exec(warn);
    let warned = pool.query("SELECT warn()", &[]).await;
    assert!(
        matches!(&warned, Err(QueryError::Unknown(text)) if text == "not replicated"),
        "{warned:?}"
    );
    pool.query("SELECT 1", &[]).await.expect("a new connection");
}
