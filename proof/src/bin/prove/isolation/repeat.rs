//! The calls that one repeat of a known request costs while thousands of txs wait at the node.

use std::collections::BTreeMap;

use proof::payers::Payers;
use proof::{Outcome, Report, ensure, eventually, print_step};
use reqwest::StatusCode;
use rig::postgres::Postgres;
use serde_json::{Value, json};

use super::PROOF;
use crate::calls::{CLIENTS, Counted, DONE_WITHIN, calls_since};

const EXTRA_CALLS_MAX: u64 = 5;
/// Blocks between the last send and the start of counting, and blocks of each count.
const SETTLE_BLOCKS: u64 = 5;
const COUNTED_BLOCKS: u64 = 20;

pub(crate) async fn count(
    report: &mut Report,
    server: &Postgres,
    in_flight: usize,
) -> Outcome<String> {
    print_step(format!("a repeat while {in_flight} txs are in flight"));
    // Without resubmits, so that every difference between the counts is the repeat's.
    let more = format!("[lane]\nmempoolDepth = {in_flight}\n[resubmit]\nenabled = false\n");
    let counted = Counted::with_lanes(PROOF, ("repeat", 1), server, more).await?;
    let (network, node) = (&counted.network, &counted.single_node);
    let lane = &node.lanes[0];
    let payers = Payers {
        api: &node.node.api,
        ledger: &node.ledger,
        lanes: &node.lanes,
        clients: CLIENTS,
    };
    network.stop_mining().await?;
    payers.post(in_flight).await?;
    eventually("all are at the node", DONE_WITHIN, || async {
        let held = network.chain.pending_nonce(lane).await?;
        Ok((held == in_flight as u64).then_some(()))
    })
    .await?;
    network.mine_without_room().await?;
    network.wait_for_blocks(SETTLE_BLOCKS).await?;

    let without = count_calls(&counted).await?;
    let body = repeated_body(&counted)?;
    let (status, tx) = node.node.api.create(body, "").await?;
    ensure(status == StatusCode::OK, format!("{status}: {tx}"))?;
    let with = count_calls(&counted).await?;

    network.mine_with_room().await?;
    let audit = node.audit(&network.chain, DONE_WITHIN);
    ensure(
        audit.run().await?.promised == in_flight,
        "a promise is missing",
    )?;
    let sum = |calls: &BTreeMap<String, u64>| calls.values().sum::<u64>();
    let extra = sum(&with).saturating_sub(sum(&without));
    report.fact(
        "repeat",
        json!({"inFlight": in_flight, "callsWithout": without, "callsWith": with, "extra": extra}),
    );
    let figure = format!(
        "{extra} extra calls for a repeat with {in_flight} txs in flight (limit {EXTRA_CALLS_MAX})"
    );
    ensure(extra <= EXTRA_CALLS_MAX, figure.clone())?;
    Ok(figure)
}

/// The calls of the next blocks, by method.
async fn count_calls(counted: &Counted) -> Outcome<BTreeMap<String, u64>> {
    let before = counted.proxy.calls();
    counted.network.wait_for_blocks(COUNTED_BLOCKS).await?;
    Ok(calls_since(&before, &counted.proxy.calls()))
}

/// The body of a payment that was accepted before.
fn repeated_body(counted: &Counted) -> Outcome<Value> {
    let payments = counted.single_node.ledger.payments();
    let (request_id, payment) = payments.first_key_value().ok_or("no payment")?;
    Ok(json!({
        "signer": payment.signer, "requestId": request_id,
        "payload": {"to": payment.to, "value": "1", "gas": "21000"},
    }))
}
