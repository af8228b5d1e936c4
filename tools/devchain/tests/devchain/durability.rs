//! What a folder remembers, and who may open it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use alloy_primitives::{Bytes, U256};
use devchain::{DevChain, DevChainConfig, DevChainError, Mining};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::contracts::{COUNTER, deploy};
use crate::support::{BOB, Chain, Client, Wallet, config, message};

const CHILD_FOLDER: &str = "DEVCHAIN_TEST_FOLDER";

fn in_folder(dir: &Path, mining: Mining) -> DevChainConfig {
    DevChainConfig {
        dir: Some(dir.to_owned()),
        ..config(mining)
    }
}

#[tokio::test]
async fn restart_keeps_everything_but_the_pool() {
    let folder = tempfile::tempdir().unwrap();
    let chain = Chain::start(in_folder(folder.path(), Mining::Instant)).await;
    let alice = Wallet::dev(0);
    let counter = deploy(&chain, &alice, 0, &COUNTER).await;
    let tx = alice.sign(message(1, counter, Bytes::new()));
    chain.submit(&tx).await;
    let receipt = chain.wait_for_receipt(&tx).await;
    chain.submit(&alice.transfer(9)).await; // queued for ever
    let head = chain.block("latest").await;
    chain.stop().await;

    let chain = Chain::start(in_folder(folder.path(), Mining::Instant)).await;
    assert_eq!(chain.block("latest").await, head);
    assert_eq!(chain.receipt(tx.hash).await, Some(receipt.clone()));
    assert_eq!(
        chain.call("eth_getCode", json!([counter])).await,
        json!(COUNTER)
    );
    let logs = chain
        .call("eth_getLogs", json!([{"fromBlock": "0x0"}]))
        .await;
    assert_eq!(logs, receipt["logs"]);
    let status = chain.call("txpool_status", json!([])).await;
    assert_eq!(status, json!({"pending": "0x0", "queued": "0x0"}));
    let next = alice.sign(message(2, counter, Bytes::new()));
    chain.submit(&next).await;
    assert_eq!(chain.wait_for_receipt(&next).await["blockNumber"], "0x3");
    // Also the way back is remembered.
    chain.call("anvil_rollback", json!([2, true])).await;
    let slot = chain
        .call("eth_getStorageAt", json!([counter, "0x0"]))
        .await;
    assert_eq!(slot, json!(format!("{:#066x}", 0)));
    chain.stop().await;
}

#[tokio::test]
async fn folder_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let config = in_folder(folder.path(), Mining::Manual);
    let chain = DevChain::open(config.clone()).expect("opens");
    let second = chain.clone();
    let error = DevChain::open(config.clone()).unwrap_err();
    assert!(matches!(error, DevChainError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("in use by another process"));
    drop(chain);
    assert!(
        DevChain::open(config.clone()).is_err(),
        "a clone still holds it"
    );
    drop(second);
    DevChain::open(config).expect("free again");
}

#[tokio::test]
async fn folder_of_another_chain_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = in_folder(folder.path(), Mining::Manual);
    drop(DevChain::open(config.clone()).expect("opens"));
    let error = DevChain::open(DevChainConfig {
        chain_id: 1,
        ..config
    })
    .unwrap_err();
    assert!(
        matches!(
            error,
            DevChainError::OtherChain {
                found: 31337,
                wanted: 1,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn invalid_configuration_is_refused() {
    let restless = config(Mining::Interval(Duration::ZERO));
    assert!(matches!(
        DevChain::open(restless),
        Err(DevChainError::Config(_))
    ));
    let no_room = DevChainConfig {
        block_gas_limit: 1,
        ..config(Mining::Manual)
    };
    assert!(matches!(
        DevChain::open(no_room),
        Err(DevChainError::Config(_))
    ));
}

/// A chain in a process of its own, that can be killed.
pub(crate) struct ChildChain {
    child: Child,
    /// Kept open: the test harness in the child writes to it during a long test.
    _output: BufReader<ChildStdout>,
    pub(crate) client: Client,
}

impl ChildChain {
    pub(crate) fn start(folder: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this test binary"))
            .args([
                "durability::killed_process_leaves_a_consistent_chain",
                "--exact",
                "--nocapture",
            ])
            .env(CHILD_FOLDER, folder)
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let url = (&mut output)
            .lines()
            .map_while(Result::ok)
            .find_map(|line| line.split_once("serving ").map(|(_, url)| url.to_owned()));
        let client = Client::new(url.expect("the child serves"));
        Self {
            child,
            _output: output,
            client,
        }
    }

    /// SIGKILL: no destructor runs, nothing is flushed.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("was alive");
        self.child.wait().expect("the child ends");
    }
}

/// What the child process does: it serves until it is killed.
async fn serve_for_ever(folder: &Path) {
    let chain = DevChain::open(in_folder(folder, Mining::Instant)).expect("opens");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let served = chain.serve(listener).expect("serves");
    // On its own line, after the output of the test harness.
    let line = format!("\nserving http://{}\n", served.local_addr());
    std::io::stdout()
        .write_all(line.as_bytes())
        .expect("the parent reads");
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn killed_process_leaves_a_consistent_chain() {
    // The test starts its own binary again, with this set, as the process that it kills.
    if let Some(folder) = std::env::var_os(CHILD_FOLDER) {
        return serve_for_ever(Path::new(&folder)).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let alice = Wallet::dev(0);
    let mut sent: u64 = 0;
    for _ in 0..3 {
        let chain = ChildChain::start(folder.path());
        let next = chain.client.nonce(alice.address(), "latest").await;
        assert!(next <= sent);
        let before = chain.client.balance(BOB).await;
        assert_eq!(
            before,
            U256::from(next),
            "state and nonce are of the same block"
        );
        sent = next + 200;
        for nonce in next..sent {
            chain.client.submit(&alice.transfer(nonce)).await;
        }
        // What an answer has shown must survive; how much that is, the kill decides.
        let shown = chain
            .client
            .wait_for_receipt(&alice.transfer(next + 100))
            .await;
        chain.kill();

        let chain = Chain::start(in_folder(folder.path(), Mining::Manual)).await;
        assert_eq!(
            chain.receipt(alice.transfer(next + 100).hash).await,
            Some(shown)
        );
        let height = chain.height().await;
        let mut txs = 0;
        for number in 1..=height {
            let block = chain.block(format!("{number:#x}")).await;
            let parent = chain.block(format!("{:#x}", number - 1)).await;
            assert_eq!(block["parentHash"], parent["hash"]);
            txs += block["transactions"].as_array().unwrap().len();
        }
        assert_eq!(chain.balance(BOB).await, U256::from(txs));
        assert_ne!(chain.block("latest").await, Value::Null);
        chain.stop().await;
    }
}
