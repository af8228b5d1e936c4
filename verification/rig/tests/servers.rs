//! The rig itself: real servers start, break and go away as it says.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use rig::pgbouncer::PgBouncer;
use rig::postgres::{Postgres, Server, majors, shared};
use rig::proxy::{TcpProxy, Then};
use rig::redis::{Keeps, Redis};
use tokio_postgres::{Client, Error, NoTls};

/// Answers come well before this, and silence is told from slowness after it.
const WITHIN: Duration = Duration::from_secs(20);

async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // A broken connection is seen by the client's next call.
    tokio::spawn(async move { connection.await.ok() });
    Ok(client)
}

#[test]
fn every_installed_major_gives_databases_that_go_away() {
    for major in majors() {
        let server = shared(major);
        let version = server.ask("SHOW server_version_num").unwrap();
        assert_eq!(version[..2], major.to_string());
        let (one, other) = (server.database("same name"), server.database("same name"));
        one.exec("CREATE TABLE t (x int)");
        other.exec("CREATE TABLE t (x int)");
        let name = one.name().to_owned();
        let count = format!("SELECT count(*) FROM pg_database WHERE datname = '{name}'");
        assert_eq!(server.ask(&count).as_deref(), Some("1"));
        drop(one);
        assert_eq!(server.ask(&count).as_deref(), Some("0"));
    }
}

#[test]
fn killed_server_comes_back_with_what_was_committed() {
    let postgres = Postgres::start(majors()[0]);
    let database = postgres.database("kill");
    database.exec("CREATE TABLE t (x int); INSERT INTO t VALUES (7)");
    let port = postgres.port();
    postgres.kill();
    assert!(postgres.try_ask("SELECT 1").is_err());
    postgres.start_again();
    assert_eq!(postgres.port(), port);
    assert_eq!(database.ask("SELECT x FROM t").as_deref(), Some("7"));
    assert!(postgres.log_tail().contains("recovery"), "it was a crash");

    postgres.config(&[("lock_timeout", "77ms")]);
    assert_eq!(postgres.ask("SHOW lock_timeout").as_deref(), Some("77ms"));
    postgres.stop();
    postgres.start_again();
    assert_eq!(postgres.ask("SHOW lock_timeout").as_deref(), Some("77ms"));
    assert_eq!(postgres.ask("SHOW fsync").as_deref(), Some("on"));
}

#[test]
fn dropped_server_leaves_nothing() {
    let postgres = Postgres::start(majors()[0]);
    let (pid, data) = (postgres.pid(), postgres.data());
    assert!(data.exists());
    drop(postgres);
    assert!(!data.exists());
    assert!(!std::fs::exists(format!("/proc/{pid}")).unwrap());
}

#[test]
fn killed_owner_leaves_nothing() {
    let major = majors()[0];
    // It tells the address, then waits for the end of its input.
    let tell = format!("echo ${}; cat", rig::postgres::variable(major));
    let mut owner = Command::new(env!("CARGO_BIN_EXE_rig"))
        .args(["sh", "-c", &tell])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut address = String::new();
    let mut output = BufReader::new(owner.stdout.take().unwrap());
    output.read_line(&mut address).unwrap();
    let folder = ask(address.trim(), "SHOW data_directory").unwrap();
    assert!(std::fs::exists(&folder).unwrap());
    owner.kill().unwrap(); // the hard way
    owner.wait().unwrap();
    rig::until("server and folder are gone", WITHIN, || {
        let gone = ask(address.trim(), "SELECT 1").is_none() && !std::fs::exists(&folder).unwrap();
        gone.then_some(())
    });
}

fn ask(url: &str, sql: &str) -> Option<String> {
    Server::at(0, url).try_ask(sql).ok()?
}

#[test]
fn synchronous_standby_has_every_commit_when_promoted() {
    for major in [majors()[0], *majors().last().unwrap()] {
        let primary = Postgres::start(major);
        primary.exec("CREATE TABLE t (x int)");
        let standby = primary.standby(true);
        primary.exec("INSERT INTO t SELECT generate_series(1, 100)");
        primary.kill();
        standby.promote();
        assert_eq!(standby.ask("SELECT sum(x) FROM t").as_deref(), Some("5050"));
        standby.exec("INSERT INTO t VALUES (0)"); // it waits for nobody
        let file = standby.ask("SELECT pg_walfile_name(pg_current_wal_lsn())");
        assert!(file.unwrap().starts_with("00000002"), "a new timeline");
    }
}

#[test]
fn asynchronous_standby_does_not_hold_the_primary_up() {
    let primary = Postgres::start(majors()[0]);
    let standby = primary.standby(false);
    standby.stop();
    primary.exec("CREATE TABLE t (x int)");
    standby.start_again();
    rig::until("the standby has caught up", WITHIN, || {
        standby.try_ask("SELECT count(*) FROM t").ok()
    });
}

#[tokio::test]
async fn bouncer_deals_few_connections_to_many_sessions() {
    let server = shared(majors()[0]);
    let database = server.database("bouncer");
    let bouncer = PgBouncer::in_front_of(&server, 1);
    let url = database.url_through(bouncer.port());
    let mut backends = Vec::new();
    for _ in 0..3 {
        let client = connect(&url).await.unwrap();
        let rows = client.simple_query("SELECT pg_backend_pid()").await;
        rows.unwrap();
        backends.push(client);
    }
    let sessions = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}'",
        database.name()
    );
    assert_eq!(server.ask(&sessions).as_deref(), Some("1"));

    // A role that the pooler was never told of logs in with its own password.
    let role = format!("role_of_{}", database.name());
    server.exec(&format!("CREATE ROLE \"{role}\" LOGIN PASSWORD 'own'"));
    let own = url.replacen("postgres:rig@", &format!("{role}:own@"), 1);
    let asked = async { connect(&own).await?.simple_query("SELECT 1").await };
    let answer = asked.await;
    server.exec(&format!("DROP ROLE \"{role}\""));
    answer.unwrap();
}

#[tokio::test]
async fn lost_answer_hides_a_commit_and_a_lost_request_is_none() {
    let server = shared(majors()[0]);
    let database = server.database("proxy");
    database.exec("CREATE TABLE t (x int)");
    let proxy = TcpProxy::in_front_of(server.port());
    let url = database.url_through(proxy.port());

    proxy.lose_answer_to("INSERT INTO t VALUES (1)", Then::Cut);
    let client = connect(&url).await.unwrap();
    let answer = client.batch_execute("INSERT INTO t VALUES (1)").await;
    assert!(answer.unwrap_err().is_closed());
    assert_eq!(database.ask("SELECT x FROM t").as_deref(), Some("1"));

    proxy.lose_answer_to("INSERT INTO t VALUES (2)", Then::Silence);
    let client = connect(&url).await.unwrap();
    let insert = client.batch_execute("INSERT INTO t VALUES (2)");
    tokio::select! {
        answer = insert => panic!("an answer came: {answer:?}"),
        () = arrives(|| proxy.lost() == 2) => {}
    }
    let sum = "SELECT sum(x) FROM t";
    assert_eq!(database.ask(sum).as_deref(), Some("3"));

    proxy.lose_request("VALUES (4)");
    let client = connect(&url).await.unwrap();
    let answer = client.batch_execute("INSERT INTO t VALUES (4)").await;
    assert!(answer.is_err());
    assert_eq!(database.ask(sum).as_deref(), Some("3"));
    assert_eq!(proxy.lost(), 3);

    let client = connect(&url).await.unwrap();
    client
        .batch_execute("INSERT INTO t VALUES (4)")
        .await
        .unwrap();
    assert_eq!(database.ask(sum).as_deref(), Some("7"));
}

#[tokio::test]
async fn held_requests_wait_and_all_others_go_on() {
    let server = shared(majors()[0]);
    let database = server.database("held");
    database.exec("CREATE TABLE t (x int)");
    let proxy = TcpProxy::in_front_of(server.port());
    let url = database.url_through(proxy.port());
    let (one, other) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());

    proxy.hold("VALUES (1)");
    let mut held = Vec::new();
    for client in [one, connect(&url).await.unwrap()] {
        let insert = async move { client.batch_execute("INSERT INTO t VALUES (1)").await };
        held.push(tokio::spawn(insert));
    }
    arrives(|| proxy.held() == 2).await;
    let insert = "INSERT INTO t VALUES (10)";
    other.batch_execute(insert).await.unwrap();
    let sum = "SELECT sum(x) FROM t";
    assert_eq!(database.ask(sum).as_deref(), Some("10"));

    proxy.heal();
    for insert in held {
        insert.await.unwrap().unwrap();
    }
    assert_eq!(database.ask(sum).as_deref(), Some("12"));
}

#[tokio::test]
async fn frozen_wire_goes_on_when_healed_and_a_cut_one_is_closed() {
    let server = shared(majors()[0]);
    let proxy = TcpProxy::in_front_of(server.port());
    let url = server.through(proxy.port()).url().to_owned();
    let client = connect(&url).await.unwrap();

    proxy.freeze();
    let frozen = client.simple_query("SELECT 1");
    let new = connect(&url);
    tokio::pin!(frozen, new);
    let short = Duration::from_millis(300);
    assert!(tokio::time::timeout(short, &mut frozen).await.is_err());
    assert!(tokio::time::timeout(short, &mut new).await.is_err());
    proxy.heal();
    frozen.await.unwrap();
    new.await.unwrap();

    let delay = Duration::from_millis(100);
    proxy.delay(delay);
    let started = std::time::Instant::now();
    client.simple_query("SELECT 1").await.unwrap();
    assert!(started.elapsed() >= 2 * delay, "there and back");
    proxy.heal();

    proxy.cut_after(40);
    let long = client.simple_query("SELECT repeat('x', 1000)").await;
    assert!(long.unwrap_err().is_closed());
    assert!(connect(&url).await.is_err(), "cut until it is healed");
    proxy.heal();
    let client = connect(&url).await.unwrap();
    proxy.cut();
    assert!(client.simple_query("SELECT 1").await.is_err());
}

#[test]
fn redis_keeps_what_it_was_told_to_keep() {
    for (keeps, after) in [(Keeps::Nothing, ""), (Keeps::Everything, "1")] {
        let redis = Redis::start(keeps);
        let url = redis.url();
        redis.ask(&["SET", "x", "1"]);
        redis.kill();
        assert!(redis.try_ask(&["PING"]).is_err());
        redis.start_again();
        assert_eq!(redis.url(), url);
        assert_eq!(redis.ask(&["GET", "x"]), after);
        redis.ask(&["SET", "x", "2"]);
        redis.flush();
        assert_eq!(redis.ask(&["GET", "x"]), "");
    }
}

#[test]
fn frozen_redis_is_silent_until_it_thaws() {
    let redis = Redis::start(Keeps::Nothing);
    redis.freeze();
    let error = redis.try_ask(&["PING"]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    redis.thaw();
    assert_eq!(redis.ask(&["PING"]), "PONG");
}

#[test]
fn replica_follows_until_it_is_promoted_and_then_takes_the_address() {
    let mut master = Redis::start(Keeps::Nothing);
    master.ask(&["SET", "x", "1"]);
    let mut replica = master.replica();
    assert_eq!(replica.ask(&["GET", "x"]), "1");
    assert!(
        replica.try_ask(&["SET", "x", "2"]).is_err(),
        "it only reads"
    );
    replica.promote();
    master.ask(&["SET", "x", "3"]); // never arrives
    let url = master.url();
    replica.take_over(&mut master);
    assert_eq!(replica.url(), url);
    assert_eq!(replica.ask(&["GET", "x"]), "1");
    replica.ask(&["SET", "x", "4"]);
}

async fn arrives(is_so: impl Fn() -> bool) {
    let looked = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(WITHIN, looked).await.expect("in time");
}
