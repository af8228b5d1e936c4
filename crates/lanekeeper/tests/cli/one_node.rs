//! One node: output and exit codes that scripts rely on.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{ALICE, BOB, Running, err, json, lanekeeper, out, run};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/config")
        .join(name)
}

#[test]
fn dev_sends_shows_restarts_and_stops() {
    let folder = tempfile::tempdir().unwrap();
    let dev = Running::dev(folder.path(), &[]);
    assert_eq!(dev.ready["accounts"].as_array().map(Vec::len), Some(10));

    let send = [
        "tx", "send", "--from", ALICE, "--to", BOB, "--value", "0.1eth",
    ];
    let once = [
        &send[..],
        &["--request-id", "payout-7", "--wait", "confirmed"],
    ]
    .concat();
    let sent = dev.run(&once);
    assert!(sent.status.success(), "{}", err(&sent));
    for step in ["accepted", "submitted", "mined", "confirmed"] {
        assert!(
            out(&sent).contains(step),
            "{step} is not printed: {}",
            out(&sent)
        );
    }
    assert!(!out(&sent).contains('\u{1b}'), "colours without a terminal");

    let by_key = [
        "tx",
        "get",
        "--from",
        ALICE,
        "--request-id",
        "payout-7",
        "--json",
    ];
    let tx = json(&dev.run(&by_key));
    assert_eq!(
        (tx["state"].as_str(), tx["nonce"].as_u64()),
        (Some("CONFIRMED"), Some(0))
    );
    let repeated = json(&dev.run(&[&once[..], &["--json"]].concat()));
    assert_eq!(repeated["txId"], tx["txId"]);
    let other = dev.run(&[&send[..6], &["--value", "2", "--request-id", "payout-7"]].concat());
    assert_eq!(other.status.code(), Some(1), "{}", err(&other));

    let list = json(&dev.run(&["tx", "list", "--state", "confirmed", "--json"]));
    assert_eq!(list["txs"].as_array().map(Vec::len), Some(1));
    let lane = json(&dev.run(&["lane", "show", ALICE, "--json"]));
    assert_eq!(lane["nextNonce"], 1);
    assert!(out(&dev.run(&["lane", "list"])).contains(BOB));
    assert_eq!(dev.terminate().code(), Some(0));

    let again = Running::dev(folder.path(), &[]);
    assert_eq!(json(&again.run(&by_key))["txId"], tx["txId"]);
    assert_eq!(again.terminate().code(), Some(0));
    let fresh = Running::dev(folder.path(), &["--fresh"]);
    assert_eq!(
        fresh.run(&by_key).status.code(),
        Some(1),
        "--fresh keeps data"
    );
}

#[test]
fn request_is_refused_until_its_account_is_funded() {
    let folder = tempfile::tempdir().unwrap();
    let dev = Running::dev(folder.path(), &[]);
    let send = |from: &str, to: &str, value: &str, id: &str| {
        let request = ["tx", "send", "--from", from, "--to", to, "--value", value];
        let rest = ["--gas", "21000", "--request-id", id, "--wait", "mined"];
        dev.run(&[&request[..], &rest].concat())
    };
    let refused = send(ALICE, BOB, "12000eth", "large");
    assert_eq!(refused.status.code(), Some(1), "{}", out(&refused));
    assert!(
        err(&refused).contains("wei are missing"),
        "{}",
        err(&refused)
    );
    let lane = json(&dev.run(&["lane", "show", ALICE, "--json"]));
    assert_eq!(lane["nextNonce"], 0, "no nonce was used");
    let funding = send(BOB, ALICE, "5000eth", "funding");
    assert!(funding.status.success(), "{}", err(&funding));
    let accepted = send(ALICE, BOB, "12000eth", "large");
    assert!(accepted.status.success(), "{}", err(&accepted));
}

/// A running `events tail --json`.
struct Tail {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Tail {
    fn start(url: &str, after: Option<&str>) -> Self {
        let mut command = lanekeeper();
        command.args(["events", "tail", "--json", "--url", url]);
        command.args(
            after
                .map(|cursor| ["--after", cursor])
                .into_iter()
                .flatten(),
        );
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let stdout = child.stdout.take().expect("stdout is piped");
        Self {
            child,
            lines: BufReader::new(stdout).lines(),
        }
    }

    /// Reads events up to the first of this type.
    fn read_until(&mut self, last: &str) -> Vec<Value> {
        let mut events: Vec<Value> = Vec::new();
        while events.last().is_none_or(|event| event["type"] != last) {
            let line = self
                .lines
                .next()
                .expect("the stream does not end")
                .expect("it is text");
            events.push(serde_json::from_str(&line).expect("every line is JSON"));
        }
        events
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        // It may have ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn events_tail_resumes_by_cursor_and_across_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let dev = Running::dev(folder.path(), &[]);
    let url = dev.url("api");
    let send = |dev: &Running| {
        let sent = dev.run(&["tx", "send", "--from", ALICE, "--to", BOB, "--value", "1"]);
        assert!(sent.status.success(), "{}", err(&sent));
    };
    send(&dev);
    let mut tail = Tail::start(&url, None);
    let all = tail.read_until("TxConfirmed");
    assert_eq!(all[0]["type"], "TxAccepted");
    let rest = Tail::start(&url, all[0]["cursor"].as_str()).read_until("TxConfirmed");
    assert_eq!(rest[..], all[1..]);

    assert_eq!(dev.terminate().code(), Some(0));
    let port = url.rsplit(':').next().unwrap();
    let again = Running::dev(folder.path(), &["--port", port]);
    send(&again);
    let more = tail.read_until("TxConfirmed");
    let seqs = all.iter().chain(&more).map(|event| event["seq"].as_u64());
    let expected = (1..).map(Some);
    assert!(
        seqs.eq(expected.take(all.len() + more.len())),
        "lost or repeated: {more:#?}"
    );
}

#[test]
fn addresses_obey_the_rule_of_the_api() {
    let mistyped = BOB.replace("C51812dc", "c51812dc");
    let short = &BOB[2..];
    for (args, says) in [
        (["tx", "send", "--from", ALICE, "--to", &mistyped], "EIP-55"),
        (["tx", "send", "--from", &mistyped, "--to", BOB], "EIP-55"),
        (["tx", "send", "--from", ALICE, "--to", short], "write 0x"),
        (
            ["tx", "list", "--limit", "1", "--from", &mistyped],
            "EIP-55",
        ),
        (
            ["events", "tail", "--chain", "1", "--from", short],
            "write 0x",
        ),
        (
            ["lane", "show", "--chain", "1", "--json", &mistyped],
            "EIP-55",
        ),
    ] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", err(&output));
        assert!(err(&output).contains(says), "{args:?}: {}", err(&output));
    }
}

#[test]
fn exit_codes_distinguish_usage_and_unreachable() {
    let unused = ["--url", "http://127.0.0.1:1"];
    let unreachable = run(&[&["tx", "list"][..], &unused].concat());
    assert_eq!(unreachable.status.code(), Some(3));
    assert!(
        err(&unreachable).contains("Is the node running"),
        "{}",
        err(&unreachable)
    );
    let tail = run(&[&["events", "tail"][..], &unused].concat());
    assert_eq!(tail.status.code(), Some(3));
    for usage in [
        &["tx", "send"][..],
        &["tx", "get", "nonsense"],
        &["tx", "list", "--url", "ftp://x"],
        &["tx", "list", "--state", "sideways"],
        &["serve", "--config", "/nowhere.toml"],
        &["bench", "accept", "--mempool-depth", "deep"],
    ] {
        let output = run(usage);
        assert_eq!(output.status.code(), Some(2), "{usage:?}: {}", err(&output));
    }
}

#[test]
fn port_or_folder_in_use_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let dev = Running::dev(folder.path(), &[]);
    let other = tempfile::tempdir().unwrap();
    let dir = |folder: &tempfile::TempDir| folder.path().display().to_string();
    let port = dev
        .url("api")
        .rsplit(':')
        .next()
        .map(str::to_owned)
        .unwrap();
    let taken = run(&[
        "dev",
        "--dir",
        &dir(&other),
        "--port",
        &port,
        "--chain-port",
        "0",
    ]);
    assert_eq!(taken.status.code(), Some(1));
    assert!(
        err(&taken).contains(&format!("port {port} on 127.0.0.1 is taken")),
        "{}",
        err(&taken)
    );
    for fresh in [&[][..], &["--fresh"]] {
        let args = [
            "dev",
            "--dir",
            &dir(&folder),
            "--port",
            "0",
            "--chain-port",
            "0",
        ];
        let in_use = run(&[&args[..], fresh].concat());
        assert_eq!(in_use.status.code(), Some(1));
        assert!(
            err(&in_use).contains("in use by another process"),
            "{}",
            err(&in_use)
        );
    }
    assert!(
        dev.run(&["lane", "list"]).status.success(),
        "the first node is still running"
    );
}

/// Writes a configuration file for `serve`: one chain, one signer, a new store.
fn write_config(folder: &Path, chain_url: &str) -> String {
    let path = folder.join("lanekeeper.toml");
    let key = folder.join("key");
    let digits = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";
    std::fs::write(&key, digits).expect("a temporary folder is writable");
    let text = format!(
        "[store]\nurl = \"sqlite:{}\"\n\
         [[chain]]\nid = 31337\nrpc = [\"{chain_url}\"]\nblockTime = \"200ms\"\nconfirmations = 1\n\
         [[signer]]\nkind = \"key\"\nkeyFile = \"{}\"\n\
         [http]\nlisten = \"127.0.0.1:0\"\n[node]\ndrainDelay = \"0s\"\n",
        folder.join("store").display(),
        key.display()
    );
    std::fs::write(&path, text).expect("a temporary folder is writable");
    path.display().to_string()
}

#[test]
fn serve_needs_a_migrated_store_and_survives_a_closed_stderr() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = lanekeeper();
    command.args(["devchain", "--json", "--port", "0", "--dir"]);
    command.arg(folder.path().join("chain"));
    let chain = Running::start(command);
    let config = write_config(folder.path(), &chain.url("chain"));

    let early = run(&["serve", "--config", &config]);
    assert_eq!(early.status.code(), Some(1));
    let message = err(&early);
    assert!(message.contains("lanekeeper migrate"), "{message}");
    assert!(out(&run(&["migrate", "--config", &config])).contains("applied"));
    assert!(out(&run(&["migrate", "--config", &config])).contains("nothing to do"));

    let mut command = lanekeeper();
    command.args(["serve", "--log", "json", "--config", &config]);
    let mut serve = command.stderr(Stdio::piped()).spawn().unwrap();
    let log = BufReader::new(serve.stderr.take().unwrap()).lines();
    let ready = log
        .map_while(|line| serde_json::from_str(&line.ok()?).ok())
        .find(|line: &Value| line["message"] == "ready")
        .unwrap();
    // Its stderr is closed from here on: logging must not end the node.
    let url = format!("http://{}", ready["address"].as_str().unwrap());
    let wait = ["--wait", "confirmed", "--url", &url];
    let sent = run(&[&["tx", "send", "--from", ALICE, "--to", BOB][..], &wait].concat());
    let pid = serve.id().to_string();
    let killed = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    assert!(killed.success());
    assert_eq!(serve.wait().unwrap().code(), Some(0));
    assert!(sent.status.success(), "{}", err(&sent));
}

#[test]
fn config_commands_check_and_show() {
    let broken = fixture("unknown_key.toml").display().to_string();
    let check = run(&["config", "check", "--config", &broken]);
    assert_eq!(check.status.code(), Some(2));
    assert!(
        out(&check).contains("did you mean lease.duration?"),
        "{}",
        out(&check)
    );
    let machine = run(&["config", "check", "--json", "--config", &broken]);
    let report: Value = serde_json::from_slice(&machine.stdout).unwrap();
    assert_eq!(report["ok"], false);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("good.toml");
    let text = std::fs::read_to_string(&broken)
        .unwrap()
        .replace("durtion", "duration");
    std::fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    assert!(
        run(&["config", "check", "--config", &path])
            .status
            .success()
    );
    let mut show = lanekeeper();
    show.args(["config", "show", "--json", "--config", &path]);
    let shown = json(
        &show
            .env("LANEKEEPER_LEASE__RENEW_INTERVAL", "2s")
            .output()
            .unwrap(),
    );
    assert_eq!(shown["lease.renewInterval"]["value"], "2s");
    assert_eq!(
        shown["lease.renewInterval"]["origin"],
        "$LANEKEEPER_LEASE__RENEW_INTERVAL"
    );
    assert_eq!(shown["lease.idleRelease"]["origin"], "default");
}

#[test]
fn dev_accepts_settings_but_no_store_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("extra.toml");
    std::fs::write(&config, "[confirmations]\nrequired = 0\n").unwrap();
    let config = config.display().to_string();
    let dev = Running::dev(
        &folder.path().join("dev"),
        &["--config", &config, "--accounts", "12"],
    );
    assert_eq!(dev.ready["accounts"].as_array().map(Vec::len), Some(12));
    let last = dev.ready["accounts"][11].as_str().unwrap();
    let sent = dev.run(&[
        "tx",
        "send",
        "--from",
        last,
        "--to",
        BOB,
        "--value",
        "1",
        "--wait",
        "confirmed",
    ]);
    assert!(sent.status.success(), "{}", err(&sent));

    std::fs::write(&config, "[store]\nurl = \"sqlite:x\"\n").unwrap();
    let refused = run(&[
        "dev",
        "--port",
        "0",
        "--chain-port",
        "0",
        "--config",
        &config,
        "--dir",
        &folder.path().join("other").display().to_string(),
    ]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        err(&refused).contains("sets store, chain and signers itself"),
        "{}",
        err(&refused)
    );
}

#[test]
fn bench_accept_counts_stored_txs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("accept.json");
    let path = file.display().to_string();
    let args = [
        "bench",
        "accept",
        "--clients",
        "1,8",
        "--lanes",
        "2",
        "--duration",
        "300ms",
    ];
    let bench = run(&[&args[..], &["--json", &path]].concat());
    assert!(bench.status.success(), "{}", err(&bench));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    for run in report["runs"].as_array().unwrap() {
        assert!(run["accepted"].as_u64() > Some(0), "{run}");
        assert_eq!(run["accepted"], run["rows"], "{run}");
        assert!(run["roundTripsPerAccept"].as_f64() > Some(0.0), "{run}");
    }
}
