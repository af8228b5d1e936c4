//! Several nodes on real PostgreSQL: `dev --nodes`, `serve`, `migrate` and `bench` against it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rig::postgres::{Database, majors, shared};
use serde_json::Value;

use crate::support::{ALICE, BOB, Running, err, json, lanekeeper, out, run};

/// Longer than any lease here, many times over.
const SOON: Duration = Duration::from_secs(60);

fn database(hint: &str) -> Database {
    let newest = *majors().last().expect("a major is installed");
    shared(newest).database(hint)
}

fn cluster(database: &Database, folder: &Path, nodes: &str) -> Running {
    Running::dev(folder, &["--nodes", nodes, "--store", database.url()])
}

fn node<'r>(dev: &'r Running, name: &str) -> &'r Value {
    let nodes = dev.ready["nodes"].as_array().expect("it lists its nodes");
    let node = nodes.iter().find(|node| node["node"] == name);
    node.expect("nodes are numbered")
}

fn at(node: &Value, args: &[&str]) -> std::process::Output {
    let url = node["api"].as_str().expect("a node has an address");
    let mut command = lanekeeper();
    command.args(args).env("LANEKEEPER_URL", url);
    command.output().expect("the binary runs")
}

/// A process that is not there, or that nobody has taken away yet.
fn is_gone(pid: u64) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.is_empty() || status.contains(") Z ")
}

#[test]
fn a_killed_keeper_is_followed_by_the_other_node() {
    let database = database("dev_nodes");
    let folder = tempfile::tempdir().unwrap();
    let dev = cluster(&database, folder.path(), "2");
    let send = [
        "tx",
        "send",
        "--from",
        ALICE,
        "--to",
        BOB,
        "--value",
        "1",
        "--wait",
        "confirmed",
    ];
    let first = at(node(&dev, "node-1"), &send);
    assert!(first.status.success(), "{}", err(&first));

    let show = ["lane", "show", ALICE, "--json"];
    let lane = json(&at(node(&dev, "node-1"), &show));
    let keeper = lane["keeper"]["node"].as_str().unwrap().to_owned();
    let other = if keeper == "node-1" {
        "node-2"
    } else {
        "node-1"
    };
    let (keeper, other) = (node(&dev, &keeper), node(&dev, other));

    // A node that does not keep the lane takes the request all the same, and the keeper stays.
    let through = at(other, &[&send[..], &["--json"]].concat());
    assert_eq!(json(&through)["nonce"], 1);
    let after = json(&at(other, &show));
    assert_eq!(after["keeper"]["node"], lane["keeper"]["node"]);
    assert_eq!(after["keeper"]["token"], lane["keeper"]["token"]);
    assert!(out(&at(other, &["lane", "show", ALICE])).contains("token"));

    let pid = keeper["pid"].as_u64().unwrap();
    let killed = Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert!(killed.unwrap().success());
    let next = at(other, &[&send[..], &["--json"]].concat());
    assert_eq!(json(&next)["nonce"], 2);
    let lane = json(&at(other, &show));
    assert_eq!(lane["keeper"]["node"], other["node"]);
    assert!(
        lane["keeper"]["token"].as_u64() > after["keeper"]["token"].as_u64(),
        "{lane}"
    );

    let resume = [
        "lane",
        "resume",
        ALICE,
        "--accept-loss",
        "--reason",
        "INC-7",
    ];
    let resumed = at(other, &resume);
    assert!(resumed.status.success(), "{}", err(&resumed));
    assert!(out(&resumed).contains(ALICE), "{}", out(&resumed));

    let rest = other["pid"].as_u64().unwrap();
    assert_eq!(dev.terminate().code(), Some(0));
    assert!(is_gone(rest), "a node outlives its cluster");
}

#[test]
fn nodes_do_not_outlive_a_killed_parent() {
    let database = database("dev_orphans");
    let folder = tempfile::tempdir().unwrap();
    let mut dev = cluster(&database, folder.path(), "2");
    let nodes = dev.ready["nodes"].as_array().unwrap().clone();
    dev.child.kill().unwrap();
    dev.child.wait().unwrap();
    for node in nodes {
        let pid = node["pid"].as_u64().unwrap();
        rig::until("the node ends", SOON, || is_gone(pid).then_some(()));
    }
}

#[test]
fn several_nodes_without_a_shared_store_are_refused_with_an_example() {
    let refused = run(&["dev", "--nodes", "3"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        err(&refused).contains("--store postgres://"),
        "{}",
        err(&refused)
    );
    let strange = run(&["dev", "--nodes", "2", "--store", "mysql://u:hunter2@h/db"]);
    assert_eq!(strange.status.code(), Some(2));
    assert!(!err(&strange).contains("hunter2"), "{}", err(&strange));
}

/// A file for `serve` on this database.
fn configure(folder: &Path, url: &str) -> String {
    let path = folder.join("lanekeeper.toml");
    let key = folder.join("key");
    std::fs::write(&key, "ab".repeat(32)).expect("a temporary folder is writable");
    let text = format!(
        "[store]\nurl = \"{url}\"\n[[chain]]\nid = 1\nrpc = [\"http://127.0.0.1:1\"]\n\
         [[signer]]\nkind = \"key\"\nkeyFile = \"{}\"\n[http]\nlisten = \"127.0.0.1:0\"\n",
        key.display()
    );
    std::fs::write(&path, text).expect("a temporary folder is writable");
    path.display().to_string()
}

#[test]
fn serve_says_what_the_database_lacks_and_never_its_password() {
    let database = database("serve_says");
    let folder = tempfile::tempdir().unwrap();
    let config = configure(folder.path(), database.url());
    let (_, password) = database.server().account();
    let serve = || run(&["serve", "--config", &config]);

    let early = serve();
    assert_eq!(early.status.code(), Some(1));
    assert!(
        err(&early).contains("lanekeeper migrate"),
        "{}",
        err(&early)
    );
    let migrated = run(&["migrate", "--config", &config]);
    assert!(out(&migrated).contains("applied"), "{}", err(&migrated));
    assert!(out(&run(&["migrate", "--config", &config])).contains("nothing to do"));

    // A longer lease than the role's timeouts were made for is fine, a shorter one is not.
    let mut command = lanekeeper();
    command.args(["serve", "--config", &config]);
    command.env("LANEKEEPER_LEASE__DURATION", "2s");
    command.env("LANEKEEPER_LEASE__RENEW_INTERVAL", "600ms");
    let strict = command.output().unwrap();
    assert_eq!(strict.status.code(), Some(1));
    assert!(err(&strict).contains("migrate --role"), "{}", err(&strict));

    let shown = run(&["config", "show", "--config", &config]);
    assert!(out(&shown).contains(":***@127.0.0.1"), "{}", out(&shown));
    let nobody = configure(folder.path(), "postgres://u:hunter2@127.0.0.1:1/db");
    let unreachable = run(&["serve", "--config", &nobody]);
    assert_eq!(unreachable.status.code(), Some(3), "{}", err(&unreachable));
    for output in [&early, &migrated, &strict, &shown, &unreachable] {
        for text in [out(output), err(output)] {
            let secret = format!(":{password}@");
            assert!(
                !text.contains(&secret) && !text.contains("hunter2"),
                "{text}"
            );
        }
    }
}

#[test]
fn bench_measures_beside_pgbench_and_leaves_nothing_behind() {
    let major = majors().into_iter().max().expect("a major is installed");
    let server = shared(major);
    let pgbench = rig::tools::postgres_client("pgbench").unwrap_or_else(|e| panic!("{e}"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("accept.json").display().to_string();
    let bench = run(&[
        "bench",
        "accept",
        "--store",
        server.url(),
        "--nodes",
        "2",
        "--lanes",
        "3",
        "--idle-lanes",
        "2",
        "--clients",
        "8",
        "--duration",
        "500ms",
        "--finished",
        "2000",
        "--pgbench",
        &pgbench.display().to_string(),
        "--json",
        &file,
    ]);
    assert!(bench.status.success(), "{}", err(&bench));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let phases = report["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 2, "empty and filled");
    for phase in phases {
        assert!(
            phase["pgbenchRowsPerSecond"].as_f64() > Some(0.0),
            "{phase}"
        );
        assert!(
            phase["pgbenchBatchRowsPerSecond"].as_f64() > Some(0.0),
            "{phase}"
        );
        let run = &phase["runs"][0];
        assert!(run["accepted"].as_u64() > Some(0), "{run}");
        assert_eq!(run["accepted"], run["rows"], "{run}");
        assert_eq!(run["refused"], 0, "{run}");
        for figure in [
            "rowsPerAccept",
            "indexEntriesPerAccept",
            "walBytesPerAccept",
        ] {
            assert!(run[figure].as_f64() > Some(1.0), "{figure}: {run}");
        }
        for process in ["nodes", "postgres"] {
            assert!(
                run["cpuSeconds"][process].as_f64() > Some(0.0),
                "{process}: {run}"
            );
        }
    }
    let sql = "SELECT count(*) FROM pg_database WHERE datname LIKE 'lanekeeper_bench_%'";
    assert_eq!(server.ask(sql).as_deref(), Some("0"));
}
