//! The confirmation time of one lane while another has a thousand reverted transactions whose reasons take a second each.

use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use proof::stats::{Spread, ms};
use proof::{Outcome, Report, ensure, eventually, print_step};
use reqwest::StatusCode;
use rig::postgres::Postgres;
use rig::rpc_proxy::{CallFilter, Fault, Rule};
use serde_json::json;

use super::PROOF;
use crate::calls::{CLIENTS, Counted, DONE_WITHIN};

/// How long `eth_call` takes.
const CALL_DELAY: Duration = Duration::from_secs(1);
/// The median confirmation time relative to the one without reverts.
const RATIO_MAX: f64 = 1.2;
/// Init code that reverts: `PUSH1 0 PUSH1 0 REVERT`.
const REVERTING_INIT_CODE: &str = "0x60006000fd";

pub(crate) async fn measure(
    report: &mut Report,
    server: &Postgres,
    reverts: usize,
    payments: usize,
) -> Outcome<String> {
    print_step(format!(
        "{payments} payments of one lane beside {reverts} reverts of another, eth_call at 1 s"
    ));
    let more = "[admission]\nsimulate = \"never\"\n".to_owned();
    let counted = Counted::with_lanes(PROOF, ("reverts", 2), server, more).await?;
    let slow = Rule::new(CallFilter::of("eth_call"), Fault::Delay(CALL_DELAY));
    counted.proxy.add(slow);
    let without = confirmation_times(&counted, "before", payments).await?;
    post_reverts(&counted, reverts).await?;
    let with = confirmation_times(&counted, "beside", payments).await?;
    let failed = await_failed(&counted, reverts).await?;
    ensure(failed == reverts, format!("{failed} of {reverts} failed"))?;
    let medians = [&without, &with].map(|times| times.percentile(50));
    let ratio = medians[1].as_secs_f64() / medians[0].as_secs_f64();
    report.fact(
        "reverts",
        json!({
            "reverts": reverts, "payments": payments, "without": without.to_json(),
            "beside": with.to_json(), "ratio": ratio,
        }),
    );
    let figure = format!(
        "payments confirmed after {} ms beside {reverts} reverts, {} ms without: {ratio:.2} (limit {RATIO_MAX})",
        ms(medians[1]),
        ms(medians[0]),
    );
    ensure(ratio <= RATIO_MAX, figure.clone())?;
    Ok(figure)
}

/// How long payments of the second lane take until they are confirmed, one after the other.
async fn confirmation_times(counted: &Counted, name: &str, count: usize) -> Outcome<Spread> {
    let node = &counted.single_node;
    let mut times = Vec::with_capacity(count);
    for number in 0..count {
        let request_id = format!("{name}-{number}");
        let body = node
            .ledger
            .transfer_body_with_gas(&node.lanes[1], &request_id);
        let began = Instant::now();
        let (status, tx) = node
            .node
            .api
            .create(body, "?wait=confirmed&timeout=60s")
            .await?;
        times.push(began.elapsed());
        let is_confirmed = status == StatusCode::ACCEPTED && tx["state"] == "CONFIRMED";
        ensure(is_confirmed, format!("{request_id}: {status} {tx}"))?;
    }
    Ok(Spread::of(times))
}

/// Contract creations of the first lane that revert.
async fn post_reverts(counted: &Counted, count: usize) -> Outcome<()> {
    let node = &counted.single_node;
    let post = |number: usize| async move {
        let body = json!({
            "signer": node.lanes[0], "requestId": format!("revert-{number}"),
            "payload": {"data": REVERTING_INIT_CODE, "gas": "100000"},
        });
        let (status, tx) = node.node.api.create(body, "").await?;
        ensure(
            status == StatusCode::ACCEPTED,
            format!("revert {number}: {status} {tx}"),
        )
    };
    let posts = stream::iter((0..count).map(post));
    posts.buffer_unordered(CLIENTS).try_collect().await
}

/// Waits until the reverted transactions are final, and returns how many there are.
async fn await_failed(counted: &Counted, wanted: usize) -> Outcome<usize> {
    let node = &counted.single_node;
    let path = format!(
        "/api/v1/tx?signer={}&state=FAILED_FINAL&limit=1000",
        node.lanes[0]
    );
    eventually(
        "the reverted transactions are final",
        DONE_WITHIN,
        || async {
            let (status, page) = node.node.api.get(&path).await?;
            ensure(status == StatusCode::OK, format!("{path}: {status} {page}"))?;
            let failed = page["txs"].as_array().map_or(0, Vec::len);
            Ok((failed >= wanted.min(1_000)).then_some(failed))
        },
    )
    .await
}
