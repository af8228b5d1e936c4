//! Several nodes on real PostgreSQL: `dev --nodes`, `serve`, `migrate` and `bench` against it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rig::postgres::{Database, majors, shared};
use serde_json::Value;

use crate::support::{ALICE, BOB, Running, err, json, lanekeeper, out, run};

/// Many times longer than any lease of these tests.
const DEADLINE: Duration = Duration::from_secs(60);

fn database(hint: &str) -> Database {
    let newest = *majors().last().expect("a major is installed");
    shared(newest).database(hint)
}

fn cluster(database: &Database, folder: &Path, nodes: &str) -> Running {
    Running::dev(folder, &["--nodes", nodes, "--store", database.url()])
}

fn node<'r>(dev: &'r Running, name: &str) -> &'r Value {
    let nodes = dev.ready["nodes"]
        .as_array()
        .expect("the ready line lists the nodes");
    let node = nodes.iter().find(|node| node["node"] == name);
    node.expect("nodes are numbered")
}

fn run_at(node: &Value, args: &[&str]) -> std::process::Output {
    let url = node["api"].as_str().expect("a node has an address");
    let mut command = lanekeeper();
    command.args(args).env("LANEKEEPER_URL", url);
    command.output().expect("the binary runs")
}

/// Whether a process has ended (or is a zombie).
fn has_ended(pid: u64) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.is_empty() || status.contains(") Z ")
}

#[test]
fn lanes_of_a_killed_keeper_are_taken_over() {
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
    let first = run_at(node(&dev, "node-1"), &send);
    assert!(first.status.success(), "{}", err(&first));

    let show = ["lane", "show", ALICE, "--json"];
    let lane = json(&run_at(node(&dev, "node-1"), &show));
    let keeper = lane["keeper"]["node"].as_str().unwrap().to_owned();
    let other = if keeper == "node-1" {
        "node-2"
    } else {
        "node-1"
    };
    let (keeper, other) = (node(&dev, &keeper), node(&dev, other));

    // A node that does not keep the lane accepts the request too, and the keeper stays the same.
    let through = run_at(other, &[&send[..], &["--json"]].concat());
    assert_eq!(json(&through)["nonce"], 1);
    let after = json(&run_at(other, &show));
    assert_eq!(after["keeper"]["node"], lane["keeper"]["node"]);
    assert_eq!(after["keeper"]["token"], lane["keeper"]["token"]);
    assert!(out(&run_at(other, &["lane", "show", ALICE])).contains("token"));

    let pid = keeper["pid"].as_u64().unwrap();
    let killed = Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert!(killed.unwrap().success());
    let next = run_at(other, &[&send[..], &["--json"]].concat());
    assert_eq!(json(&next)["nonce"], 2);
    let lane = json(&run_at(other, &show));
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
    let resumed = run_at(other, &resume);
    assert_eq!(resumed.status.code(), Some(1), "{}", out(&resumed));
    let refusal = err(&resumed);
    assert!(
        refusal.contains("is not halted") && refusal.contains("[409]"),
        "{refusal}"
    );

    let rest = other["pid"].as_u64().unwrap();
    assert_eq!(dev.terminate().code(), Some(0));
    assert!(
        has_ended(rest),
        "a node is still running after its cluster has stopped"
    );
}

#[test]
fn nodes_end_with_a_killed_parent() {
    let database = database("dev_orphans");
    let folder = tempfile::tempdir().unwrap();
    let mut dev = cluster(&database, folder.path(), "2");
    let nodes = dev.ready["nodes"].as_array().unwrap().clone();
    dev.child.kill().unwrap();
    dev.child.wait().unwrap();
    for node in nodes {
        let pid = node["pid"].as_u64().unwrap();
        rig::wait_until("the node ends", DEADLINE, || has_ended(pid).then_some(()));
    }
}

#[test]
fn several_nodes_need_a_shared_store() {
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

/// Writes a configuration file for `serve` on this database.
fn write_config(folder: &Path, url: &str) -> String {
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
fn serve_reports_missing_migrations_without_the_password() {
    let database = database("serve_says");
    let folder = tempfile::tempdir().unwrap();
    let config = write_config(folder.path(), database.url());
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

    // The timeouts of the role were set for a longer lease, so that a shorter one is refused.
    let mut command = lanekeeper();
    command.args(["serve", "--config", &config]);
    command.env("LANEKEEPER_LEASE__DURATION", "2s");
    command.env("LANEKEEPER_LEASE__RENEW_INTERVAL", "600ms");
    let strict = command.output().unwrap();
    assert_eq!(strict.status.code(), Some(1));
    assert!(err(&strict).contains("migrate --role"), "{}", err(&strict));

    let shown = run(&["config", "show", "--config", &config]);
    assert!(out(&shown).contains(":***@127.0.0.1"), "{}", out(&shown));
    let closed_port = write_config(folder.path(), "postgres://u:hunter2@127.0.0.1:1/db");
    let unreachable = run(&["serve", "--config", &closed_port]);
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
fn bench_accept_on_postgres_reports_costs_and_cleans_up() {
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
    assert_eq!(server.query_value(sql).as_deref(), Some("0"));
}
