//! The rig itself: start, faults and cleanup of real servers.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use rig::pgbouncer::PgBouncer;
use rig::postgres::{Postgres, Server, majors, shared};
use rig::proxy::{AfterLoss, TcpProxy};
use rig::redis::{Persistence, Redis};
use tokio_postgres::{Client, Error, NoTls};

/// Longer than any response takes; silence beyond it counts as no response.
const WITHIN: Duration = Duration::from_secs(20);

async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // The client's next call reports a broken connection.
    tokio::spawn(async move { connection.await.ok() });
    Ok(client)
}

#[test]
fn databases_are_dropped_with_their_value_on_every_major() {
    for major in majors() {
        let server = shared(major);
        let version = server.query_value("SHOW server_version_num").unwrap();
        assert_eq!(version[..2], major.to_string());
        let (one, other) = (server.database("same name"), server.database("same name"));
        one.exec("CREATE TABLE t (x int)");
        other.exec("CREATE TABLE t (x int)");
        let name = one.name().to_owned();
        let count = format!("SELECT count(*) FROM pg_database WHERE datname = '{name}'");
        assert_eq!(server.query_value(&count).as_deref(), Some("1"));
        drop(one);
        assert_eq!(server.query_value(&count).as_deref(), Some("0"));
    }
}

#[test]
fn killed_server_recovers_its_commits() {
    let postgres = Postgres::start(majors()[0]);
    let database = postgres.database("kill");
    database.exec("CREATE TABLE t (x int); INSERT INTO t VALUES (7)");
    let port = postgres.port();
    postgres.kill();
    assert!(postgres.try_query_value("SELECT 1").is_err());
    postgres.start_again();
    assert_eq!(postgres.port(), port);
    assert_eq!(
        database.query_value("SELECT x FROM t").as_deref(),
        Some("7")
    );
    assert!(postgres.log_tail().contains("recovery"), "it was a crash");

    postgres.config(&[("lock_timeout", "77ms")]);
    assert_eq!(
        postgres.query_value("SHOW lock_timeout").as_deref(),
        Some("77ms")
    );
    postgres.stop();
    postgres.start_again();
    assert_eq!(
        postgres.query_value("SHOW lock_timeout").as_deref(),
        Some("77ms")
    );
    assert_eq!(postgres.query_value("SHOW fsync").as_deref(), Some("on"));
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
    // The program prints the URL, then waits for the end of its input.
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
    let folder = query_value(address.trim(), "SHOW data_directory").unwrap();
    assert!(std::fs::exists(&folder).unwrap());
    owner.kill().unwrap(); // SIGKILL
    owner.wait().unwrap();
    rig::wait_until("server and folder are gone", WITHIN, || {
        let connection_ended =
            query_value(address.trim(), "SELECT 1").is_none() && !std::fs::exists(&folder).unwrap();
        connection_ended.then_some(())
    });
}

fn query_value(url: &str, sql: &str) -> Option<String> {
    Server::at(0, url).try_query_value(sql).ok()?
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
        assert_eq!(
            standby.query_value("SELECT sum(x) FROM t").as_deref(),
            Some("5050")
        );
        standby.exec("INSERT INTO t VALUES (0)"); // it has no standby to wait for
        let file = standby.query_value("SELECT pg_walfile_name(pg_current_wal_lsn())");
        assert!(file.unwrap().starts_with("00000002"), "a new timeline");
    }
}

#[test]
fn asynchronous_standby_does_not_delay_the_primary() {
    let primary = Postgres::start(majors()[0]);
    let standby = primary.standby(false);
    standby.stop();
    primary.exec("CREATE TABLE t (x int)");
    standby.start_again();
    rig::wait_until("the standby has caught up", WITHIN, || {
        standby.try_query_value("SELECT count(*) FROM t").ok()
    });
}

#[tokio::test]
async fn pgbouncer_shares_few_connections_among_many_sessions() {
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
    assert_eq!(server.query_value(&sessions).as_deref(), Some("1"));

    // A role that PgBouncer's configuration does not list logs in with its own password.
    let role = format!("role_of_{}", database.name());
    server.exec(&format!("CREATE ROLE \"{role}\" LOGIN PASSWORD 'own'"));
    let own = url.replacen("postgres:rig@", &format!("{role}:own@"), 1);
    let asked = async { connect(&own).await?.simple_query("SELECT 1").await };
    let answer = asked.await;
    server.exec(&format!("DROP ROLE \"{role}\""));
    answer.unwrap();
}

#[tokio::test]
async fn lost_response_hides_a_commit_and_lost_request_prevents_it() {
    let server = shared(majors()[0]);
    let database = server.database("proxy");
    database.exec("CREATE TABLE t (x int)");
    let proxy = TcpProxy::in_front_of(server.port());
    let url = database.url_through(proxy.port());

    proxy.lose_answer_to("INSERT INTO t VALUES (1)", AfterLoss::Cut);
    let client = connect(&url).await.unwrap();
    let answer = client.batch_execute("INSERT INTO t VALUES (1)").await;
    assert!(answer.unwrap_err().is_closed());
    assert_eq!(
        database.query_value("SELECT x FROM t").as_deref(),
        Some("1")
    );

    proxy.lose_answer_to("INSERT INTO t VALUES (2)", AfterLoss::Silence);
    let client = connect(&url).await.unwrap();
    let insert = client.batch_execute("INSERT INTO t VALUES (2)");
    tokio::select! {
        answer = insert => panic!("an answer came: {answer:?}"),
        () = wait_until_true(|| proxy.lost() == 2) => {}
    }
    let sum = "SELECT sum(x) FROM t";
    assert_eq!(database.query_value(sum).as_deref(), Some("3"));

    proxy.lose_request("VALUES (4)");
    let client = connect(&url).await.unwrap();
    let answer = client.batch_execute("INSERT INTO t VALUES (4)").await;
    assert!(answer.is_err());
    assert_eq!(database.query_value(sum).as_deref(), Some("3"));
    assert_eq!(proxy.lost(), 3);

    let client = connect(&url).await.unwrap();
    client
        .batch_execute("INSERT INTO t VALUES (4)")
        .await
        .unwrap();
    assert_eq!(database.query_value(sum).as_deref(), Some("7"));
}

#[tokio::test]
async fn held_requests_wait_and_others_continue() {
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
    wait_until_true(|| proxy.held() == 2).await;
    let insert = "INSERT INTO t VALUES (10)";
    other.batch_execute(insert).await.unwrap();
    let sum = "SELECT sum(x) FROM t";
    assert_eq!(database.query_value(sum).as_deref(), Some("10"));

    proxy.heal();
    for insert in held {
        insert.await.unwrap().unwrap();
    }
    assert_eq!(database.query_value(sum).as_deref(), Some("12"));
}

#[tokio::test]
async fn frozen_link_resumes_when_healed_and_cut_link_is_closed() {
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
fn redis_persistence_follows_its_setting() {
    for (keeps, after) in [(Persistence::Nothing, ""), (Persistence::Everything, "1")] {
        let redis = Redis::start(keeps);
        let url = redis.url();
        redis.run_command(&["SET", "x", "1"]);
        redis.kill();
        assert!(redis.try_run_command(&["PING"]).is_err());
        redis.start_again();
        assert_eq!(redis.url(), url);
        assert_eq!(redis.run_command(&["GET", "x"]), after);
        redis.run_command(&["SET", "x", "2"]);
        redis.flush();
        assert_eq!(redis.run_command(&["GET", "x"]), "");
    }
}

#[test]
fn frozen_redis_is_silent_until_thawed() {
    let redis = Redis::start(Persistence::Nothing);
    redis.freeze();
    let error = redis.try_run_command(&["PING"]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    redis.thaw();
    assert_eq!(redis.run_command(&["PING"]), "PONG");
}

#[test]
fn promoted_replica_takes_over_the_address() {
    let mut master = Redis::start(Persistence::Nothing);
    master.run_command(&["SET", "x", "1"]);
    let mut replica = master.replica();
    assert_eq!(replica.run_command(&["GET", "x"]), "1");
    assert!(
        replica.try_run_command(&["SET", "x", "2"]).is_err(),
        "it only reads"
    );
    replica.promote();
    master.run_command(&["SET", "x", "3"]); // not replicated
    let url = master.url();
    replica.take_over(&mut master);
    assert_eq!(replica.url(), url);
    assert_eq!(replica.run_command(&["GET", "x"]), "1");
    replica.run_command(&["SET", "x", "4"]);
}

async fn wait_until_true(condition: impl Fn() -> bool) {
    let looked = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(WITHIN, looked).await.expect("in time");
}
