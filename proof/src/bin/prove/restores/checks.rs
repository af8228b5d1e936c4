//! What must hold after a restore.

use std::collections::BTreeMap;

use alloy_primitives::U256;
use proof::cluster::CHAIN_ID;
use proof::{Outcome, ensure, eventually, random_address};

use super::backup::StoreKind;
use super::{Case, LANES, MINED, NEW, Notice, QUEUED, SENT, SIGNED, WHOLE, WITHIN, body};

/// Waits until every lane has either accepted a request or is halted; returns the reasons of the halted ones.
pub(super) async fn settled_lanes(case: &Case) -> Outcome<BTreeMap<usize, String>> {
    let api = &case.cluster.nodes[0].api;
    let mut reasons = BTreeMap::new();
    for lane in 0..LANES {
        let signer = &case.cluster.lanes[lane];
        let what = format!("lane {lane} goes on or is halted");
        let reason = eventually(&what, WITHIN, || async {
            // Its recipient is not audited: this request only wakes the lane.
            let id = format!("wakeup-{}", random_address());
            let (status, _) = api.create(body(signer, &id, &random_address()), "").await?;
            let (_, shown) = api
                .get(&format!("/api/v1/lanes/{CHAIN_ID}/{signer}"))
                .await?;
            let reason = shown["waitingFor"].as_str().unwrap_or_default();
            let is_halted = reason.contains("resume the lane");
            Ok((status.is_success() || is_halted).then(|| is_halted.then(|| reason.to_owned())))
        });
        if let Some(reason) = reason.await? {
            reasons.insert(lane, reason);
        }
    }
    Ok(reasons)
}

/// Lanes that lost commits are halted where something but the chain shows it; a lane that lost nothing never is.
pub(super) fn require_named(case: &Case, reasons: &BTreeMap<usize, String>) -> Outcome<()> {
    ensure(
        !reasons.contains_key(&WHOLE),
        format!("a lane that lost nothing is halted: {reasons:?}"),
    )?;
    // A dump is loaded into another server: its nodes' witnesses have no opinion of that one.
    let is_same_store = case.backup.kind() != StoreKind::Dump;
    if case.notice == Notice::Witness && is_same_store {
        for lane in [MINED, SENT, SIGNED, QUEUED, NEW] {
            let reason = reasons.get(&lane).map_or("", String::as_str);
            ensure(
                reason.contains("has seen"),
                format!("lane {lane} has lost commits and does not say so: {reasons:?}"),
            )?;
        }
    }
    Ok(())
}

/// Waits until nothing is open that could still be paid, and compares every recipient's balance: nothing is paid twice, and
/// what is not paid is held with a reason.
pub(super) async fn require_paid_once(case: &Case) -> Outcome<()> {
    let api = &case.cluster.nodes[0].api;
    let chain = &case.cluster.chain.chain;
    eventually("every tx has ended or is held", WITHIN * 2, || async {
        let txs = api.all_txs().await?;
        let is_open = txs.iter().any(|tx| {
            let has_ended = tx["state"] == "CONFIRMED" || tx["state"] == "FAILED_FINAL";
            !has_ended && tx["state"] != "STUCK"
        });
        Ok((!is_open).then_some(()))
    })
    .await?;
    let txs = api.all_txs().await?;
    for ledger in [&case.kept, &case.lost] {
        for (id, payment) in ledger.payments() {
            let wei = chain.balance(&payment.to).await?;
            ensure(
                wei <= U256::from(1),
                format!("{id} was paid twice: {wei} wei"),
            )?;
            let tx = txs.iter().find(|tx| tx["requestId"] == *id);
            let tx =
                tx.ok_or_else(|| format!("{id} is not in the store, although it was repeated"))?;
            let is_held = tx["state"] == "STUCK" && !tx["reason"].is_null();
            ensure(
                !wei.is_zero() || is_held,
                format!("{id} is neither paid nor held with a reason: {tx}"),
            )?;
        }
    }
    Ok(())
}
