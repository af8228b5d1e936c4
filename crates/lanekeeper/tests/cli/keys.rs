//! API keys: made, hashed, and asked for.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{err, json, lanekeeper, out, run};

fn hash_of(text: &str) -> std::process::Output {
    let mut command = lanekeeper();
    command.args(["key", "hash"]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    let mut input = child.stdin.take().expect("stdin is piped");
    input.write_all(text.as_bytes()).expect("it reads");
    drop(input);
    child.wait_with_output().expect("it was started")
}

#[test]
fn a_key_is_shown_once_and_hashed_the_same_again() {
    let made = json(&run(&["key", "new", "--name", "shop", "--json"]));
    let (key, hash) = (
        made["key"].as_str().unwrap(),
        made["hash"].as_str().unwrap(),
    );
    assert!(key.starts_with("lk_shop_"), "{key}");
    assert_eq!(made["scopes"], serde_json::json!(["read", "send"]));
    assert_eq!(out(&hash_of(&format!("{key}\n"))).trim(), hash);

    let told = out(&run(&[
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
        assert!(told.contains(line), "{line} is missing: {told}");
    }

    let wrong = hash_of("hunter2");
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
fn a_node_with_keys_serves_only_those_who_show_one() {
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
    assert!(run(&["migrate", "--config", &config]).status.success());
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

    let ask = |key: Option<&str>, args: &[&str]| {
        let mut command: Command = lanekeeper();
        command.args(args).env("LANEKEEPER_URL", url);
        command.envs(key.map(|key| ("LANEKEEPER_KEY", key)));
        command.output().unwrap()
    };
    let key = made["key"].as_str();
    assert!(ask(key, &["lane", "list"]).status.success());
    let nodes = json(&ask(key, &["node", "list", "--json"]));
    assert_eq!(nodes["nodes"][0]["advertise"], *url);
    assert!(out(&ask(key, &["node", "list"])).contains(url));
    let stranger = ask(None, &["lane", "list"]);
    assert_eq!(stranger.status.code(), Some(1));
    assert!(err(&stranger).contains("API key"), "{}", err(&stranger));
    let address = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8";
    let send = ask(key, &["tx", "send", "--from", address, "--to", address]);
    assert!(err(&send).contains("[403]"), "{}", err(&send));

    // Its parent is gone: so is it, in order.
    drop(serve.stdin.take());
    assert_eq!(serve.wait().unwrap().code(), Some(0));
}
