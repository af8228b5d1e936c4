//! What must be seen of lanes that lost promises: halted everywhere, named, and not one wei twice.

use std::time::Instant;

use alloy_primitives::U256;
use proof::cluster::Cluster;
use proof::ledger::Ledger;
use proof::{Outcome, Report, demand, eventually, random_address, run, say};
use serde_json::{Value, json};

use super::{Fates, LOST, Lost, WATCHED, living, pay};
use crate::restart::kind_of;

/// Every lane that lost something refuses every request at every node, for as long as it is watched, and
/// says why.
pub(super) async fn halted(
    report: &mut Report,
    cluster: &Cluster,
    fates: &Fates,
    lost: &Lost,
) -> Outcome<String> {
    let losers = [fates.named, fates.orphaned, fates.unsent];
    for lane in losers {
        let what = format!("lane {lane} is halted");
        // What was promised and lost must not be taken for new either, not even before it is noticed.
        let repeat = repeated(cluster, lost, lane)?;
        eventually(&what, WATCHED, || async {
            let refused = refusals(cluster, fates, lane, &repeat).await?;
            Ok(refused
                .iter()
                .any(|kind| kind == "lane-halted")
                .then_some(()))
        })
        .await?;
    }
    // The keeper that lives names every request.
    let reason = reason(cluster, fates, fates.named).await?;
    let ids = lost.requests(&cluster.lanes[fates.named]);
    let unnamed: Vec<&String> = ids.iter().filter(|id| !reason.contains(*id)).collect();
    report.fact("reason", reason.as_str());
    demand(
        unnamed.is_empty(),
        format!("{unnamed:?} are lost and not named: {reason}"),
    )?;
    let orphaned = self::reason(cluster, fates, fates.orphaned).await?;
    report.fact("reasonWithoutItsKeeper", orphaned.as_str());
    demand(
        orphaned.contains("nonces 3 to 7"),
        format!("the nonces that only the chain knows are not named: {orphaned}"),
    )?;
    say(format!("watched for {WATCHED:?}"));
    let watched = Instant::now();
    while watched.elapsed() < WATCHED {
        for lane in losers {
            let repeat = repeated(cluster, lost, lane)?;
            for body in [repeat, new_body(cluster, lane)] {
                let refused = refusals(cluster, fates, lane, &body).await?;
                demand(
                    refused.iter().all(|kind| kind == "lane-halted"),
                    format!("a node did not refuse lane {lane}: {refused:?}"),
                )?;
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    report.fact("haltedLanes", losers.len());
    Ok(format!(
        "an asynchronous promotion that lost {} promises: noticed, {} lanes halted and named, the others \
         went on, 0 doubled",
        lost.books.promised_count(),
        losers.len()
    ))
}

/// What each node says to a request for a lane.
async fn refusals(
    cluster: &Cluster,
    fates: &Fates,
    lane: usize,
    body: &Value,
) -> Outcome<Vec<String>> {
    let mut kinds = Vec::new();
    for node in living(cluster, fates) {
        let (status, problem) = node.api.create(body.clone(), "").await?;
        demand(
            !status.is_success(),
            format!("lane {lane} accepted {problem} at node {}", node.name),
        )?;
        kinds.push(kind_of(&problem).to_owned());
    }
    Ok(kinds)
}

/// A request that was promised and lost, once more.
fn repeated(cluster: &Cluster, lost: &Lost, lane: usize) -> Outcome<Value> {
    let signer = &cluster.lanes[lane];
    let payments = lost.books.payments();
    let first = payments
        .iter()
        .find(|(_, payment)| payment.signer == *signer);
    let (id, payment) = first.ok_or("nothing was lost")?;
    Ok(body(signer, id, &payment.to))
}

fn new_body(cluster: &Cluster, lane: usize) -> Value {
    let id = format!("refused-{}", random_address());
    body(&cluster.lanes[lane], &id, &random_address())
}

fn body(signer: &str, id: &str, to: &str) -> Value {
    json!({"signer": signer, "requestId": id, "payload": {"to": to, "value": "1", "gas": "21000"}})
}

/// Why a lane is halted, by `lane show`: the longest that any node tells.
async fn reason(cluster: &Cluster, fates: &Fates, lane: usize) -> Outcome<String> {
    // A lane whose keeper died is refused at once, and compared with its chain by whoever is asked for it
    // when its lease is over.
    let what = format!("lane {lane} says why it is halted");
    eventually(&what, WATCHED, || async {
        refusals(cluster, fates, lane, &new_body(cluster, lane)).await?;
        let told = told_reason(cluster, fates, lane).await?;
        Ok((!told.is_empty()).then_some(told))
    })
    .await
}

async fn told_reason(cluster: &Cluster, fates: &Fates, lane: usize) -> Outcome<String> {
    let mut reason = String::new();
    for node in living(cluster, fates) {
        let args = [
            "lane",
            "show",
            &cluster.lanes[lane],
            "--json",
            "--url",
            node.api.url(),
        ];
        let output = run(&args, &[]).await?;
        let told: Value = serde_json::from_slice(&output.stdout)?;
        let told = told["waitingFor"].as_str().unwrap_or_default();
        if told.len() > reason.len() {
            told.clone_into(&mut reason);
        }
    }
    Ok(reason)
}

/// An operator accepts the loss: the lanes go on, and what had been sent stays on chain exactly once.
pub(super) async fn resumed(
    report: &mut Report,
    cluster: &Cluster,
    fates: &Fates,
    lost: &Lost,
    ledger: &Ledger,
) -> Outcome<()> {
    let chain = &cluster.chain.chain;
    chain.call("evm_setAutomine", json!([true])).await?;
    for lane in [fates.named, fates.orphaned, fates.unsent] {
        let signer = &cluster.lanes[lane];
        for node in living(cluster, fates) {
            let args = [
                "lane",
                "resume",
                signer,
                "--accept-loss",
                "--reason",
                "the proof has counted it",
                "--url",
                node.api.url(),
            ];
            let output = run(&args, &[]).await?;
            say(format!(
                "lane resume at {}: {} {}",
                node.name,
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            ));
        }
        pay(cluster, ledger, lane, "resumed", 3).await?;
    }
    cluster.auditor(ledger).quiet().await?;
    let mut on_chain = [0, 0];
    for (books, expected) in [(ledger, &[1][..]), (&lost.books, &[0, 1][..])] {
        for (id, payment) in books.payments() {
            let wei = chain.balance(&payment.to).await?;
            let is_expected = expected.iter().any(|n| wei == U256::from(*n));
            demand(is_expected, format!("{id}: {wei} wei arrived"))?;
            on_chain[usize::from(expected.len() > 1)] += usize::from(!wei.is_zero());
        }
    }
    report.fact("lostButSentBefore", on_chain[1]);
    demand(
        on_chain[1] == 2 * LOST,
        format!("{} of the lost were sent, not {}", on_chain[1], 2 * LOST),
    )
}
