//! API keys: creation, hashing, authentication.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{err, json, lanekeeper, out, run};

fn run_key_hash(text: &str, more: &[&str]) -> std::process::Output {
    let mut command = lanekeeper();
    command.args(["key", "hash"]).args(more);
    command.stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    let mut input = child.stdin.take().expect("stdin is piped");
    input.write_all(text.as_bytes()).expect("it reads");
    drop(input);
    child.wait_with_output().expect("it was started")
}

#[test]
fn new_key_is_printed_with_its_hash() {
    let made = json(&run(&["key", "new", "--name", "shop", "--json"]));
    let (key, hash) = (
        made["key"].as_str().unwrap(),
        made["hash"].as_str().unwrap(),
    );
    assert!(key.starts_with("lk_shop_"), "{key}");
    assert_eq!(made["scopes"], serde_json::json!(["read", "send"]));
    let line = format!("{key}\n");
    assert_eq!(out(&run_key_hash(&line, &[])).trim(), hash);
    let hashed = json(&run_key_hash(&line, &["--json"]));
    assert_eq!(hashed, serde_json::json!({ "hash": hash }));

    let printed = out(&run(&[
        "key",
        "new",
        "--name",
        "prometheus",
        "--scopes",
        "metrics",
    ]));
    for line in [
        "[[auth.key]]",
        "name = \"prometheus\"",
        "scopes = [\"metrics\"]",
    ] {
        assert!(printed.contains(line), "{line} is missing: {printed}");
    }

    let wrong = run_key_hash("hunter2", &[]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(!err(&wrong).contains("hunter2"));
    for usage in [
        &["key", "new"][..],
        &["key", "new", "--name", "two words"],
        &["key", "new", "--name", "a", "--scopes", "everything"],
        &[
            "lane",
            "resume",
            "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
            "--reason",
            "x",
        ],
    ] {
        let output = run(usage);
        assert_eq!(output.status.code(), Some(2), "{usage:?}: {}", err(&output));
    }
}

#[test]
fn node_with_keys_refuses_callers_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let made = json(&run(&[
        "key", "new", "--name", "shop", "--scopes", "read", "--json",
    ]));
    let key_file = folder.path().join("key");
    std::fs::write(&key_file, "ab".repeat(32)).unwrap();
    let config = folder.path().join("lanekeeper.toml");
    let text = format!(
        "[store]\nurl = \"sqlite:{}\"\n[[chain]]\nid = 1\nrpc = [\"http://127.0.0.1:1\"]\n\
         [[signer]]\nkind = \"key\"\nkeyFile = \"{}\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
         [node]\ndrainDelay = \"0s\"\n[auth]\nmode = \"keys\"\n\
         [[auth.key]]\nname = \"shop\"\nhash = {}\nscopes = [\"read\"]\n",
        folder.path().join("store").display(),
        key_file.display(),
        made["hash"]
    );
    std::fs::write(&config, text).unwrap();
    let config = config.display().to_string();
    let migrate = ["migrate", "--config", &config, "--json"];
    let migrated = json(&run(&migrate));
    assert_eq!(migrated["applied"][0], 1, "{migrated}");
    let restored = [&migrate[..], &["--restored", "--reason", "a disk was lost"]].concat();
    let restored = json(&run(&restored));
    assert_eq!(restored["applied"], serde_json::json!([]), "{restored}");
    assert!(restored["declaredHistory"].is_string(), "{restored}");
    let role = run(&["migrate", "--config", &config, "--role", "x"]);
    assert_eq!(role.status.code(), Some(2), "{}", err(&role));

    let mut command = lanekeeper();
    command.args(["serve", "--json", "--while-stdin", "--config", &config]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut serve = command.stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    let mut reader = BufReader::new(serve.stdout.take().unwrap());
    reader.read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    let url = ready["api"].as_str().unwrap();

    let run_with = |key: Option<&str>, args: &[&str]| {
        let mut command: Command = lanekeeper();
        command.args(args).env("LANEKEEPER_URL", url);
        command.envs(key.map(|key| ("LANEKEEPER_KEY", key)));
        command.output().unwrap()
    };
    let key = made["key"].as_str();
    assert!(run_with(key, &["lane", "list"]).status.success());
    let nodes = json(&run_with(key, &["node", "list", "--json"]));
    assert_eq!(nodes["nodes"][0]["advertise"], *url);
    assert!(out(&run_with(key, &["node", "list"])).contains(url));
    let anonymous = run_with(None, &["lane", "list"]);
    assert_eq!(anonymous.status.code(), Some(1));
    assert!(err(&anonymous).contains("API key"), "{}", err(&anonymous));
    let address = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8";
    let send = run_with(key, &["tx", "send", "--from", address, "--to", address]);
    assert!(err(&send).contains("[403]"), "{}", err(&send));

    // It stops gracefully when its parent has ended.
    drop(serve.stdin.take());
    assert_eq!(serve.wait().unwrap().code(), Some(0));
}
