//! Checks of lanes that lost promises: halted on every node, with the loss named, and nothing paid twice.

use std::time::Instant;

use alloy_primitives::U256;
use proof::cluster::Cluster;
use proof::ledger::Ledger;
use proof::{Outcome, Report, ensure, eventually, print_step, random_address, run};
use serde_json::{Value, json};

use super::{LOST, LossCases, Lost, WATCHED, pay, running_nodes};
use crate::database::restart::kind_of;

/// Every lane with a loss refuses every request on every node while it is watched, and names the reason.
pub(super) async fn halted(
    report: &mut Report,
    cluster: &Cluster,
    fates: &LossCases,
    lost: &Lost,
) -> Outcome<String> {
    let losers = [fates.named, fates.orphaned, fates.unsent];
    for lane in losers {
        let what = format!("lane {lane} is halted");
        // A lost request must not be accepted as new either, even before the loss is noticed.
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
    // The surviving keeper names every request.
    let reason = reason(cluster, fates, fates.named).await?;
    let ids = lost.requests(&cluster.lanes[fates.named]);
    let unnamed: Vec<&String> = ids.iter().filter(|id| !reason.contains(*id)).collect();
    report.fact("reason", reason.as_str());
    ensure(
        unnamed.is_empty(),
        format!("{unnamed:?} are lost and not named: {reason}"),
    )?;
    let orphaned = self::reason(cluster, fates, fates.orphaned).await?;
    report.fact("reasonWithoutItsKeeper", orphaned.as_str());
    ensure(
        orphaned.contains("nonces 3 to 7"),
        format!("the nonces that only the chain knows are not named: {orphaned}"),
    )?;
    print_step(format!("watched for {WATCHED:?}"));
    let watched = Instant::now();
    while watched.elapsed() < WATCHED {
        for lane in losers {
            let repeat = repeated(cluster, lost, lane)?;
            for body in [repeat, new_body(cluster, lane)] {
                let refused = refusals(cluster, fates, lane, &body).await?;
                ensure(
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
         went on, 0 duplicated",
        lost.comparison.promised_count(),
        losers.len()
    ))
}

/// Each node's response to a request for a lane.
async fn refusals(
    cluster: &Cluster,
    fates: &LossCases,
    lane: usize,
    body: &Value,
) -> Outcome<Vec<String>> {
    let mut kinds = Vec::new();
    for node in running_nodes(cluster, fates) {
        let (status, problem) = node.api.create(body.clone(), "").await?;
        ensure(
            !status.is_success(),
            format!("lane {lane} accepted {problem} at node {}", node.name),
        )?;
        kinds.push(kind_of(&problem).to_owned());
    }
    Ok(kinds)
}

/// Repeats a request that was promised and lost.
fn repeated(cluster: &Cluster, lost: &Lost, lane: usize) -> Outcome<Value> {
    let signer = &cluster.lanes[lane];
    let payments = lost.comparison.payments();
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

/// Why a lane is halted, from `lane show`: the longest text of any node.
async fn reason(cluster: &Cluster, fates: &LossCases, lane: usize) -> Outcome<String> {
    // A lane whose keeper died is refused at once; the next keeper compares it with its chain after the lease.
    let what = format!("lane {lane} says why it is halted");
    eventually(&what, WATCHED, || async {
        refusals(cluster, fates, lane, &new_body(cluster, lane)).await?;
        let reported = reported_reason(cluster, fates, lane).await?;
        Ok((!reported.is_empty()).then_some(reported))
    })
    .await
}

async fn reported_reason(cluster: &Cluster, fates: &LossCases, lane: usize) -> Outcome<String> {
    let mut reason = String::new();
    for node in running_nodes(cluster, fates) {
        let args = [
            "lane",
            "show",
            &cluster.lanes[lane],
            "--json",
            "--url",
            node.api.url(),
        ];
        let output = run(&args, &[]).await?;
        let reported: Value = serde_json::from_slice(&output.stdout)?;
        let reported = reported["waitingFor"].as_str().unwrap_or_default();
        if reported.len() > reason.len() {
            reported.clone_into(&mut reason);
        }
    }
    Ok(reason)
}

/// An operator accepts the loss: the lanes continue, and sent transactions stay on chain exactly once.
pub(super) async fn resumed(
    report: &mut Report,
    cluster: &Cluster,
    fates: &LossCases,
    lost: &Lost,
    ledger: &Ledger,
) -> Outcome<()> {
    let chain = &cluster.chain.chain;
    chain.call("evm_setAutomine", json!([true])).await?;
    for lane in [fates.named, fates.orphaned, fates.unsent] {
        let signer = &cluster.lanes[lane];
        for node in running_nodes(cluster, fates) {
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
            print_step(format!(
                "lane resume at {}: {} {}",
                node.name,
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            ));
        }
        pay(cluster, ledger, lane, "resumed", 3).await?;
    }
    cluster.auditor(ledger).wait_until_idle().await?;
    let mut on_chain = [0, 0];
    for (comparison, expected) in [(ledger, &[1][..]), (&lost.comparison, &[0, 1][..])] {
        for (id, payment) in comparison.payments() {
            let wei = chain.balance(&payment.to).await?;
            let is_expected = expected.iter().any(|n| wei == U256::from(*n));
            ensure(is_expected, format!("{id}: {wei} wei arrived"))?;
            on_chain[usize::from(expected.len() > 1)] += usize::from(!wei.is_zero());
        }
    }
    report.fact("lostButSentBefore", on_chain[1]);
    ensure(
        on_chain[1] == 2 * LOST,
        format!("{} of the lost were sent, not {}", on_chain[1], 2 * LOST),
    )
}
