//! Invalid files with the reported problems, and valid files with the resulting rules.

use std::path::Path;
use std::time::Duration;

use domain::lane::{Finality, FinalityTag, OnForeignNonce, Resubmit, ResubmitPolicy};
use expect_test::expect_file;

use super::*;

const GOOD: &str = r#"
[store]
url = "sqlite:lk.db"
[[chain]]
id = 1
rpc = ["http://127.0.0.1:8545"]
[[signer]]
kind = "key"
keyEnv = "HOT_WALLET"
"#;

const GOOD_WITHOUT_CHAIN: &str = r#"
[store]
url = "sqlite:lk.db"
[[signer]]
kind = "key"
keyEnv = "HOT_WALLET"
"#;

fn read(text: &str, env: &[(&str, &str)]) -> Result<Config, Vec<Problem>> {
    let file = RawFile::parse(Path::new("lanekeeper.toml"), text)?;
    let env = env
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    Config::read(Sources {
        file: Some(file),
        env,
        ..Sources::default()
    })
}

fn to_lines(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(|problem| format!("{problem}\n"))
        .collect()
}

/// Every `tests/config/NAME.toml` is refused with the text of `NAME.txt`.
#[test]
fn invalid_files_are_refused_with_the_fix() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config");
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let problems = read(&text, &[]).expect_err(&path.display().to_string());
        expect_file![path.with_extension("txt")].assert_eq(&to_lines(&problems));
        seen += 1;
    }
    assert!(seen >= 10, "only {seen} invalid files");
}

#[test]
fn minimal_file_gets_the_default_rules() {
    let config = read(GOOD, &[]).unwrap();
    assert!(config.warnings.is_empty());
    let listen = config.http.listen;
    let node = config.node_config(listen);
    assert_eq!(node.advertise.as_deref(), Some("http://127.0.0.1:8645"));
    assert_eq!(node.lease.check(), Ok(()));
    assert_eq!(config.chains[0].send_to, 1);
    // The fixtures of other crates' tests are made of these defaults.
    let rules = &node.chains[&domain::ChainId(1)];
    let defaults = engine::node::ChainRules {
        tx_gas_cap: Some(16_777_216), // of chain 1
        ..engine::node::ChainRules::new(domain::LaneRules::default())
    };
    assert_eq!(format!("{rules:?}"), format!("{defaults:?}"));
    let expected = engine::node::NodeConfig {
        advertise: node.advertise.clone(),
        shards: node.shards,
        ..engine::node::NodeConfig::new(node.name.clone(), node.chains.clone())
    };
    assert_eq!(format!("{node:?}"), format!("{expected:?}"));
    assert_eq!(config.origin("store.url").to_string(), "lanekeeper.toml:3");
    assert_eq!(config.origin("lease.duration"), Origin::Default);
}

#[test]
fn chain_keys_become_lane_rules() {
    let text = r#"
[store]
url = "sqlite:lk.db"
[[chain]]
id = 1
rpc = ["http://127.0.0.1:8545", "http://127.0.0.1:8547"]
ws = "wss://127.0.0.1:8546/v3/hunter2"
sendTo = 2
requestsPerSecond = 50
confirmations = "finalized"
feeCap = "300gwei"
[[chain]]
id = 10
rpc = ["http://127.0.0.1:8549"]
confirmations = 100
[[signer]]
kind = "key"
keyEnv = "HOT_WALLET"
[lane]
onForeignNonce = "hold"
[resubmit]
interval = "30s"
maxAttempts = 5
policy = "bump"
bumpPercent = 25
maxFeePerGas = "200gwei"
[stuck]
action = "wait"
[confirmations]
fetchReceiptUponEntry = true
"#;
    let config = read(text, &[]).unwrap();
    assert!(config.warnings.is_empty());
    let node = config.node_config(config.http.listen);
    let [first, second] = [1, 10].map(|id| node.chains[&domain::ChainId(id)].lane);
    assert_eq!(
        first.confirmations.finality,
        Finality::Tag(FinalityTag::Finalized)
    );
    assert_eq!(
        (
            first.confirmations.watch_depth,
            second.confirmations.watch_depth
        ),
        (64, 200)
    );
    assert_eq!(second.confirmations.finality, Finality::Depth(100));
    let resubmit = Resubmit {
        interval: Some(Duration::from_secs(30)),
        policy: ResubmitPolicy::Bump {
            percent: 25,
            max_fee: 200_000_000_000,
        },
        max_attempts: Some(5),
    };
    assert_eq!((first.resubmit, second.resubmit), (resubmit, resubmit));
    assert_eq!(first.nonce.on_foreign_nonce, OnForeignNonce::Hold);
    assert!(first.confirmations.fetch_receipt_upon_entry);
    let shown = config.to_json();
    assert_eq!(shown["chain[0].ws"]["value"], "127.0.0.1:8546");
    assert_eq!(shown["chain[0].confirmations"]["value"], "finalized");
    assert_eq!(shown["chain[0].sendTo"]["value"], "2");
    assert!(!shown.to_string().contains("hunter2"), "{shown}");
}

/// The longer example of docs/running.md is valid, and shows the defaults except for optional keys.
#[test]
fn running_md_example_shows_the_defaults() {
    let manual = include_str!("../../../../docs/running.md");
    let mut blocks = manual.split("```");
    let block = blocks.find(|block| block.starts_with("toml") && block.contains("[resubmit]"));
    let text = block.expect("docs/running.md has an example with [resubmit]")["toml".len()..]
        .replacen("https://…", "http://127.0.0.1:8545", 1)
        .replace("https://…", "http://127.0.0.1:8547")
        .replace("wss://…", "wss://127.0.0.1:8546");
    let example = read(&format!("{GOOD_WITHOUT_CHAIN}\n{text}"), &[]).expect("it is valid");
    let defaults = read(GOOD, &[]).unwrap();
    let optional = [
        "chain[0].ws",
        "chain[0].rpc",
        "chain[0].requestsPerSecond",
        "chain[0].confirmations",
        "chain[0].blockTime",
        "chain[0].feeCap",
        "lane.blockedTimeout",
        "resubmit.maxFeePerGas",
        "confirmations.watchDepth",
    ];
    for (shown, default) in example.keys.iter().zip(&defaults.keys) {
        assert_eq!(shown.path, default.path);
        if !optional.contains(&shown.path.as_str()) {
            assert_eq!(shown.value, default.value, "{}", shown.path);
        }
    }
}

/// docs/configuration.md is generated: `UPDATE_EXPECT=1` writes it.
#[test]
fn configuration_md_lists_every_key() {
    let auth_key = format!(
        "[auth]\nmode = \"keys\"\n[[auth.key]]\nname = \"a\"\nhash = \"{}\"\nscopes = [\"read\"]\n",
        "ab".repeat(32)
    );
    let with_key = read(&format!("{GOOD}{auth_key}"), &[]).unwrap();
    let defaults = read(GOOD, &[]).unwrap();
    let auth_keys = (with_key.keys.iter()).filter(|key| key.path.starts_with("auth.key"));
    let mut page = "# Configuration keys\n\nGenerated from the declarations in `crates/lanekeeper/src/config`; \
        `lanekeeper config show` prints the same keys with the values of a file.\n\n\
        | key | default | values | meaning |\n|---|---|---|---|\n"
        .to_owned();
    for key in defaults.keys.iter().chain(auth_keys) {
        let path = key.path.replace("[0]", "");
        let default = match (path.as_str(), &key.origin) {
            ("node.name", _) => "(the host name)".to_owned(),
            ("worker.count", _) => "(the number of CPUs)".to_owned(),
            ("signer.keyEnv", _) => "(not set)".to_owned(),
            (_, Origin::Default) if key.value.starts_with('(') => key.value.clone(),
            (_, Origin::Default) => format!("`{}`", key.value),
            (_, _) => "(required)".to_owned(),
        };
        page += &format!("| `{path}` | {default} | {} | {} |\n", key.form, key.about);
    }
    expect_file!["../../../../docs/configuration.md"].assert_eq(&page);
}

#[test]
fn keys_of_an_unused_policy_are_warned_about() {
    let text = format!("{GOOD}\n[resubmit]\nbumpPercent = 20\n");
    let config = read(&text, &[("LANEKEEPER_RESUBMIT__MAX_FEE_PER_GAS", "9gwei")]).unwrap();
    expect_test::expect![[r#"
        lanekeeper.toml:12: resubmit.bumpPercent has no effect, because resubmit.policy is "rebroadcast": set that to "bump", or leave resubmit.bumpPercent out
        $LANEKEEPER_RESUBMIT__MAX_FEE_PER_GAS: resubmit.maxFeePerGas has no effect, because resubmit.policy is "rebroadcast": set that to "bump", or leave resubmit.maxFeePerGas out
    "#]].assert_eq(&to_lines(&config.warnings));
}

#[test]
fn environment_wins_over_file() {
    let text = format!("{GOOD}\n[lease]\nrenewInterval = \"3s\"\n");
    let env = [
        ("LANEKEEPER_LEASE__RENEW_INTERVAL", "2s"),
        ("LANEKEEPER_LANE__MEMPOOL_DEPTH", "1000000"),
        ("LANEKEEPER_RESUBMIT__ENABLED", "false"),
        ("LANEKEEPER_HTTP__LISTEN", "127.0.0.1:9000"),
    ];
    let config = read(&text, &env).unwrap();
    assert_eq!(config.lease.renew_interval.as_secs(), 2);
    assert_eq!(
        config.lane.mempool_depth,
        domain::window::MempoolDepth::Fixed(1_000_000)
    );
    assert!(!config.resubmit.enabled);
    assert_eq!(config.http.listen.port(), 9000);
    let origin = config.origin("lease.renewInterval").to_string();
    assert_eq!(origin, "$LANEKEEPER_LEASE__RENEW_INTERVAL");
}

#[test]
fn invalid_variables_are_reported_by_name() {
    let problems = read(
        GOOD,
        &[
            ("LANEKEEPER_LEASE__DURATON", "2s"),
            ("LANEKEEPER_LEASE__DURATION", "soon"),
            ("LANEKEEPER_CHAIN__ID", "5"),
        ],
    )
    .unwrap_err();
    expect_test::expect![[r#"
        $LANEKEEPER_CHAIN__ID: no key can be set by this variable; did you mean LANEKEEPER_REDIS__URL?
        $LANEKEEPER_LEASE__DURATION: lease.duration is soon, but must be a duration such as "10s", "500ms", "2m" or "1h"
        $LANEKEEPER_LEASE__DURATON: no key can be set by this variable; did you mean LANEKEEPER_LEASE__DURATION?
    "#]].assert_eq(&to_lines(&problems));
}

#[test]
fn inline_key_is_accepted_with_a_warning_and_never_shown() {
    let key = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";
    let text = GOOD.replace("keyEnv = \"HOT_WALLET\"", &format!("key = \"{key}\""));
    let config = read(&text, &[]).unwrap();
    assert_eq!(
        to_lines(&config.warnings),
        "lanekeeper.toml:9: signer[0].key holds a private key in the file: move it to keyFile or \
         keyEnv\n"
    );
    assert!(!format!("{config:?}").contains(key));
    assert!(!config.to_json().to_string().contains(key));
}

#[test]
fn password_of_the_store_url_is_never_shown() {
    let text = GOOD.replace(
        "sqlite:lk.db",
        "postgres://lk:hunter2@db/lk?sslmode=require",
    );
    let config = read(&text, &[]).unwrap();
    let shown = config.to_json();
    assert_eq!(
        shown["store.url"]["value"],
        "postgres://lk:***@db/lk?sslmode=require"
    );
    assert!(!shown.to_string().contains("hunter2"), "{shown}");
    assert!(!format!("{config:?}").contains("hunter2"));
    let broken = text.replace("postgres:", "progres:");
    let problems = to_lines(&read(&broken, &[]).unwrap_err());
    assert!(!problems.contains("hunter2"), "{problems}");
}

#[test]
fn cluster_secret_from_the_environment_is_never_shown() {
    let secret = "0123456789abcdef0123456789abcdef";
    let text = format!(
        "{}\n[node]\nadvertise = \"http://10.0.0.7:8645\"\n",
        GOOD.replace("sqlite:lk.db", "postgres://db/lk")
    );
    let config = read(&text, &[("LANEKEEPER_NODE__CLUSTER_SECRET", secret)]).unwrap();
    assert!(config.warnings.is_empty());
    assert!(!format!("{config:?}").contains(secret));
    assert!(!config.to_json().to_string().contains(secret));
    let inline = format!("{text}clusterSecret = \"{secret}\"\n");
    let config = read(&inline, &[]).unwrap();
    assert_eq!(
        to_lines(&config.warnings),
        "lanekeeper.toml:13: node.clusterSecret holds the secret in the file: move it to \
         clusterSecretFile, or to the environment\n"
    );
}

#[test]
fn external_accounts_are_reserved_by_scheme() {
    let external = "[[signer]]\nkind = \"external\"\n\
                 address = \"0x5FbDB2315678afecb367f032d93F642f64180aa3\"\nchains = [1]\n";
    let text = format!("{GOOD}\n{external}[nonce]\nreservationTimeout = \"90s\"\n");
    let config = read(&text, &[]).unwrap();
    assert!(config.warnings.is_empty(), "{}", to_lines(&config.warnings));
    assert_eq!(config.nonce.scheme, nonce::SchemeKind::Lane);
    assert_eq!(config.nonce.mode, reservations::NonceMode::Basic);
    let reserved = config.node_config(config.http.listen).reserved_accounts;
    let chains: Vec<_> = reserved.accounts.iter().map(|(_, chains)| chains).collect();
    assert_eq!(chains, [&[domain::ChainId(1)]]);
    assert_eq!(reserved.reservations.timeout, Duration::from_secs(90));
    // The other schemes have tables of their own, which the lanes of the node do not use.
    let other = text.replace("sqlite:lk.db", "postgres://db/lk");
    let env = [
        ("LANEKEEPER_NONCE__SCHEME", "redis-reserve"),
        ("LANEKEEPER_NONCE__MODE", "worker-queue"),
        (
            "LANEKEEPER_NONCE__WORKER_QUEUE_REJECT_POLICY",
            "CALLER_RUNS",
        ),
        ("LANEKEEPER_REDIS__URL", "redis://:hunter2@cache/3"),
    ];
    let config = read(&other, &env).unwrap();
    assert_eq!(config.nonce.scheme, nonce::SchemeKind::RedisReserve);
    let policy = config.nonce.worker_queue_reject_policy;
    assert_eq!(policy, nonce::RejectPolicy::CallerRuns);
    let node = config.node_config(config.http.listen);
    assert!(node.reserved_accounts.accounts.is_empty());
    assert_eq!(config.external_accounts().count(), 1);
    assert!(!config.to_json().to_string().contains("hunter2"));
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn auth_keys_are_a_list_beside_their_section() {
    let hash = "ab".repeat(32);
    let text = format!(
        "{GOOD}\n[auth]\nmode = \"keys\"\n[[auth.key]]\nname = \"shop\"\nhash = \"{hash}\"\n\
         scopes = [\"read\", \"send\"]\n[[auth.key]]\nname = \"scraper\"\nhash = \"{}\"\n\
         scopes = [\"metrics\"]\n[http]\nlisten = \"0.0.0.0:8645\"\n",
        "cd".repeat(32)
    );
    let config = read(&text, &[]).unwrap();
    let names: Vec<&str> = config
        .auth_keys
        .iter()
        .map(|key| key.name.as_str())
        .collect();
    assert_eq!(names, ["shop", "scraper"]);
    assert_eq!(
        config.origin("auth.key[1].name").to_string(),
        "lanekeeper.toml:18"
    );
    let node = config.node_config("0.0.0.0:8645".parse().unwrap());
    assert_eq!(
        node.advertise, None,
        "an unspecified address is not reachable"
    );
}

#[test]
fn flags_win_over_environment_over_file_over_dev() {
    let dev = "[confirmations]\nrequired = 2\n[store]\nurl = \"sqlite:dev.db\"\n";
    let sources = Sources {
        dev: Some(RawFile::parse(Path::new("dev"), dev).unwrap()),
        file: Some(RawFile::parse(Path::new("lanekeeper.toml"), GOOD).unwrap()),
        env: [(
            "LANEKEEPER_HTTP__LISTEN".to_owned(),
            "127.0.0.1:1".to_owned(),
        )]
        .into(),
        flags: [("http.listen", "127.0.0.1:2".to_owned())].into(),
    };
    let config = Config::read(sources).unwrap();
    assert_eq!(config.http.listen.port(), 2);
    assert_eq!(config.confirmations.required, 2);
    assert_eq!(config.store.url, StoreUrl::Sqlite("lk.db".into()));
}

#[test]
fn variables_that_set_no_key_are_reported() {
    let set = [
        ("LANEKEEPER_STORE_URL", "sqlite:other.db"),
        ("LANEKEEPER_LANE", "1"),
    ];
    let config = read(GOOD, &set).unwrap();
    let warnings = to_lines(&config.warnings);
    assert_eq!(
        warnings,
        "$LANEKEEPER_LANE: no key can be set by this variable\n\
         $LANEKEEPER_STORE_URL: no key can be set by this variable; did you mean \
         LANEKEEPER_STORE__URL?\n"
    );
    let misspelt = read(GOOD, &[("LANEKEEPER_STORE__URI", "x")]).unwrap_err();
    assert!(to_lines(&misspelt).contains("LANEKEEPER_STORE__URL"));
}

#[cfg(unix)]
#[test]
fn variables_are_text() {
    use std::os::unix::ffi::OsStringExt as _;
    let not_utf8 = || OsString::from_vec(vec![b'a', 0xff]);
    let set = |name: &str, value: OsString| (OsString::from(name), value);
    let problems = read_variables(
        [
            set("LANEKEEPER_STORE__URL", not_utf8()),
            set("LANEKEEPER_KEY", not_utf8()),
            set("OTHER", not_utf8()),
        ]
        .into_iter(),
    );
    assert_eq!(
        to_lines(&problems.unwrap_err()),
        "$LANEKEEPER_STORE__URL: is not UTF-8: set it to text, or unset it\n"
    );
    let legal = ["LANEKEEPER_URL", "LANEKEEPER_TEST_REDIS", "HOME"];
    let legal = legal.into_iter().map(|name| set(name, "x".into()));
    assert_eq!(read_variables(legal).unwrap().len(), 0);
}

#[test]
fn sources_that_are_absent_are_not_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let digits = "ab".repeat(32);
    for (name, text) in [
        ("good", &*digits),
        ("same", &*digits),
        ("bad", "zz"),
        ("empty", ""),
    ] {
        std::fs::write(path(name), text).unwrap();
    }
    let problems = |names: &[&str]| {
        let signer =
            |name: &&str| format!("[[signer]]\nkind = \"key\"\nkeyFile = \"{}\"\n", path(name));
        let signers: String = names.iter().map(signer).collect();
        let text = format!(
            "[store]\nurl = \"sqlite:lk.db\"\n[[chain]]\nid = 1\nrpc = [\"http://127.0.0.1:8545\"]\n{signers}"
        );
        let (errors, missing) = crate::adapters::find_secret_problems(&read(&text, &[]).unwrap());
        (errors.len(), missing.len())
    };
    assert_eq!(problems(&["good", "absent"]), (0, 1));
    for wrong in ["bad", "empty", ""] {
        assert_eq!(
            problems(&[wrong]),
            (1, 0),
            "{wrong:?}: the last is a directory"
        );
    }
    assert_eq!(
        problems(&["good", "same"]),
        (1, 0),
        "one account, two signers"
    );
}
