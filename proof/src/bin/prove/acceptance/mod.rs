//! 3.1: acceptance on three real nodes and two majors of PostgreSQL. 100 equal requests are one tx, and 1,000
//! concurrent creates on one lane get nonces without gap or repeat. A keeper that was frozen past its lease writes
//! nothing more, while the next keeper finishes everything. The gate also refuses a keeper that does not notice the
//! end of its lease.

mod ingress;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use proof::cluster::{
    Cluster, FencedKeeper, Keeper, Settings, Signal, chosen_majors, database_proxies, postgres,
    run_blocking,
};
use proof::ledger::{Ledger, Promise};
use proof::load::{Load, Plan};
use proof::stats::ms;
use proof::{Outcome, Report, ensure, eventually, print_step, random_address};
use rig::postgres::Database;
use rig::proxy::TcpProxy;
use serde_json::{Value, json};

const EQUAL: usize = 100;
const AT_ONCE: usize = 1_000;

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let chosen = chosen_majors(&[])?;
    let mut figures = Vec::new();
    for major in &chosen {
        figures.push(series(report, *major).await?);
    }
    let majors: Vec<String> = chosen.iter().map(u32::to_string).collect();
    Ok(format!(
        "PostgreSQL {}: {EQUAL} equal requests over 3 nodes → 1 tx; {AT_ONCE} creates at once → \
         nonces 0…{}; frozen keeper: {}; reject, keys and cluster secret hold",
        majors.join(" and "),
        AT_ONCE - 1,
        figures.join(", ")
    ))
}

async fn series(report: &mut Report, major: u32) -> Outcome<String> {
    print_step(format!("PostgreSQL {major}"));
    let started = Instant::now();
    let server = postgres(major).await?;
    let of_database = Arc::clone(&server);
    let database = run_blocking(move || of_database.database("acceptance")).await?;
    let settings = Settings::new("03-1-acceptance", 5);
    let (database_proxies, stores) = database_proxies(&server, &database, 3);
    let mut cluster = Cluster::start(settings.clone(), &stores).await?;
    let ledger = Arc::new(Ledger::default());
    equal(&cluster, &ledger, &database).await?;
    at_once(&cluster, &ledger, &database).await?;
    let refused = frozen_keeper(&cluster, &ledger).await?;
    let fenced_keeper = unaware_keeper(&cluster, &database_proxies, &ledger).await?;
    ingress::reject(&mut cluster, &settings, &ledger).await?;
    ingress::keys(&mut cluster, &settings, &ledger).await?;
    let counted = cluster.audit(&ledger).await?;
    report.fact(
        &format!("postgres{major}"),
        json!({
            "accepted": counted.promised,
            "fencedByGate": refused.by_gate,
            "fencedByRenewal": refused.by_renewal,
            "acceptedByTheNextKeeper": refused.by_next,
            "takenOverAfterMs": ms(refused.after),
            "refusedByGateWhenUnaware": fenced_keeper.by_gate,
            "takenOverWhenUnawareAfterMs": ms(fenced_keeper.after),
            "seconds": started.elapsed().as_secs(),
        }),
    );
    Ok(format!(
        "{} writes refused and {} of an unaware one by the gate, {} accepted by the next, {} txs exactly once",
        refused.by_gate + refused.by_renewal,
        fenced_keeper.by_gate,
        refused.by_next,
        counted.promised
    ))
}

/// The same request, 100 times concurrently, over all nodes.
async fn equal(cluster: &Cluster, ledger: &Ledger, database: &Database) -> Outcome<()> {
    let body = ledger.transfer_body(&cluster.lanes[0], "same");
    let requests = (0..EQUAL).map(|number| {
        let node = &cluster.nodes[number % cluster.nodes.len()];
        node.api.create(body.clone(), "")
    });
    let (mut ids, mut new) = (BTreeSet::new(), 0);
    for answer in join_all(requests).await {
        let (status, tx) = answer?;
        ensure(
            matches!(status.as_u16(), 200 | 202),
            format!("an equal request: {status} {tx}"),
        )?;
        new += usize::from(status.as_u16() == 202);
        ids.insert(tx["txId"].to_string());
        ledger.record_promise("same", Promise::read(&tx))?;
    }
    let rows = database.query_value("SELECT count(*) FROM managed_tx");
    ensure(
        ids.len() == 1 && new == 1 && rows.as_deref() == Some("1"),
        format!(
            "{EQUAL} equal requests: {} txs, {new} new, {rows:?} rows",
            ids.len()
        ),
    )?;
    for node in &cluster.nodes {
        let mut other = body.clone();
        other["payload"] = json!({"to": random_address(), "value": "2", "gas": "21000"});
        let (status, problem) = node.api.create(other, "").await?;
        ensure(
            status.as_u16() == 422,
            format!("another payload under the key: {status} {problem}"),
        )?;
    }
    Ok(())
}

/// 1,000 different concurrent requests for one lane, over all nodes.
async fn at_once(cluster: &Cluster, ledger: &Ledger, database: &Database) -> Outcome<()> {
    let lane = &cluster.lanes[1];
    let requests = (0..AT_ONCE).map(|number| {
        let id = format!("n{number}");
        let body = ledger.transfer_body(lane, &id);
        let node = &cluster.nodes[number % cluster.nodes.len()];
        async move { (id, node.api.create(body, "").await) }
    });
    let mut without_nonce = 0;
    for (id, answer) in join_all(requests).await {
        let (status, tx) = answer?;
        ensure(status.as_u16() == 202, format!("{id}: {status} {tx}"))?;
        without_nonce += usize::from(tx["nonce"].is_null());
        ledger.record_promise(&id, Promise::read(&tx))?;
    }
    ensure(
        without_nonce == 0,
        format!("{without_nonce} of {AT_ONCE} answers had no nonce, although a keeper was at work"),
    )?;
    let signer = lane.trim_start_matches("0x").to_lowercase();
    let allocated = database.query_value(&format!(
        "SELECT concat_ws(' ', count(*), count(DISTINCT nonce), min(nonce), max(nonce)) \
         FROM managed_tx JOIN lane USING (lane_id) WHERE signer = '\\x{signer}'"
    ));
    let expected = format!("{AT_ONCE} {AT_ONCE} 0 {}", AT_ONCE - 1);
    ensure(
        allocated.as_deref() == Some(&expected),
        format!("rows, nonces, lowest, highest: {allocated:?} instead of {expected}"),
    )?;
    in_order(cluster, lane).await
}

/// In the lane's event log each accepted tx has the next nonce.
async fn in_order(cluster: &Cluster, lane: &str) -> Outcome<()> {
    let api = &cluster.nodes[2].api;
    let mut nonces = Vec::new();
    let mut after = String::new();
    loop {
        let path = format!("/api/v1/events?signer={lane}&type=TxAccepted&limit=1000{after}");
        let (status, page) = api.get(&path).await?;
        ensure(status.is_success(), format!("{path}: {status} {page}"))?;
        let events = page["events"].as_array().cloned().unwrap_or_default();
        nonces.extend(
            events
                .iter()
                .filter_map(|event| event["data"]["nonce"].as_u64()),
        );
        let next = format!("&after={}", page["next"].as_str().unwrap_or_default());
        if next == after {
            break;
        }
        after = next;
    }
    ensure(
        nonces.iter().copied().eq(0..AT_ONCE as u64),
        format!(
            "the log allocates {} nonces, not 0…{} in order",
            nonces.len(),
            AT_ONCE - 1
        ),
    )
}

/// The result of freezing a keeper.
struct Refused {
    by_gate: u64,
    by_renewal: u64,
    by_next: usize,
    after: Duration,
}

/// A keeps a lane under load, is frozen past its lease, and resumes after B's takeover.
async fn frozen_keeper(cluster: &Cluster, ledger: &Arc<Ledger>) -> Outcome<Refused> {
    let plan = Plan::new("frozen", &cluster.lanes[2..4], 24);
    let load = Load::start(plan, &cluster.balancer(), ledger);
    cluster.wait_accepted_with_token(&load, 200, 0, 1).await?;
    let a = cluster.wait_keeper(0, 2).await?;
    let queried_node = cluster.another_node(a.node);
    let woken = &cluster.nodes[a.node];
    let (fenced, acquired) = (
        "lanekeeper_lease_fenced_total",
        "lanekeeper_lease_acquire_total",
    );
    let not_keeper_before = woken.metric(acquired, "not_keeper").await?;
    let (frozen_at, from) = (Instant::now(), load.len());
    woken.signal(Signal::Stop).await?;
    // Accepted by B.
    cluster
        .wait_accepted_with_token(&load, from, 0, a.token + 1)
        .await?;
    let after = frozen_at.elapsed();
    let Keeper { node: b, token } = cluster.wait_keeper(queried_node, 2).await?;
    ensure(
        b != a.node && token > a.token,
        format!("node {b} keeps the lane under {token}, before {a:?}"),
    )?;
    woken.signal(Signal::Continue).await?;
    // By the fence; or, if its last commit was never sent, when it acquires the lane again to read it.
    eventually("A is refused", Duration::from_secs(20), || async {
        let not_keeper = woken.metric(acquired, "not_keeper").await? - not_keeper_before;
        let is_refused = woken.metric(fenced, "").await? > 0.0 || not_keeper > 0.0;
        Ok(is_refused.then_some(()))
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(1)).await; // the load continues with A awake
    let replies = load.stop().await?;
    let by_next = replies.iter().skip(from);
    let by_next = by_next
        .filter(|reply| reply.lane == 0 && reply.outcome.has_nonce_under(token))
        .count();
    cluster.auditor(ledger).wait_until_idle().await?;
    let keeper = cluster.wait_keeper(queried_node, 2).await?;
    ensure(
        keeper == Keeper { node: b, token },
        format!("node {b} under {token} was at work, and still {keeper:?} took the lane from it"),
    )?;
    ensure(
        woken.logged("lost")? + woken.logged("fenced")? + woken.logged("the lane is read again")?
            > 0,
        "A's log does not show that it was fenced",
    )?;
    Ok(Refused {
        by_gate: count(woken.metric(fenced, "gate").await?),
        by_renewal: count(woken.metric(fenced, "renew").await?),
        by_next,
        after,
    })
}

/// A keeps writing after the end of its lease and B's takeover: the gate refuses.
async fn unaware_keeper(
    cluster: &Cluster,
    database_proxies: &[TcpProxy],
    ledger: &Arc<Ledger>,
) -> Outcome<FencedKeeper> {
    let plan = Plan::new("unaware", &cluster.lanes[2..4], 24);
    // A node without renewals is not ready, but must get requests here.
    let load = Load::start(plan, &cluster.unchecked_balancer(), ledger);
    cluster.wait_accepted_with_token(&load, 50, 0, 1).await?;
    let fenced_keeper = cluster.fence_keeper(database_proxies, &load, 0, 2).await?;
    load.stop().await?;
    cluster.auditor(ledger).wait_until_idle().await?;
    Ok(fenced_keeper)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a counter is a small whole number"
)]
fn count(metric: f64) -> u64 {
    metric as u64
}

/// The body of a payment that the ledger does not contain.
fn stray(lane: &str, id: &str) -> Value {
    json!({"signer": lane, "requestId": id, "payload": {"to": random_address(), "value": "1", "gas": "21000"}})
}
