//! One node on SQLite, with small limits.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use super::scrape::{ScrapedNode, control_chain};
use super::table::ReachedBy;
use super::{CHAIN_ID, DEADLINE};
use crate::support::{self, BOB, Running, lanekeeper, run};

/// Writes the configuration of a node with small limits, a SQLite store, an API key and an external signer.
fn write_config(folder: &Path, chain_url: &str, key_hash: &str) -> String {
    let path = folder.join("lanekeeper.toml");
    let key = folder.join("key");
    let digits = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"; // Alice's
    fs::write(&key, digits).expect("a temporary folder is writable");
    let text = format!(
        r#"
        [store]
        url = "sqlite:{store}"
        [[chain]]
        id = {CHAIN_ID}
        rpc = ["{chain_url}"]
        blockTime = "100ms"
        confirmations = 2
        [[signer]]
        kind = "key"
        keyFile = "{key}"
        [[signer]]
        kind = "external"
        address = "{BOB}"
        [http]
        listen = "127.0.0.1:0"
        [node]
        drainDelay = "0s"
        [lease]
        duration = "3s"
        renewInterval = "500ms"
        [worker]
        count = 1
        queueCapacity = 2
        [nonce]
        mode = "worker-queue"
        workerCount = 1
        workerQueueCapacity = 1
        stateTimeout = "1s"
        [resubmit]
        interval = "1s"
        policy = "bump"
        maxAttempts = 2
        [auth]
        mode = "keys"
        [[auth.key]]
        name = "test"
        hash = "{key_hash}"
        scopes = ["read", "send", "metrics"]
        "#,
        store = folder.join("store").display(),
        key = key.display(),
    );
    fs::write(&path, text).expect("a temporary folder is writable");
    path.display().to_string()
}

fn start_chain(folder: &Path) -> Running {
    let mut command = lanekeeper();
    command.args(["devchain", "--json", "--port", "0", "--dir"]);
    command.arg(folder.join("chain"));
    Running::start(command)
}

fn start_node(config: &str) -> Running {
    let migrated = run(&["migrate", "--config", config]);
    assert!(migrated.status.success(), "{}", support::err(&migrated));
    let mut command = lanekeeper();
    command.args(["serve", "--json", "--config", config]);
    Running::start(command)
}

/// A node on a chain of its own, with an API key.
struct OneNode {
    node: ScrapedNode,
    url: String,
    chain_url: String,
    /// Makes ids of repeated requests unique.
    round: Cell<u32>,
    _processes: [Running; 2],
}

/// The nonces of the external signer.
fn nonces_path() -> String {
    format!("/api/v1/lanes/{CHAIN_ID}/{BOB}/nonces")
}

impl OneNode {
    fn start(folder: &Path) -> Self {
        let chain = start_chain(folder);
        let chain_url = chain.url("chain");
        let key = support::json(&run(&["key", "new", "--name", "test", "--json"]));
        let hash = key["hash"].as_str().expect("a key has a hash");
        let running = start_node(&write_config(folder, &chain_url, hash));
        let url = running.url("api");
        Self {
            node: ScrapedNode::new(&url, key["key"].as_str()),
            url,
            chain_url,
            round: Cell::new(0),
            _processes: [running, chain],
        }
    }

    async fn mine(&self, blocks: u64) {
        control_chain(
            &self.chain_url,
            "anvil_mine",
            json!([format!("{blocks:#x}")]),
        )
        .await;
    }

    fn next_round(&self) -> u32 {
        self.round.set(self.round.get() + 1);
        self.round.get()
    }

    async fn refuse_callers(&self) {
        let anonymous = ScrapedNode::new(&self.url, None);
        let refuse = async || {
            assert_eq!(anonymous.get("/metrics").await.0, 401);
            // A node with keys and without a cluster secret has no peers.
            let (status, body) = anonymous
                .post_as_peer("/internal/v1/notify", &json!([]))
                .await;
            assert_eq!(status, 403, "{body}");
        };
        let refused = [
            "lanekeeper_auth_refused_total{reason=\"missing\"}",
            "lanekeeper_peer_refused_total{reason=\"no_secret\"}",
            "lanekeeper_http_requests_total{route=\"/metrics\",method=\"GET\",status=\"401\"}",
        ];
        self.node.assert_counts(refuse, &refused).await;
    }

    async fn confirm_tx(&self) {
        let endpoint = self.chain_url.trim_start_matches("http://");
        let rpc_calls = format!(
            "lanekeeper_rpc_calls_total{{chain=\"{CHAIN_ID}\",endpoint=\"{endpoint}\",\
             method=\"eth_sendRawTransaction\",result=\"ok\"}}"
        );
        let is_final = "lanekeeper_finality_total{result=\"confirmed\"}";
        let confirm = async || {
            assert_eq!(self.node.send("first").await, 202);
            self.node.await_series(&[is_final], || self.mine(1)).await;
        };
        let confirmed = [
            is_final,
            "lanekeeper_gate_batch_size_count",
            "lanekeeper_gate_commit_seconds_count",
            "lanekeeper_gate_commits_total{kind=\"accept\"}",
            "lanekeeper_gate_commits_total{kind=\"progress\"}",
            "lanekeeper_gate_txs_total",
            "lanekeeper_http_request_seconds_count{route=\"/api/v1/tx\"}",
            "lanekeeper_http_requests_total{route=\"/api/v1/tx\",method=\"POST\",status=\"202\"}",
            "lanekeeper_lease_acquire_total{result=\"inserted\"}",
            "lanekeeper_receipt_check_total{result=\"hit\"}",
            "lanekeeper_tx_create_total{result=\"new\"}",
            "lanekeeper_tx_submit_total{result=\"accepted\"}",
            &rpc_calls,
        ];
        self.node.assert_counts(confirm, &confirmed).await;
        // The next heartbeat counts the lane.
        let kept = ["lanekeeper_lanes_kept"];
        self.node.await_series(&kept, async || {}).await;
    }

    async fn repeat_requests(&self) {
        let repeat = async || assert_eq!(self.node.send("first").await, 200);
        let existing = ["lanekeeper_tx_create_total{result=\"existing\"}"];
        self.node.assert_counts(repeat, &existing).await;
        // Callers that meet in one turn with one id: the lane looks the id up for the second one.
        let send_at_once = async || {
            let id = format!("twin-{}", self.next_round());
            join_all((0..4).map(|_| self.node.send(&id))).await;
        };
        let reads = ["lanekeeper_store_reads_total"];
        self.node.await_series(&reads, send_at_once).await;
    }

    /// Sends more at once than an inbox of two and a reservation queue of one have room for.
    async fn overload(&self) {
        let overload = async || {
            let round = self.next_round();
            let ids: Vec<_> = (0..30).map(|n| format!("burst-{round}-{n}")).collect();
            let (path, no_fields) = (nonces_path(), json!({}));
            tokio::join!(
                join_all(ids.iter().map(|id| self.node.send(id))),
                join_all((0..30).map(|_| self.node.post(&path, &no_fields)))
            );
        };
        let overloaded = [
            "lanekeeper_inbox_rejected_total",
            "lanekeeper_nonce_allocate_total{result=\"busy\"}",
            "lanekeeper_nonce_queue_rejected_total",
            "lanekeeper_tx_create_total{result=\"refused\"}",
        ];
        self.node.await_series(&overloaded, overload).await;
    }

    async fn mark_nonce(&self) {
        let mark = async || {
            let (status, body) = loop {
                let (status, body) = self.node.post(&nonces_path(), &json!({})).await;
                // The queue has room for one, and what was answered leaves it a moment later.
                if status != 429 {
                    break (status, body);
                }
            };
            assert_eq!(status, 201, "{body}");
            let reserved: Value = serde_json::from_str(&body).expect("a body is JSON");
            let hash = format!("0x{}", "11".repeat(32));
            let mark = json!({ "holder": reserved["holder"], "txHash": hash });
            let path = format!("{}/{}/submitted", nonces_path(), reserved["nonce"]);
            let (status, body) = self.node.post(&path, &mark).await;
            assert_eq!(status, 200, "{body}");
        };
        let marked = ["lanekeeper_nonce_mark_total{mark=\"submitted\",result=\"ok\"}"];
        self.node.assert_counts(mark, &marked).await;
    }

    /// The inbox of two may still hold what came before.
    async fn send_once_there_is_room(&self, id: &str) {
        let until = tokio::time::Instant::now() + DEADLINE;
        loop {
            match self.node.send(id).await {
                429 => assert!(tokio::time::Instant::now() < until, "there is never room"),
                status => return assert_eq!(status, 202),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Nothing is mined: the fee is bumped until the attempts are used up.
    async fn stop_mining(&self) {
        let stop = async || {
            control_chain(&self.chain_url, "evm_setAutomine", json!([false])).await;
            self.send_once_there_is_room("stuck").await;
        };
        let stuck = ["lanekeeper_tx_replaced_total", "lanekeeper_tx_stuck_total"];
        self.node.assert_counts(stop, &stuck).await;
    }

    /// The tx becomes final, and then its block is reorged out.
    async fn reorg_final_tx(&self) {
        let reorg = async || {
            self.mine(4).await;
            let list = "/api/v1/tx?state=CONFIRMED&limit=1000";
            let until = tokio::time::Instant::now() + DEADLINE;
            let stuck = "\"requestId\":\"stuck\"";
            while !self.node.get(list).await.1.contains(stuck) {
                assert!(tokio::time::Instant::now() < until, "it is never final");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            control_chain(&self.chain_url, "anvil_reorg", json!(["0x4", [], true])).await;
            self.mine(1).await;
        };
        let reorged = [
            "lanekeeper_confirmations_new_fork_total",
            "lanekeeper_forks_total",
            "lanekeeper_incidents_total{kind=\"fork_below_finality\"}",
        ];
        self.node.assert_counts(reorg, &reorged).await;
    }
}

#[tokio::test]
async fn one_node_exports_its_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let one = OneNode::start(folder.path());
    one.refuse_callers().await;
    one.confirm_tx().await;
    one.repeat_requests().await;
    one.overload().await;
    one.mark_nonce().await;
    one.stop_mining().await;
    one.reorg_final_tx().await;
    one.node.scrape().await.check(ReachedBy::OneNode);
}
