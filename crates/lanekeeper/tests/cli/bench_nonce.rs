//! `bench nonce` on real servers: short runs that check the report and the cleanup.

use rig::postgres::{Postgres, majors};
use rig::redis::{Persistence, Redis};
use serde_json::Value;

use crate::support::{err, out, run};

#[test]
fn bench_nonce_reports_all_schemes_and_cleans_up() {
    // A separate server: databases of another benchmark would be counted.
    let major = majors().into_iter().max().expect("a major is installed");
    let (server, redis) = (
        Postgres::start_with(major, &[("max_connections", "200")]),
        Redis::start(Persistence::Nothing),
    );
    redis.run_command(&["SET", "lanekeeper:nonce:{1:0xaa}:next", "7"]);
    let program = |found: Result<std::path::PathBuf, rig::tools::MissingTool>| {
        let path = found.unwrap_or_else(|e| panic!("{e}"));
        path.display().to_string()
    };
    let folder = tempfile::tempdir().unwrap();
    let [json, svg] = ["nonce.json", "nonce.svg"].map(|name| folder.path().join(name));
    let bench = run(&[
        "bench",
        "nonce",
        "--store",
        server.url(),
        "--redis",
        &redis.url(),
        "--scheme",
        "row-lock-redis,redis-reserve,lane",
        "--lanes",
        "2",
        "--processes",
        "2",
        "--clients",
        "6",
        "--duration",
        "300ms",
        "--pgbench",
        &program(rig::tools::postgres_client("pgbench")),
        "--redis-benchmark",
        &program(rig::tools::redis("redis-benchmark")),
        "--json",
        &json.display().to_string(),
        "--svg",
        &svg.display().to_string(),
    ]);
    assert!(bench.status.success(), "{}", err(&bench));
    assert!(
        out(&bench).contains("row-lock, Redis lock"),
        "{}",
        out(&bench)
    );

    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert!(report["pgbenchRowLock"][0]["perSecond"].as_f64() > Some(0.0));
    assert!(report["redisIncr"]["perSecond"].as_f64() > Some(0.0));
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 6, "three schemes, allocate and cycle");
    for run in runs {
        assert!(run["measured"].as_u64() > Some(0), "{run}");
        assert_eq!(run["failed"], 0, "{run}");
        assert_eq!(run["lentTwice"], 0, "{run}");
        assert!(run["transactionsPerNonce"].as_f64() > Some(0.0), "{run}");
        let uses_redis = run["scheme"] != "lane";
        let calls = run["redisCallsPerNonce"].as_f64();
        assert_eq!(calls > Some(0.9), uses_redis, "{run}");
    }
    let picture = std::fs::read_to_string(svg).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("redis-reserve"));

    let sql = "SELECT count(*) FROM pg_database WHERE datname LIKE 'lanekeeper_bench_%'";
    assert_eq!(server.query_value(sql).as_deref(), Some("0"));
    // The key of another program is kept.
    assert_eq!(
        redis.run_command(&["KEYS", "*"]),
        "lanekeeper:nonce:{1:0xaa}:next"
    );
}

#[test]
fn invalid_servers_are_refused_before_any_change() {
    let refuse = |store, redis| {
        let bench = run(&["bench", "nonce", "--store", store, "--redis", redis]);
        assert_eq!(bench.status.code(), Some(2), "{}", err(&bench));
        err(&bench)
    };
    let nowhere = "postgres://nobody@127.0.0.1:1/none";
    assert!(refuse("sqlite:here", "redis://127.0.0.1:1/").contains("--store takes postgres://"));
    let message = refuse(nowhere, "redis://:secret-word@127.0.0.1:1/");
    assert!(
        message.contains("password") && !message.contains("secret-word"),
        "{message}"
    );
    assert!(refuse(nowhere, "no address").contains("--redis takes redis://"));
}
