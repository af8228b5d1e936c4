//! Broken files, each with what a person is told about it.

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

fn told(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(|problem| format!("{problem}\n"))
        .collect()
}

/// Every `tests/config/NAME.toml` is refused with what `NAME.txt` beside it says.
#[test]
fn broken_files_say_what_to_do() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config");
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let problems = read(&text, &[]).expect_err(&path.display().to_string());
        expect_file![path.with_extension("txt")].assert_eq(&told(&problems));
        seen += 1;
    }
    assert!(seen >= 10, "only {seen} broken files");
}

#[test]
fn a_small_file_is_enough_and_defaults_hold() {
    let config = read(GOOD, &[]).unwrap();
    assert!(config.warnings.is_empty());
    let listen = config.http.listen;
    let node = config.node_config(listen);
    assert_eq!(node.advertise.as_deref(), Some("http://127.0.0.1:8645"));
    assert_eq!(node.non_keeper, engine::node::NonKeeper::Forward);
    assert_eq!(node.lease.check(), Ok(()));
    let rules = &node.chains[&domain::ChainId(1)];
    assert_eq!(rules.lane.finality, Finality::Depth(20));
    assert_eq!(rules.lane.watch_depth, 64);
    assert_eq!(rules.lane.on_foreign_nonce, OnForeignNonce::Requeue);
    assert!(!rules.lane.fetch_receipt_upon_entry);
    let resubmit = Resubmit {
        interval: Some(Duration::from_secs(60)),
        policy: ResubmitPolicy::Rebroadcast,
        max_attempts: None,
    };
    assert_eq!(rules.lane.resubmit, resubmit);
    assert_eq!(config.chains[0].send_to, 1);
    assert_eq!(rules.lane.window.limit, None);
    assert_eq!(rules.gas_margin_percent, 120);
    assert_eq!(config.origin("store.url").words(), "lanekeeper.toml:3");
    assert_eq!(config.origin("lease.duration"), Origin::Default);
}

#[test]
fn the_chain_loops_settings_become_rules() {
    let text = r#"
[store]
url = "sqlite:lk.db"
[[chain]]
id = 1
rpc = ["http://127.0.0.1:8545", "http://127.0.0.1:8547"]
ws = "wss://127.0.0.1:8546/v3/secret"
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
    assert_eq!(first.finality, Finality::Tag(FinalityTag::Finalized));
    assert_eq!((first.watch_depth, second.watch_depth), (64, 200));
    assert_eq!(second.finality, Finality::Depth(100));
    let resubmit = Resubmit {
        interval: Some(Duration::from_secs(30)),
        policy: ResubmitPolicy::Bump {
            percent: 25,
            max_fee: 200_000_000_000,
        },
        max_attempts: Some(5),
    };
    assert_eq!((first.resubmit, second.resubmit), (resubmit, resubmit));
    assert_eq!(first.on_foreign_nonce, OnForeignNonce::Hold);
    assert!(first.fetch_receipt_upon_entry);
    let shown = config.to_json();
    assert_eq!(shown["chain[0].ws"]["value"], "127.0.0.1:8546");
    assert_eq!(shown["chain[0].confirmations"]["value"], "finalized");
    assert_eq!(shown["chain[0].sendTo"]["value"], "2");
    assert!(!shown.to_string().contains("secret"), "{shown}");
}

/// The longer example of the manual is a file that works, and says the defaults where it says so.
#[test]
fn the_manual_is_right() {
    let manual = include_str!("../../../../docs/running.md");
    let mut blocks = manual.split("```");
    let block = blocks.find(|block| block.starts_with("toml") && block.contains("[resubmit]"));
    let text = block.expect("the manual tells of it")["toml".len()..]
        .replace("https://…", "http://127.0.0.1:8545")
        .replace("wss://…", "wss://127.0.0.1:8546");
    let told = read(&format!("{GOOD_WITHOUT_CHAIN}\n{text}"), &[]).expect("it works");
    let defaults = read(GOOD, &[]).unwrap();
    let left_out = [
        "chain[0].ws",
        "chain[0].rpc",
        "chain[0].requestsPerSecond",
        "chain[0].confirmations",
        "chain[0].blockTime",
        "chain[0].feeCap",
        "resubmit.maxFeePerGas",
        "confirmations.watchDepth",
    ];
    for (told, default) in told.shown.iter().zip(&defaults.shown) {
        assert_eq!(told.path, default.path);
        if !left_out.contains(&told.path.as_str()) {
            assert_eq!(told.value, default.value, "{}", told.path);
        }
    }
}

#[test]
fn settings_of_a_policy_that_is_not_chosen_are_told() {
    let text = format!("{GOOD}\n[resubmit]\nbumpPercent = 20\n");
    let config = read(&text, &[("LANEKEEPER_RESUBMIT__MAX_FEE_PER_GAS", "9gwei")]).unwrap();
    expect_test::expect![[r#"
        lanekeeper.toml:12: resubmit.bumpPercent has no effect, because resubmit.policy is "rebroadcast": set that to "bump", or leave resubmit.bumpPercent out
        $LANEKEEPER_RESUBMIT__MAX_FEE_PER_GAS: resubmit.maxFeePerGas has no effect, because resubmit.policy is "rebroadcast": set that to "bump", or leave resubmit.maxFeePerGas out
    "#]].assert_eq(&told(&config.warnings));
}

#[test]
fn the_environment_wins_over_the_file() {
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
        domain::window::Depth::Fixed(1_000_000)
    );
    assert!(!config.resubmit.enabled);
    assert_eq!(config.http.listen.port(), 9000);
    let origin = config.origin("lease.renewInterval").words();
    assert_eq!(origin, "$LANEKEEPER_LEASE__RENEW_INTERVAL");
}

#[test]
fn a_bad_variable_is_named() {
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
    "#]].assert_eq(&told(&problems));
}

#[test]
fn an_inline_key_works_with_a_warning_and_is_never_shown() {
    let key = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";
    let text = GOOD.replace("keyEnv = \"HOT_WALLET\"", &format!("key = \"{key}\""));
    let config = read(&text, &[]).unwrap();
    assert_eq!(
        told(&config.warnings),
        "lanekeeper.toml:9: signer[0].key holds a private key in the file: move it to keyFile or \
         keyEnv\n"
    );
    assert!(!format!("{config:?}").contains(key));
    assert!(!config.to_json().to_string().contains(key));
}

#[test]
fn a_password_in_a_store_url_is_not_repeated() {
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
    let problems = told(&read(&broken, &[]).unwrap_err());
    assert!(!problems.contains("hunter2"), "{problems}");
}

#[test]
fn a_cluster_secret_comes_from_the_environment_and_is_never_shown() {
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
        told(&config.warnings),
        "lanekeeper.toml:13: node.clusterSecret holds the secret in the file: move it to \
         clusterSecretFile, or to the environment\n"
    );
}

#[test]
fn accounts_whose_keys_are_elsewhere_lend_their_nonces() {
    let lends = "[[signer]]\nkind = \"external\"\n\
                 address = \"0x5FbDB2315678afecb367f032d93F642f64180aa3\"\nchains = [1]\n";
    let text = format!("{GOOD}\n{lends}[nonce]\nreservationTimeout = \"90s\"\n");
    let config = read(&text, &[]).unwrap();
    assert!(config.warnings.is_empty(), "{}", told(&config.warnings));
    assert_eq!(config.nonce.scheme, nonce::SchemeKind::Lane);
    assert_eq!(config.nonce.mode, NonceMode::Basic);
    let lent = config.node_config(config.http.listen).lent;
    let chains: Vec<_> = lent.accounts.iter().map(|(_, chains)| chains).collect();
    assert_eq!(chains, [&[domain::ChainId(1)]]);
    assert_eq!(lent.reservations.timeout, Duration::from_secs(90));
    // The other schemes have books of their own: the lanes of the node know nothing of them.
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
    assert!(node.lent.accounts.is_empty());
    assert_eq!(config.external().count(), 1);
    assert!(!config.to_json().to_string().contains("hunter2"));
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn keys_are_read_beside_their_section() {
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
        config.origin("auth.key[1].name").words(),
        "lanekeeper.toml:18"
    );
    let node = config.node_config("0.0.0.0:8645".parse().unwrap());
    assert_eq!(node.advertise, None, "nobody can be told every address");
}

#[test]
fn flags_win_over_the_environment_and_dev_is_weaker_than_the_file() {
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
