//! Who is let in, and what a node says that is told to refuse what is not its own.

use std::time::Duration;

use proof::cluster::{Cluster, Settings};
use proof::ledger::{Ledger, Promise};
use proof::{Api, Outcome, demand, run};
use reqwest::Method;
use serde_json::{Value, json};

use crate::stray;

const PATIENCE: Duration = Duration::from_secs(10);

/// `routing.nonKeeper = reject`: 409 with the keeper's name and when to come back.
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
    let body = ledger.ask(lane, "first-come");
    let (status, tx) = cluster.nodes[0].api.create(body, "").await?;
    demand(status.as_u16() == 202, format!("reject: {status} {tx}"))?;
    ledger.promised("first-come", Promise::read(&tx))?;
    let keeper = cluster.some_keeper(0, 4).await?;
    let name = &cluster.nodes[keeper.node].name;
    let other = &cluster.nodes[cluster.other_than(keeper.node)];
    let body = stray(lane, "not-here");
    let answer = other
        .api
        .ask(Method::POST, "/api/v1/tx", Some(&body), PATIENCE);
    let answer = answer.await.map_err(|why| format!("reject: {why:?}"))?;
    let detail = answer.body["detail"].as_str().unwrap_or_default();
    let kind = answer.body["type"].as_str().unwrap_or_default();
    demand(
        answer.status.as_u16() == 409
            && answer.retry_after.is_some()
            && kind.ends_with("not-keeper")
            && detail.split(' ').any(|word| word == name),
        format!("a node that must refuse, while {name} keeps the lane: {answer:?}"),
    )
}

/// `auth.mode = keys`: who has no key is refused, and a request that is handed on is not asked twice.
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
    // Every node in turn: two of the three hand it on to the third.
    for number in 0..cluster.nodes.len() {
        let id = format!("with-key-{number}");
        let body = ledger.ask(&lane, &id);
        let (status, tx) = cluster.nodes[number].api.create(body, "").await?;
        demand(
            status.as_u16() == 202 && tx["nonce"].is_u64(),
            format!("with a key at node {number}: {status} {tx}"),
        )?;
        ledger.promised(&id, Promise::read(&tx))?;
    }
    let mut forwarded = 0.0;
    for node in &cluster.nodes {
        forwarded += node.metric("lanekeeper_forward_total", "").await?;
    }
    demand(
        forwarded >= 2.0,
        format!("{forwarded} requests were handed on, not 2"),
    )
}

async fn refused(api: &Api, lane: &str, expected: u16) -> Outcome<()> {
    let body = stray(lane, "not-allowed");
    let (status, problem) = api.create(body, "").await?;
    demand(
        status.as_u16() == expected,
        format!("{status} instead of {expected}: {problem}"),
    )
}

/// The door between nodes opens for the cluster's secret only, not for a caller's key.
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
        demand(
            matches!(status.as_u16(), 401 | 403),
            format!("the door between nodes: {status} {problem}"),
        )?;
    }
    Ok(())
}

async fn new_key(name: &str) -> Outcome<(String, String)> {
    let output = run(&["key", "new", "--name", name, "--json"], &[]).await?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    demand(output.status.success(), format!("key new: {error}"))?;
    let made: Value = serde_json::from_slice(&output.stdout)?;
    let text = |field: &str| made[field].as_str().map(str::to_owned);
    let (key, hash) = (text("key"), text("hash"));
    Ok((
        key.ok_or_else(|| format!("no key in {made}"))?,
        hash.ok_or_else(|| format!("no hash in {made}"))?,
    ))
}
