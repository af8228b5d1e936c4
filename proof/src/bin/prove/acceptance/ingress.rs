//! Access control, and nodes in reject mode.

use std::time::Duration;

use proof::cluster::{Cluster, Settings};
use proof::ledger::{Ledger, Promise};
use proof::{Api, Outcome, ensure, run};
use reqwest::Method;
use serde_json::{Value, json};

use crate::acceptance::stray;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// `routing.nonKeeper = reject`: 409 with the keeper's name and `Retry-After`.
pub(super) async fn reject(
    cluster: &mut Cluster,
    settings: &Settings,
    ledger: &Ledger,
) -> Outcome<()> {
    let more = "[routing]\nnonKeeper = \"reject\"\n".to_owned();
    let settings = Settings {
        more,
        ..settings.clone()
    };
    cluster.reconfigure(settings).await?;
    let lane = &cluster.lanes[4];
    let body = ledger.transfer_body(lane, "first-come");
    let (status, tx) = cluster.nodes[0].api.create(body, "").await?;
    ensure(status.as_u16() == 202, format!("reject: {status} {tx}"))?;
    ledger.record_promise("first-come", Promise::read(&tx))?;
    let keeper = cluster.wait_keeper(0, 4).await?;
    let name = &cluster.nodes[keeper.node].name;
    let other = &cluster.nodes[cluster.another_node(keeper.node)];
    let body = stray(lane, "not-here");
    let answer = other
        .api
        .request(Method::POST, "/api/v1/tx", Some(&body), REQUEST_TIMEOUT);
    let answer = answer.await.map_err(|why| format!("reject: {why:?}"))?;
    let detail = answer.body["detail"].as_str().unwrap_or_default();
    let kind = answer.body["type"].as_str().unwrap_or_default();
    ensure(
        answer.status.as_u16() == 409
            && answer.retry_after.is_some()
            && kind.ends_with("not-keeper")
            && detail.split(' ').any(|word| word == name),
        format!("a node that must refuse, while {name} keeps the lane: {answer:?}"),
    )
}

/// `auth.mode = keys`: a request without a key is refused, and a forwarded request is not authenticated twice.
pub(super) async fn keys(
    cluster: &mut Cluster,
    settings: &Settings,
    ledger: &Ledger,
) -> Outcome<()> {
    let (sends, sends_hash) = new_key("payouts").await?;
    let (reads, reads_hash) = new_key("auditor").await?;
    let more = format!(
        "[auth]\nmode = \"keys\"\n\
         [[auth.key]]\nname = \"payouts\"\nhash = \"{sends_hash}\"\nscopes = [\"send\", \"read\"]\n\
         [[auth.key]]\nname = \"auditor\"\nhash = \"{reads_hash}\"\nscopes = [\"read\"]\n"
    );
    let settings = Settings {
        more,
        ..settings.clone()
    };
    cluster.reconfigure(settings).await?;
    let lane = cluster.lanes[4].clone();
    for node in &cluster.nodes {
        refused(&node.api, &lane, 401).await?;
        refused(&node.api.with_key(&format!("{sends}0")), &lane, 401).await?;
        refused(&node.api.with_key(&reads), &lane, 403).await?;
        internal(&node.api.with_key(&sends)).await?;
    }
    for node in &mut cluster.nodes {
        node.api = node.api.with_key(&sends);
    }
    // Every node in turn: two of the three forward it.
    for number in 0..cluster.nodes.len() {
        let id = format!("with-key-{number}");
        let body = ledger.transfer_body(&lane, &id);
        let (status, tx) = cluster.nodes[number].api.create(body, "").await?;
        ensure(
            status.as_u16() == 202 && tx["nonce"].is_u64(),
            format!("with a key at node {number}: {status} {tx}"),
        )?;
        ledger.record_promise(&id, Promise::read(&tx))?;
    }
    let mut forwarded = 0.0;
    for node in &cluster.nodes {
        forwarded += node.metric("lanekeeper_forward_total", "").await?;
    }
    ensure(
        forwarded >= 2.0,
        format!("{forwarded} requests were forwarded, not 2"),
    )
}

async fn refused(api: &Api, lane: &str, expected: u16) -> Outcome<()> {
    let body = stray(lane, "not-allowed");
    let (status, problem) = api.create(body, "").await?;
    ensure(
        status.as_u16() == expected,
        format!("{status} instead of {expected}: {problem}"),
    )
}

/// The internal API accepts the cluster's secret only, not a caller's key.
async fn internal(api: &Api) -> Outcome<()> {
    let headers = [
        ("lanekeeper-hop", "1"),
        ("lanekeeper-deadline", "1000"),
        ("lanekeeper-cluster", "0"),
    ];
    for headers in [&headers[..], &headers[..2]] {
        let body = json!({"requests": []});
        let call = api.post_with("/internal/v1/forward", headers, &body);
        let (status, problem) = call.await?;
        ensure(
            matches!(status.as_u16(), 401 | 403),
            format!("the internal API: {status} {problem}"),
        )?;
    }
    Ok(())
}

async fn new_key(name: &str) -> Outcome<(String, String)> {
    let output = run(&["key", "new", "--name", name, "--json"], &[]).await?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.success(), format!("key new: {error}"))?;
    let made: Value = serde_json::from_slice(&output.stdout)?;
    let text = |field: &str| made[field].as_str().map(str::to_owned);
    let (key, hash) = (text("key"), text("hash"));
    Ok((
        key.ok_or_else(|| format!("no key in {made}"))?,
        hash.ok_or_else(|| format!("no hash in {made}"))?,
    ))
}
