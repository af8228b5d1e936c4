//! Two nodes on PostgreSQL, one of which is stopped for a while.

use std::cell::Cell;
use std::fs;
use std::process::Command;

use rig::postgres::{majors, shared};
use serde_json::{Value, json};

use super::CHAIN_ID;
use super::scrape::{ScrapedNode, control_chain};
use super::table::ReachedBy;
use crate::support::{ALICE, Running};

/// A stopped process, which continues when this is dropped.
struct StoppedProcess(String);

impl StoppedProcess {
    fn stop(pid: &Value) -> Self {
        let stopped = Self(pid.to_string());
        let sent = Command::new("kill").args(["-STOP", &stopped.0]).status();
        assert!(sent.expect("kill runs").success());
        stopped
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        // It may have ended.
        Command::new("kill").args(["-CONT", &self.0]).status().ok();
    }
}

#[tokio::test]
async fn two_nodes_export_the_metrics_of_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let newest = *majors().last().expect("a major is installed");
    let database = shared(newest).database("metrics");
    let config = folder.path().join("extra.toml");
    let text = "[lease]\nduration = \"2s\"\nrenewInterval = \"500ms\"\nclockSkewAllowance = \"100ms\"\n\
                [resubmit]\ninterval = \"1s\"\n";
    fs::write(&config, text).unwrap();
    let config = config.display().to_string();
    let dev = Running::dev(
        &folder.path().join("dev"),
        &[
            "--nodes",
            "2",
            "--store",
            database.url(),
            "--config",
            &config,
        ],
    );
    let lane = format!("/api/v1/lanes/{CHAIN_ID}/{ALICE}");
    let nodes: Vec<_> = dev.ready["nodes"].as_array().unwrap().iter().collect();
    let clients: Vec<_> = nodes
        .iter()
        .map(|node| ScrapedNode::new(node["api"].as_str().unwrap(), None))
        .collect();
    assert_eq!(clients[0].send("first").await, 202);
    let status: Value = serde_json::from_str(&clients[0].get(&lane).await.1).unwrap();
    let is_keeper = |node: &&Value| node["node"] == status["keeper"]["node"];
    let keeper_index = nodes.iter().position(is_keeper).expect("the lane is kept");
    let (keeper, other) = (&clients[keeper_index], &clients[1 - keeper_index]);
    let keeper_name = nodes[keeper_index]["node"].as_str().unwrap();

    control_chain(&dev.url("chain"), "evm_setAutomine", json!([false])).await;
    let to_keeper = format!("lanekeeper_forward_total{{to=\"{keeper_name}\"}}");
    let forwarded = [
        "lanekeeper_peer_call_seconds_count{path=\"/internal/v1/forward\"}",
        "lanekeeper_peer_calls_total{path=\"/internal/v1/forward\",result=\"ok\"}",
        &to_keeper,
    ];
    // Until the other node has read the keeper's first heartbeat, it queues instead of forwarding.
    let sent = Cell::new(0);
    let forward = async || {
        sent.set(sent.get() + 1);
        let request_id = format!("forwarded-{}", sent.get());
        assert_eq!(other.send(&request_id).await, 202);
    };
    other.await_series(&forwarded, forward).await;
    // Nothing is mined, so the same bytes are sent again.
    keeper
        .await_series(&["lanekeeper_tx_resubmitted_total"], async || {})
        .await;

    let stopped = StoppedProcess::stop(&nodes[keeper_index]["pid"]);
    let queue = async || assert_eq!(other.send("queued").await, 202);
    let taken_over = [
        "lanekeeper_lease_acquire_total{result=\"taken\"}",
        "lanekeeper_lease_token_changes_total",
        "lanekeeper_peer_calls_total{path=\"/internal/v1/forward\",result=\"lost\"}",
        "lanekeeper_tx_queued_total",
        "lanekeeper_tx_resubmitted_total",
    ];
    other.assert_counts(queue, &taken_over).await;
    drop(stopped);
    // By its renewal or by its next commit, whichever comes first.
    keeper
        .await_series(&["lanekeeper_lease_fenced_total{*"], async || {})
        .await;

    let mut page = keeper.scrape().await;
    let of_other = other.scrape().await;
    page.types.extend(of_other.types);
    page.samples.extend(of_other.samples);
    page.check(ReachedBy::TwoNodes);
}
